"""Say of each dependency that is raised whether its new release gained network access: requirements/lock calls this.

    python requirements/network_access.py OLD_FOLDER NEW_FOLDER

Both folders hold lists (``*.txt``). The wheels of both releases are loaded and compared: which network modules their
Python code imports, which functions of the network their native code names, which hosts and which words of reporting
either has. What only the new one has is printed as a Markdown table. It hints where to look and proves nothing.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

_MODULES = frozenset(
    "socket ssl http urllib.request urllib3 requests httpx aiohttp websockets websocket ftplib smtplib xmlrpc grpc"
    " telnetlib pycurl socketserver".split()
)
_NATIVE = (b"getaddrinfo", b"gethostbyname", b"curl_easy_perform", b"SSL_connect", b"res_query", b"io.systemd.Resolve")
_HOST = re.compile(rb"https?://([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)")
_WORDS = re.compile(rb"telemetry|analytics|usage_stats|do_not_track|posthog|sentry_sdk|phone_home|update_check", re.I)
_RELEASE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.M)


def raised(old: str, new: str) -> dict[str, tuple[str, str]]:
    """Return the old and the new release of each package that both lists have, where these differ."""
    before, after = dict(_RELEASE.findall(old)), dict(_RELEASE.findall(new))
    return {name: (before[name], after[name]) for name in after if before.get(name, after[name]) != after[name]}


def signs(wheel: Path) -> set[str]:
    """Return the signs of network access in a wheel, e.g. ``imports socket``."""
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.endswith(".py"):
                found.update(_python_signs(files.read(name)))
            elif re.search(r"\.(so|pyd|dylib|dll)(\.|$)", name):
                found.update(_native_signs(files.read(name)))
    return found


def _python_signs(source: bytes) -> Iterator[str]:
    yield from (f"says {word.decode().lower()}" for word in _WORDS.findall(source))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a template, or code of another Python
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A text that begins with an address is likely to be one; documentation has them in its midst.
            host = _HOST.match(node.value.encode(errors="replace"))
            if host is not None:
                yield f"names {host[1].decode()}"
        for name in names:
            yield from (f"imports {module}" for module in _MODULES if f"{name}.".startswith(f"{module}."))


def _native_signs(code: bytes) -> Iterator[str]:
    yield from (f"calls {name.decode()}" for name in _NATIVE if name in code)
    yield from (f"names {host.decode()}" for host in _HOST.findall(code))
    yield from (f"says {word.decode().lower()}" for word in _WORDS.findall(code))


def row(name: str, old: str, new: str, wheels: tuple[Path, Path] | None) -> str:
    """Return the line of the table for one package. ``wheels`` None: a release has no wheel here."""
    if wheels is None:
        gained = "not compared: no wheel of both could be loaded"
    else:
        gained = ", ".join(sorted(signs(wheels[1]) - signs(wheels[0]))) or "nothing"
    return f"| {name} | {old} | {new} | {gained} |"


def _load(name: str, version: str, folder: Path) -> Path | None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    done = subprocess.run([*command, f"{name}=={version}"], stderr=subprocess.DEVNULL)
    return next(folder.glob("*.whl"), None) if done.returncode == 0 else None


def main(old_folder: Path, new_folder: Path) -> None:
    """Print the table for all lists of both folders."""
    changes: dict[str, tuple[str, str]] = {}
    for path in sorted(new_folder.glob("*.txt")):
        if (old := old_folder / path.name).exists():
            changes |= raised(old.read_text(), path.read_text())
    print("# Network access that raised releases gained\n")
    print("Written by `make lock` against the lists of the last commit; `make audit` shows it. See")
    print("[network_access.py](network_access.py) for what is compared. A sign is a reason to look, not a proof.\n")
    print("| package | old | new | gained |\n|---|---|---|---|" if changes else "No release was raised.")
    for name, (old_version, new_version) in sorted(changes.items()):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            before, after = _load(name, old_version, Path(first)), _load(name, new_version, Path(second))
            print(row(name, old_version, new_version, (before, after) if before and after else None), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
