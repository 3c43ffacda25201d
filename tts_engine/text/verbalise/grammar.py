"""The words of one language, as the rules need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Gender = Literal["m", "f"]


@dataclass(frozen=True, slots=True)
class Noun:
    """A unit or a currency: ``one`` after 1, ``many`` after every other number."""

    one: str
    many: str
    gender: Gender = "m"

    def after(self, number: str) -> str:
        """Return the form after a number in digits, such as ``1`` or ``2.5``."""
        return self.one if number.lstrip("0") == "1" or number == "1" else self.many


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The words and number names of one language."""

    tag: str
    """Primary BCP 47 subtag."""
    cardinal: Callable[[int, Gender, bool], str]
    """Number, gender, and True if a noun follows -> the name of a number of at most 36 digits."""
    ordinal: Callable[[int, Gender], str]
    year: Callable[[int], str]
    date: Callable[[int, int, int | None], str]
    """Day, month, year or None -> the date as words."""
    time: Callable[[int, int, int | None, str], str]
    """Hour, minute, second or None, ``a`` or ``p`` or "" -> the time as words."""
    digits: Sequence[str]
    decimal_mark: str
    point: str
    """The spoken decimal mark."""
    other_point: str
    """The spoken form of the mark of other countries: in Spanish, "punto" in ``3.5``."""
    fraction_digits: Literal["digits", "number"]
    """``number``: two digits after the mark are read as one number (in Spanish, "coma veinticinco")."""
    minus: str
    plus: str
    conjunction: str
    to: str
    percent: str
    of_million: str = ""
    """The word between "million" and a noun: Spanish "de"."""
    money_and: str
    """The word between the main unit and the cents, or empty."""
    month_first: bool = False
    """True if ``03/04`` is March the fourth."""
    months: Sequence[str]
    month_short: Sequence[str]
    """Abbreviations of the months, without the full stop, in lower case."""
    currencies: Mapping[str, tuple[Noun, Noun | None]]
    """Sign or code -> the currency and its hundredth part."""
    units: Mapping[str, Noun]
    degrees: Mapping[str, str]
    """``C``, ``F`` -> words after "degrees"."""
    degree: Noun
    magnitudes: Mapping[str, tuple[str, str]]
    """Written forms of thousand, million, billion -> singular and plural."""
    symbols: Mapping[str, str]
    """``& + = @ # * / % ~ < > × ÷ ± §`` in running text."""
    address: Mapping[str, str]
    """Marks in web and e-mail addresses."""
    fractions: Callable[[int, int], str | None]
    """Numerator, denominator -> words, or None if this is not usually read as a fraction."""
    and_fraction: str
    """The word between a whole number and a fraction."""
    per: str
    star: str
    pound: str
    key_words: str
    """Regular expression: words near a telephone key."""
    code_words: str
    """Regular expression: words after which digits are read one by one."""
    date_words: str
    """Regular expression: words after which ``3/4`` is a date."""
    abbreviations: Mapping[str, str]
    """Abbreviation with its full stop -> the words."""
    number_sign: str
    """The word for ``#`` or ``№`` before a number."""
    ordinal_pattern: str = ""
    """Regular expression with groups ``number`` and, where the ending shows it, ``f`` for feminine."""
    roman_before: Mapping[str, Literal["cardinal", "ordinal", "feminine"]] = field(default_factory=dict)
    """Words before a Roman numeral -> its reading."""
    minus_words: Mapping[str, str] = field(default_factory=dict)
    out_of: str = ""
    """The word for ``/`` in "4/5 stars"."""
    times_word: str = ""
    """The word after the number in ``2x``."""
    version: str = ""
    """The word for ``v`` in ``v2.1``."""
    roman_after: str = ""
    """Regular expression: words behind a Roman numeral that make it an ordinal (Italian "XX secolo")."""
    feminine: str = ""
    """Regular expression: feminine nouns. Empty: the name of a number does not depend on the noun."""
    not_counted: str = ""
    """Regular expression: words behind a number that are not what it counts."""
