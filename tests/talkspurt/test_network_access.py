"""The note on raised dependencies, on two small wheels."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "requirements/network_access.py"


@pytest.fixture(scope="module")
def network_access() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("network_access", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("network_access", None)


def wheel(folder: Path, version: str, **files: bytes) -> Path:
    path = folder / f"it-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, data in files.items():
            made.writestr(f"it/{name.replace('__', '.')}", data)
    return path


def test_a_release_that_gains_network_access_is_told_from_one_that_had_it(
    network_access: ModuleType, tmp_path: Path
) -> None:
    quiet = b'"""Documentation: https://docs.example.org/it"""\nimport socketserver_free, urllib.parse\n'
    old = wheel(
        tmp_path, "1.0", a__py=quiet, b__py=b"import ssl\n", c__so=b"\x7fELF\0malloc\0https://old.example.org/x\0"
    )
    new = wheel(
        tmp_path,
        "1.1",
        a__py=quiet + b"import http.client\nfrom urllib import request\nTO = 'https://events.example.com/v1'\n",
        b__py=b"import ssl\nTELEMETRY = True\n",
        c__so=b"\x7fELF\0malloc\0getaddrinfo\0https://old.example.org/y\0https://collect.example.net/\0",
        d__py=b"{{ template }",
    )
    assert network_access.row("it", "1.0", "1.1", (old, new)) == (
        "| it | 1.0 | 1.1 | calls getaddrinfo, imports http, imports urllib.request, names collect.example.net,"
        " names events.example.com, says telemetry |"
    )
    assert network_access.row("it", "1.1", "1.0", (new, old)) == "| it | 1.1 | 1.0 | nothing |"
    assert "not compared" in network_access.row("it", "1.0", "1.1", None)


def test_only_packages_that_both_lists_have_and_that_differ_are_raised(network_access: ModuleType) -> None:
    old = "a==1.0 \\\n    --hash=sha256:0\n    # via b\nb==2.0 ; sys_platform == 'linux' \\\nc==3\n"
    new = "a==1.1 \\\n    --hash=sha256:1\nb==2.0 ; sys_platform == 'linux' \\\nd==1\n"
    assert network_access.raised(old, new) == {"a": ("1.0", "1.1")}
