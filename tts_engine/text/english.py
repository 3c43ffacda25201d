"""Writes out English text that general voices read wrongly: digits of codes and telephone numbers, addresses.

The rules rewrite text to text, in order. Cardinals, ordinals, years, decimals, prefixed currencies, units and most
abbreviations are left to the voice, which reads them well. Every rule here is for something that the voice read wrongly
or dropped: ``20 €`` lost its euro, ``482913`` became four hundred eighty-two thousand ...
"""

from __future__ import annotations

import re
from collections.abc import Callable

_CURRENCIES = {"€": "€", "$": "$", "£": "£", "EUR": "€", "USD": "$", "GBP": "£"}
_ADDRESS_WORDS = {
    ".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon", "?": "question mark",
    "=": "equals", "&": "and", "#": "hash", "+": "plus", "%": "percent", "~": "tilde",
}  # fmt: skip
_ADDRESS_MARK = re.compile("[" + re.escape("".join(_ADDRESS_WORDS)) + "]")


def _digits(match: re.Match[str]) -> str:
    """Read digits one by one, with a short pause at each gap of the text or, in a long row, after every third digit."""
    groups = re.findall(r"\d+", match.group())
    if len(groups) == 1:
        row = groups[0]
        # Ten digits are read as 3, 3 and 4, like telephone numbers. A last group has more than one digit.
        ends = [*range(3, len(row) - 1, 3)] if len(row) > 5 else []
        if len(ends) > 1 and len(row) - ends[-1] == 1:
            ends.pop()
        groups = [row[a:b] for a, b in zip([0, *ends], [*ends, len(row)], strict=True)]
    plus = "plus " if match.group().startswith("+") else ""
    return plus + ", ".join(" ".join(group) for group in groups)


def _long(match: re.Match[str]) -> str:
    """Read groups of digits as one telephone or account number. With fewer than seven digits they are separate
    numbers."""
    return _digits(match) if sum(map(str.isdigit, match.group())) >= 7 else match.group()


def _address(match: re.Match[str]) -> str:
    address = re.sub(r"^(?:https?|ftp)://(?:www\.)?", "", match.group())
    tail = ""
    while address and address[-1] in ".,;:!?)":
        address, tail = address[:-1], address[-1] + tail
    address = address.rstrip("/")
    spoken = _ADDRESS_MARK.sub(lambda m: f" {_ADDRESS_WORDS[m.group()]} ", address)
    return re.sub(r" +", " ", spoken).strip() + tail


def _currency_after(match: re.Match[str]) -> str:
    return f"{_CURRENCIES[match.group(2)]}{match.group(1)}"


def _dotted_date(match: re.Match[str]) -> str:
    day, month, year = match.groups()
    if not (1 <= int(day) <= 31 and 1 <= int(month) <= 12):
        return match.group()
    return f"{year}-{int(month):02}-{int(day):02}"


_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\b(?:https?|ftp)://\S+|\bwww\.\S+", re.I), _address),
    (re.compile(r"[\w.+-]+@\w[\w-]*(?:\.[\w-]+)+"), _address),
    (
        re.compile(r"\b(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|co|uk|de|fr|info|biz|eu|ai|app|dev)\b(?:/[\w/.-]*)?"),
        _address,
    ),
    # More groups than the voice has names for (its last is the decillion): not one quantity, but several.
    (re.compile(r"(?<![\d,])\d+(?:,\d+){12,}"), lambda match: match.group().replace(",", ", ")),
    (re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b"), _dotted_date),
    (re.compile(r"\bUS(?=\$\d)"), ""),
    (re.compile(rf"(?<![\w.,$€£])({_NUMBER}) ?(€|\$|£|EUR\b|USD\b|GBP\b)"), _currency_after),
    (re.compile(r"(?<![\d.,/-])24/7(?![\d/])"), "twenty-four seven"),
    (re.compile(rf"(?<![\w.,])({_NUMBER})[kK]\b(?!/)"), r"\1 thousand"),
    # Telephone numbers: an international prefix, an area code in parentheses, or groups that make seven digits or more.
    (re.compile(r"(?<![\w.,])\+\d[\d ()/-]{5,}\d(?![\w%])"), _digits),
    (re.compile(r"(?<![\w.,])\(\d{2,5}\) ?\d[\d -]{3,}\d(?![\w%])"), _digits),
    (re.compile(r"(?<![\w.,-])(?!\d{4}-\d{2}-\d{2}\b)\d{2,5}(?:[ -]\d{2,5})*[ -]\d{3,5}(?![\w%]|[.,-]\d)"), _long),
    # A row of five digits or more without a separator, or with a zero in front, is a code, not a quantity.
    (re.compile(r"(?<![\w.,:/$€£+-])(?:\d{5,}|0\d+)(?![\w%]|[.,:]\d)"), _digits),
    (re.compile(r"(?<=\b(?:call|dial|text) )\d{3}(?![\w%]|[.,:]\d)", re.I), _digits),
    (re.compile(r"(?<![\w.,-])(\d{1,4}) ?[-–] ?(\d{1,4})(?=[.,;!?)]?(?:\s|$))"), r"\1 to \2"),
    (re.compile(r"\be\.g\.", re.I), "for example"),
    (re.compile(r"\bi\.e\.", re.I), "that is"),
]


_FRACTIONS = {
    "½": "one half", "⅓": "one third", "⅔": "two thirds", "¼": "one quarter", "¾": "three quarters", "⅕": "one fifth",
    "⅖": "two fifths", "⅗": "three fifths", "⅘": "four fifths", "⅙": "one sixth", "⅚": "five sixths",
    "⅐": "one seventh", "⅛": "one eighth", "⅜": "three eighths", "⅝": "five eighths", "⅞": "seven eighths",
    "⅑": "one ninth", "⅒": "one tenth",
}  # fmt: skip


def _fraction(match: re.Match[str]) -> str:
    return f"{match[1]} and {_FRACTIONS[match[2]]} " if match[1] else f" {_FRACTIONS[match[2]]} "


_RULES.append((re.compile(rf"(\d)? ?([{''.join(_FRACTIONS)}])[ -]?"), _fraction))


def spell_out(text: str) -> str:
    """Rewrite the parts that the voice would read wrongly. A text without such parts stays unchanged."""
    for pattern, reading in _RULES:
        text = pattern.sub(reading, text)
    return text
