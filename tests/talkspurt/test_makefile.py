"""The first verb that a newcomer runs: `make` must make the environment with a Python that is new enough."""

import subprocess
import sys
from pathlib import Path

import pytest

from talkspurt.cli import main

ROOT = Path(__file__).parent.parent.parent
OTHER = """#!/bin/sh
exec {python} -c 'import sys; {change}; exec(sys.argv[1])' "$2"
"""
"""A program that says that it is another Python and runs what `-c` gives it."""


def make(python: str, environment: Path) -> subprocess.CompletedProcess[str]:
    """Make the environment alone, without packages."""
    command = ["make", f"PYTHON={python}", f"VENV={environment}", f"{environment}/bin/python"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_an_environment_is_made_with_this_python(tmp_path: Path) -> None:
    made = make(sys.executable, tmp_path / "environment")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "environment" / "bin" / "python").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "sys.version_info = (3, 9, 18)",
            "talkspurt needs Python 3.11 or later and {python} is 3.9; name another one: make PYTHON=python3.12",
        ),
        (
            'sys.platform = "darwin"',
            "talkspurt needs Linux and this is darwin; on macOS use Docker, on Windows WSL 2",
        ),
    ],
)
def test_a_python_that_cannot_be_used_is_one_clear_line(tmp_path: Path, change: str, said: str) -> None:
    other = tmp_path / "python"
    other.write_text(OTHER.format(python=sys.executable, change=change))
    other.chmod(0o755)
    made = make(str(other), tmp_path / "environment")
    assert made.returncode != 0
    assert made.stderr.splitlines()[0] == said.format(python=other)
    assert not (tmp_path / "environment").exists()


def test_the_command_needs_linux(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["version"]) == 2
    said = "talkspurt needs Linux and this is darwin; on macOS use Docker, on Windows WSL 2\n"
    assert capsys.readouterr().err == said
