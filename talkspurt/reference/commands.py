"""The page of the commands, from the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from talkspurt.cli import parser
from talkspurt.reference.table import table

_HEAD = """# Commands

<!-- Written by `python -m talkspurt.reference docs`; change `talkspurt/cli.py`. -->

`talkspurt COMMAND --help` says the same in a terminal. Exit codes: 0 done, 1 the job failed, 2 bad usage or
configuration, 130 interrupted. Long work shows a progress bar on a terminal and plain lines in a pipe.
"""


def markdown() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(_section(each) for each in _commands(parser()))])


def _commands(root: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands, those below them too."""
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from _commands(each)


def _section(command: argparse.ArgumentParser) -> str:
    actions = [each for each in command._actions if not isinstance(each, argparse._HelpAction)]
    rows = [(_name(each), _meaning(each)) for each in actions if not isinstance(each, argparse._SubParsersAction)]
    parts = [f"## `{command.prog}`\n\n{command.description}\n"]
    if rows:
        parts.append(table(("argument", "meaning"), rows))
    examples = (command.epilog or "").removeprefix("examples:\n")
    if examples:
        parts.append("```sh\n" + "".join(f"{line.removeprefix('  ')}\n" for line in examples.splitlines()) + "```\n")
    return "\n".join(parts)


def _name(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if not value and action.choices is not None:
        value = "|".join(map(str, action.choices))
    if action.nargs == 0:
        value = ""
    elif not value:
        value = action.dest.upper()
    if not action.option_strings:
        return f"`{value}`" + ("" if action.required else " (optional)")
    return ", ".join(f"`{option}{' ' + value if value else ''}`" for option in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    about = (action.help or "") % {**vars(action), "prog": ""} if action.help else ""
    return about + ("; required" if action.required and action.option_strings else "")
