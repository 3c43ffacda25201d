"""Finds the writing systems of a text, and the characters that are no text (emoji, control characters)."""

from __future__ import annotations

import unicodedata
from collections.abc import Set
from functools import lru_cache

_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "MICRO": "", "FEMININE": "Latin", "MASCULINE": "Latin"}
"""First words of Unicode character names that are not their script's own name. ``µ`` is a unit, not Greek."""

_COMBINING = {"Mn", "Mc", "Me", "Sk", "Lm"}


@lru_cache(maxsize=4096)
def script(char: str) -> str:
    """Return the script of a letter (``Latin``, ``Han``, ``Cyrillic`` ...), or '' if the character is not a letter.

    Python's ``unicodedata`` has no script property; the first word of a letter's name is its script.
    """
    if char.isascii():
        return "Latin" if char.isalpha() else ""
    if unicodedata.category(char)[0] != "L" or unicodedata.category(char) in _COMBINING:
        return ""
    if unicodedata.normalize("NFKC", char).isascii():
        return "Latin"  # full-width and mathematical letters
    word = unicodedata.name(char, "UNKNOWN").split()[0].split("-")[0]
    return _NAMES.get(word, word.capitalize())


def foreign_scripts(text: str, spoken: Set[str]) -> list[str]:
    """Return the scripts in ``text`` that are not in ``spoken``, in order of first appearance."""
    return list(dict.fromkeys(s for s in map(script, text) if s and s not in spoken))


@lru_cache(maxsize=4096)
def is_noise(char: str) -> bool:
    """Return True for a character that no voice reads: control, format, private use, an emoji or its modifier.

    White space counts as text, and so do symbols that are read as words (``%``, ``$``, ``+``, ``°``).
    """
    if char.isascii():
        return not char.isprintable() and not char.isspace()
    category = unicodedata.category(char)
    # Category So holds emoji, arrows and box drawing, but also degree and trade marks, which are read. Sk has skin
    # tones.
    return (
        (category in ("Cc", "Cf", "Co", "Cs", "Cn") and not char.isspace())
        or (category == "So" and char not in "°©®™№℃℉" and not 0x3371 <= ord(char) <= 0x33DF)  # units of one character
        or 0x1F3FB <= ord(char) <= 0x1F3FF
        or 0xFE00 <= ord(char) <= 0xFE0F
        or char == "\u20e3"
    )


def is_speakable(text: str) -> bool:
    """Return True if the text has a letter, a digit, or a symbol that is read as a word."""
    return any(char.isalnum() or char in "%&@$€£¥₹₩¢+=°№½¼¾" for char in text)
