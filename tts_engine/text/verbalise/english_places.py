"""Written forms of places that only English has: streets, roads, buildings, postal codes."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Grammar
from tts_engine.text.verbalise.numbers import Rule, any_of

_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DE|DC|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|ND|OH|OK|OR|PA|RI|"
    "SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY"
)
_STATE_NAMES = dict(zip(_STATES.split("|"), (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|DC|Florida|Georgia|Hawaii|Idaho|Illinois|Indiana|Iowa|"
    "Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|Missouri|Montana|Nebraska|Nevada|New Hampshire|"
    "New Jersey|New Mexico|New York|North Carolina|North Dakota|Ohio|Oklahoma|Oregon|Pennsylvania|Rhode Island|South Carolina|South Dakota|"
    "Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming"
).split("|"), strict=True))  # fmt: skip
_DIRECTIONS = {"N": "North", "S": "South", "E": "East", "W": "West"}
_COMPASS = {**_DIRECTIONS, "NE": "Northeast", "NW": "Northwest", "SE": "Southeast", "SW": "Southwest"}
_STREETS = {
    "St": "Street", "Dr": "Drive", "Ave": "Avenue", "Rd": "Road", "Ln": "Lane", "Blvd": "Boulevard", "Ct": "Court",
    "Pl": "Place", "Hwy": "Highway", "Pkwy": "Parkway", "Cir": "Circle", "Ter": "Terrace", "Sq": "Square",
    "Expy": "Expressway", "Tpke": "Turnpike", "Trl": "Trail",
}  # fmt: skip
_WAYS = "Street|Avenue|Road|Drive|Boulevard|Place|Court|Lane|Circle|Terrace|Way|Highway|Parkway|Square|Expressway"
_PARTS = {
    "Apt": "Apartment", "apt": "apartment", "Ste": "Suite", "ste": "suite", "Bldg": "Building", "bldg": "building",
    "Rm": "Room", "rm": "room", "Fl": "Floor", "Hwy": "Highway", "Rte": "Route", "Rt": "Route", "Blk": "Block", "Lvl": "Level",
    "Dept": "Department", "dept": "department", "Pkwy": "Parkway",
}  # fmt: skip
"""Abbreviations before the number or letter of a part of a building or a road."""


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates."""
    streets = any_of(_STREETS)
    numbered = r"(?P<name>\b(?:\d+[A-Z]?|(?:[NSEW]\.?|North|South|East|West)) (?:\d+(?:st|nd|rd|th) |(?:[A-Z][\w'’.]*) ){1,3}?)"
    # "See Dr." at the end of a clause is followed by a name.
    unnumbered = r"(?P<name>\b(?!(?:Mr|Mrs|Ms|See|Ask|Call|Meet|Visit|Contact|Dear|Hi|Hello|With|For|The|And|Tell|By|From|To)\b)[A-Z][a-z]+(?:['’]s)? )"

    def street(match: re.Match[str]) -> str:
        rest = match.string[match.end() :]
        stop = (
            "."
            if match.group().endswith(".") and (not rest.strip() or re.match(r"\s+[A-Z][a-z]*\s+[a-z]", rest))
            else ""
        )
        number = re.match(r"(\d+)([A-Z]) ", match["name"])
        name = (
            f"{grammar.cardinal(int(number[1]), 'm', False)} {match['name'][number.end(1) :]}"
            if number
            else match["name"]
        )
        name = re.sub(r"\b([NSEW])\b\.?(?= )", lambda m: _DIRECTIONS[m[1]], name)
        return f"{name}{_STREETS[match['street']]}{stop}"

    def digits(code: str) -> str:
        return " ".join(grammar.digits[int(char)] for char in code if char.isdigit())

    def letters(match: re.Match[str]) -> str:
        return " ".join(grammar.digits[int(c)] if c.isdigit() else c for c in match[0] if c.isalnum())

    def road(match: re.Match[str]) -> str:
        hundreds, rest = divmod(int(match["n"]), 100)
        said = grammar.cardinal(hundreds, "m", False) + (" hundred" if not rest else " oh" if rest < 10 else "")
        kind = {"Hwy": "Highway", "Rte": "Route", "Rt": "Route"}.get(match["kind"], match["kind"])
        return f"{kind} {said}" + (f" {grammar.cardinal(rest, 'm', False)}" if rest else "")

    return [
        (re.compile(rf"\b(?P<state>{_STATES}) (?P<zip>\d{{5}}(?:-\d{{4}})?)(?!\w)"), lambda m: f"{_STATE_NAMES[m['state']]} {digits(m['zip'])}"),
        (re.compile(r"(?<![\w-])(?:[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}|[A-Z]\d[A-Z] \d[A-Z]\d)(?![\w-])"), letters),
        (re.compile(r"\b(?P<part>Rte|Rt|Hwy|Blk|Lvl)\. (?=\d)"), lambda m: f"{_PARTS[m['part']]} ", "."),
        (re.compile(r"(?<=\d )(?P<way>[NSEW])\. (?=[A-Z][a-z]+)"), lambda m: f"{_DIRECTIONS[m['way']]} ", "."),
        # "I-405 N" is "four oh five North".
        (re.compile(r"\b(?P<kind>I|US|SR|CR|Hwy|Highway|Route|Rte|Rt|Interstate|Road)[- ](?P<n>[1-9]\d\d)(?![\w%]|[.,-]\d)"), road, "- "),
        (re.compile(r"(?<=\b[IU]-\d)(\d?) ([NSEW])\b(?![.'’]\w)"), lambda m: f"{m[1]} {_DIRECTIONS[m[2]]}", "-"),
        (re.compile(r"(?P<before>\b(?:I|US|SR|Highway|Route|Interstate) (?:[a-z]+ ?){1,3}|\b(?:I-|US |Route |Highway )\d{1,2} )(?P<way>[NSEW])\b(?![.'’]\w)"), lambda m: f"{m['before'].rstrip()} {_DIRECTIONS[m['way']]}"),
        (re.compile(rf"\b(?P<part>{any_of(_PARTS)})\b(?:\.? ?(?:#|[Nn]o\. ?)| )(?=\d|[A-Z](?:-?\d|\b))"), lambda m: f"{_PARTS[m['part']]} "),
        (re.compile(r"\b([Ff])l\. (?=\d)"), lambda m: f"{m[1]}loor ", "."),
        (re.compile(r"(?<=\d(?:st|nd|rd|th) )[Ff]l\b\.?(?=$|[\s,;.)])"), lambda m: "Floor" if m[0][0] == "F" else "floor"),
        (re.compile(r"\b(NE|NW|SE|SW) (?=\d+(?:st|nd|rd|th)\b|[A-Z][a-z]+ (?:St|Ave|Rd|Dr|Blvd|Street|Avenue|Road|Drive)\b)"), lambda m: f"{_COMPASS[m[1]]} "),
        (re.compile(rf"{numbered}(?P<street>{streets})\b(?:\.|(?=,|$| #| (?:and|or|at|in|near|between|on|to|is|Apt|Apartment|Suite|Unit|NW|NE|SW|SE|[NSEW])\b))"), street),
        (re.compile(rf"\b({_WAYS}) (NE|NW|SE|SW|[NSEW])\b(?!\.\w)"), lambda m: f"{m[1]} {_COMPASS[m[2]]}"),
        (re.compile(rf"\b(?P<name>\d+(?:st|nd|rd|th) )(?P<street>{streets})\b\.?(?!\w)"), street),
        (re.compile(rf"{unnumbered}(?P<street>{streets})\b\.?(?=$|[,;!?]| [a-z])"), street),
        (re.compile(r"\bDr\.? (?=[A-Z])"), lambda _: "Doctor "),
        (re.compile(r"\bSt\.? (?=[A-Z])"), lambda _: "Saint "),
        (re.compile(r"\bP\.? ?O\.? Box\b"), lambda _: "P O Box", "B"),
    ]  # fmt: skip
