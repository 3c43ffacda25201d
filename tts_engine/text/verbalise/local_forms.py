"""Written forms of French, German, Italian, Portuguese and Spanish that the shared rules do not have."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Grammar
from tts_engine.text.verbalise.numbers import ROMAN_FORM, VULGAR_FRACTIONS, Rule, any_of, roman


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates."""
    own = {"de": _german, "fr": _french, "it": _italian, "pt": _portuguese, "es": _spanish}
    read = own.get(grammar.tag)
    return (
        [
            _vulgar_fraction(grammar),
            *_parts_of_books(grammar),
            *_times_over(grammar),
            *_halves(grammar),
            *_days(grammar),
            _day_before_date(grammar),
            *_inches(grammar),
            *_ranges_of_dates(grammar),
            (
                re.compile(r"\b[Cc]trl(?= ?\+)"),
                lambda _: (
                    "Control"
                    if grammar.tag in ("es", "it", "pt")
                    else "Contrôle"
                    if grammar.tag == "fr"
                    else "Steuerung"
                ),
                "+",
            ),
            (re.compile(r"\b[Kk]m (?=\d)"), lambda _: f"{grammar.units['km'].one} ", "k"),
            *_durations(grammar),
            *_short_month_of_year(grammar),
            *_per_unit(grammar),
            *read(grammar),
        ]
        if read
        else []
    )


def _vulgar_fraction(g: Grammar) -> Rule:
    """Return the rule that writes "1½ h" as "1 1/2 h", which the rules for measures read."""

    def slashed(match: re.Match[str]) -> str:
        over, under = VULGAR_FRACTIONS[match["vulgar"]]
        return f"{match['n'] or ''}{' ' if match['n'] else ''}{over}/{under} "

    signs = "".join(VULGAR_FRACTIONS)
    return (
        re.compile(rf"(?:(?P<n>\d{{1,3}}) ?)?(?P<vulgar>[{signs}]) ?(?=(?:{any_of(g.units)})(?!\w)|[^\W\d_]{{4,}})"),
        slashed,
        signs,
    )


_BOOKS = {
    "es": {"cap": "capítulo", "art": "artículo", "vol": "volumen", "p": "página"},
    "it": {"cap": "capitolo", "art": "articolo", "vol": "volume", "p": "pagina", "pag": "pagina"},
    "pt": {"cap": "capítulo", "art": "artigo", "vol": "volume", "p": "página"},
    "fr": {"chap": "chapitre", "art": "article", "vol": "volume", "p": "page"},
    "de": {"kap": "Kapitel", "art": "Artikel", "bd": "Band", "s": "Seite", "abs": "Absatz", "gl": "Gleis"},
}  # fmt: skip


def _parts_of_books(g: Grammar) -> list[Rule]:
    """Return the rule for a chapter, article, volume or page with its number: "cap. IV"."""
    words = _BOOKS[g.tag]
    pattern = re.compile(rf"(?<![\w.])({any_of(words)})\. ?(?=\d|[A-Z]\. ?\d|[IVXL]+\b(?!\. ?\d))", re.I)
    return [(pattern, lambda m: f"{words[m[1].lower()]} ")]


def _times_over(g: Grammar) -> list[Rule]:
    """Return the rule for "12x", a number of times or payments."""
    feminine = g.tag in ("es", "fr", "it", "pt")
    word = {"fr": "fois", "it": "volte", "pt": "vezes", "es": "veces", "de": "mal"}[g.tag]
    return [
        (
            re.compile(r"(?<![\w.,])(?P<n>\d{1,3})[xX](?= [^\d\s]|[.,!?/]|$)"),
            lambda m: f"{g.cardinal(int(m['n']), 'f' if feminine else 'm', True)} {word}",
        )
    ]


def _halves(g: Grammar) -> list[Rule]:
    """Return the rules for half of a thing: "1/2 comprimido"."""
    masculine, feminine = {
        "es": ("medio", "media"), "fr": ("un demi", "une demi"), "it": ("mezzo", "mezza"), "pt": ("meio", "meia"),
        "de": ("", "eine halbe"),
    }[g.tag]  # fmt: skip
    she = re.compile(
        g.feminine
        or r"\w+(?:tion|sion|té|elle|ette|ille|euse|ère|ule)s?|heure|journée|page|dose|tasse|cuillère|part|boîte"
    )

    def half(match: re.Match[str]) -> str:
        form = feminine if she.fullmatch(match["noun"]) else masculine
        return f"{form} " if form else match.group()

    noun = r"[A-ZÄÖÜ][a-zäöüß]{3,}" if g.tag == "de" else r"(?!millón|milh|million|milion)[a-zà-ÿ]{4,}"
    return [(re.compile(rf"(?<![\w./,-])(?<!\d )(?:1/2|½) (?=(?P<noun>{noun})\b)"), half)]


