"""A fuzz target, and the parts that several targets share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass

from gateway.seams.plain_text import plain_lines

BETWEEN = b"\x1e"
"""Separates the messages of a case for targets that read several in a row (ASCII's record separator)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser and how it is tried. ``run`` lets only our own faults escape."""

    name: str
    run: Callable[[bytes], None]
    """Tries one case. An exception that the parser does not declare, or a broken promise (AssertionError), escapes."""
    covers: Sequence[str]
    """Files of the parser, as globs from the root of the repository."""
    seeds: Sequence[bytes]
    """Valid input, from which mutation starts."""
    words: Sequence[bytes] = field(default_factory=tuple)
    """Tokens of the format, which a mutator inserts."""
    max_bytes: int = 4096
    wanted: int = 100_000
    """Cases of a campaign that count as enough. Fewer where audio is decoded or a network reads."""
    quick: int = 300
    """Mutated cases of a hermetic run."""
    without_text: str = ""
    """The reason why no text leaves the parser. Empty: ``run`` gives all text that leaves it to ``assert_plain``."""


def assert_plain(value: object) -> None:
    """Fail if a text in a parsed value has a surrogate, or a control character other than a tab or a line break."""
    checked["values"] += 1
    _assert_plain(value)


checked = Counter[str]()
"""The number of values that targets have given to ``assert_plain``."""


def _assert_plain(value: object) -> None:
    if isinstance(value, str):
        assert plain_lines(value) == value, "text that is not plain"
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            _assert_plain(name)
            _assert_plain(entry)
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            _assert_plain(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            _assert_plain(getattr(value, each.name))


def parts(data: bytes) -> list[bytes]:
    """Return the messages of a case."""
    return data.split(BETWEEN)


def joined(*messages: bytes | str) -> bytes:
    """Return a case of several messages."""
    return BETWEEN.join(message.encode() if isinstance(message, str) else message for message in messages)


def pieces(data: bytes, size: int) -> list[bytes]:
    """Cut a stream into reads of ``size`` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]
