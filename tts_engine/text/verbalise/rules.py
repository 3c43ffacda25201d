"""Rewrites written numbers and signs as words, one kind after another.

The order of the kinds matters: what an earlier rule reads has no digits left for a later one. Each rule reads one whole
written form; what no rule knows stays as it is.
"""

from __future__ import annotations

import re

from tts_engine.text.verbalise import english_forms, local_forms
from tts_engine.text.verbalise.amounts import Amounts
from tts_engine.text.verbalise.codes import Codes
from tts_engine.text.verbalise.dates import Dates
from tts_engine.text.verbalise.grammar import Gender, Grammar
from tts_engine.text.verbalise.numbers import DASH, ROMAN_FORM, SIGN, NumberWords, Rule, any_of, roman

VULGAR_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip
_WORTH = re.compile(
    r"[\d&+=@#*%~<>×÷±≤≥≈≠√∞§°№→^\\|_©®™$€£¥￥¢₹₩₽₺₪₫₱₦฿₴½⅓⅔¼¾⅕-⅞⅑⅒‰²³/\u2212]|\.[\s\w]|\.$|[VXLC]\b|II|\b(?:War|Part|Chapter|Phase|Type|Stage|Level) I\b|w/|\b(?:vs|Mr|Mrs|Ms|Dr)\b|\b(?:Mon|Tues?|Wed|Thu|Thurs?|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[-–]"
)
"""Characters without which a text needs no rule."""
_NOUN = re.compile(r" ([^\W\d_]{3,})")
_AFTER_PREPOSITION = re.compile(
    r"\b(am|vom|zum|im|beim|dem|den|bis|ab|seit|des|diesem|diesen) ((?:\w*(?:erst|zweit|dritt|viert|fünft|sechst|siebt|acht|neunt|zehnt|elft|zwölft|zigst|ßigst)))(?:er|e)(?= )",
    re.I,
)
"""A German ordinal in the dative or accusative."""
_DIGIT = re.compile(r"\d")
_PRESSURE = re.compile(r"tensi[oó]n|pression|pressione|pressão|Blutdruck", re.I)
_TIMES = {
    "en": "second|minute|hour|day|night|week|month|year|person|page|item|unit|head",
    "es": "segundo|minuto|hora|día|noche|semana|mes|año|persona|unidad|página",
    "fr": "seconde|minute|heure|jour|nuit|semaine|mois|an|personne|unité|page",
    "it": "secondo|minuto|ora|giorno|notte|settimana|mese|anno|persona|pagina",
    "pt": "segundo|minuto|hora|dia|noite|semana|mês|ano|pessoa|unidade|página",
    "de": "Sekunde|Minute|Stunde|Tag|Nacht|Woche|Monat|Jahr|Person|Stück|Seite",
}
_PER = {
    tag: re.compile(rf"(?<=[^\W\d_])/(?=(?:{names})\b)(?<!and/)(?<!or/)(?<!y/)(?<!et/)(?<!ou/)")
    for tag, names in _TIMES.items()
}
"""The slash of "3 times/day"."""


