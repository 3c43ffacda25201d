"""German words."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

_ONES = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_SCALES = (
    ("Million", "Millionen"), ("Milliarde", "Milliarden"), ("Billion", "Billionen"), ("Billiarde", "Billiarden"),
    ("Trillion", "Trillionen"), ("Trilliarde", "Trilliarden"), ("Quadrillion", "Quadrillionen"),
    ("Quadrilliarde", "Quadrilliarden"), ("Quintillion", "Quintillionen"), ("Quintilliarde", "Quintilliarden"),
)  # fmt: skip
MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()


def _below_thousand(number: int, *, last: bool) -> str:
    hundreds, rest = divmod(number, 100)
    words = f"{_ONES[hundreds] if hundreds > 1 else 'ein'}hundert" if hundreds else ""
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words += f"{'ein' if ones == 1 else _ONES[ones]}und{_TENS[tens - 2]}" if ones else _TENS[tens - 2]
    elif rest == 1 and not last:
        words += "ein"
    elif rest:
        words += _ONES[rest]
    return words


def cardinal(number: int, gender: Gender = "m", before_noun: bool = False) -> str:
    """Return the name of a number; "ein" or "eine" before a noun."""
    if number == 0:
        return "null"
    if number == 1 and before_noun:
        return "eine" if gender == "f" else "ein"
    parts = []
    large, small = divmod(number, 1_000_000)
    groups = []
    while large:
        large, group = divmod(large, 1000)
        groups.append(group)
    for at in range(len(groups) - 1, -1, -1):
        if groups[at]:
            one, many = _SCALES[at]
            parts.append(f"eine {one}" if groups[at] == 1 else f"{_below_thousand(groups[at], last=True)} {many}")
    thousands, rest = divmod(small, 1000)
    words = f"{_below_thousand(thousands, last=False)}tausend" if thousands else ""
    words += _below_thousand(rest, last=True) if rest else ""
    return " ".join([*parts, words]) if words else " ".join(parts)


def _stem(number: int) -> str:
    irregular = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
    if number in irregular:
        return irregular[number]
    words = cardinal(number)
    rest = number % 100
    if rest in (1, 3, 7, 8) and number > 100:
        return words[: -len(_ONES[rest])] + irregular[rest]
    return words + ("t" if 0 < rest < 20 else "st")


def ordinal(number: int, gender: Gender = "m") -> str:
    """Return "erste", "zweite" ..."""
    return _stem(number) + "e"


def year(number: int) -> str:
    """Return "neunzehnhundertneunzig", "zweitausendfünf"."""
    if 1100 <= number <= 1999:
        century, rest = divmod(number, 100)
        return f"{cardinal(century)}hundert{cardinal(rest) if rest else ''}"
    return cardinal(number)


def date(day: int, month: int, year_: int | None) -> str:
    """Return "vierter März zweitausendfünfundzwanzig"."""
    return f"{_stem(day)}er {MONTHS[month - 1]}" + (f" {year(year_)}" if year_ is not None else "")


def time(hour: int, minute: int, second: int | None, half: str) -> str:
    """Return "neun Uhr fünf"."""
    words = f"{'ein' if hour == 1 else cardinal(hour)} Uhr" + (f" {cardinal(minute)}" if minute else "")
    return words + (f" und {cardinal(second)} Sekunden" if second is not None else "")


def fraction(over: int, under: int) -> str | None:
    """Return "drei viertel"."""
    if not 2 <= under <= 100 or not 0 < over < under * 4:
        return None
    if under == 2:
        return "ein halb" if over == 1 else f"{cardinal(over)} halbe"
    return f"{cardinal(over, 'm', True)} {_stem(under)}el"


def _n(one: str, many: str = "", gender: Gender = "m") -> Noun:
    return Noun(one, many or one, gender)


_CENT = _n("Cent")
GERMAN = Grammar(
    tag="de", cardinal=cardinal, ordinal=ordinal, year=year, date=date, time=time, digits=_ONES[:10], decimal_mark=",",
    point="Komma", other_point="Punkt", fraction_digits="digits", minus="minus", plus="plus", conjunction="und", to="bis",
    percent="Prozent", money_and="und", months=MONTHS,
    month_short="jan feb mär apr mai jun jul aug sep okt nov dez".split(),
    currencies={
        "€": (_n("Euro"), _CENT), "EUR": (_n("Euro"), _CENT), "$": (_n("Dollar"), _CENT),
        "US$": (_n("US-Dollar"), _CENT), "USD": (_n("US-Dollar"), _CENT), "£": (_n("Pfund", gender="m"), _n("Penny", "Pence")),
        "GBP": (_n("Pfund"), _n("Penny", "Pence")), "CHF": (_n("Franken"), _n("Rappen")), "Fr.": (_n("Franken"), _n("Rappen")),
        "¥": (_n("Yen"), None), "₹": (_n("Rupie", "Rupien", "f"), None), "zł": (_n("Zloty"), None),
    },
    units={
        "km": _n("Kilometer"), "m": _n("Meter"), "cm": _n("Zentimeter"), "mm": _n("Millimeter"), "kg": _n("Kilogramm"),
        "g": _n("Gramm"), "mg": _n("Milligramm"), "l": _n("Liter"), "L": _n("Liter"), "ml": _n("Milliliter"),
        "km/h": _n("Kilometer pro Stunde"), "m/s": _n("Meter pro Sekunde"), "m²": _n("Quadratmeter"), "qm": _n("Quadratmeter"),
        "km²": _n("Quadratkilometer"), "m³": _n("Kubikmeter"), "h": _n("Stunde", "Stunden", "f"),
        "Std.": _n("Stunde", "Stunden", "f"), "min": _n("Minute", "Minuten", "f"), "Min.": _n("Minute", "Minuten", "f"),
        "s": _n("Sekunde", "Sekunden", "f"), "Sek.": _n("Sekunde", "Sekunden", "f"), "t": _n("Tonne", "Tonnen", "f"),
        "kWh": _n("Kilowattstunde", "Kilowattstunden", "f"), "kwh": _n("Kilowattstunde", "Kilowattstunden", "f"),
        "kW": _n("Kilowatt"), "W": _n("Watt"), "V": _n("Volt"),
        "MB": _n("Megabyte"), "GB": _n("Gigabyte"), "TB": _n("Terabyte"), "Mbit/s": _n("Megabit pro Sekunde"),
        "Hz": _n("Hertz"), "MHz": _n("Megahertz"), "GHz": _n("Gigahertz"), "mmHg": _n("Millimeter Quecksilbersäule"),
        "ha": _n("Hektar"), "cm³": _n("Kubikzentimeter"), "EL": _n("Esslöffel"), "TL": _n("Teelöffel"), "cl": _n("Zentiliter"), "Tabl.": _n("Tablette", "Tabletten", "f"), "Tbl.": _n("Tablette", "Tabletten", "f"), "Stk.": _n("Stück"), "St.": _n("Stück"), "J.": _n("Jahr", "Jahre"), "Stck.": _n("Stück"),
        "µg": _n("Mikrogramm"), "A": _n("Ampere"), "m2": _n("Quadratmeter"), "Wo.": _n("Woche", "Wochen", "f"), "dB": _n("Dezibel"), "kcal": _n("Kilokalorie", "Kilokalorien", "f"), "dl": _n("Deziliter"), "dL": _n("Deziliter"), "ft": _n("Fuß"), "in.": _n("Zoll"),
    },
    degrees={"C": "Celsius", "F": "Fahrenheit"}, degree=_n("Grad"),
    magnitudes={
        "Tsd.": ("tausend",) * 2, "Tausend": ("tausend",) * 2, "tausend": ("tausend",) * 2,
        "Mio.": ("Million", "Millionen"), "Mio": ("Million", "Millionen"), "Million": ("Million", "Millionen"),
        "Millionen": ("Million", "Millionen"), "millionen": ("Million", "Millionen"), "million": ("Million", "Millionen"),
        "Mrd.": ("Milliarde", "Milliarden"), "Mrd": ("Milliarde", "Milliarden"), "Milliarde": ("Milliarde", "Milliarden"),
        "Milliarden": ("Milliarde", "Milliarden"), "milliarden": ("Milliarde", "Milliarden"),
    },
    symbols={
        "&": "und", "+": "plus", "=": "gleich", "@": "at", "%": "Prozent", "~": "etwa", "<": "kleiner als",
        ">": "größer als", "×": "mal", "÷": "geteilt durch", "±": "plus minus", "*": "mal", "/": "zu", "§": "Paragraf",
        "°": "Grad", "№": "Nummer", "#": "Raute", "€": "Euro", "$": "Dollar", "£": "Pfund", "ext": "Durchwahl",
        "by": "mal", "over": "zu", "−": "minus", "‰": "Promille", "²": "Quadrat", "³": "hoch drei",
    },
    address={
        ".": "Punkt", "/": "Schrägstrich", "-": "Bindestrich", "_": "Unterstrich", "@": "at", ":": "Doppelpunkt",
        "?": "Fragezeichen", "=": "gleich", "&": "und", "#": "Raute", "+": "plus", "%": "Prozent", "~": "Tilde",
    },
    fractions=fraction, and_fraction="", per="pro", star="Stern", pound="Raute",
    key_words="drücken|drück|wählen|taste|eingeben|tippen",
    code_words="iban|\\w*ziffern|cvv|notruf|code|pin|tan|endung|kennwort|passwort|endet auf|endend auf|postleitzahl|plz|kontonummer|kundennummer|bestellnummer|"
    "bestellung|rechnungsnummer|auftragsnummer|referenz|vorgangsnummer|ticket|zimmer|raum|flug|\\w*nummer|steuer-?id|kunden-?id|id|port|durchwahl|karte",
    date_words="am|bis|vom|ab|seit|zum|bis zum",
    abbreviations={
        "Abb.": "Abbildung", "ds. Mts.": "dieses Monats", "d. M.": "dieses Monats", "lfd.": "laufenden", "a. M.": "am Main", "a.M.": "am Main", "Erw.": "Erwachsene", "Pkt.": "Punkte", "Jg.": "Jahrgang", "Whg.": "Wohnung", "ff.": "folgende", "zzgl": "zuzüglich",
        "p. a.": "pro Jahr", "p. P.": "pro Person", "p.P.": "pro Person", "p. M.": "pro Monat", "p.M.": "pro Monat", "p.a.": "pro Jahr", "min.": "minimal", "zw.": "zwischen", "z.B.": "zum Beispiel", "z. B.": "zum Beispiel", "d.h.": "das heißt", "d. h.": "das heißt", "usw.": "und so weiter",
        "bzw.": "beziehungsweise", "ca.": "circa", "Dr.": "Doktor", "Prof.": "Professor", "Hr.": "Herr", "Fr.": "Frau",
        "Nr.": "Nummer", "inkl.": "inklusive", "zzgl.": "zuzüglich", "ggf.": "gegebenenfalls", "Tel.": "Telefon",
        "u.a.": "unter anderem", "u. a.": "unter anderem", "evtl.": "eventuell", "max.": "maximal", "mind.": "mindestens", "vgl.": "vergleiche",
        "St.": "Sankt", "Stk.": "Stück", "Jh.": "Jahrhundert", "Zi.": "Zimmer", "Hrn.": "Herrn", "Dipl.-Ing.": "Diplomingenieur", "MwSt.": "Mehrwertsteuer",
        "MwSt": "Mehrwertsteuer", "Ref.": "Referenz", "Ref.-Nr.": "Referenznummer", "Kd.-Nr.": "Kundennummer", "Kto.": "Konto", "Art.-Nr.": "Artikelnummer", "Best.-Nr.": "Bestellnummer", "Rg.-Nr.": "Rechnungsnummer", "bspw.": "beispielsweise", "exkl.": "exklusive", "ggü.": "gegenüber", "geb.": "geboren", "EG": "Erdgeschoss", "OG": "Obergeschoss", "UG": "Untergeschoss", "Tel.-Nr.": "Telefonnummer", "Pers.": "Personen", "mtl.": "monatlich", "jährl.": "jährlich", "tägl.": "täglich", "Pl.": "Platz", "Str.": "Straße", "zzt.": "zurzeit", "Abt.": "Abteilung", "Fa.": "Firma", "Fam.": "Familie", "Az.": "Aktenzeichen", "u.U.": "unter Umständen", "u. U.": "unter Umständen", "s.o.": "siehe oben", "s. o.": "siehe oben", "s.u.": "siehe unten", "s. u.": "siehe unten", "i.H.v.": "in Höhe von", "i. H. v.": "in Höhe von", "gem.": "gemäß", "lt.": "laut", "o.g.": "oben genannte", "i.d.R.": "in der Regel", "i. d. R.": "in der Regel", "z.Zt.": "zurzeit", "Mo.": "Montag", "Di.": "Dienstag", "Mi.": "Mittwoch", "Do.": "Donnerstag", "Sa.": "Samstag",
        "So.": "Sonntag",
    },
    number_sign="Nummer", ordinal_pattern=r"(?P<number>\d{1,3})(?:\.(?= [a-zäöü]{3,}| (?:Mal|Stock|Etage|Platz|Geburtstag|Tag|Woche|Klasse|Auflage)\b)|(?:st|nd|rd|th)\b)",
    feminine=r"[A-ZÄÖÜ]\w*(?:e|ung|heit|keit|schaft|ion|tät|ik|nacht|nachricht|person|zahl|fahrt|antwort|post|bahn|bank)|Nacht|Nachricht|"
    r"Person|Bank|Fahrt|Antwort",
    not_counted="[a-zäöüß]\\w*",
    roman_before=dict.fromkeys("kapitel teil band phase stufe klasse artikel".split(), "cardinal"),
    out_of="von", times_word="mal", version="Version",
)  # fmt: skip
