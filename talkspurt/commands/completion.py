"""``talkspurt completion SHELL`` prints the script with which a shell completes our commands and options."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from talkspurt.cli import parser

SHELLS = ("bash", "zsh", "fish")


def run(args: argparse.Namespace) -> int:
    """Print the script for one shell."""
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """Return the script for one of ``SHELLS``. Arguments that are files are completed as files."""
    root = parser()
    _mark_files(root)
    return shtab.complete(root, shell=shell)


def _mark_files(command: argparse.ArgumentParser) -> None:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _mark_files(each)
        elif action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
