"""The first verb that a newcomer runs: `make` must make the environment with a Python that is new enough."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
OLD = """#!/bin/sh
exec {python} -c 'import sys; sys.version_info = (3, 9, 18); exec(sys.argv[1])' "$2"
"""
"""A program that says that it is Python 3.9 and runs what `-c` gives it."""


def make(python: str, environment: Path) -> subprocess.CompletedProcess[str]:
    """Make the environment alone, without packages."""
    command = ["make", f"PYTHON={python}", f"VENV={environment}", f"{environment}/bin/python"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_an_environment_is_made_with_this_python(tmp_path: Path) -> None:
    made = make(sys.executable, tmp_path / "environment")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "environment" / "bin" / "python").exists()


def test_a_python_that_is_too_old_is_one_clear_line(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    made = make(str(old), tmp_path / "environment")
    assert made.returncode != 0
    said = f"talkspurt needs Python 3.11 or later and {old} is 3.9; name another one: make PYTHON=python3.12"
    assert made.stderr.splitlines()[0] == said
    assert not (tmp_path / "environment").exists()
