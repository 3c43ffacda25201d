"""Text from the network, made plain once at the edge: no surrogates and no control characters. Pure.

Lenient decoders keep bytes that are not UTF-8 as lone surrogates. No JSON, database or terminal takes these, and
PostgreSQL takes no NUL either. So every edge (SIP headers, carriers' fields, managers' messages, addresses of HTTP
requests) passes its text through this module before another layer sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

REPLACEMENT = "\ufffd"
"""Stands for a character that cannot be kept, as in Unicode 15 section 3.9."""

_NOT_PLAIN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_TOO_DEEP = "the JSON is nested too deep"
_BLANKS = frozenset("\t\n\v\f\r\x85\u2028\u2029")


def is_plain(text: str) -> bool:
    """Return True if ``plain`` would not change the text."""
    return text.isprintable() or _NOT_PLAIN.search(text) is None


def plain(text: str) -> str:
    """Return one line of text of the same length. Tabs and line breaks become spaces, other control characters and
    surrogates become ``REPLACEMENT``."""
    return text if text.isprintable() else _NOT_PLAIN.sub(_replaced, text)  # isprintable is the quick answer


def plain_lines(text: str) -> str:
    """Return text of the same length that keeps tabs and line breaks; for words to be spoken and for data."""
    return text if text.isprintable() else _NOT_IN_LINES.sub(REPLACEMENT, text)


def plain_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return named values, names and values plain."""
    return {plain(name): plain(value) for name, value in fields.items()}


def plain_json(value: Any, clean: Callable[[str], str] = plain_lines) -> Any:
    """Return a decoded JSON value with all its strings made plain by ``clean``, and its names by ``plain``.

    Raises:
        ValueError: it is nested too deep.
    """
    try:
        return _plain_json(value, clean)
    except RecursionError as exc:
        raise ValueError(_TOO_DEEP) from exc


def _plain_json(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {plain(name) if isinstance(name, str) else name: _plain_json(v, clean) for name, v in value.items()}
    if isinstance(value, list):
        return [_plain_json(entry, clean) for entry in value]
    return value


def read_json(data: str | bytes) -> Any:
    """Decode JSON. The half of a surrogate pair, which JavaScript leaves where it cuts a string, is no reason to lose a
    message: it becomes a lone surrogate, which ``plain_json`` replaces.

    Raises:
        ValueError: the data is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if (b"\\u" if isinstance(data, bytes) else "\\u") not in data:  # type: ignore[operator]
            raise
        try:
            return json.loads(data, parse_constant=_refuse)
        except RecursionError as exc:
            raise ValueError(_TOO_DEEP) from exc


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def may_need_cleaning(data: str | bytes) -> bool:
    """Return False if JSON text surely holds plain strings: it is ASCII, without escapes and without DEL.

    A strict decoder refuses raw control characters, so they need an escape. This check costs less than walking the
    value, and most messages of a call are audio.
    """
    if isinstance(data, str):
        return "\\" in data or "\x7f" in data or not data.isascii()
    return b"\\" in data or b"\x7f" in data or not data.isascii()


def _replaced(match: re.Match[str]) -> str:
    return " " if match[0] in _BLANKS else REPLACEMENT
