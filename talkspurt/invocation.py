"""Finds the command that started this process, so that commands in messages can be pasted unchanged."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def command() -> str:
    """Return the command for talkspurt: ``talkspurt`` if the shell finds this installation, else its path, e.g.
    ``.venv/bin/talkspurt``."""
    started = Path(sys.argv[0])
    if started.name != "talkspurt":
        return f"{_shown(Path(sys.executable))} -m talkspurt"
    found = shutil.which("talkspurt")
    if found is not None and started.exists() and os.path.samefile(found, started):
        return "talkspurt"
    return _shown(started)


def pip_install(what: str, *options: str) -> str:
    """Return the command that installs a package into talkspurt's environment."""
    return f"{_shown(Path(sys.executable))} -m pip install {shlex.join([*options, what])}"


def _shown(program: Path) -> str:
    """Return a program's path for the shell, relative to the working directory if it is below it."""
    whole = Path(os.path.abspath(program))  # links are kept: an environment's python is one
    below = whole.is_relative_to(Path.cwd())
    return shlex.quote(str(whole.relative_to(Path.cwd()) if below else whole))