_DAYS = {
    "de": ("Mo Di Mi Do Fr Sa So", "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
    "es": ("lun mar mié jue vie sáb dom", "lunes martes miércoles jueves viernes sábado domingo"),
    "fr": ("lun mar mer jeu ven sam dim", "lundi mardi mercredi jeudi vendredi samedi dimanche"),
    "it": ("lun mar mer gio ven sab dom", "lunedì martedì mercoledì giovedì venerdì sabato domenica"),
    "pt": ("seg ter qua qui sex sáb dom", "segunda terça quarta quinta sexta sábado domingo"),
}
"""The days of the week from Monday, short and long."""


def _days(g: Grammar) -> list[Rule]:
    """Return the rules for a range of days: "lun.-ven.", "lun. a vie.", "L-V"."""
    short, long = (names.split() for names in _DAYS[g.tag])
    number = {name.lower(): at for names in (short, long) for at, name in enumerate(names)}
    day = rf"(?:{any_of([*long, *short])})(?!\w)\.?"

    def read(match: re.Match[str]) -> str:
        first, last = (long[number[match[at].rstrip(".").lower()]] for at in (1, 3))
        rest = match.string[match.end() :]
        joint = match["joint"].strip() if match["joint"].strip().isalpha() else g.to
        return f"{first} {joint} {last}" + ("." if match[3].endswith(".") and not rest.strip() else "")

    # Without a full stop, "Do-So" may be anything, so both names are written alike.
    ranges: Rule = (
        re.compile(
            rf"(?<![\w-])({day})(?P<joint> ?[-–] ?| (?:a|à|au|al|bis) )({day})(?![\w-])", re.I if g.tag != "de" else 0
        ),
        read,
    )
    letters = {"es": "LMXJVSD", "fr": "LMMJVSD", "it": "LMMGVSD"}.get(g.tag)
    if letters is None:
        return [ranges]

    def by_letter(match: re.Match[str]) -> str:
        return f"{long[letters.index(match[1])]} {g.to} {long[letters.rindex(match[2])]}"

    # One letter a day; a time or a full stop must follow, because "L-V" may be anything.
    return [
        ranges,
        (re.compile(rf"\b(L|S) ?[-–] ?([{letters[3:]}])\b(?=:?,? (?:(?:de|da|dalle|das) )?\d|[.,;)]|$)"), by_letter),
    ]


def _day_before_date(g: Grammar) -> Rule:
    """Return the rule for a short day before a date: "ven. 14/02"."""
    short, long = (names.split() for names in _DAYS[g.tag])
    full = dict(zip(short, long, strict=True))
    months = any_of([*g.months, *g.month_short])
    of = {"es": " de", "pt": " de"}.get(g.tag, "")
    pattern = rf"\b(?P<day>(?i:{any_of(short)}))(?:\.(?P<comma>,?) (?=\d)(?!\d+\.(?:00|1[3-9]|[2-9]\d)(?![\w.]))|(?P<comma2>,?) (?=\d{{1,2}}(?:\.\d{{1,2}}\.|/\d|\.?{of} (?i:{months})\b|[:h]\d\d\b| ?(?:Uhr|h)\b)))"
    return re.compile(
        pattern
    ), lambda m: f"{full.get(m['day'], full.get(m['day'].lower(), m['day']))}{m['comma'] or m['comma2'] or ''} "


def _per_unit(g: Grammar) -> list[Rule]:
    """Return the rule for a unit after "per": "por kWh"."""
    words = {"es": "por|cada", "fr": "par", "it": "al|per", "pt": "por|cada", "de": "pro|je"}[g.tag]
    units = any_of(unit for unit in g.units if len(unit) > 1 and unit.isalpha() and unit not in ("ha", "min", "pt"))
    return [
        (
            re.compile(rf"\b(?P<per>{words}) (?P<unit>{units})\b(?![.'’]\w)"),
            lambda m: f"{m['per']} {g.units[m['unit']].one}",
        )
    ]


def _short_month_of_year(g: Grammar) -> list[Rule]:
    """Return the rule for a month with its year: "jan/2025"."""
    full = dict(zip(g.month_short, g.months, strict=True))
    of = " de" if g.tag in ("es", "pt") else ""

    def read(match: re.Match[str]) -> str:
        year = int(match["year"])
        return f"{full[match['month'].lower()]}{of} {g.year(year if year > 99 else 2000 + year)}"

    return [
        (re.compile(rf"\b(?P<month>(?i:{any_of(full)}))\.?/(?P<year>(?:20)?\d\d)(?![\w/]|[.,]\d)"), read, "/"),
    ]


def _ranges_of_dates(g: Grammar) -> list[Rule]:
    """Return the rule for two dates without years: "1/9-30/9", "de 1/9 a 30/9"."""
    joint = {"es": "a|al", "fr": "à|au", "it": "a|al", "pt": "a|até", "de": "bis"}[g.tag]
    form = r"(?:[0-2]?\d|3[01])/(?:0?[1-9]|1[0-2])"

    def read(match: re.Match[str]) -> str:
        (day, month), (last_day, last_month) = (map(int, match[at].split("/")) for at in (1, 3))
        first, last = g.date(day, month, None), g.date(last_day, last_month, None)
        return f"{first} {match[2].strip() if match[2].strip().isalpha() else g.to} {last}"

    return [(re.compile(rf"(?<![\w/.,])({form})( ?[-–] ?| (?:{joint}) )({form})(?![\w/]|[.,]\d)"), read, "/")]


def _inches(g: Grammar) -> list[Rule]:
    """Return the rule for inches: ``55"``. After an opening quotation mark, the mark closes it."""
    inch = {"es": "pulgadas", "fr": "pouces", "it": "pollici", "pt": "polegadas", "de": "Zoll"}[g.tag]

    def read(match: re.Match[str]) -> str:
        return match[0] if len(re.findall('["“”„]', match.string[: match.start()])) % 2 else f"{match['n']} {inch}"

    return [(re.compile(r"(?<![\w.,])(?P<n>\d{1,3}(?:[.,]\d)?)[\"”″](?!\w)"), read)]


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
    neuter = "Jahrhundert|Obergeschoss|OG|UG|Quartal|Jahr|Kapitel|Lebensjahr|Semester|Halbjahr|Mal|Geschoss|Gebot|Kind"
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

    def days(match: re.Match[str]) -> str:
        """Read several days of one month: "am 1., 2. und 3. Mai"."""
        said = re.sub(r"(\d+)\.", lambda day: f"{g.ordinal(int(day[1]), 'm')}n", match["days"])
        return f"{match['before']} {said}"

    dative = re.compile(
        r"\b(?:unter|von|mit|bei|seit|nach|zu|vor|aus|dem|der)(?: König(?:in)?| Kaiser(?:in)?| Papst| Herzog)? $"
    )

    def ruler(match: re.Match[str]) -> str:
        she = match["name"] in ("Elisabeth", "Katharina", "Maria", "Margarethe")
        said = g.ordinal(roman(match["roman"]), "m").capitalize()
        if dative.search(match.string, 0, match.start()):
            return f"{match['name']} {'der' if she else 'dem'} {said}n"
        return f"{match['name']} {'die' if she else 'der'} {said}"

    def any_ordinal(match: re.Match[str]) -> str:
        """Read an ordinal after an article; the noun may be any."""
        said = g.ordinal(int(match["n"]), "m")
        before = match["before"].lower().split()
        dative = (
            before[-1] not in ("der", "die", "das") and not before[-1].endswith(("e", "er", "es")) or len(before) > 1
        )
        if before[-1] in ("ein", "kein", "mein", "ihr", "unser", "sein"):
            return f"{match['before']} {said}r "
        return f"{match['before']} {said}{'n' if dative else ''} "

    def decade(match: re.Match[str]) -> str:
        century, tens = match["c"], match["y"]
        said = f"{g.cardinal(int(century), 'm', False)}hundert" if century else ""
        return f"{said}{g.cardinal(int(tens), 'm', False)}er"

    short = {
        "Std": "Stunde",
        "Min": "Minute",
        "Sek": "Sekunde",
        "Wo": "Woche",
        "Mon": "Monat",
        "Pers": "Person",
        "Stk": "Stück",
    }
    nouns = any_of([*ending, *feminine.split("|")])
    she = re.compile(g.feminine)
    days_of_week = dict(zip(*(names.split() for names in _DAYS["de"]), strict=True))
    rulers = "Heinrich|Karl|Ludwig|Friedrich|Wilhelm|Elisabeth|Johannes Paul|Johannes|Paul|Benedikt|Otto|Napoleon|Katharina|Papst Leo|Leo|Pius|Philipp|Georg|Maria|Margarethe|Rudolf|Leopold"
    return [
        (re.compile(rf"\b(?P<before>(?:[Aa]m|[Aa]b|[Bb]is|[Vv]om|[Zz]um|[Nn]ächsten|[Kk]ommenden|[Dd]iesen|[Jj]eden)(?: nächsten| kommenden)?) (?P<day>{any_of(days_of_week)})\.(?P<end>$)?"), lambda m: f"{m['before']} {days_of_week[m['day']]}" + ("" if m["end"] is None else ".")),
        (re.compile(r"\b(?P<letters>[A-ZÄÖÜ]{1,3}-[A-Z]{1,2}) (?P<n>\d{1,4})(?P<end>[EH]?)\b(?![.,]\d)"), lambda m: " ".join([*m["letters"].replace("-", ""), *(g.digits[int(d)] for d in m["n"]), *m["end"]])),  # a car
        (re.compile(r"(?<=[a-zäöü]{3})nr\.(?= ?\S)"), lambda _: "nummer"),
        (re.compile(r"(?<=[a-zäöü]{3})str\.(?=\W|$)"), lambda m: "straße" + ("" if m.string[m.end() :].strip() else ".")),
        (re.compile(r"(?<![\w.,])(?P<d>[1-9]|[12]\d|3[01])\. ?[-–] ?(?=\d{1,2}\.(?:\d|1[0-2])\.(?!\d)|\d{1,2}\. (?:Stock|Etage|Klasse|Woche)\b)"), lambda m: f"{g.date(int(m['d']), 1, None).split()[0]} {g.to} ", "-–"),
        (re.compile(rf"\b(?P<before>[Aa]m|[Vv]om|[Zz]um|[Aa]b(?: dem)?) (?P<days>(?:\d{{1,2}}\.,? )+(?:und|oder) \d{{1,2}}\.)(?= (?:{'|'.join(g.months)}|\w+tag|Mittwoch)\b)"), days),
        (re.compile(r"(?<=\b[Uu]m )½ ?(?P<h>\d{1,2})(?![\w/]|[.,]\d)"), lambda m: f"halb {g.cardinal(int(m['h']), 'm', False)}", "½"),
        (re.compile(rf"(?<![\w.,])(?P<n>\d{{1,3}})\. (?=(?P<noun>{nouns})\b)"), lambda m: f"{ordinal(m)} "),
        (re.compile(r"\b(?P<before>(?:(?:[Ii]n|[Aa]n|[Aa]uf|[Mm]it|[Vv]on|[Zz]u|[Bb]ei|[Nn]ach|[Aa]us|[Vv]or|[Uu]nter|[Üü]ber) )?(?:[Dd]er|[Dd]ie|[Dd]as|[Dd]em|[Dd]en|[Dd]es|[Aa]m|[Ii]m|[Vv]om|[Zz]um|[Zz]ur|[Bb]eim|[Jj]ede[rsnm]?|[Dd]iese[rsnm]?|[Ii]hre?[rsnm]?|[Uu]nsere?[rsnm]?|[Ee]ine?[rsnm]?|[Ss]eine?[rsnm]?)) (?P<n>\d{1,3})\. (?=[A-ZÄÖÜ][a-zäöü]+|[A-Z]{2,4}\b|[a-zäöü]{2}\b)(?!(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jan|Feb|Mär|Apr|Jun|Jul|Aug|Sep|Sept|Okt|Nov|Dez)\b)"), any_ordinal),
        (re.compile(r"(?<=, )(?P<n>\d{1,3})\. (?=[A-ZÄÖÜ][a-zäöü]+)(?!(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jan|Feb|Mär|Apr|Jun|Jul|Aug|Sep|Sept|Okt|Nov|Dez)\b)"), lambda m: f"{g.ordinal(int(m['n']), 'm')} "),
        (re.compile(r"^(?P<n>\d{1,2})\. (?=[A-ZÄÖÜ]\w*(?:ung|tion|dosis|[rR]ate|[rR]unde|[eE]tage|[rR]eihe|[kK]lasse|[aA]uflage|[hH]älfte|[wW]oche)\b (?!Sie\b))"), lambda m: f"{g.ordinal(int(m['n']), 'm')} "),
        (re.compile(r"(?<![\w.,])(?P<c>1[1-9])?(?P<y>[1-9]0)er(?:n\b|\b)(?:-(?=J))?"), lambda m: decade(m) + ("n" if m[0].endswith("n") else "") + (" " if m[0].endswith("-") else "")),
        (re.compile(r"(?<=\d),[-–—]{1,2}(?P<cur> ?(?:€|EUR|Euro|CHF))?"), lambda m: m["cur"] or " Euro"),
        (re.compile(r"\bFr\. (?=\d+\.(?:00|1[3-9]|[2-9]\d)(?![\w.]))"), lambda _: "CHF "),
        (re.compile(r"(?<=[a-zäöü]{3})pl\.(?=\W|$)"), lambda m: "platz" + ("" if m.string[m.end() :].strip() else ".")),
        (re.compile(r"(?<![\w.,-])(?P<n>\d{1,3})-(?=(?:stellig|fach|mal|stündig|tägig|jährig|monatig|wöchig|minütig|teilig|köpfig|seitig|stöckig|prozentig|stufig|zeilig|polig)\w*)"), lambda m: g.cardinal(int(m["n"]), "m", True), "-"),
        (re.compile(r"(?<=\d) ?[Cc]t\b\.?(?P<per>/kWh)?"), lambda m: " Cent" + (" pro Kilowattstunde" if m["per"] else "") + ("." if m[0].endswith(".") and not m.string[m.end() :].strip() else "")),
        (re.compile(r"\b(?P<before>[Mm]it|[Vv]on|[Nn]ach|[Aa]b|[Bb]ei|[Zz]u|(?P<accusative>kostet(?: nur)?|kosten(?: nur)?|nur|für|um|zahlen(?: Sie)?)) 1 ?(?:€|EUR|Euro)(?!\w|[.,]\d)"), lambda m: f"{m['before']} {'einen' if m['accusative'] else 'einem'} Euro", "€Ee"),
        (re.compile(rf"\b(?P<before>(?:[Ii]n|[Vv]or|[Mm]it|[Nn]ach|[Ss]eit|[Vv]on|[Bb]ei|[Aa]us|[Ii]nnerhalb von|[Nn]ach nur|[Mm]it nur|[Bb]innen)) 1 (?!(?:Uhr|{any_of(g.units)})\b)(?=(?P<noun>[A-ZÄÖÜ]\w+))"), lambda m: f"{m['before']} {'einer' if she.fullmatch(m['noun']) else 'einem'} "),
        (re.compile(rf"\b(?P<im>[Ii]m |[Dd]em )?(?=[IVX])(?P<roman>{ROMAN_FORM})\. (?=(?P<noun>{nouns})\b)"), lambda m: f"{m['im'] or ''}{g.ordinal(roman(m['roman']), 'm')}{'n' if m['im'] else ending.get(m['noun'], '')} "),
        (re.compile(r"(?<![\w.,:/-])1 (?=(?!oder|aber|über|unter|bitte)[a-zäöüß]{3,}(?P<end>e|er|es|en) (?!Sie\b|Ihr)[A-ZÄÖÜ])"), lambda m: {"e": "eine ", "en": "einen "}.get(m["end"], "ein "), "1"),
        (re.compile(rf"\b(?P<per>pro|je) (?P<unit>{any_of(short)})\b\.?"), lambda m: f"{m['per']} {short[m['unit']]}" + ("." if m[0].endswith(".") and not m.string[m.end() :].strip() else "")),
        (re.compile(rf"\b(?P<name>{rulers}) (?=[IVX])(?P<roman>{ROMAN_FORM})\b\.?(?=[\s,;:!?]|$)"), ruler),
        (re.compile(r"(?<![\w.,])(?P<d>[0-3]?\d)\.(?P<m>0?[1-9]|1[0-2])\.(?![\w]|\.?\d)"), day),
    ]  # fmt: skip


def endings(tag: str) -> list[Rule]:
    """Return the rules for words that change before the words of a number. They come after all others."""
    if tag == "fr":
        return [
            (re.compile(r"\b([Dd]|[Qq]u|[Jj]usqu)e (?=une?\b)"), lambda m: f"{m[1]}'"),
            (re.compile(r"(?<=ième) s\.(?P<end>$)?"), lambda m: " siècle" + ("" if m["end"] is None else ".")),
            (re.compile(r"\b([Dd])e (?=euros?\b|yens?\b|hectares?\b|octets?\b)"), lambda m: f"{m[1]}'"),
        ]
    if tag == "it":
        return [
            (re.compile(r"\b([Aa])ll[ea] una\b(?! e \w+ volte)"), lambda m: f"{m[1]}ll'una"),
            (re.compile(r"\bal (?=(?:notte|settimana|persona|pagina)\b)"), lambda _: "a "),
            (re.compile(r"\bal (?=(?:ora|anno)\b)"), lambda _: "all'"),
            (re.compile(r"\b([Ll])e una\b(?! \w+ volte)"), lambda m: f"{m[1]}'una"),
            (re.compile(r"\b([Dd])alle una\b"), lambda m: f"{m[1]}all'una"),
            (re.compile(r"\buna (?=or[ae]\b)"), lambda _: "un'"),
            (re.compile(r"\bun (?=s[bcdfglmnpqrtv]|z(?!ero)|gn|ps|yen)"), lambda _: "uno "),
            (re.compile(r"\b(Il|il|Al|al|Dal|dal|Del|del|Nel|nel) (?=otto\b|undici\b)(?!\w+ (?:per cento|virgola))"), lambda m: f"{m[1][:-1]}{'l' if m[1][-2:].lower() != 'il' else ''}'" if m[1].lower() != "il" else "l'" if m[1][0] == "i" else "L'"),
        ]  # fmt: skip
    if tag == "pt":
        return [(re.compile(r"\b([ÀàAa])s (?=uma hora\b)"), lambda m: "À " if m[1] in "ÀA" else "à ")]
    if tag == "de":
        months = "Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
        return [
            (
                re.compile(rf"\b(?P<the>[Dd]er|[Dd]ieser|[Jj]eder) (?P<first>\w*t)er(?= (?:{months})\b)(?P<and> \w+ (?:und|oder|bis) \w*t(?=er (?:{months})\b))?"),
                lambda m: f"{m['the']} {m['first']}e{m['and'] or ''}",
            ),
            (re.compile(r"\b(von|mit|zu|bei|nach|aus|seit|[Vv]on|[Mm]it) eine (?=(?:Million|Milliarde|Billion)\b)"), lambda m: f"{m[1]} einer "),
            (
                re.compile(r"(?P<first>\b(?:[Aa]m|[Vv]om|[Zz]um|[Aa]b|[Bb]eim) \w+en \w+(?: \w+)? (?:und|oder|bis) \w*(?:st|t))er(?= (?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember)\b)"),
                lambda m: f"{m['first']}en",
            ),
        ]  # fmt: skip
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
        (re.compile(r"\b[Nn][°º] ?(?=[\dA-Z:]|[a-zà-ÿ]{2,})"), lambda _: "numéro "),
        (re.compile(r"\b(?P<before>(?:[Ff]aites|[Cc]omposez|[Aa]ppelez) le )(?P<n>\d{4})(?![\w,.]|\s\d)"), lambda m: f"{m['before']}{' '.join(g.cardinal(int(pair), 'm', False) for pair in (m['n'][:2], m['n'][2:]))}"),
        (re.compile(r"\bM\. (?=[A-ZÉÈÀ]|et M(?:me|lle)\b)"), lambda _: "monsieur "),
        (re.compile(r"\bMe (?=[A-ZÉÈÀ][a-zéè])"), lambda _: "maître "),
        (re.compile(r"\bpar pers\.(?P<end>$)?"), lambda m: "par personne" + ("" if m["end"] is None else ".")),
        (re.compile(rf"(?<=[a-zé])-(?P<roman>(?![IVX]\b){ROMAN_FORM})\b(?!-)"), lambda m: f"-{g.cardinal(roman(m['roman']), 'm', False)}" if m["roman"] else m[0], "-"),
        (re.compile(r"\bSt(?P<she>e?)[- ](?=[A-ZÉÈÀ])"), lambda m: f"Saint{m['she']}-"),
        (re.compile(r"\bno\.? (?=\d)"), lambda _: "numéro "),
        (re.compile(r"(?<![\w.,])(?P<n>[12])m(?P<c>\d\d)\b"), lambda m: f"{m['n']} mètre{'s' if m['n'] == '2' else ''} {g.cardinal(int(m['c']), 'm', False)}"),
        (re.compile(r"\b24 ?h ?/ ?24\b"), lambda _: "vingt-quatre heures sur vingt-quatre"),
        (re.compile(r"(?<=fois)/j\b\.?(?P<end>$)?"), lambda m: " par jour" + ("." if m[0].endswith(".") and m["end"] is not None else "")),
        (re.compile(r"\b7 ?j(?:ours)? ?/ ?7\b"), lambda _: "sept jours sur sept"),
    ]  # fmt: skip


