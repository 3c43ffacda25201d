"""The page of the commands, from the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from talkspurt.cli import parser

_HEAD = """# Commands

<!-- Written by `python -m talkspurt.reference docs`; change `talkspurt/cli.py`. -->

`talkspurt COMMAND --help` says the same in a terminal. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration,
130 interrupted. Long work shows a progress bar on a terminal and plain lines in a pipe.

Where a command lists them without a meaning: `-c FILE` (or `--config FILE`) is the configuration file, by default the
built-in values; `--json` prints the result as one JSON object; `--keys-file FILE` replaces `auth.keys_file`.
"""

_SHARED = {
    ("-c", "configuration file (default: built-in defaults)"): "`-c FILE`",
    ("--json", "print the result as one JSON object"): "`--json`",
    ("--keys-file", "file of keys (default: auth.keys_file of the configuration)"): "`--keys-file FILE`",
}
"""Option and help text of options that the head of the page explains -> its short form."""


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
    actions = [
        each for each in command._actions if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)
    ]
    shared = [short for each in actions if (short := _shared(each))]
    own = [each for each in actions if not _shared(each)]
    lines = [f"* {_name(each)}" + (f": {about}" if (about := _meaning(each)) else "") for each in own]
    if shared:
        lines.append(f"* {', '.join(shared)}")
    parts = [f"## `{command.prog}`\n\n{command.description}\n"]
    if lines:
        parts.append("\n".join(lines) + "\n")
    examples = (command.epilog or "").removeprefix("examples:\n")
    has_commands = any(isinstance(each, argparse._SubParsersAction) for each in command._actions)
    if examples and (lines or not has_commands):  # otherwise the sections of its commands have the example
        parts.append("```sh\n" + "".join(f"{line.removeprefix('  ')}\n" for line in examples.splitlines()) + "```\n")
    return "\n".join(parts)


def _shared(action: argparse.Action) -> str:
    """Return the short form of an option that the head of the page explains, or an empty text."""
    return next(
        (_SHARED[key] for option in action.option_strings if (key := (option, action.help or "")) in _SHARED), ""
    )


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
