"""Reads dates and times."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.numbers import DASH, NumberWords, Rule, any_of

_HALF = r"(?:(?P<half>[AaPp])\.? ?[Mm]\b\.?)"
_DATED = re.compile(r"\b(?:on|by|until|till|since|from|after|before|due|dated|of|for) $", re.I)
_OFTEN = re.compile(r"/| (?:a|per|each|every|daily)\b")
_SECONDS = re.compile(
    r"(?:\b(?:wait|hold|for|after|every|within|than|takes?|took|about|another|only|least|most|=|~|≥|≤) ?|[~<>=] ?)$",
    re.I,
)
"""Words before ``30s`` that make it a time, not a decade."""


class Dates(NumberWords):
    """The rules for dates and times."""

    def dates(self) -> list[Rule]:
        """Return the rules for dates."""
        g = self._g
        months = any_of(
            [*g.months, *(name.capitalize() for name in (*g.months, *g.month_short)),
             *(g.month_short if g.tag != "en" else ()), "Sept"]
        )  # fmt: skip
        of = r"(?: de| del| of|,)?" if g.tag != "de" else ""
        year = r"(?P<y>\d{4}|['’]\d{2})\b(?![.,:/]\d| ?[%$€])"
        rules: list[Rule] = [
            *self._truncated(),
            (re.compile(r"(?<![\w/.-])(?P<y>\d{4})(?P<sep>[-/.])(?P<m>\d{1,2})(?P=sep)(?P<d>\d{1,2})(?:T(?=\d\d:)|(?![\w/-]|\.\d))"), self._date),
            (re.compile(r"(?<![\w/.-])(?P<a>\d{1,2})(?P<sep>[-/.])(?P<b>\d{1,2})(?P=sep)(?P<y>\d{4}|\d{2})(?![\w/-]|\.\d)"), self._date),
            (re.compile(rf"\b(?P<before>(?:{g.date_words})[.:]?,? )(?P<a>\d{{1,2}})/(?P<b>\d{{1,2}})(?![\w/]|\.\d| (?:de|des|del|dei|degli|delle|della|da|das|do|dos|der|of)\b| d['’])", re.I), self._short_date),
        ]  # fmt: skip
        name = rf"(?P<month>{months})"
        if g.tag == "en":
            rules += [
                (re.compile(rf"\b{name}\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:{DASH}(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?)?(?![\w:%]|[.,]\d)(?:,? {year})?", re.I), self._month_day),
                (re.compile(rf"\b(?:the )?(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {name}\b\.?(?:,? {year})?", re.I), self._day_month),
                (re.compile(rf"\b{name}\.?,? (?P<y>\d{{4}}|['’]\d\d)\b(?![.,:/]\d)", re.I), lambda m: f"{self._month(m['month'])} {g.year(self._full_year(m['y']))}"),
            ]  # fmt: skip
        else:
            rules = [*self._months_of_years(), *rules]
            # "2º set" is no date: only the first day is an ordinal, and Portuguese shortens September to "set".
            day = r"(?P<d>\d{1,2})(?:\.|(?<=1)[º°]|[º°](?! set\b)|er|ero)?"
            rules += [
                (re.compile(rf"(?<![\w.,/]){day}(?:{DASH}(?P<d2>\d{{1,2}})(?:\.|º)?)?{of} {name}\b\.?(?:{of} {year})?", re.I), self._day_month),
            ]  # fmt: skip
        return rules

    def _truncated(self) -> list[Rule]:
        """Return the rules for ISO 8601's dates without a year, "--09-22" and "--09", and for "--09 2025"."""
        of = {"es": " de ", "pt": " de "}.get(self._g.tag, " ")
        month, end = r"(?<![\w-])--(?P<m>0[1-9]|1[0-2])", r"(?![\w-]|[.,]\d)"
        return [
            (re.compile(rf"{month}-(?P<d>[0-2]\d|3[01]){end}"), lambda m: self._g.date(int(m["d"]), int(m["m"]), None)),
            (
                re.compile(rf"{month} (?P<y>\d{{4}}){end}"),
                lambda m: f"{self._g.months[int(m['m']) - 1]}{of}{self._g.year(int(m['y']))}",
            ),
            (re.compile(month + end), lambda m: self._g.months[int(m["m"]) - 1]),
        ]

    def _months_of_years(self) -> list[Rule]:
        """Return the rules for the month in which a card expires: "06/2028", and "05/28" where words say so."""
        of = {"es": " de ", "pt": " de "}.get(self._g.tag, " ")
        month = r"(?P<m>0?[1-9]|1[0-2])"

        def read(match: re.Match[str]) -> str:
            year = int(match["y"]) if len(match["y"]) == 4 else 2000 + int(match["y"])
            before = match.groupdict().get("before") or ""
            before = re.sub(
                r"\b(?:el|le|il) $", lambda m: {"e": "en ", "l": "en ", "i": "a "}[m[0][0].lower()], before, flags=re.I
            )
            return f"{before}{self._g.months[int(match['m']) - 1]}{of}{self._g.year(year)}"

        return [
            (re.compile(rf"(?<![\w/.,-]){month}/(?P<y>(?:19|20)\d\d)(?![\w/]|[.,]\d)"), read),
            (
                re.compile(
                    r"(?P<before>(?:\b(?:el|le|il) )?)(?<![\w/.,-])(?P<m>0[1-9])/(?P<y>1[3-9]|[2-4]\d)(?![\w/]|[.,]\d)",
                    re.I,
                ),
                read,
            ),
            (
                re.compile(
                    rf"(?P<before>\b(?:tarjeta|carte|carta|cartão|cartao|Karte)\b[^.!?/]*?\b(?:caduca|vence|expir[ae]|scade|válid[ao]|valide|valida|gültig|läuft|validade)\b[^\d.!?]*){month}/(?P<y>\d\d)(?![\w/]|[.,]\d)"
                ),
                read,
            ),
        ]

    def times(self) -> list[Rule]:
        """Return the rules for times and decades."""
        flags = re.I
        return [
            (
                re.compile(rf"(?<![\w:.,])(?P<h>\d{{1,2}}) ?{_HALF}{DASH}(?=\d{{1,2}}(?!\d))", flags),
                self._half_then_hour,
            ),
            (
                re.compile(
                    rf"(?<![\w:.,])(?P<h>\d{{1,2}}){DASH}(?=\d{{1,2}}(?::\d\d)? ?[ap]\.? ?m\b|\d{{1,2}}:[0-5]\d\b)",
                    flags,
                ),
                self._hour_to,
            ),
            (
                re.compile(
                    rf"(?<![\w:.,])(?P<h>\d{{1,2}}):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d))?(?: ?{_HALF})?(?![\d:])(?P<to>{DASH}(?=\d{{1,2}}[:h]\d\d|\d{{1,2}} ?[ap]\.?m))?",
                    flags,
                ),
                self._time,
            ),
            (
                re.compile(
                    rf"(?<![\w:.,])(?P<h>\d{{1,2}})(?:\.(?P<m>[0-5]\d))? ?{_HALF}(?P<to>{DASH}(?=\d{{1,2}}(?::\d\d)? ?[ap]?))?",
                    flags,
                ),
                self._time,
            ),
            *self._local_times(),
            *self._decades(),
        ]

    def _local_times(self) -> list[Rule]:
        if self._g.tag in ("fr", "pt", "es", "it"):
            begins = rf"(?<![\w:.,])(?P<h>\d{{1,2}}) ?[hH](?: ?(?P<m>[0-5]\d)(?:min|mn)?)?\b(?P<to>{DASH}(?=\d{{1,2}} ?[hH:]))"
            return [
                (re.compile(begins), self._time),
                (re.compile(r"(?<![\w:.,])(?P<h>\d{1,2}) ?[hH] ?(?P<m>[0-5]\d)(?:min|mn)?\b"), self._time),
            ]
        if self._g.tag == "de":
            return [(re.compile(rf"(?<![\w:.,])(?P<h>\d{{1,2}})(?:[.:](?P<m>[0-5]\d))?(?:{DASH}(?P<h2>\d{{1,2}})(?:[.:](?P<m2>[0-5]\d))?)? ?Uhr\b"), self._german_time)]  # fmt: skip
        return []

    def _decades(self) -> list[Rule]:
        if self._g.tag != "en":
            return []
        return [
            (re.compile(r"(?<![\w.,])(?P<y>\d{3}0) ?['’]?s\b"), self._decade),
            (re.compile(r"(?<![\w.,])['’]?(?P<y>[1-9]0)['’]?s\b"), self._decade),
            (
                re.compile(r"(?:(?<![\w.,])|(?P<quarter>(?<=\bQ[1-4])))['’](?P<y>\d\d)\b"),
                lambda m: ("" if m["quarter"] is None else " ") + self._two(m["y"]).replace("zero", "oh"),
            ),
            (
                re.compile(rf"(?<![\w.,])(?:(?P<from>\d+){DASH})?(?P<n>\d+(?:\.\d+)?)[xX]\b(?! ?\d)"),
                lambda m: (
                    f"{self._int(m['from']) + f' {self._g.to} ' if m['from'] else ''}{self._number(m['n'])} time{'' if m['n'] == '1' and _OFTEN.match(m.string, m.end()) else 's'}"
                ),
            ),
        ]

    def _month(self, name: str) -> str:
        low = name.lower().rstrip(".")
        for number, full in enumerate(self._g.months):
            if low == full.lower() or low == self._g.month_short[number] or low == "sept" and number == 8:
                return full
        return name

    def _month_number(self, name: str) -> int:
        return list(self._g.months).index(self._month(name)) + 1

    @staticmethod
    def _full_year(text: str) -> int:
        year = int(text.lstrip("'’"))
        return year if len(text) == 4 else year + (1900 if year > 49 else 2000)

    def _date(self, match: re.Match[str]) -> str:
        if "m" in match.re.groupindex:
            day, month = int(match["d"]), int(match["m"])
        else:
            day, month = self._day_and_month(int(match["a"]), int(match["b"]), dotted=match["sep"] == ".")
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match.group()
        if match["sep"] == "." and len(match["y"]) == 2 and self._g.tag == "en":
            return match.group()  # "1.2.34" is a version
        following = match.string[match.end() : match.end() + 1]
        return self._g.date(day, month, self._full_year(match["y"])) + (", " if following.isdigit() else "")

    def _day_and_month(self, first: int, second: int, *, dotted: bool = False) -> tuple[int, int]:
        if self._g.month_first and not dotted:
            return (first, second) if first > 12 else (second, first)
        return (second, first) if second > 12 else (first, second)

    def _short_date(self, match: re.Match[str]) -> str:
        day, month = self._day_and_month(int(match["a"]), int(match["b"]))
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match.group()
        return match["before"] + self._g.date(day, month, None)

    def _month_day(self, match: re.Match[str]) -> str:
        day = int(match["d"])
        verb = match["month"] in ("may", "march", "mar") and not _DATED.search(match.string, 0, match.start())
        if not 1 <= day <= 31 or verb:  # "I will march 5 miles", but "on march 5"
            return match.group()
        words = f"{self._month(match['month'])} {self._g.ordinal(day, 'm')}"
        if match["d2"]:
            words += f" {self._g.to} {self._g.ordinal(int(match['d2']), 'm')}"
        return words + (f", {self._g.year(self._full_year(match['y']))}" if match["y"] else "")

    def _day_month(self, match: re.Match[str]) -> str:
        day = int(match["d"])
        if not 1 <= day <= 31:
            return match.group()
        year = self._full_year(match["y"]) if match["y"] else None
        if self._g.tag == "en":
            words = f"the {self._g.ordinal(day, 'm')} of {self._month(match['month'])}"
            return words + (f", {self._g.year(year)}" if year else "")
        words = self._g.date(day, self._month_number(match["month"]), year)
        if match["d2"]:
            last = self._g.date(int(match["d2"]), self._month_number(match["month"]), year)
            words = f"{self._g.date(day, 1, None).split()[0] if self._g.tag == 'de' or day == 1 else self._int(match['d'])} {self._g.to} {last}"
        stop = match.group().endswith(".") and not match.string[match.end() :].strip()
        return words + "." if stop else words

    def _time(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        hour, minute = int(groups["h"]), int(groups.get("m") or 0)
        half = (groups.get("half") or "").lower()
        if hour > 24 or half and hour > 12:
            return match.group()
        second = groups.get("s")
        words = self._g.time(hour, minute, int(second) if second is not None else None, half)
        if (
            half
            and groups.get("half")
            and not groups.get("to")
            and match.group().endswith(".")
            and not match.string[match.end() :].strip()
        ):
            words = words.rstrip(".") + "."
        if groups.get("to"):
            words += f" {self._g.to} "
        return words

    def _half_then_hour(self, match: re.Match[str]) -> str:
        first = self._g.time(int(match["h"]), 0, None, match["half"].lower())
        return f"{first} {self._g.to} "

    def _hour_to(self, match: re.Match[str]) -> str:
        return f"{self._int(match['h'])} {self._g.to} "

    def _german_time(self, match: re.Match[str]) -> str:
        first = self._g.time(int(match["h"]), int(match["m"] or 0), None, "")
        if not match["h2"]:
            return first
        start = first.removesuffix(" Uhr") if not match["m"] else first
        return f"{start} {self._g.to} {self._g.time(int(match['h2']), int(match['m2'] or 0), None, '')}"

    def _decade(self, match: re.Match[str]) -> str:
        text = match["y"]
        if match.group() == f"{text}s" and (text == "10" or _SECONDS.search(match.string, 0, match.start())):
            return self._counted(text, self._g.units["sec"])
        words = self._g.year(int(text)) if len(text) == 4 else self._int(text)
        return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"
