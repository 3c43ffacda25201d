"""Written forms of French, German, Italian, Portuguese and Spanish that the shared rules do not have."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Grammar
from tts_engine.text.verbalise.numbers import ROMAN_FORM, Rule, any_of, roman


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates."""
    own = {"de": _german, "fr": _french, "it": _italian, "pt": _portuguese, "es": _spanish}
    read = own.get(grammar.tag)
    return [_days(grammar), _day_before_date(grammar), *_durations(grammar), *read(grammar)] if read else []


_DAYS = {
    "de": ("Mo Di Mi Do Fr Sa So", "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
    "es": ("lun mar mié jue vie sáb dom", "lunes martes miércoles jueves viernes sábado domingo"),
    "fr": ("lun mar mer jeu ven sam dim", "lundi mardi mercredi jeudi vendredi samedi dimanche"),
    "it": ("lun mar mer gio ven sab dom", "lunedì martedì mercoledì giovedì venerdì sabato domenica"),
    "pt": ("seg ter qua qui sex sáb dom", "segunda terça quarta quinta sexta sábado domingo"),
}
"""The days of the week from Monday, short and long."""


def _days(g: Grammar) -> Rule:
    """Return the rule for a range of days: "lun.-ven."."""
    short, long = (names.split() for names in _DAYS[g.tag])
    number = {name.lower(): at for names in (short, long) for at, name in enumerate(names)}
    day = rf"(?:{any_of([*long, *short])})(?!\w)\.?"

    def read(match: re.Match[str]) -> str:
        first, last = (long[number[match[at].rstrip(".").lower()]] for at in (1, 2))
        rest = match.string[match.end() :]
        return f"{first} {g.to} {last}" + ("." if match[2].endswith(".") and not rest.strip() else "")

    # Without a full stop, "Do-So" may be anything, so both names are written alike.
    return re.compile(rf"(?<![\w-])({day}) ?[-–] ?({day})(?![\w-])", re.I if g.tag != "de" else 0), read


def _day_before_date(g: Grammar) -> Rule:
    """Return the rule for a short day before a date: "ven. 14/02"."""
    short, long = (names.split() for names in _DAYS[g.tag])
    full = dict(zip(short, long, strict=True))
    pattern = rf"\b(?P<day>(?i:{any_of(short)}))\.(?P<comma>,?) (?=\d)"
    return re.compile(pattern), lambda m: f"{full.get(m['day'], full.get(m['day'].lower(), m['day']))}{m['comma']} "


def _durations(g: Grammar) -> list[Rule]:
    """Return the rules for hours with minutes, and for the "h" after a time."""
    hour, minute = g.units["h"], g.units["min"]

    def duration(match: re.Match[str]) -> str:
        hours, minutes = (
            f"{g.cardinal(int(match[key]), noun.gender, True)} {noun.after(match[key])}"
            for key, noun in (("h", hour), ("m", minute))
        )
        stop = match.group().endswith(".") and not match.string[match.end() :].strip()
        joint = " " if g.tag in ("de", "fr") else f" {g.conjunction} "
        return hours + joint + minutes + ("." if stop else "")

    return [
        (re.compile(r"(?<![\w.,:])(?P<h>\d{1,2}) ?(?:h|hs|Std\.?|Stunden?)\.? ?(?P<m>[0-5]?\d) ?(?i:min|mn|minuten|minutos|minuti)(?!\w)\.?"), duration),
        (re.compile(r"(?<=[:.h][0-5]\d) ?(?:h|hs|hrs)\b(?=\W|$)"), lambda _: ""),
    ]  # fmt: skip


def _german(g: Grammar) -> list[Rule]:
    masculine = "Stock|Platz|Versuch|Monat|Teil|Spieltag|Weltkrieg|Gang|Termin|Tag|Geburtstag|Schritt|Punkt|Anruf|Wagen"
    feminine = (
        "Etage|Runde|Reihe|Rate|Mahnung|Person|Woche|Klasse|Auflage|Zahlung|Stunde|Minute|Seite|Stufe|Frage|Generation"
    )
    neuter = "Jahrhundert|Obergeschoss|Quartal|Jahr|Kapitel|Lebensjahr|Semester|Halbjahr|Mal|Geschoss|Gebot|Kind"
    ending = {**dict.fromkeys(masculine.split("|"), "r"), **dict.fromkeys(neuter.split("|"), "s")}

    def ordinal(match: re.Match[str]) -> str:
        before = re.search(r"(\w+) $", match.string[: match.start()])
        said = g.ordinal(int(match["n"]), "m")
        after = before[1].lower() if before else ""
        if after in ("der", "die", "das", "diese", "dieser", "dieses", "jede", "jeder", "jedes"):
            return said
        if after in (
            "am",
            "vom",
            "zum",
            "im",
            "beim",
            "dem",
            "den",
            "des",
            "diesem",
            "diesen",
            "einem",
            "einen",
            "zur",
            "in",
            "ihrem",
        ):
            return said + ("r" if after == "in" and match["noun"] not in ending else "n")
        return said + ending.get(match["noun"], "")

    def day(match: re.Match[str]) -> str:
        if not 1 <= int(match["d"]) <= 31:
            return match.group()
        return g.date(int(match["d"]), int(match["m"]), None) + ("" if match.string[match.end() :].strip() else ".")

    def ruler(match: re.Match[str]) -> str:
        she = match["name"] in ("Elisabeth", "Katharina", "Maria", "Margarethe")
        return f"{match['name']} {'die' if she else 'der'} {g.ordinal(roman(match['roman']), 'm').capitalize()}"

    nouns = any_of([*ending, *feminine.split("|")])
    rulers = "Heinrich|Karl|Ludwig|Friedrich|Wilhelm|Elisabeth|Johannes Paul|Johannes|Paul|Benedikt|Otto|Napoleon|Katharina|Papst Leo|Leo|Pius|Philipp|Georg|Maria|Margarethe|Rudolf|Leopold"
    return [
        (re.compile(r"(?<=[a-zäöü]{3})str\.(?=\W|$)"), lambda m: "straße" + ("" if m.string[m.end() :].strip() else ".")),
        (re.compile(rf"(?<![\w.,])(?P<n>\d{{1,3}})\. (?=(?P<noun>{nouns})\b)"), lambda m: f"{ordinal(m)} "),
        (re.compile(rf"\b(?P<name>{rulers}) (?=[IVX])(?P<roman>{ROMAN_FORM})\b\.?(?=[\s,;:!?]|$)"), ruler),
        (re.compile(r"(?<![\w.,])(?P<d>[0-3]?\d)\.(?P<m>0?[1-9]|1[0-2])\.(?![\w]|\.?\d)"), day),
        (re.compile(rf"\b(?=[IVX])(?P<roman>{ROMAN_FORM})\. (?=Weltkrieg\b)"), lambda m: f"{g.ordinal(roman(m['roman']), 'm')}r "),
    ]  # fmt: skip


def endings(tag: str) -> list[Rule]:
    """Return the rules for words that change before the words of a number. They come after all others."""
    if tag == "fr":
        return [
            (re.compile(r"\b([Dd])e (?=euros?\b|yens?\b|hectares?\b|octets?\b)"), lambda m: f"{m[1]}'"),
        ]
    if tag == "it":
        return [
            (re.compile(r"\b([Aa])ll[ea] una\b(?! e \w+ volte)"), lambda m: f"{m[1]}ll'una"),
            (re.compile(r"\b([Ll])e una\b(?! \w+ volte)"), lambda m: f"{m[1]}'una"),
            (re.compile(r"\b([Dd])alle una\b"), lambda m: f"{m[1]}all'una"),
            (re.compile(r"\buna (?=or[ae]\b)"), lambda _: "un'"),
            (re.compile(r"\bun (?=s[bcdfglmnpqrtv]|z(?!ero)|gn|ps|yen)"), lambda _: "uno "),
            (re.compile(r"\b(Il|il|Al|al|Dal|dal|Del|del|Nel|nel) (?=otto\b|undici\b)(?!\w+ (?:per cento|virgola))"), lambda m: f"{m[1][:-1]}{'l' if m[1][-2:].lower() != 'il' else ''}'" if m[1].lower() != "il" else "l'" if m[1][0] == "i" else "L'"),
        ]  # fmt: skip
    if tag == "pt":
        return [(re.compile(r"\b([ÀàAa])s (?=uma hora\b)"), lambda m: "À " if m[1] in "ÀA" else "à ")]
    if tag == "es":
        return [(re.compile(r"\b([Ll])as (?=una\b(?! mil))"), lambda m: f"{m[1]}a ")]
    return []


def _french(g: Grammar) -> list[Rule]:
    euro, cent = g.currencies["€"]
    assert cent is not None
    number = r"(?<![\w.,])(?P<n>\d+)"

    def price(match: re.Match[str]) -> str:
        return f"{g.cardinal(int(match['n']), 'm', True)} {euro.after(match['n'])} {g.cardinal(int(match['c']), 'm', True)}"

    def century(match: re.Match[str]) -> str:
        return g.ordinal(roman(match["roman"]), "f" if match["end"] in ("re", "ère") else "m")

    return [
        (re.compile(rf"{number} ?€ ?(?P<c>\d\d)(?!\w)"), price),
        (re.compile(rf"\b(?![LC](?:e|er)\b)(?P<roman>{ROMAN_FORM})(?P<end>ers?|re|ère|e|è|ème|ᵉ)(?!\w)"), century),
        (re.compile(r"\b[Nn][°º] ?(?=\d)"), lambda _: "numéro "),
        (re.compile(r"\bM\. (?=[A-ZÉÈÀ])"), lambda _: "monsieur "),
        (re.compile(r"\b24 ?h ?/ ?24\b"), lambda _: "vingt-quatre heures sur vingt-quatre"),
        (re.compile(r"\b7 ?j(?:ours)? ?/ ?7\b"), lambda _: "sept jours sur sept"),
    ]  # fmt: skip


def _italian(g: Grammar) -> list[Rule]:
    def time(match: re.Match[str]) -> str:
        return match["before"] + g.time(int(match["h"]), int(match["m"]), None, "")

    return [
        (re.compile(r"(?P<before>\b(?:ore|alle|dalle|le|ore:|h) )(?P<h>[01]?\d|2[0-4])\.(?P<m>[0-5]\d)(?![\w%]|[.,:]\d| ?[€$])"), time),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3})°(?= (?!all|nel|in\b|di\b|con\b|per\b|e\b|a\b|o\b|ma\b|fuori|oggi|domani|stamattina|sopra|sotto)[a-zà]{3,})"), lambda m: g.ordinal(int(m["n"]), "f" if re.match(r" \w+a\b", m.string[m.end():]) else "m")),
        (re.compile(r"\b[Nn][°º]\.? ?(?=\d)"), lambda _: "numero "),
    ]  # fmt: skip