def _italian(g: Grammar) -> list[Rule]:
    def time(match: re.Match[str]) -> str:
        return match["before"] + g.time(int(match["h"]), int(match["m"]), None, "")

    return [
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,2})°(?= (?:e|o) (?:il |al )?\d{1,2}° [a-z])"), lambda m: g.ordinal(int(m["n"]), "m"), "°"),
        (re.compile(r"(?P<before>\b(?:ore|alle|dalle|le|ore:|h) )(?P<h>[01]?\d|2[0-4])\.(?P<m>[0-5]\d)(?![\w%]|[.,:]\d| ?[€$])"), time),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3})°(?= (?!all|nel|in\b|di\b|con\b|per\b|e\b|a\b|o\b|ma\b|fuori|oggi|domani|stamattina|sopra|sotto)[a-zà]{3,})"), lambda m: g.ordinal(int(m["n"]), "f" if re.match(r" \w+a\b", m.string[m.end():]) else "m")),
        (re.compile(rf"\b(?P<roman>{ROMAN_FORM}) (?={any_of(month.capitalize() for month in g.months)}\b)"), lambda m: f"{g.cardinal(roman(m['roman']), 'm', False).capitalize()} " if m["roman"] else m[0]),
        (re.compile(r"\bc/c\b"), lambda _: "conto corrente", "/"),
        (re.compile(r"(?<=\d) ?v(?:olte)?/die\b"), lambda _: " volte al giorno"),
        (re.compile(r"\b[Nn][°º]\.? ?(?=[\dA-Z:]|di\b)"), lambda _: "numero "),
        (re.compile(r"\bS\. (?=[A-Z][a-z]+a\b)"), lambda _: "Santa "),
        (re.compile(r"\b([Aa]nni) ['’](?=\d0\b)"), lambda m: f"{m[1]} ", "'’"),
        (re.compile(r"\b(?P<tax>IVA|consegna|spedizione|colazione) (?P<how>in|es)cl\."), lambda m: f"{m['tax']} {m['how']}clusa" + ("" if m.string[m.end() :].strip() else "."), "."),
        (re.compile(r"\b(?P<roman>[XVI]+) sec\.(?P<end>$)?"), lambda m: f"{g.ordinal(roman(m['roman']), 'm')} secolo" + ("" if m["end"] is None else ".")),
        (re.compile(r"\b[Ss]ec(?:\.|olo) (?P<roman>[XVI]+)\b"), lambda m: f"secolo {g.ordinal(roman(m['roman']), 'm')}"),
    ]  # fmt: skip


