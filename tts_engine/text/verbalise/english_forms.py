"""Written forms that only English has: streets, weekdays, names of files."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Grammar
from tts_engine.text.verbalise.numbers import Rule, any_of

_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DE|DC|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|ND|OH|OK|OR|PA|RI|"
    "SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY"
)


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates."""
    directions = {"N": "North", "S": "South", "E": "East", "W": "West"}
    days = {"Mon": 0, "Tue": 1, "Tues": 1, "Wed": 2, "Thu": 3, "Thur": 3, "Thurs": 3, "Fri": 4, "Sat": 5, "Sun": 6}
    full = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
    streets = {"St": "Street", "Dr": "Drive", "Ave": "Avenue", "Rd": "Road", "Ln": "Lane", "Blvd": "Boulevard",
               "Ct": "Court", "Pl": "Place", "Hwy": "Highway", "Pkwy": "Parkway", "Cir": "Circle", "Ter": "Terrace"}  # fmt: skip
    numbered = (
        r"(?P<name>\b(?:\d+|(?:[NSEW]\.?|North|South|East|West)) (?:\d+(?:st|nd|rd|th) |(?:[A-Z][\w'’.]*) ){1,3}?)"
    )
    # "See Dr." at the end of a clause is followed by a name.
    unnumbered = r"(?P<name>\b(?!(?:Mr|Mrs|Ms|See|Ask|Call|Meet|Visit|Contact|Dear|Hi|Hello|With|For|The|And|Tell|By|From|To)\b)[A-Z][a-z]+ )"

    def street(match: re.Match[str]) -> str:
        rest = match.string[match.end() :]
        stop = (
            "."
            if match.group().endswith(".") and (not rest.strip() or re.match(r"\s+[A-Z][a-z]*\s+[a-z]", rest))
            else ""
        )
        name = re.sub(r"\b([NSEW])\b\.?(?= )", lambda m: directions[m[1]], match["name"])
        return f"{name}{streets[match['street']]}{stop}"

    def day(match: re.Match[str]) -> str:
        return full[days[match[1]]] + (f" {grammar.to} " if match["to"] else "")

    def month(name: str) -> str:
        return grammar.months[list(grammar.month_short).index(name[:3].lower())]

    short = any_of([month.capitalize() for month in grammar.month_short])
    of_year = any_of([*grammar.months, *(name.capitalize() for name in grammar.month_short), "Sept"])
    after = rf"(?=,? ?(?:{short}|\d|(?:and|to|through|thru|&) (?:{any_of(days)})\b))"

    ways = "Street|Avenue|Road|Drive|Boulevard|Place|Court|Lane|Circle|Terrace|Way|Highway|Parkway"
    compass = {**directions, "NE": "Northeast", "NW": "Northwest", "SE": "Southeast", "SW": "Southwest"}

    def expiry(match: re.Match[str]) -> str:
        month, year = int(match["m"]), int(match["y"])
        if (
            not 1 <= month <= 12
            or year <= 31
            and not re.search(r"\b(?:card|visa|mastercard|amex|exp)\b", match.string, re.I)
        ):
            return match.group()
        return f"{match['before']}{grammar.months[month - 1]} {grammar.year(2000 + year)}"

    def inches(match: re.Match[str]) -> str:
        quotes = re.sub(r"\d[\"”″]", "", match.string[: match.start() + 1])
        if len(re.findall('["“”]', quotes)) % 2:
            return match.group()  # the end of a quotation
        if match["by"]:
            return f"{match['n']} inches by"
        one = re.match(
            r" (?!x\b|by\b|and\b|or\b|tall|wide|long|deep|high|thick|of\b|in\b|from|at\b)[A-Za-z]{2,}",
            match.string[match.end() :],
        )
        return f"{match['n']} {'inch' if one or match['n'] == '1' else 'inches'}"

    def pairs(digits: str) -> str:
        return f"{grammar.cardinal(int(digits[:2]), 'm', False)} {grammar.cardinal(int(digits[2:]), 'm', False)}"

    hour, minute, second = (grammar.units[name] for name in ("hr", "min", "sec"))

    def duration(match: re.Match[str]) -> str:
        parts = ((match["h"], hour), (match["m"], minute), (match["s"], second))
        return " ".join(f"{grammar.cardinal(int(n), 'm', False)} {noun.after(n)}" for n, noun in parts if n)

    return [
        (re.compile(r"(?<![\w.,-])(?:(?P<h>\d{1,3})h ?(?P<m>\d{1,2})m(?: ?(?P<s>\d{1,2})s)?)\b"), duration),
        (re.compile(r"(?<![\w.,-])(?P<h>(?!))?(?P<m>\d{1,3})m ?(?P<s>\d{1,2})s\b"), duration),
        (re.compile(r"\b(?P<word>[Ff]orm|IRS) (?P<n>1[01]\d[1-9]|10[1-9]0)\b(?![\w,.]\d)"), lambda m: f"{m['word']} {pairs(m['n'])}"),
        (re.compile(r"\bFY ?(?P<y>(?:19|20)\d\d)\b"), lambda m: f"F Y {grammar.year(int(m['y']))}"),
        (re.compile(r"(?<=[a-z] )[Nn]o\. (?=(?:is|was|on|for|ending|ends|below|above|you|starts|begins|shown)\b)"), lambda _: "number "),
        (re.compile(r"\b([Ss]eats|[Rr]ows|[Gg]ates|[Ss]ections|[Ll]ines|[Oo]ptions|[Tt]erminals|[Zz]ones|[Gg]roups|[Tt]racks) ([A-Z]) ?[-–] ?([A-Z])\b"), lambda m: f"{m[1]} {m[2]} to {m[3]}"),
        (re.compile(r"(?<![\w.'’′-])(?P<n>\d{1,3}(?:\.\d{1,2})?(?: \d/\d{1,2})?)[\"”″](?!\w)(?P<by> ?[x×](?= ?\d))?"), inches),
        (re.compile(r"\b(Ctrl|Cmd|Esc|Opt)(?= ?\+|\b)"), lambda m: {"Ctrl": "Control", "Cmd": "Command", "Esc": "Escape", "Opt": "Option"}[m[1]]),
        (re.compile(r"(?<=\+)(?: ?)(Del|Ins|PrtSc)\b"), lambda m: {"Del": " Delete", "Ins": " Insert", "PrtSc": " Print Screen"}[m[1]]),
        (re.compile(r"\b(?P<before>(?:expir\w*|exp\.?|valid (?:thru|through|until))(?: date)?(?: (?:is|on|in|of))? )(?P<m>\d\d)/(?P<y>\d\d)(?![\w/])", re.I), expiry),
        (re.compile(rf"(?<=\b(?:{_STATES}) )\d{{5}}(?:-\d{{4}})?(?!\w)"), lambda m: " ".join(grammar.digits[int(d)] for d in m[0] if d.isdigit())),
        (re.compile(r"(?<=\bor )(?:[2-9]11|988|999|112)(?![\w%]|[.,:]\d| [a-z]+s\b)"), lambda m: " ".join(grammar.digits[int(d)] for d in m[0])),
        (re.compile(r"\b(?P<word>account|acct\.?|order|policy|invoice|ref\.?|case|ticket|claim|member|serial|flight|bus|room) [Nn]o\. ?(?=[\dA-Z])", re.I), lambda m: f"{m['word']} number "),
        # Amounts in the form of continental Europe: "5 000,50 €", "1.234,56".
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3}(?:[ .]\d{3})+,\d{1,2}|\d+,\d{2}(?= ?€)|(?<=[€£])\d+,\d{2}|(?<=€ )\d+,\d{2})(?![\w,]|\.\d)"), lambda m: re.sub(r"[ .]", "", m["n"]).replace(",", ".")),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3}(?:[ .]\d{3})+)(?= ?€(?!\d))"), lambda m: re.sub(r"[ .]", "", m["n"])),
        (re.compile(r"[$€£](?P<n>\d[\d.,]*(?: (?:thousand|million|billion))?) (?:dollars|euros|pounds)\b"), lambda m: m[0].rpartition(" ")[0]),
        (re.compile(r"(?<![\w.,-])\d{1,3}(?: \d{3})* 000(?! ?[\d€$£])"), lambda m: grammar.cardinal(int(m.group().replace(" ", "")), "m", False)),
        (re.compile(rf"{numbered}(?P<street>{any_of(streets)})\b(?:\.|(?=,|$| (?:and|or|at|in|near|between|on|to|is|Apt|Suite|Unit|NW|NE|SW|SE|[NSEW])\b))"), street),
        (re.compile(rf"\b({ways}) (NE|NW|SE|SW|[NSEW])\b(?!\.\w)"), lambda m: f"{m[1]} {compass[m[2]]}"),
        (re.compile(rf"\b(?P<name>\d+(?:st|nd|rd|th) )(?P<street>{any_of(streets)})\b\.?(?!\w)"), street),
        (re.compile(r"\b([Ss])q\. (?=[a-z]{4,})"), lambda m: f"{m[1]}quare "),
        (re.compile(r"\b([Vv]ersion|[Rr]elease) v(?=\d)"), lambda m: f"{m[1]} "),
        (re.compile(rf"{unnumbered}(?P<street>{any_of(streets)})\b\.?(?=$|[,;!?]| [a-z])"), street),
        (re.compile(r"\bDr\.? (?=[A-Z])"), lambda _: "Doctor "),
        (re.compile(r"\bSt\.? (?=[A-Z])"), lambda _: "Saint "),
        (re.compile(rf"\b({any_of(days)})\b\.?(?:(?P<to> ?[-–] ?)(?=(?:{any_of(days)})\b)|{after})"), day),
        (re.compile(rf"(?<= to )({any_of(days)})\b\.?(?P<to>)"), day),
        (re.compile(rf"\b({of_year})\.? ?[-–] ?({of_year})\b\.?(?! ?\d\d?(?!\d))"), lambda m: f"{month(m[1])} to {month(m[2])}"),
        (re.compile(r"(?<=\ds)[-–](?=['’]?\d+0s)"), lambda _: " to "),
        (re.compile(r"(?<![\w/])(?P<m>0?[1-9]|1[0-2])/(?P<y>(?:19|20)\d\d)(?![\w/])"), lambda m: f"{grammar.months[int(m['m']) - 1]} {grammar.year(int(m['y']))}"),
        (re.compile(r"\b40([13])\(?([kKbB])\)?(?!\w)"), lambda m: f"four oh {grammar.digits[int(m[1])]} {m[2].upper()}"),
        (re.compile(r"(?<=\w)\.(?=(?:txt|pdf|docx?|xlsx?|pptx?|jpe?g|png|gif|csv|zip|mp[34]|html?|json|xml|exe)\b)"), lambda _: " dot "),
    ]  # fmt: skip