def _portuguese(g: Grammar) -> list[Rule]:
    def spelled(match: re.Match[str]) -> str:
        return ", ".join(" ".join(g.digits[int(digit)] for digit in group) for group in re.findall(r"\d+", match[0]))

    return [
        # CPF, CNPJ and CEP: the numbers of a person, a company and a postal district.
        (re.compile(r"(?<![\w.,/-])(?:\d{3}\.\d{3}\.\d{3}-\d{2}|\d{2}\.\d{3}\.\d{3}/\d{4}-\d{2}|\d{2}\.?\d{3}-\d{3})(?![\w/-]|[.,]\d)"), spelled),
        (re.compile(r"\b[Nn]\.?[°º] ?(?=\d)"), lambda _: "número "),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3})°(?= [a-zà-ú]{4,})"), lambda m: g.ordinal(int(m["n"]), "m")),
    ]  # fmt: skip


def _spanish(g: Grammar) -> list[Rule]:
    return [
        (re.compile(r"\$ ?(?=\d[\d.,]*\d? pesos\b)"), lambda _: ""),
        (re.compile(r"\$ ?(?P<n>\d[\d.,]*) dólares\b"), lambda m: m[0].rpartition(" ")[0]),
        (re.compile(r"\b[Nn]\.?[°º] ?(?=\d)"), lambda _: "número "),
        (re.compile(r"(?<![\w.,])(?P<n>[1-9])°(?= (?:piso|grado|lugar|año|puesto|planta|nivel|día|turno)\b)"), lambda m: g.ordinal(int(m["n"]), "m")),
    ]  # fmt: skip
