"""The page of the commands, from the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from talkspurt.cli import parser

_HEAD = """# Commands

<!-- Written by `python -m talkspurt.reference docs`; change `talkspurt/cli.py`. -->

`talkspurt COMMAND --help` explains the options. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration,
130 interrupted. Long work shows a progress bar on a terminal and plain lines in a pipe. `-c FILE` is the configuration
file, by default the built-in values; `--json` prints the result as one JSON object.
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
    """Return the purpose of a command, its arguments in one line, and its examples."""
    actions = [
        each for each in command._actions if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)
    ]
    has_commands = any(isinstance(each, argparse._SubParsersAction) for each in command._actions)
    parts = [f"## `{command.prog}`\n\n{command.description}\n"]
    if actions:
        parts.append(", ".join(map(_name, actions)) + "\n")
    examples = (command.epilog or "").removeprefix("examples:\n")
    if examples and (actions or not has_commands):  # otherwise the sections of its commands have the example
        parts.append("```sh\n" + "".join(f"{line.removeprefix('  ')}\n" for line in examples.splitlines()) + "```\n")
    return "\n".join(parts)


def _name(action: argparse.Action) -> str:
    """Return an argument as it is written: its shortest name, its value, and a mark if it is a required option."""
    value = action.metavar if isinstance(action.metavar, str) else ""
    if not value and action.choices is not None:
        value = "|".join(map(str, action.choices))
    if action.nargs == 0:
        value = ""
    elif not value:
        value = action.dest.upper()
    if not action.option_strings:
        return f"`{value}`" + ("" if action.required else " (optional)")
    name = action.option_strings[0]
    return f"`{name}{' ' + value if value else ''}`" + (" (required)" if action.required else "")
