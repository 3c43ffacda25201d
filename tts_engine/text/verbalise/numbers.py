"""Reads plain numbers: the base of the rules for each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

LONGEST_NAMED = 36
"""Most digits of a number that is read as one quantity. A longer one is read digit by digit."""

SIGN_FORM = "[-−–+±]"
VULGAR_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip
SIGN = rf"(?:(?<![\w.,)\]%°€$£¥])(?P<sign>{SIGN_FORM})(?: (?<![^\s=+*/×÷(<>~≈±:] [-–] ))?|(?<![\w.,]))"
"""The sign of a number. A hyphen or dash with spaces on both sides is a mark between two parts: "Basic – $5"."""
DASH = r"(?: [-–—−~] |[-–—−~] ?)"
"""The mark of a range."""
END = r"(?!\w|\.\w)"
Read = Callable[[re.Match[str]], str]
Rule = tuple[re.Pattern[str], Read] | tuple[re.Pattern[str], Read, str]
"""A written form, the function that returns its words, and characters of which the form has one. A text without any of
them is not searched."""


ROMAN_FORM = r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
"""A Roman numeral up to 99."""
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


def roman(text: str) -> int:
    """Return the value of a Roman numeral."""
    values = [_ROMAN[char] for char in text]
    return sum(-v if i + 1 < len(values) and values[i + 1] > v else v for i, v in enumerate(values))


def any_of(words: Iterable[str]) -> str:
    """Return a regular expression for any of the words; the longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


class NumberWords:
    """Numbers in the words of one language."""

    def __init__(self, grammar: Grammar) -> None:
        self._g = g = grammar
        self._grouping = grouping = "," if g.decimal_mark == "." else "."
        mark, group = re.escape(g.decimal_mark), re.escape(grouping)
        spaced = r"\d{1,3}(?: \d{3})+(?:,\d+)?(?!\d)|" if g.decimal_mark == "," else r"\d{1,3}(?: \d{3})* 000(?!\d)|"
        other = rf"|\d+{group}\d{{1,2}}(?!\d)" if g.decimal_mark == "," else ""
        # Thousands, Indian lakhs, a plain number, a number that begins with its decimal mark.
        self._num = (
            rf"(?:{spaced}\d{{1,3}}(?:[{group}'’]\d{{3}})+(?:{mark}\d+)?(?!\d)|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?!\d)"
            rf"|\d{{1,3}}(?:,\d{{3}})+\.\d+{other}|\d+(?:{mark}\d+)?|(?<!\d){mark}\d+)"
        )

    def _parse(self, text: str) -> tuple[str, str, bool]:
        """Return the digits before and after the decimal mark, and True if the mark is the language's own."""
        bare = re.sub(r"[ '’]", "", text)
        mark, group = self._g.decimal_mark, self._grouping
        if mark in bare and group in bare:
            own = bare.rindex(mark) > bare.rindex(group)
            whole, _, rest = bare.rpartition(mark if own else group)
            return re.sub(r"\D", "", whole) or "0", rest, own
        if group in bare:
            if re.fullmatch(rf"\d{{1,3}}(?:{re.escape(group)}\d{{3}})+|\d{{1,2}}(?:,\d\d)+,\d{{3}}", bare):
                return bare.replace(group, ""), "", True
            whole, _, rest = bare.partition(group)
            return whole or "0", rest, False
        whole, _, rest = bare.partition(mark)
        return whole, rest, True

    def _int(self, digits: str, gender: Gender = "m", *, noun: bool = False) -> str:
        if len(digits) > LONGEST_NAMED:
            return self._spell(digits)
        return self._g.cardinal(int(digits), gender, noun)

    def _number(self, text: str, gender: Gender = "m", *, noun: bool = False) -> str:
        """Return a number, with or without decimals, in words."""
        whole, rest, own = self._parse(text)
        g = self._g
        if not rest:
            return self._int(whole, gender, noun=noun)
        if g.fraction_digits == "number" and len(rest) <= 3:
            zeros = len(rest) - len(rest.lstrip("0")) if rest.strip("0") else len(rest)
            said = [g.digits[0]] * zeros + ([self._int(rest[zeros:], gender)] if rest[zeros:] else [])
        else:
            said = [g.digits[int(digit)] for digit in rest]
        point = g.point if own else g.other_point
        first = [self._int(whole, gender)] if whole else []
        return " ".join([*first, point, *said])

    def _signed(self, match: re.Match[str], words: str) -> str:
        sign = match["sign"] or ""
        if not sign and "inner" in match.re.groupindex:
            sign = match["inner"] or ""
        spoken = {"+": self._g.plus, "±": self._g.symbols["±"]}.get(sign, self._g.minus) if sign else ""
        return f"{spoken} {words}" if spoken else words

    def _spell(self, digits: str) -> str:
        return " ".join(self._g.digits[int(digit)] for digit in digits if digit.isdigit())

    def _code_digits(self, digits: str) -> str:
        """Read digits one by one, with a pause after every third digit of a long row."""
        ends = [*range(3, len(digits) - 1, 3)] if len(digits) > 5 else []
        if len(ends) > 1 and len(digits) - ends[-1] == 1:
            ends.pop()
        return ", ".join(self._spell(digits[a:b]) for a, b in zip([0, *ends], [*ends, len(digits)], strict=True))

    def _counted(self, number: str, noun: Noun) -> str:
        return f"{self._number(number, noun.gender, noun=True)} {noun.after(number)}"

    def _two(self, pair: str) -> str:
        """Read two digits as one number, or with its zero in front."""
        return self._spell(pair) if pair[0] == "0" else self._int(pair)

    def _dotted(self, version: str) -> str:
        """Read a version: the dots as points, long parts and parts with a zero in front digit by digit."""
        point = self._g.other_point if self._g.decimal_mark == "," else self._g.point
        return f" {point} ".join(
            self._int(part) if len(part) <= 3 and (part == "0" or part[0] != "0") else self._spell(part)
            for part in version.split(".")
        )

    def _joined_fraction(self, part: str) -> str:
        if part in ("un demi", "un mezzo", "um meio", "un medio"):
            part = part.split()[1]
        return f"{self._g.and_fraction} {part}".strip()

    @staticmethod
    def _is_year(digits: str) -> bool:
        return len(digits) == 4 and digits.isdigit() and 1100 <= int(digits) <= 2099
