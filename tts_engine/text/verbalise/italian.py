"""Italian words."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

_ONES = (
    "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove"
).split()
_TENS = "venti trenta quaranta cinquanta sessanta settanta ottanta novanta".split()
_SCALES = (("milione", "milioni"), ("miliardo", "miliardi"), ("bilione", "bilioni"), ("biliardo", "biliardi"),
           ("trilione", "trilioni"), ("triliardo", "triliardi"), ("quadrilione", "quadrilioni"),
           ("quadriliardo", "quadriliardi"), ("quintilione", "quintilioni"), ("quintiliardo", "quintiliardi"))  # fmt: skip
MONTHS = "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre".split()


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    parts = [("" if hundreds == 1 else _ONES[hundreds]) + "cento"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words = _TENS[tens - 2]
        if ones:
            words = (words[:-1] if ones in (1, 8) else words) + ("tré" if ones == 3 else _ONES[ones])
        parts.append(words)
    elif rest:
        parts.append(_ONES[rest])
    return " ".join(parts)


def cardinal(number: int, gender: Gender = "m", before_noun: bool = False) -> str:
    """Return the name of a number; "un" or "una" before a noun. Thousands and hundreds are apart, so that a voice
    stresses each."""
    if number == 0:
        return "zero"
    if number == 1 and before_noun:
        return "una" if gender == "f" else "un"
    large, small = divmod(number, 1_000_000)
    groups = []
    while large:
        large, group = divmod(large, 1000)
        groups.append(group)
    parts = []
    for at in range(len(groups) - 1, -1, -1):
        if groups[at]:
            one, many = _SCALES[at]
            # "tremila quattrocento milioni" is not said; a group is below a thousand.
            parts.append(f"un {one}" if groups[at] == 1 else f"{_below_thousand(groups[at])} {many}")
    thousands, rest = divmod(small, 1000)
    if thousands:
        parts.append("mille" if thousands == 1 else f"{_of_thousands(thousands)}mila")
    if rest:
        parts.append(_below_thousand(rest))
    return " ".join(parts)


def _of_thousands(number: int) -> str:
    words = _below_thousand(number)
    return words[:-1] if words.endswith("uno") else words.replace("tré", "tre")


_ORDINALS = "zero primo secondo terzo quarto quinto sesto settimo ottavo nono decimo".split()


def ordinal(number: int, gender: Gender = "m") -> str:
    """Return "primo", "seconda", "undicesimo" ..."""
    if number <= 10:
        words = _ORDINALS[number]
    else:
        name = cardinal(number).replace("tré", "tree")
        if name.endswith("mila"):
            name = name[:-1].replace("mil", "mill")
        elif not name.endswith(("sei", "tree")):
            name = name[:-1]
        words = name + ("simo" if name.endswith("tree") else "esimo")
    return words[:-1] + "a" if gender == "f" else words


def date(day: int, month: int, year_: int | None) -> str:
    """Return "quattro marzo duemila venticinque"."""
    first = "primo" if day == 1 else cardinal(day)
    return f"{first} {MONTHS[month - 1]}" + (f" {cardinal(year_)}" if year_ is not None else "")


def time(hour: int, minute: int, second: int | None, half: str) -> str:
    """Return "nove e cinque"."""
    words = ("una" if hour == 1 else cardinal(hour)) + (f" e {cardinal(minute)}" if minute else "")
    if second is not None:
        words += f" e {cardinal(second, 'm', True)} second{'o' if second == 1 else 'i'}"
    if half:
        words += " del mattino" if half == "a" else " di sera" if 6 <= hour < 12 else " del pomeriggio"
    return words


def fraction(over: int, under: int) -> str | None:
    """Return "tre quarti"."""
    if not 2 <= under <= 100 or not 0 < over < under * 4:
        return None
    name = "mezzo" if under == 2 else ordinal(under)
    return f"{cardinal(over, 'm', True)} {name if over == 1 else name[:-1] + 'i'}"


def _n(one: str, many: str, gender: Gender = "m") -> Noun:
    return Noun(one, many, gender)


_EURO, _CENT = _n("euro", "euro"), _n("centesimo", "centesimi")
_HOUR, _MINUTE, _SECOND = _n("ora", "ore", "f"), _n("minuto", "minuti"), _n("secondo", "secondi")
_POUND = _n("sterlina", "sterline", "f")
ITALIAN = Grammar(
    tag="it", cardinal=cardinal, ordinal=ordinal, year=cardinal, date=date, time=time, digits=_ONES[:10],
    decimal_mark=",", point="virgola", other_point="punto", fraction_digits="number", minus="meno", plus="più",
    conjunction="e", to="a", percent="per cento", of_million=" di", money_and="e", months=MONTHS,
    month_short="gen feb mar apr mag giu lug ago set ott nov dic".split(),
    currencies={
        "€": (_EURO, _CENT), "EUR": (_EURO, _CENT), "eur": (_EURO, _CENT), "euro": (_EURO, _CENT),
        "$": (_n("dollaro", "dollari"), _CENT), "US$": (_n("dollaro", "dollari"), _CENT),
        "USD": (_n("dollaro statunitense", "dollari statunitensi"), _CENT),
        "£": (_POUND, _n("penny", "penny")), "GBP": (_POUND, _n("penny", "penny")),
        "CHF": (_n("franco svizzero", "franchi svizzeri"), _CENT), "¥": (_n("yen", "yen"), None),
        "₽": (_n("rublo", "rubli"), _n("copeca", "copechi")), "₹": (_n("rupia", "rupie", "f"), None),
    },
    units={
        "km": _n("chilometro", "chilometri"), "m": _n("metro", "metri"), "cm": _n("centimetro", "centimetri"),
        "mm": _n("millimetro", "millimetri"), "kg": _n("chilogrammo", "chilogrammi"), "g": _n("grammo", "grammi"),
        "mg": _n("milligrammo", "milligrammi"), "l": _n("litro", "litri"), "L": _n("litro", "litri"),
        "ml": _n("millilitro", "millilitri"), "cl": _n("centilitro", "centilitri"),
        "km/h": _n("chilometro orario", "chilometri orari"), "km/s": _n("chilometro per secondo", "chilometri per secondo"),
        "m/s": _n("metro al secondo", "metri al secondo"), "m²": _n("metro quadrato", "metri quadrati"),
        "mq": _n("metro quadrato", "metri quadrati"), "km²": _n("chilometro quadrato", "chilometri quadrati"),
        "m³": _n("metro cubo", "metri cubi"), "cpr": _n("compressa", "compresse", "f"), "cp": _n("compressa", "compresse", "f"), "h": _HOUR, "min": _MINUTE, "min.": _MINUTE, "s": _SECOND, "sec": _SECOND,
        "sec.": _SECOND, "ms": _n("millisecondo", "millisecondi"), "d": _n("giorno", "giorni"), "gg": _n("giorno", "giorni"),
        "t": _n("tonnellata", "tonnellate", "f"), "kWh": _n("chilowattora", "chilowattora"), "kW": _n("chilowatt", "chilowatt"),
        "W": _n("watt", "watt"), "V": _n("volt", "volt"), "A": _n("ampere", "ampere"), "MB": _n("megabyte", "megabyte"),
        "GB": _n("gigabyte", "gigabyte"), "TB": _n("terabyte", "terabyte"),
        "Mbps": _n("megabit al secondo", "megabit al secondo"), "Mbit/s": _n("megabit al secondo", "megabit al secondo"),
        "Hz": _n("hertz", "hertz"), "MHz": _n("megahertz", "megahertz"), "GHz": _n("gigahertz", "gigahertz"),
        "ha": _n("ettaro", "ettari"), "mmHg": _n("millimetro di mercurio", "millimetri di mercurio"),
        "hg": _n("ettogrammo", "ettogrammi"), "etti": _n("etto", "etti"), "pz": _n("pezzo", "pezzi"), "pz.": _n("pezzo", "pezzi"), "m2": _n("metro quadrato", "metri quadrati"),
        "kcal": _n("chilocaloria", "chilocalorie", "f"), "dl": _n("decilitro", "decilitri"), "dL": _n("decilitro", "decilitri"), "ft": _n("piede", "piedi"), "in.": _n("pollice", "pollici"),
    },
    degrees={"C": "Celsius", "F": "Fahrenheit"}, degree=_n("grado", "gradi"),
    magnitudes={
        "mila": ("mila",) * 2, "k": ("mila",) * 2, "K": ("mila",) * 2, "M": ("milione", "milioni"), "mille": ("mille",) * 2, "milione": ("milione",) * 2, "milioni": ("milioni",) * 2,
        "mln": ("milione", "milioni"), "miliardo": ("miliardo",) * 2, "miliardi": ("miliardi",) * 2,
        "mld": ("miliardo", "miliardi"), "bilioni": ("bilioni",) * 2,
    },
    symbols={
        "&": "e", "+": "più", "=": "uguale", "@": "chiocciola", "%": "per cento", "~": "circa", "≈": "circa",
        "<": "minore di", ">": "maggiore di", "≤": "minore o uguale a", "≥": "maggiore o uguale a", "×": "per",
        "÷": "diviso", "±": "più o meno", "*": "per", "/": "barra", "§": "paragrafo", "°": "gradi", "№": "numero",
        "#": "cancelletto", "€": "euro", "$": "dollari", "£": "sterline", "ext": "interno", "by": "per", "over": "su",
        "−": "meno", "²": "al quadrato", "³": "al cubo", "‰": "per mille", "→": "a",
    },
    address={
        ".": "punto", "/": "barra", "-": "trattino", "_": "trattino basso", "@": "chiocciola", ":": "due punti",
        "?": "punto interrogativo", "=": "uguale", "&": "e commerciale", "#": "cancelletto", "+": "più", "%": "per cento",
        "~": "tilde",
    },
    fractions=fraction, and_fraction="e", per="al", star="asterisco", pound="cancelletto",
    key_words="prema|premi|premere|premete|digiti|digita|digitare|digitate|tasto|tasti|selezioni|inserisca|inserisci|componga",
    code_words=r"iban|cifre|(?:rif|ref)(?!\.? ?#)|cvv|codice|pin|password|che termina con|termina con|che finisce con|finisce con|terminante con|cap|conto|ordine|"
    "fattura|riferimento|prenotazione|pratica|carta|volo|camera|stanza|interno|biglietto|contratto|cliente|spedizione|numero|"
    "telefono|tessera",
    date_words="il|dal|al|del|entro il|fino al|lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenica",
    abbreviations={
        "a.s.": "anno scolastico", "A.S.": "anno scolastico",
        "fig.": "figura", "lav.": "lavorativi",
        "cod.": "codice", "Dr.ssa": "dottoressa", "dr.ssa": "dottoressa",
        "Sig.": "signor", "sig.": "signor", "Sig.ra": "signora", "sig.ra": "signora", "Sig.na": "signorina",
        "sig.na": "signorina", "Sigg.": "signori", "Dott.": "dottor", "dott.": "dottor", "Dr.": "dottor",
        "Dott.ssa": "dottoressa", "dott.ssa": "dottoressa", "Prof.": "professor", "prof.": "professor",
        "Prof.ssa": "professoressa", "Ing.": "ingegner", "ing.": "ingegner", "Avv.": "avvocato", "avv.": "avvocato",
        "Geom.": "geometra", "Rag.": "ragionier", "ecc.": "eccetera", "es.": "esempio", "p.es.": "per esempio", "p. es.": "per esempio", "cam.": "camera", "int.": "interno", "Int.": "interno", "sec.": "secolo", "Spett.le": "spettabile", "Egr.": "egregio", "art.": "articolo", "Arch.": "architetto",
        "ad es.": "ad esempio", "tel.": "telefono", "Tel.": "telefono", "cell.": "cellulare", "p.za": "piazza",
        "P.za": "piazza", "p.zza": "piazza", "P.zza": "piazza", "v.le": "viale", "V.le": "viale", "c.so": "corso",
        "C.so": "corso", "n.": "numero", "nr.": "numero", "N.": "numero", "pag.": "pagina", "ca.": "circa",
        "max.": "massimo", "min.": "minimo", "rif.": "riferimento", "Rif.": "riferimento", "app.": "appuntamento",
        "dip.": "dipartimento", "cap.": "capitolo", "incl.": "incluso", "sx": "sinistra", "dx": "destra", "pers.": "persone", "bin.": "binario", "C.F.": "codice fiscale", "gg.": "giorni", "escl.": "escluso", "S.": "San", "vs.": "contro",
        "lun.": "lunedì", "mar.": "martedì", "mer.": "mercoledì", "gio.": "giovedì", "ven.": "venerdì", "sab.": "sabato",
        "dom.": "domenica", "gen.": "gennaio", "feb.": "febbraio", "apr.": "aprile", "giu.": "giugno", "lug.": "luglio",
        "ago.": "agosto", "set.": "settembre", "ott.": "ottobre", "nov.": "novembre", "dic.": "dicembre",
    },
    number_sign="numero", ordinal_pattern=r"(?P<number>\d{1,3})(?:º|(?P<f>ª))(?!\w)",
    roman_before={
        **dict.fromkeys("capitolo tomo volume atto parte fase livello titolo articolo".split(), "cardinal"),
        **dict.fromkeys(
            "municipio papa re vittorio umberto carlo luigi enrico filippo giovanni paolo pio benedetto leone clemente gregorio "
            "alessandro napoleone emanuele federico francesco".split(), "ordinal"),
        **dict.fromkeys("elisabetta caterina maria".split(), "feminine"),
    },
    roman_after="secolo|capitolo|piano|edizione|guerra|congresso|legislatura|arrondissement|municipio",
    feminine=r"\w+a|\w*(?:azione|zione|sione|notte|parte|chiave|classe|gente|fine|nave|rete|sede|voce|volte|mente|tà)",
    not_counted="per|poi|con|del|dal|dalla|della|alla|nel|nella|sul|sulla|una|che|chi|non|era|sarà|scade|parte|arriva|tra|"
    "fra|senza|dopo|prima|verso|contro|sopra|fino|entro|viene|costa|ancora|altra",
    out_of="su", times_word="volte", version="versione",
)  # fmt: skip
