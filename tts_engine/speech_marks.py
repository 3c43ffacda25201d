"""Marks in the text of an utterance: speed, loudness, pitch, language, pauses, the phonemes of words. Pure.

A mark is one character of a private-use plane, so it never meets real text, has a place of its own in the positions of
the text, and an engine that does not know it drops it as noise. Marks of style hold until the next one of their kind.

======================= ====================================================================
U+100000 + n            speed: n percent of the request's speed
U+101000 + n            loudness: n / 4 - 64 dB
U+102000 + n            pitch: n / 4 - 24 semitones
U+103000 + n            a pause of n times 10 ms
U+103800 + n            language, 26 a + b + 1 for letters a and b from 0; 0: the request's
U+104000                begin of words whose phonemes follow them
U+F0000 + n             the IPA character U+n, after these words
======================= ====================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_SPEED, _GAIN, _PITCH, _PAUSE, _LANGUAGE, _WORDS, _IPA = (
    0x100000, 0x101000, 0x102000, 0x103000, 0x103800, 0x104000, 0xF0000,
)  # fmt: skip
_GAIN_STEPS, _PITCH_STEPS = 4, 4

SPEEDS = (0.25, 4.0)
GAINS_DB = (-64.0, 12.0)
PITCHES = (-12.0, 12.0)
LONGEST_PAUSE_MS = 10_000

RESERVED = "\U000f0000-\U0010ffff"
"""The characters of marks, for a character class. Text from elsewhere must not hold any."""
STYLE = re.compile("[\U00100000-\U00103fff]")
"""A mark of style or a pause."""
_ANY = re.compile(f"[{RESERVED}]")
_PRONOUNCED = re.compile("\U00104000([^\U000f0000-\U0010ffff]*)([\U000f0000-\U000fffff]+)")


@dataclass(frozen=True, slots=True)
class Style:
    """A way of speaking. ``speed`` multiplies the request's."""

    speed: float = 1.0
    gain_db: float = 0.0
    pitch: float = 0.0
    """Semitones above the voice's own."""
    language: str = ""
    """Primary subtag of two letters (BCP 47). Empty: the request's language."""


PLAIN = Style()


@dataclass(frozen=True, slots=True)
class Pronounced:
    """Words ``text[start:end]``, marks included, that are spoken by these phonemes."""

    start: int
    end: int
    ipa: str


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def style_marks(before: Style, after: Style) -> str:
    """Return the marks that change one style into another. Values beyond the bounds become the bounds."""
    marks = ""
    if after.speed != before.speed:
        marks += chr(_SPEED + round(100 * _within(after.speed, SPEEDS)))
    if after.gain_db != before.gain_db:
        marks += chr(_GAIN + round(_GAIN_STEPS * (_within(after.gain_db, GAINS_DB) + 64)))
    if after.pitch != before.pitch:
        marks += chr(_PITCH + round(_PITCH_STEPS * (_within(after.pitch, PITCHES) + 24)))
    if after.language != before.language:
        marks += chr(_LANGUAGE + _language_number(after.language))
    return marks


def _language_number(tag: str) -> int:
    return 26 * (ord(tag[0]) - ord("a")) + ord(tag[1]) - ord("a") + 1 if tag else 0


def pause_mark(ms: float) -> str:
    """Return the mark of a pause. A longer one than ``LONGEST_PAUSE_MS`` is shortened."""
    return chr(_PAUSE + round(min(ms, LONGEST_PAUSE_MS) / 10))


def begin_mark() -> str:
    """Return the mark in front of words whose phonemes follow."""
    return chr(_WORDS)


def ipa_marks(ipa: str) -> str:
    """Return the phonemes of the words since ``begin_mark``."""
    return "".join(chr(_IPA + ord(char)) for char in ipa if ord(char) < 0xFFFE)


def applied(mark: str, style: Style) -> tuple[Style, float]:
    """Return the style after a mark of ``STYLE``, and the milliseconds of its pause."""
    code = ord(mark)
    if code >= _LANGUAGE:
        first, second = divmod(code - _LANGUAGE - 1, 26)
        language = chr(ord("a") + first) + chr(ord("a") + second) if 0 <= first < 26 else ""
        return replace(style, language=language), 0.0
    if code >= _PAUSE:
        return style, min((code - _PAUSE) * 10.0, LONGEST_PAUSE_MS)
    if code >= _PITCH:
        return replace(style, pitch=_within((code - _PITCH) / _PITCH_STEPS - 24, PITCHES)), 0.0
    if code >= _GAIN:
        return replace(style, gain_db=_within((code - _GAIN) / _GAIN_STEPS - 64, GAINS_DB)), 0.0
    return replace(style, speed=_within((code - _SPEED) / 100, SPEEDS)), 0.0


def pronounced(text: str) -> list[Pronounced]:
    """Return the words of a clause whose phonemes are given."""
    return [
        Pronounced(match.start(), match.end(), "".join(chr(ord(char) - _IPA) for char in match[2]))
        for match in _PRONOUNCED.finditer(text)
        if match[1].strip()
    ]


def without_marks(text: str) -> str:
    """Return a text without any mark."""
    return _ANY.sub("", text)
