"""Reads amounts: money, percentages, temperatures, measures."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Noun
from tts_engine.text.verbalise.numbers import DASH, END, SIGN, NumberWords, Rule, any_of

_STOP = r"(?:(?<=[^\W\d_])\.(?=[,;:)/]| \S))?"
"""The full stop of a shortened unit. At the end of a text it ends the sentence."""
_ELECTRIC = re.compile(
    r"\d ?(?:[kMG]?[VW]|kWh|Hz)\b|amp|fus[ei]|charg|breaker|circuit|socket|outlet|adapt|USB|batter|current|cargador|enchufe|corriente|corrente|caricat|presa|"
    r"prise|courant|disjo?u?n[ct]t|carregador|tomada|sicherung|ladeger|steckdose|strom|netzteil",
    re.I,
)
"""A text about electricity, in which ``10A`` is a current."""
_COUNTED = re.compile(r" (?!(?:and|are|has|have|was|were|will|for|the|you|with|from|but|can|may|not)\b)[a-z]{3,}")
"""A word after a number that may be what it counts."""


class Amounts(NumberWords):
    """The rules for amounts."""

    def money(self) -> list[Rule]:
        """Return the rules for money."""
        num, money, mags = self._num, any_of(self._g.currencies), any_of(self._g.magnitudes)
        units = any_of(self._g.units)
        after = r"(?<!\d )"  # "3,90 € 2. Domicile"
        codes = any_of(code for code in self._g.currencies if code.isalpha() and code.isupper() and len(code) == 3)
        return [
            # "$350.00 MXN": the code says which dollars or pesos.
            (re.compile(rf"[$€£¥] ?(?P<n>{num}) ?(?P<cur>{codes})(?!\w)"), lambda m: f"{m['n']} {m['cur']}"),
            (
                re.compile(
                    rf"{SIGN}{'' if self._g.tag == 'en' else after}(?P<cur>{money}) ?(?P<inner>[-−–])?(?P<n>{num})(?:[ -]?(?P<mag>{mags})\b(?!/[a-z]\b))?(?:{DASH}(?:(?:{money}) ?)?(?P<n2>{num})(?:[ -]?(?P<mag2>{mags})\b)?)?(?: ?USD\b)?(?P<per> ?/ ?(?:{units}|[A-ZÄÖÜ]?[a-zà-ÿ]+){_STOP})?{END}"
                ),
                self._money,
            ),
            (
                re.compile(
                    rf"{SIGN}(?P<n>{num})(?:[ -]?(?P<mag>{mags}))?(?:{DASH}(?P<n2>{num})(?: ?(?P<mag2>{mags}))?)? ?(?P<cur>{money})(?P<per> ?/ ?(?:{units}|[A-ZÄÖÜ]?[a-zà-ÿ]+){_STOP})?{END}"
                ),
                self._money,
            ),
        ]

    def measures(self) -> list[Rule]:
        """Return the rules for percentages, temperatures, measures and large numbers."""
        num, mags, units = self._num, any_of(self._g.magnitudes), any_of(self._g.units)
        degree = "[°º]" if self._g.tag == "en" else "°"  # º is the sign of an ordinal
        return [
            # "250 mg/5 mL", "5.4 L/100 km"
            (re.compile(r"(?<=\d) ?(?P<unit>l|L|kWh)/(?=100 ?km\b)"), lambda m: f" {m['unit']} {self._g.per} "),
            (
                re.compile(
                    r"(?P<n>\d ?(?:mg|mcg|µg|μg|g|ml|mL|IU|UI|kcal|cal))/(?=\d+(?:[.,]\d+)? ?(?:ml|mL|l|L|kg|g|h|hr|oz|tsp|dl|dL)\b)"
                ),
                lambda m: f"{m['n']} {self._g.per} ",
            ),
            (
                re.compile(rf"{SIGN}(?:(?P<whole>\d{{1,3}}) )?(?P<over>[1-9])/(?P<under>[2-8]|16) ?%"),
                self._part_percent,
            ),
            (re.compile(rf"{SIGN}(?P<n>{num})(?:{DASH}|%{DASH})(?P<n2>{num}) ?%"), self._percent),
            (re.compile(rf"{SIGN}(?P<n>{num})(?: ?(?P<mag>{mags}))? ?%"), self._percent),
            (
                re.compile(rf"{SIGN}(?P<n>{num})(?: ?°)?(?: ?[CF])?{DASH}(?P<n2>{num}) ?[°º](?: ?(?P<scale>[CF])\b)?"),
                self._degree,
            ),
            (
                re.compile(rf"{SIGN}(?P<n>{num}) ?(?:[°º] ?(?P<scale>[CF])\b|{degree}(?=[\s.,;!?)]|$))"),
                self._degree,
            ),
            (re.compile(r"(?<![\w.])(?P<ft>\d)['’′] ?(?P<in>\d{1,2})(?:[\"”″]|''|(?!\w))"), self._height),
            (re.compile(r"(?<![\w.,/])(?P<n>\d+)/(?P<n2>\d+) ?(?P<unit>mmHg|mm Hg)"), self._pressure),
            (
                re.compile(
                    rf"(?<![\w.,/-])(?<!\d )(?P<over>[1-9])/(?P<under>[2-8]|10|16) ?(?P<unit>{units}){_STOP}{END}(?!['’]\w)"
                ),
                self._part_of_unit,
            ),
            (
                re.compile(
                    rf"{SIGN}(?<![A-Z]-)(?P<n>{num})(?:(?:{DASH}(?P<n2>{num}))| (?P<over>\d{{1,2}})/(?P<under>\d{{1,2}})| ?(?P<mag>{mags})(?= ))?[ -]?(?P<unit>{units}){_STOP}(?P<per>/(?:{units}|[A-ZÄÖÜ]?[a-zà-ÿ]+){_STOP})?{END}(?!-[a-z]|['’]\w)"
                ),
                self._unit,
            ),
            (
                re.compile(
                    rf"{SIGN}(?:(?P<from>{num})(?P<mag0>[kKM]?){DASH})?(?P<n>{num})[ -]?(?P<mag>{mags})(?![\w/]|\.\w)"
                ),
                self._magnitude,
            ),
        ]

    def _money(self, match: re.Match[str]) -> str:
        unit, cent = self._g.currencies[match["cur"]]
        text, mag, second, mag2 = match["n"], match["mag"], match["n2"], match["mag2"]
        if second and (mag or mag2):
            first = self._scaled(text, mag) if mag else self._number(text, unit.gender, noun=True)
            words = f"{first} {self._g.to} {self._scaled(second, mag2 or mag)}{self._of(mag2 or mag)} {unit.many}"
        elif second and (self._parse(text)[1] or self._parse(second)[1]):
            words = f"{self._amount(text, unit, cent)} {self._g.to} {self._amount(second, unit, cent)}"
        elif second:
            words = f"{self._number(text, unit.gender, noun=True)} {self._g.to} {self._counted(second, unit)}"
        elif self._before_noun(match) and (mag or not self._parse(text)[1]):
            words = f"{self._scaled(text, mag)} {unit.one}"
        elif mag:
            words = f"{self._scaled(text, mag)}{self._of(mag)} {unit.many}"
        else:
            whole = self._parse(text)[0]
            # Rates of exchange name the currency by its code.
            code = len(match["cur"]) == 3 and match["cur"].isupper() and whole == "0" and "=" in match.string
            words = (
                self._counted(text, unit)
                if code or match["per"] and len(self._parse(text)[1]) == 3
                else self._amount(text, unit, cent)
            )
        return self._signed(match, words + self._per(match))

    def _before_noun(self, match: re.Match[str]) -> bool:
        """Return True for "a $50 gift card", which English reads in the singular."""
        text = match.string
        return self._g.tag == "en" and bool(
            re.search(r"\b[Aa]n? $", text[: match.start()]) and re.match(r" [a-z]{3,}", text[match.end() :])
        )

    def _per(self, match: re.Match[str]) -> str:
        """Return the words for ``/month``. The full stop at the end of a text ends the sentence too."""
        written = match["per"]
        if not written:
            return ""
        below = written.strip(" /")
        below = below if below in self._g.units else below.rstrip(".")
        stop = "." if written.endswith(".") and not match.string[match.end() :].strip() else ""
        return f" {self._g.per} {self._g.units[below].one if below in self._g.units else below}{stop}"

    def _of(self, mag: str) -> str:
        """Return the word between "million" and a noun, if the language has one."""
        plain = self._g.magnitudes[mag][0]
        return self._g.of_million if plain not in ("thousand", "mil", "mille", "mila", "tausend", "hundred") else ""

    def _scaled(self, number: str, mag: str | None) -> str:
        if mag is None:
            return self._number(number)
        one, many = self._g.magnitudes[mag]
        if self._parse(number)[:2] == ("1", ""):
            if one in ("mil", "mille"):
                return one
            return f"{self._int('1', 'f' if self._g.tag == 'de' else 'm', noun=True)} {one}"
        return f"{self._number(number, noun=True)} {many}"

    def _amount(self, text: str, unit: Noun, cent: Noun | None) -> str:
        whole, rest, _ = self._parse(text)
        if len(rest) == 3 and self._g.tag == "es" and re.fullmatch(r"[1-9]\d{0,2},\d{3}", text) and cent is not None:
            whole, rest = whole + rest, ""  # "$1,250" is written so in other countries; a price has no thousandths
        kept = rest.rstrip("0")
        if cent is None or len(kept) > 2:
            return self._counted(f"{whole}{self._g.decimal_mark}{kept}" if kept else whole, unit)
        main = self._counted(whole or "0", unit)
        if len(whole) > 6 and whole.endswith("000000") and self._g.of_million:
            main = f"{self._int(whole, unit.gender, noun=True)}{self._g.of_million} {unit.many}"
        if not kept:
            return main
        cents = self._counted(str(int(f"{kept:0<2}")), cent)
        if not int(whole or "0"):
            return cents
        return f"{main} {self._g.money_and} {cents}".replace("  ", " ")

    def _percent(self, match: re.Match[str]) -> str:
        if "n2" in match.re.groupindex:
            return self._signed(
                match, f"{self._number(match['n'])} {self._g.to} {self._number(match['n2'])} {self._g.percent}"
            )
        number = re.sub(rf"{re.escape(self._g.decimal_mark)}0+$", "", match["n"])  # "5.00%" is five percent
        words = self._scaled(number, match["mag"]) if match["mag"] else self._number(number)
        return self._signed(match, f"{words} {self._g.percent}")

    def _part_percent(self, match: re.Match[str]) -> str:
        """Read "5 3/4%"."""
        part = self._g.fractions(int(match["over"]), int(match["under"]))
        if part is None:
            return match.group()
        whole = f"{self._int(match['whole'])} {self._joined_fraction(part)}" if match["whole"] else part
        return self._signed(match, f"{whole} {self._g.percent}")

    def _degree(self, match: re.Match[str]) -> str:
        if "n2" in match.re.groupindex:
            words = f"{self._number(match['n'])} {self._g.to} {self._counted(match['n2'], self._g.degree)}"
        else:
            words = self._counted(match["n"], self._g.degree)
        return self._signed(match, words + (f" {self._g.degrees[match['scale']]}" if match["scale"] else ""))

    def _height(self, match: re.Match[str]) -> str:
        feet, inches = self._g.units["ft"], self._g.units["in."]
        return f"{self._counted(match['ft'], feet)} {self._counted(match['in'], inches)}"

    def _unit(self, match: re.Match[str]) -> str:
        unit = self._g.units[match["unit"]]
        if (
            match["unit"] == "ha"
            and self._g.tag in ("es", "it")
            and re.match(r" (?!di\b|de\b|e\b|y\b)[a-z]", match.string[match.end() :])
        ):
            return match.group()  # the verb
        if match["unit"] == "A" and match.group()[-2].isdigit() and not _ELECTRIC.search(match.string):
            return match.group()  # a seat or a room
        if match["unit"] in "AVW" and re.match(r"-\d", match.string[match.end() :]):
            return match.group()  # "recall 23V-412"
        if (
            match["unit"] in "AVW"
            and match.group().endswith(f"-{match['unit']}")
            and (len(match["n"]) > 3 or not _COUNTED.match(match.string, match.end()))
        ):
            return match.group()  # "Suite 100-A", "order 48213-A ships"
        if match["n2"]:
            words = (
                f"{self._number(match['n'], unit.gender, noun=True)} {self._g.to} {self._counted(match['n2'], unit)}"
            )
        elif match["mag"]:
            words = f"{self._scaled(match['n'], match['mag'])}{self._of(match['mag'])} {unit.many}"
        elif match["over"]:
            part = self._g.fractions(int(match["over"]), int(match["under"]))
            if part is None:
                return match.group()
            counted, half = self._counted(match["n"], unit), self._joined_fraction(part)
            if self._g.tag in ("de", "en"):
                one = self._g.tag == "de" and match["n"] == "1"
                words = f"{'ein' if one else self._int(match['n'], unit.gender)} {half} {unit.many}"
            else:  # the fraction follows the unit, and a half agrees with it
                words = f"{counted} {half}"
                if unit.gender == "f" and half in ("e mezzo", "e meio", "y medio"):
                    words = f"{counted} {_feminine_half(half)}"
                elif unit.gender == "f" and half == "et demi":
                    words += "e"
        elif (
            self._g.tag == "en"
            and f"-{match['unit']}" in match.group()
            and re.match(r" [A-Za-z][a-z]{2,}", match.string[match.end() :])
        ):
            words = f"{self._number(match['n'])} {unit.one}"  # "two 20-mg tablets"
        else:
            words = self._counted(match["n"], unit)
        words += self._per(match)
        if match["unit"].endswith(".") and not match.string[match.end() :].strip():
            words += "."
        return self._signed(match, words)

    def _part_of_unit(self, match: re.Match[str]) -> str:
        over, under, unit = int(match["over"]), int(match["under"]), self._g.units[match["unit"]]
        part = self._g.fractions(over, under)
        if part is None or over >= under:
            return match.group()
        if self._g.tag == "de" and under == 2:
            return f"{'eine halbe' if unit.gender == 'f' else 'ein halber' if unit.one.endswith(('Liter', 'meter', 'Meter')) else 'ein halbes'} {unit.one}"
        half = {"es": "medio", "fr": "un demi", "it": "mezzo", "pt": "meio"}.get(self._g.tag)
        if half and under == 2:
            return f"{_feminine_half(half) if unit.gender == 'f' else half} {unit.one}"
        of = self._g.of_million if half else ""
        return f"{part}{of} {unit.one}"

    def _pressure(self, match: re.Match[str]) -> str:
        unit = self._g.units.get("mmHg")
        over = self._g.symbols.get("over", self._g.symbols["/"])
        return f"{self._int(match['n'])} {over} {self._int(match['n2'])}" + (f" {unit.many}" if unit else "")

    def _magnitude(self, match: re.Match[str]) -> str:
        before = match.string[: match.start("from") if match["from"] else match.start("n")]
        if len(match["mag"]) == 1 and re.match(r" [A-Z][a-z]+ (?:St|Ave|Rd|Dr)\b", match.string[match.end() :]):
            return match.group()
        named = re.search(r"(?:(?<=\S )[A-Z][a-z]+|number|#) ?$", match.string[: match.start("n")])
        counted = _COUNTED.match(match.string, match.end()) is not None
        if match["mag"] in ("B", "M") and not counted and (named or match["mag"] == "B" and match["n"].isdigit()):
            return match.group()  # "in Courtroom 4B", "seats 14A and 14B", but "About 4M people"
        if match.group() in ("4K", "8K") and self._g.tag != "en":
            return match.group()  # of a screen
        of_code = len(match["mag"]) == 1 and (
            "-" in match.string[match.start("n") : match.end()] or re.search(r"\w-$", before)
        )
        if (
            of_code
            or match["mag"] in ("m", "t", "b", "mm", "T")
            and self._g.tag == "en"
            or match["mag"] == "M"
            and self._g.tag in ("es", "it")
        ):
            return match.group()
        if match["from"] and not match["mag0"]:
            return self._signed(
                match, f"{self._number(match['from'])} {self._g.to} {self._scaled(match['n'], match['mag'])}"
            )
        if match["from"]:
            first = self._scaled(match["from"], match["mag0"])
            return self._signed(match, f"{first} {self._g.to} {self._scaled(match['n'], match['mag'])}")
        return self._signed(match, self._scaled(match["n"], match["mag"]))


def _feminine_half(half: str) -> str:
    """Return "media" for "medio"."""
    for masculine, feminine in (("meio", "meia"), ("mezzo", "mezza"), ("medio", "media"), ("un demi", "une demi")):
        half = half.replace(masculine, feminine)
    return half