_WEEKDAYS = _DAYS["pt"][1].split()[:5]


def _portuguese(g: Grammar) -> list[Rule]:
    def spelled(match: re.Match[str]) -> str:
        return ", ".join(" ".join(g.digits[int(digit)] for digit in group) for group in re.findall(r"\d+", match[0]))

    return [
        (re.compile(r"\b(?P<n>[2-6])ªs(?=\W|$)(?![ -]feiras?\b)"), lambda m: f"{_WEEKDAYS[int(m['n']) - 2]}s", "ª"),
        (re.compile(r"\b(?P<n>[2-6])\.?[ªa](?:s?)(?=[ -]feiras?\b)[ -]"), lambda m: f"{_WEEKDAYS[int(m['n']) - 2]}-"),
        (re.compile(r"\b(?P<short>[csp])/ (?=[a-zà-ú]{2,})"), lambda m: {"c": "com ", "s": "sem ", "p": "para "}[m["short"]], "/"),
        (re.compile(r"(?P<before>\b(?i:venceu|vencendo|ganhou|ganhando|perdeu|perdendo|empat\w+|placar|goleou|derrotou|bateu|jogo|vitória|derrota)\b[^.!?\d]{0,40})(?P<n>\d{1,2}) ?[xX×] ?(?P<n2>\d{1,2})(?![\w%]|[.,]\d)"), lambda m: f"{m['before']}{g.cardinal(int(m['n']), 'm', False)} a {g.cardinal(int(m['n2']), 'm', False)}", "xX×"),
        (re.compile(r"(?<=[a-zà-ú] )(?P<n>\d{1,2}) ?[xX×] ?(?P<n2>\d{1,2})(?= [A-ZÀ-Ú][a-zà-ú]+)"), lambda m: f"{g.cardinal(int(m['n']), 'm', False)} a {g.cardinal(int(m['n2']), 'm', False)}", "xX×"),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,2}) x (?=sem juros\b)"), lambda m: f"{g.cardinal(int(m['n']), 'f', True)} vezes "),
        (re.compile(r"\bD\. (?=[A-Z][a-zà-ú]+a\b)"), lambda _: "dona "),
        (re.compile(r"\bR\. (?=[XVI]+\b)"), lambda _: "rua ", "R"),
        (re.compile(r"\b(?P<n>\d{1,2})/(?P=n) ?(?:h|horas?)\b"), lambda m: f"{m['n']} em {m['n']} horas", "/"),
        (re.compile(r"(?<=%) a\.m\."), lambda m: " ao mês" + ("" if m.string[m.end() :].strip() else "."), "%"),
        (re.compile(r"\b([Ss])éc\. (?=[XVI]+\b)"), lambda m: f"{m[1]}éculo "),
        (re.compile(r"(?<=\d[ªº])[-–](?=\d{1,2}[ªº])"), lambda _: " a "),
        # CPF, CNPJ and CEP: the numbers of a person, a company and a postal district.
        (re.compile(r"(?<![\w.,/-])(?:\d{3}\.\d{3}\.\d{3}-\d{2}|\d{1,2}\.\d{3}\.\d{3}-[\dX]|\d{2}\.\d{3}\.\d{3}/\d{4}-\d{2}|\d{2}\.?\d{3}-\d{3})(?![\w/-]|[.,]\d)"), spelled),
        (re.compile(r"\b[Nn]\.?[°º] ?(?=[\dA-Z:]|d[eo]\b)"), lambda _: "número "),
        (re.compile(r"(?<![\w.,])(?P<d>\d{1,2})[º°]/(?P<m>0?[1-9]|1[0-2])(?![\w/])"), lambda m: g.date(int(m["d"]), int(m["m"]), None)),
        (re.compile(r"(?P<before>[Pp]ressão (?:de |é |está em )?)(?P<n>\d{1,2})/(?P<n2>\d{1,2})(?!\w)"), lambda m: f"{m['before']}{g.cardinal(int(m['n']), 'm', False)} por {g.cardinal(int(m['n2']), 'm', False)}"),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3})°(?= [a-zà-ú]{4,})"), lambda m: g.ordinal(int(m["n"]), "m")),
    ]  # fmt: skip


