"""Reads the attributes of SSML's ``prosody``, ``lang`` and ``break``. Pure.

Values are those of SSML 1.1, and of Azure, Google and Polly where these go further. A value that is none of them
changes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from tts_engine.speech_marks import GAINS_DB, LONGEST_PAUSE_MS, Style

_SPEEDS = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.3, "x-fast": 1.7}
_GAINS_DB = {"silent": GAINS_DB[0], "x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 4.0,
             "x-loud": 8.0}  # fmt: skip
_PITCHES = {"x-low": -6.0, "low": -3.0, "medium": 0.0, "default": 0.0, "high": 3.0, "x-high": 6.0}
_BREAKS_MS = {"none": 0.0, "x-weak": 0.0, "weak": 200.0, "medium": 400.0, "strong": 700.0, "x-strong": 1000.0}
_NUMBER = r"([+-]?)(\d{1,4}(?:\.\d{0,4})?|\.\d{1,4})"
_SPEED = re.compile(rf"{_NUMBER}(%?)")
_GAIN = re.compile(rf"{_NUMBER}(dB|%?)", re.I)
_PITCH = re.compile(rf"{_NUMBER}(st|%)", re.I)
_TAG = re.compile("[a-z]{2}")
_CHINESE = ("yue", "cmn")
_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})(ms|s)", re.I)


def prosody(style: Style, attributes: Mapping[str, str]) -> Style:
    """Return the style inside a ``prosody`` element that stands in text of this style."""
    return replace(
        style,
        speed=style.speed * _speed(attributes.get("rate", "")),
        gain_db=style.gain_db + _gain_db(attributes.get("volume", "")),
        pitch=style.pitch + _pitch(attributes.get("pitch", "")),
    )


def lang(style: Style, attributes: Mapping[str, str]) -> Style:
    """Return the style inside a ``lang`` element. A language whose tag has no two letters changes nothing."""
    tag = attributes.get("xml:lang", attributes.get("lang", "")).strip().lower().partition("-")[0]
    tag = "zh" if tag in _CHINESE else tag
    return replace(style, language=tag) if _TAG.fullmatch(tag) else style


def _speed(value: str) -> float:
    """Return a factor. Unsigned percents and numbers are absolute, signed ones changes."""
    value = value.strip().lower()
    if value in _SPEEDS:
        return _SPEEDS[value]
    match = _SPEED.fullmatch(value)
    if match is None:
        return 1.0
    sign, number, percent = match.groups()
    amount = float(number) / (100 if percent else 1)
    factor = amount if not sign else 1 + amount if sign == "+" else 1 - amount
    return factor if factor > 0 else 1.0


def _gain_db(value: str) -> float:
    value = value.strip().lower()
    if value in _GAINS_DB:
        return _GAINS_DB[value]
    match = _GAIN.fullmatch(value)
    if match is None:
        return 0.0
    sign, number, unit = match.groups()
    amount = float(number)
    if unit == "db":
        return -amount if sign == "-" else amount
    # A number is a part of the loudest, 100; a signed one is a change in percent of it.
    factor = amount / 100 if not sign else 1 + amount / 100 if sign == "+" else 1 - amount / 100
    return 20 * math.log10(factor) if factor > 0 else GAINS_DB[0]


def _pitch(value: str) -> float:
    """Return semitones. Values in hertz change nothing, because the voice's own pitch is not known."""
    value = value.strip().lower()
    if value in _PITCHES:
        return _PITCHES[value]
    match = _PITCH.fullmatch(value)
    if match is None:
        return 0.0
    sign, number, unit = match.groups()
    amount = -float(number) if sign == "-" else float(number)
    if unit == "st":
        return amount
    factor = 1 + amount / 100 if sign else amount / 100
    return 12 * math.log2(factor) if factor > 0 else 0.0


def break_ms(attributes: Mapping[str, str]) -> float:
    """Return the pause of a ``break``, milliseconds. A ``time`` goes before a ``strength``."""
    match = _TIME.fullmatch(attributes.get("time", "").strip())
    if match is None:
        return _BREAKS_MS.get(attributes.get("strength", "").strip().lower(), _BREAKS_MS["medium"])
    return min(float(match[1]) * (1 if match[2].lower() == "ms" else 1000), LONGEST_PAUSE_MS)
