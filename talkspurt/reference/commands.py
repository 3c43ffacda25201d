"""The page of the commands, from the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from talkspurt.cli import parser
from talkspurt.reference.table import table

_HEAD = """# Commands

<!-- Written by `python -m talkspurt.reference docs`; change `talkspurt/cli.py`. -->

`talkspurt COMMAND --help` explains the options, with examples. Exit codes: 0 done, 1 failed, 2 wrong usage or
configuration, 130 interrupted. Long work shows a progress bar on a terminal and plain lines in a pipe. `-c FILE` is the
configuration file, by default the built-in values; `--json` prints the result as one JSON object. Square brackets mark
what may be left out.

"""


def markdown() -> str:
    """Return the page."""
    return _HEAD + table(("command", "does"), (_row(each) for each in _commands(parser())))


def _commands(root: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands, those below them too."""
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from _commands(each)


def _row(command: argparse.ArgumentParser) -> tuple[str, str]:
    """Return a command with its arguments, and its purpose."""
    actions = [
        each for each in command._actions if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)
    ]
    words = [command.prog.removeprefix("talkspurt "), *map(_name, actions)]
    return f"`{' '.join(words)}`", (command.description or "").rstrip(".")


def _name(action: argparse.Action) -> str:
    """Return an argument as it is written: its shortest name and its value."""
    value = action.metavar if isinstance(action.metavar, str) else ""
    if not value and action.choices is not None:
        value = "|".join(map(str, action.choices))
    if action.nargs == 0:
        value = ""
    elif not value:
        value = action.dest.upper()
    name = f"{action.option_strings[0]} {value}".strip() if action.option_strings else value
    return name if action.required else f"[{name}]"
