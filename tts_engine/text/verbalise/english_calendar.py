"""Written forms of dates and times that only English has: short days and months, ranges, hours of the day."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Grammar
from tts_engine.text.verbalise.numbers import DASH, Rule, any_of

DAYS = {"Mon": 0, "Tue": 1, "Tues": 1, "Wed": 2, "Thu": 3, "Thur": 3, "Thurs": 3, "Fri": 4, "Sat": 5, "Sun": 6}
_LETTERS = {"M": 0, "Tu": 1, "T": 1, "W": 2, "Th": 3, "F": 4, "Sa": 5, "Su": 6}
_FULL = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates, and leave the dates themselves to them."""
    to = f" {grammar.to} "

    def day(match: re.Match[str]) -> str:
        return _FULL[DAYS[match[1]]] + (to if match["to"] else "")

    def month(name: str) -> str:
        return grammar.months[list(grammar.month_short).index(name[:3].lower())]

    def halves(match: re.Match[str]) -> str:
        first = match["h"] + (f" {match['a']}m" if match["a"] else "")
        return f"{first}{match['dash'] or ''}" + (f"{match['h2']} {match['a2']}m" if match["h2"] else "")

    def hours(match: re.Match[str]) -> str:
        hour, minute = match["n"][:2], int(match["n"][2:])
        zero = "zero " if hour[0] == "0" else ""
        said = grammar.cardinal(int(hour), "m", False) if int(hour) else "zero"
        after = "hundred" if not minute else ("oh " if minute < 10 else "") + grammar.cardinal(minute, "m", False)
        return f"{zero if int(hour) else ''}{said} {after}"

    names = [name.capitalize() for name in grammar.month_short]
    short, of_year = any_of(names), any_of([*grammar.months, *names, "Sept"])
    after = rf"(?=,? ?(?:{short}|\d|(?:and|to|through|thru|&) (?:{any_of(DAYS)})\b)|,$)"
    letters = any_of(_LETTERS)
    clock = r"\d{1,2}(?::[0-5]\d)?"
    slashed = r"(?:0?[1-9]|1[0-2])/(?:[0-2]?\d|3[01])(?:/(?:\d{4}|\d\d))?"

    def slashed_range(match: re.Match[str]) -> str:
        return f"{slashed_date(match['first'])}{to}{slashed_date(match['last'])}"

    def slashed_date(written: str) -> str:
        month_, day_, *year = (int(part) for part in written.split("/"))
        if not 1 <= day_ <= 31:
            return written
        full = None if not year else year[0] if year[0] > 99 else year[0] + (1900 if year[0] > 49 else 2000)
        return grammar.date(day_, month_, full)

    return [
        (re.compile(rf"\b(?P<d>\d{{1,2}})-(?P<m>{short})-(?P<y>\d{{4}}|\d\d)(?!\w)", re.I), lambda m: f"{m['d']} {month(m['m'])} {m['y'] if len(m['y']) == 4 else '20' + m['y']}", "-"),
        (re.compile(rf"\b(?P<m>{short})-(?P<d>\d{{1,2}})-(?P<y>\d{{4}})(?!\w)"), lambda m: f"{m['m']} {m['d']}, {m['y']}", "-"),
        # A range of dates: each end is left to the rules for dates.
        (re.compile(rf"(?P<first>(?<![\w/]){slashed}){DASH}(?P<last>{slashed})(?![\w/])"), slashed_range, "/"),
        (re.compile(rf"(?<=\d)(?P<end>(?:st|nd|rd|th)?(?:, \d{{4}})?){DASH}(?=(?:{of_year})\.? \d)"), lambda m: m["end"] + to, "-–—−~"),
        (re.compile(rf"(?P<first>\b\d{{1,2}}(?:st|nd|rd|th)? (?:{of_year})(?: \d{{4}})?)\.?{DASH}(?=\d{{1,2}}(?:st|nd|rd|th)? (?:{of_year})\b)"), lambda m: m["first"] + to, "-–—−~"),
        (re.compile(rf"(?<![\w.,/:-])(?:the )?(?P<d>\d{{1,2}})(?:st|nd|rd|th)?{DASH}(?=\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{of_year})\b)"), lambda m: f"the {grammar.ordinal(int(m['d']), 'm')}{to}", "-–—−~"),
        (re.compile(r"(?<![\w/.,-])(?P<m>0?[1-9]|1[0-2])/(?P<d>[0-2]?\d|3[01])(?=(?: at|,? ?@) ?\d|,? \d{1,2}:[0-5]\d|(?: through| thru) |,? \d{1,2}(?::[0-5]\d)?(?: ?[-–] ?\d{1,2}(?::[0-5]\d)?)? ?[ap]\.?m)"), lambda m: slashed_date(m[0]), "/"),
        # Times: "9a-5p", "5:05p", "9:30-6", "0800 hours", "GMT-5".
        (re.compile(rf"(?<![\w:.,/-])(?P<h>{clock})(?P<a>[ap])?(?P<dash>{DASH}|(?<=[ap]) to )(?P<h2>{clock})(?P<a2>[ap])(?![\w-])"), halves, "ap"),
        (re.compile(r"(?<![\w:.,/-])(?P<h>\d{1,2}:[0-5]\d) ?(?P<a>[ap])(?P<dash>(?!))?(?P<h2>(?!))?(?P<a2>(?!))?(?![\w'’-]|\.\w)"), halves, ":"),
        (re.compile(rf"(?<=\d:[0-5]\d){DASH}(?=\d{{1,2}}(?![\d:]|[.,]\d| ?[ap]\.?m))"), lambda _: to, "-–—−~"),
        (re.compile(rf"(?<=noon|[ap]\.m\.){DASH}(?=\d)|(?<=midnight){DASH}(?=\d)|(?<=\d[ap]m){DASH}(?=(?:noon|midnight)\b)|(?<=\d){DASH}(?=(?:noon|midnight)\b)", re.I), lambda _: to, "-–—−~"),
        (re.compile(r"(?<![\w.,:])(?P<n>(?:[01]\d|2[0-3])[0-5]\d)(?= (?:hours|hrs)\b)"), hours, "h"),
        (re.compile(r"(?<=\d:\d\d)Z\b"), lambda _: " UTC", "Z"),
        (re.compile(r"(?<=\d:[0-5]\d)h\b"), lambda _: "", "h"),
        (re.compile(r"\b(GMT|UTC) ?(?P<sign>[-−–+]) ?(?=\d)"), lambda m: f"{m[1]} {grammar.plus if m['sign'] == '+' else grammar.minus} ", "GU"),
        (re.compile(rf"\b(?P<a>{letters}) ?[-–] ?(?P<b>{letters})\b(?=:?,? ?(?:from )?\d|[.,;)]|$| (?:and|at|only)\b)"), lambda m: f"{_FULL[_LETTERS[m['a']]]}{to}{_FULL[_LETTERS[m['b']]]}", "-–"),
        (re.compile(rf"\b(?P<a>{any_of(DAYS)})\.? ?/ ?(?P<b>{any_of(DAYS)})\b\.?"), lambda m: f"{_FULL[DAYS[m['a']]]}, {_FULL[DAYS[m['b']]]}", "/"),
        (re.compile(rf"\b({any_of(DAYS)})\b\.?(?:(?P<to> ?[-–] ?)(?=(?:{any_of(DAYS)})\b)|{after})"), day),
        (re.compile(rf"(?<= to )({any_of(DAYS)})\b\.?(?P<to>)"), day),
        (re.compile(r"(?<![\w.])(Tues?|Thu(?:rs?)?|Fri)(?![\w'’.-])(?P<to>)"), day, "TF"),
        (re.compile(r"(?P<before>\b(?:on|by|next|this|last|every|until|till|through|thru|before|after|since) )(?P<day>Mon|Wed|Sat|Sun)(?![\w'’.-]| [A-Z])"), lambda m: m["before"] + _FULL[DAYS[m["day"]]], "MWS"),
        (re.compile(rf"\b({of_year})\.? ?[-–] ?({of_year})\b\.?(?! ?\d\d?(?!\d))"), lambda m: f"{month(m[1])}{to}{month(m[2])}", "-–"),
        (re.compile(rf"\b({any_of(n for n in (*names, 'Sept') if n != 'May')})\.(?= (?:[a-z&]|\d{{4}}\b)|[,;)]|$)"), lambda m: month(m[1]) + ("" if m.string[m.end() :] else "."), "."),
        (re.compile(r"(?<=\d(?:st|nd|rd|th))[-–](?=\d+(?:st|nd|rd|th))"), lambda _: to, "-–"),
        (re.compile(r"(?<=\ds)[-–](?=['’]?\d+0s)"), lambda _: to, "-–"),
        (re.compile(r"(?<![\w/])(?P<m>0?[1-9]|1[0-2])/(?P<y>(?:19|20)\d\d)(?![\w/])"), lambda m: f"{grammar.months[int(m['m']) - 1]} {grammar.year(int(m['y']))}", "/"),
    ]  # fmt: skip