class ReadingRules(NumberWords):
    """The rules for one language. Immutable once made, so threads may share it."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        codes, dates, amounts = Codes(grammar), Dates(grammar), Amounts(grammar)
        own = english_forms.rules(grammar) if grammar.tag == "en" else local_forms.rules(grammar)
        self._rules: list[Rule] = [
            *codes.addresses_and_keys(),
            *own,
            *dates.dates(),
            *dates.times(),
            *amounts.money(),
            (re.compile(r"(?<![\d.,/-])24/7(?![\d/])"), lambda _: f"{self._int('24')} {self._int('7')}"),
            *codes.phones(),
            *codes.places(),
            (
                re.compile(rf"(?<![\w.,])(?P<n>{self._num})(?P<unit> ?(?:[cmk]?m|in|ft|px)| ?[\"”″])? ?[xX×] ?(?=\d)"),
                self._by,
            ),
            *amounts.measures(),
            *self._ordinals_and_fractions(),
            *codes.codes(),
            *self._apart(),
            *self._signs(),
            *codes.rows(),
            (re.compile(rf"{SIGN}(?P<n>{self._num})(?![\d])"), self._plain),
            (re.compile(r"\d+"), lambda m: self._int(m.group())),
        ]
        self._rules_without_digits = [
            rule for rule in self._rules if "\\d" not in rule[0].pattern or "½" in rule[0].pattern or rule in own
        ]
        """The rules that can match a text without digits."""
        wordy = "".join(re.escape(sign) for sign in self._g.symbols if len(sign) == 1 and sign not in "*_/")
        self._symbol = re.compile(rf" ?([{wordy}]) ?")
        self._endings = local_forms.endings(grammar.tag)
        self._feminine = re.compile(grammar.feminine) if grammar.feminine else None
        self._not_counted = re.compile(grammar.not_counted)
        self._tidy = re.compile(r" {2,}| (?=[,.;!?](?:\s|$))")

    def __call__(self, text: str) -> str:
        """Return the text with its numbers and signs in words. A text without any is returned as it is."""
        if not _WORTH.search(text):
            return text
        for pattern, read in self._rules if _DIGIT.search(text) else self._rules_without_digits:
            text = pattern.sub(read, text)
        if self._g.tag == "de":
            text = re.sub(r"\b(Uhr(?: \w+)?) Uhr\b", r"\1", _AFTER_PREPOSITION.sub(r"\1 \2en", text))
        text = re.sub(r"(?<=[^\W\d_])\)? > (?=[A-ZÄÖÜÉ])", ", ", text)  # the path of a menu
        text = re.sub(r"(?<![^\s\"'(])/(?=[a-z]{2,})", f"{self._g.address['/']} ", text)
        text = _PER[self._g.tag].sub(f" {self._g.per} ", text)
        text = re.sub(r"(?<=\w)/(?=\w)", " ", text)  # in a choice it is "or", which voices read well as a pause
        text = re.sub(r"(?<=\S) \* (?=\S)", f" {self._g.symbols.get('*', ' ')} ", text)
        text = re.sub(r"[*_]", " ", text)
        text = self._symbol.sub(lambda m: f" {self._g.symbols[m[1]]} ", text)
        for pattern, read in self._endings:
            text = pattern.sub(read, text)
        return self._tidy.sub(lambda m: "" if m.end() < len(text) and m.group() == " " else " ", text).strip()

    def _ordinals_and_fractions(self) -> list[Rule]:
        g, flags = self._g, re.I
        grouped = r"(?!\d{1,3}(?:\.\d{3})+(?!\d|\.\d))" if g.decimal_mark == "," else ""
        return [
            *([(re.compile(rf"(?<![\w.,/]){g.ordinal_pattern}"), self._ordinal)] if g.ordinal_pattern else []),
            *(
                [
                    (
                        re.compile(
                            rf"\b(?P<before>{any_of(g.roman_before)})\.? (?P<roman>{ROMAN_FORM})\b(?![.'’]\w)", flags
                        ),
                        self._roman_numeral,
                    )
                ]
                if g.roman_before
                else []
            ),
            *(
                [
                    (
                        re.compile(rf"\b(?P<roman>{ROMAN_FORM})(?= (?:{g.roman_after})\b)"),
                        lambda m: (
                            g.ordinal(roman(m["roman"]), "f" if re.match(r" \w+[ae]\b", m.string[m.end() :]) else "m")
                            if m["roman"]
                            else ""
                        ),
                    )
                ]
                if g.roman_after
                else []
            ),
            (re.compile(rf"(?P<n>\d+)? ?(?P<vulgar>[{''.join(VULGAR_FRACTIONS)}])[ -]?"), self._vulgar),
            (
                re.compile(
                    r"(?:(?<![\w.,)\]])(?P<sign>[-−]) ?|(?<![\w.,/]))(?P<whole>\d{1,3}) (?P<over>\d{1,2})/(?P<under>\d{1,2})(?![\w/])"
                ),
                self._mixed_fraction,
            ),
            (
                re.compile(
                    r"(?<![\w./,-])(?P<over>\d{1,3})/(?P<under>\d{1,3})(?:st|nd|rd|th)?(?![\w/]|[.,]\d)(?P<stars> stars?\b)?"
                ),
                self._fraction,
            ),
            (
                re.compile(r"(?<![\w.,/])(?P<n>\d{1,2}[.,]\d)/(?P<n2>5|10|100)(?![\w/]|[.,]\d)"),
                lambda m: f"{self._number(m['n'])} {g.out_of} {self._int(m['n2'])}",
            ),
            (re.compile(r"\b[vV](?:ersion)?\.? ?(?P<version>\d+(?:\.\d+)+)(?!\w)"), self._version),
            (
                re.compile(r"(?<![\w.,])" + grouped + r"(?P<version>\d+(?:\.\d+){2,})(?![\w]|[.,]\d)"),
                self._version,
            ),
        ]

    def _apart(self) -> list[Rule]:
        """Return the rule for a number in groups of three digits with spaces between them."""
        if self._g.decimal_mark != ",":
            return []
        form = r"(?P<n>[1-9]\d{0,2}(?: \d{3})+(?:,\d+)?)(?![\w]|[ .,/-]\d)"
        return [(re.compile(rf"{SIGN}{form}"), self._plain)]

    def _signs(self) -> list[Rule]:
        g, num = self._g, self._num
        return [
            *(
                [(re.compile(rf"(?<![\w.])(?:{any_of(g.abbreviations)})(?!\w)"), self._abbreviation)]
                if g.abbreviations
                else []
            ),
            (re.compile(r"(?<![\w&])[#№] ?(?=\d)"), lambda _: f"{g.number_sign} "),
            (
                re.compile(rf"(?<![\w.,-])(?P<n>{num})(?P<op> ?[+=*×÷<>] ?| ?[-−] ?(?=[\d. ]+=))(?=[\d(])"),
                self._operation,
            ),
            (re.compile(rf"(?<![\w.,:/-])(?P<n>{num}){DASH}(?P<n2>{num})(?![\w%/]|[.,:-]\d|-)"), self._range),
            (re.compile(r"(?<![\w.,:])(?P<n>\d{1,3}):(?P<n2>\d{1,3})(?![\w:])"), self._ratio),
        ]

    def _ordinal(self, match: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", match["number"])
        if len(digits) > 15:
            return match.group()
        words = self._g.ordinal(int(digits), "f" if match.groupdict().get("f") else "m")
        if self._g.tag == "fr" and digits == "2" and "nd" in match.group():
            words = "seconde" if "nde" in match.group() else "second"
        return words[:-1] if self._g.tag == "es" and match.group().endswith("er") else words

    def _roman_numeral(self, match: re.Match[str]) -> str:
        if not match["roman"] or match["roman"] != match["roman"].upper():
            return match.group()
        value, before = roman(match["roman"]), match["before"]
        how = self._g.roman_before[before.lower()]
        if self._g.tag == "fr" and value == 1 and before[0].isupper() and before.lower() not in ("chapitre", "tome"):
            how = "ordinal"
        if value > 10 and self._g.tag in ("es", "pt"):
            how = "cardinal"
        if how == "cardinal":
            return f"{before} {self._g.cardinal(value, 'm', False)}"
        the = "the " if self._g.tag == "en" else ""
        return f"{before} {the}{self._g.ordinal(value, 'f' if how == 'feminine' else 'm')}"

    def _vulgar(self, match: re.Match[str]) -> str:
        over, under = VULGAR_FRACTIONS[match["vulgar"]]
        part = self._g.fractions(over, under) or ""
        if match["n"]:
            return f"{self._int(match['n'])} {self._joined_fraction(part)} "
        return f" {part} "

    def _mixed_fraction(self, match: re.Match[str]) -> str:
        part = self._g.fractions(int(match["over"]), int(match["under"]))
        if part is None or int(match["over"]) >= int(match["under"]):
            return match.group()
        return self._signed(match, f"{self._int(match['whole'])} {self._joined_fraction(part)}")

    def _fraction(self, match: re.Match[str]) -> str:
        over, under = int(match["over"]), int(match["under"])
        said_over, said_under = self._int(match["over"]), self._int(match["under"])
        if match["stars"]:
            return f"{said_over} {self._g.out_of} {said_under}{match['stars']}"
        if over == under:
            return f"{said_over} {self._g.out_of if under == 10 else ''} {said_under}".replace("  ", " ")
        if over < under and (part := self._g.fractions(over, under)) is not None:
            return part
        if over > 12 and under > 31:
            return f"{said_over} {self._g.symbols.get('over', self._g.symbols['/'])} {said_under}"
        if self._g.tag == "en" and 1 <= over <= 12 and 11 <= under <= 31:
            return self._g.date(under, over, None)
        if self._g.tag == "en" and under < over <= 12:
            return self._g.date(under, over, None)
        if self._g.tag != "en" and 12 < over <= 31 and 1 <= under <= 12 and not _PRESSURE.search(match.string):
            return self._g.date(over, under, None)
        return f"{said_over} {self._g.symbols['/']} {said_under}"

    def _version(self, match: re.Match[str]) -> str:
        parts = match["version"].split(".")
        words = f" {self._g.other_point if self._g.decimal_mark == ',' else self._g.point} ".join(
            self._int(part) if len(part) <= 3 and (part == "0" or part[0] != "0") else self._spell(part)
            for part in parts
        )
        named = match.group()[0] in "vV"
        return f"{self._g.version} {words}" if named and self._g.version else words

    def _abbreviation(self, match: re.Match[str]) -> str:
        written, text = match.group(), match.string
        words = self._g.abbreviations[written]
        rest = text[match.end() :]
        if written.endswith(".") and not rest.strip() and text[: match.start()].strip():
            return words + "."
        if written in ("No.", "no.", "Nos.", "min.", "Sat.", "Sun.", "sec.", "fig.") and not re.match(r" ?\d", rest):
            return written if written in ("No.", "no.", "Nos.") else words
        return words

    def _operation(self, match: re.Match[str]) -> str:
        sign = match["op"].strip()
        word = self._g.minus if sign in "-−" else self._g.symbols[sign]
        return f"{self._number(match['n'])} {word} "

    def _by(self, match: re.Match[str]) -> str:
        """Read the sign between two lengths. What follows it is left to the rules for measures."""
        first = match["n"] + match["unit"] if match["unit"] else self._number(match["n"])
        return f"{first} {self._g.symbols.get('by', self._g.symbols['×'])} "

    def _range(self, match: re.Match[str]) -> str:
        words = [self._g.year(int(n)) if self._is_year(n) else self._number(n) for n in (match["n"], match["n2"])]
        return f"{words[0]} {self._g.to} {words[1]}"

    def _ratio(self, match: re.Match[str]) -> str:
        return f"{self._int(match['n'])} {self._g.to} {self._int(match['n2'])}"

    def _plain(self, match: re.Match[str]) -> str:
        number = match["n"]
        if self._is_year(number) and not match["sign"]:
            return self._g.year(int(number))
        following = _NOUN.match(match.string, match.end()) if self._feminine is not None else None
        if following is None or self._not_counted.fullmatch(following[1]):
            return self._signed(match, self._number(number))
        assert self._feminine is not None
        gender: Gender = "f" if self._feminine.fullmatch(following[1]) else "m"
        return self._signed(match, self._number(number, gender, noun=True))
