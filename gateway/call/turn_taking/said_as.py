"""Writes the content of SSML's ``say-as`` so that every voice reads it as asked. Pure.

The language of the voice is not known here, so the forms are those that the rules of every language read: ISO 8601 for
dates, units for durations, U+2044 for fractions.
"""

from __future__ import annotations

import re

SPELLED = frozenset({"characters", "character", "spell-out", "spell", "verbatim", "letters"})
DIGITS = frozenset({"digits", "digit", "telephone", "phone"})
UNSPOKEN = frozenset({"expletive", "bleep"})
"""Interpretations whose content is replaced by a short silence."""

_QUANTITIES = frozenset({"cardinal", "number"})
_DATE_ORDERS = {
    "yyyymmdd": "ymd", "mmddyyyy": "mdy", "ddmmyyyy": "dmy", "yyyymm": "ym", "mmyyyy": "my", "mmdd": "md",
    "ddmm": "dm", "yyyy": "y", "mm": "m", "dd": "d",
}  # fmt: skip
_DURATION_UNITS = {1: ("s",), 2: ("min", "s"), 3: ("h", "min", "s")}


_WITH_FORM = re.compile(r"(?:vxml:|number[:_])?([a-z-]+)(?:[:_]([a-z\d]+))?")


def interpretation(how: str, form: str) -> tuple[str, str]:
    """Return ``interpret-as`` and ``format`` from the ways in which they are written.

    VoiceXML 2.0 has ``vxml:date``; drafts of SSML and older voices have ``number:digits`` and ``date_mdy``.
    """
    match = _WITH_FORM.fullmatch(how.lower())
    return (match[1], form or match[2] or "") if match else (how.lower(), form)


def said_as(text: str, how: str, form: str) -> str | None:
    """Return text written so that every voice reads it as ``how`` asks, or None if it stays as it is.

    Args:
        text: the content, without white space around it.
        how: ``interpret-as``, in lower case.
        form: ``format``, in lower case.
    """
    if how in _QUANTITIES and re.fullmatch(r"-?\d{4,}", text):
        return re.sub(r"(?<=\d)(?=(?:\d{3})+$)", "'", text)  # by the separators it is neither a year nor a code
    if how == "ordinal" and text.isdecimal():
        return f"{text}{'th' if text[-2:-1] == '1' else {'1': 'st', '2': 'nd', '3': 'rd'}.get(text[-1], 'th')}"
    if how == "date":
        return _date(text, form)
    if how in ("duration", "time"):
        return _duration(text, form, how)
    if how == "fraction" and (match := re.fullmatch(r"(?:(\d+)\s*[+ ]\s*)?(\d+)\s*[/⁄]\s*(\d+)", text)):
        return f"{match[1]} {match[2]}⁄{match[3]}" if match[1] else f"{match[2]}⁄{match[3]}"
    if how == "unit" and (match := re.fullmatch(r"([-+]?[\d.,/]*\d)\s*([^\W\d].*)", text)):
        return f"{match[1]} {match[2]}"
    if how == "currency":  # with one decimal, money has tenths of its smaller unit
        return re.sub(r"(?<=\d)([.,])(\d)(?!\d)", r"\g<1>\g<2>0", text)
    return None


def _date(text: str, form: str) -> str | None:
    order = _DATE_ORDERS.get(form, form)
    parts = re.findall(r"\d+|\?+", text)
    # Polly and Google write a part that is not known as question marks.
    if whole := re.fullmatch(r"(\d{4}|\?{4})(\d\d|\?\?)(\d\d|\?\?)", text):
        parts, order = [*whole.groups()], "ymd"
    if len(parts) != len(order) or not order or set(order) - set("ymd") or len(set(order)) != len(order):
        return None
    value = {part: number for part, number in zip(order, parts, strict=True) if number.isdecimal()}
    year, month, day = value.get("y", ""), value.get("m", ""), value.get("d", "")
    if year and len(year) != 4:
        year = f"20{year:0>2}"
    if (month and not 1 <= int(month) <= 12) or (day and not 1 <= int(day) <= 31):
        return None
    if year and month and day:
        return f"{year}-{month:0>2}-{day:0>2}"
    if not month:
        return day or year or None
    return f"--{month:0>2}" + (f"-{day:0>2}" if day else f" {year}" if year else "")


def _duration(text: str, form: str, how: str) -> str | None:
    """Return hours, minutes and seconds as quantities: of ``1'21"``, and of ``01:18:30`` if it is a duration."""
    if match := re.fullmatch(r"(?:(\d+)\s*h\s*)?(\d+)\s*['′](?:\s*(\d+)\s*(?:[\"″]|''))?", text):
        values = [match[1], match[2], match[3]]
        return " ".join(f"{int(value)} {unit}" for value, unit in zip(values, ("h", "min", "s"), strict=True) if value)
    parts = text.split(":")
    if how == "time" or not all(map(str.isdecimal, parts)) or len(parts) not in _DURATION_UNITS:
        return None
    units = ("h", "min") if form == "hm" else _DURATION_UNITS[len(parts)]
    if len(units) != len(parts):
        return None
    return " ".join(f"{int(value)} {unit}" for value, unit in zip(parts, units, strict=True) if int(value)) or "0 s"