_LETTER_DAYS = {"L": "lunes", "V": "viernes", "S": "sábado", "D": "domingo"}


def _spanish(g: Grammar) -> list[Rule]:
    return [
        (re.compile(r"\b(?P<n>\d{4}) ?(?P<letters>[B-DF-HJ-NP-TV-Z]{3})\b"), lambda m: " ".join([*(g.digits[int(d)] for d in m["n"]), *m["letters"]])),  # a car
        (re.compile(r"\bmin\. (?=\d)"), lambda _: "mínimo "),
        (re.compile(r"\bc/ ?(?=\d{1,2} ?h)"), lambda _: "cada ", "/"),
        (re.compile(r"\b(?P<first>L|S) a (?P<last>V|S|D)\b(?= (?:de|y)\b|:|,? \d|[.,;]|$)"), lambda m: f"{_LETTER_DAYS[m['first']]} a {_LETTER_DAYS[m['last']]}"),
        (re.compile(r"\bs\. (?=[XVI]+\b)"), lambda _: "siglo "),
        (re.compile(r"(?<![\w.,])(?P<n>\d+(?:,\d+)?) ?M (?=de\b)"), lambda m: f"{m['n']} millones "),
        (re.compile(r"(?<![\w.,])(?:\d{1,3},)(?:\d{3},)+\d{3}(?![\w,])"), lambda m: m[0].replace(",", ".")),
        (re.compile(r"\$ ?(?=\d[\d.,]*\d? pesos\b)"), lambda _: ""),
        (re.compile(r"\$ ?(?P<n>\d[\d.,]*) dólares\b"), lambda m: m[0].rpartition(" ")[0]),
        (re.compile(r"\b[Nn]\.?[°º] ?(?=[\dA-Z:]|d[eo]\b)"), lambda _: "número "),
        (re.compile(r"(?<![\w.,])(?P<n>[1-9])°(?= (?:piso|grado|lugar|año|puesto|planta|nivel|día|turno)\b)"), lambda m: g.ordinal(int(m["n"]), "m")),
    ]  # fmt: skip
