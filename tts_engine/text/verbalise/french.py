"""French words."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

_ONES = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit "
    "dix-neuf"
).split()
_TENS = "vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt".split()
_SCALES = (
    "million milliard billion billiard trillion trilliard quadrillion quadrilliard quintillion quintilliard".split()
)
MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()


def _below_hundred(number: int, gender: Gender) -> str:
    if number < 20:
        return "une" if number == 1 and gender == "f" else _ONES[number]
    tens = number // 10
    base = tens * 10 - (10 if tens in (7, 9) else 0)
    rest, words = number - base, _TENS[tens - 2]
    if not rest:
        return words + ("s" if number == 80 else "")
    joint = " et " if rest in (1, 11) and tens < 8 else "-"
    return f"{words}{joint}{_below_hundred(rest, gender)}"


def _below_thousand(number: int, gender: Gender, *, last: bool) -> str:
    hundreds, rest = divmod(number, 100)
    parts = []
    if hundreds:
        parts.append("cent" if hundreds == 1 else f"{_ONES[hundreds]} cent{'' if rest or not last else 's'}")
    if rest:
        words = _below_hundred(rest, gender)
        parts.append(words if last else words.removesuffix("s") if rest == 80 else words)
    return " ".join(parts)


def cardinal(number: int, gender: Gender = "m", before_noun: bool = False) -> str:
    """Return the name of a number; "une" for one of a feminine noun."""
    if number == 0:
        return "zéro"
    large, small = divmod(number, 1_000_000)
    groups = []
    while large:
        large, group = divmod(large, 1000)
        groups.append(group)
    parts = []
    for at in range(len(groups) - 1, -1, -1):
        if groups[at]:
            parts.append(f"{_below_thousand(groups[at], 'm', last=True)} {_SCALES[at]}{'' if groups[at] == 1 else 's'}")
    thousands, rest = divmod(small, 1000)
    if thousands:
        parts.append("mille" if thousands == 1 else f"{_below_thousand(thousands, 'm', last=False)} mille")
    if rest:
        parts.append(_below_thousand(rest, gender, last=True))
    return " ".join(parts)


def ordinal(number: int, gender: Gender = "m") -> str:
    """Return "premier", "première", "deuxième" ..."""
    if number == 1:
        return "première" if gender == "f" else "premier"
    words = cardinal(number)
    if words.endswith(("cents", "vingts", "llions", "lliards")):
        words = words[:-1]
    if words.endswith("cinq"):
        return words + "uième"
    if words.endswith("neuf"):
        return words[:-1] + "vième"
    return words.removesuffix("e") + "ième"


def date(day: int, month: int, year_: int | None) -> str:
    """Return "quatre mars deux mille vingt-cinq"."""
    first = "premier" if day == 1 else cardinal(day)
    return f"{first} {MONTHS[month - 1]}" + (f" {cardinal(year_)}" if year_ is not None else "")


def time(hour: int, minute: int, second: int | None, half: str) -> str:
    """Return "neuf heures cinq"."""
    words = f"{cardinal(hour, 'f')} heure{'s' if hour > 1 else ''}" + (f" {cardinal(minute, 'f')}" if minute else "")
    if second is not None:
        words += f" et {cardinal(second, 'f')} seconde{'s' if second > 1 else ''}"
    if half:
        words += " du matin" if half == "a" else " du soir" if 6 <= hour < 12 else " de l'après-midi"
    return words


def fraction(over: int, under: int) -> str | None:
    """Return "trois quarts"."""
    if not 2 <= under <= 100 or not 0 < over < under * 4:
        return None
    name = {2: "demi", 3: "tiers", 4: "quart"}.get(under) or ordinal(under)
    return f"{cardinal(over)} {name}{'' if over == 1 or name.endswith('s') else 's'}"


def _n(one: str, many: str = "", gender: Gender = "m") -> Noun:
    return Noun(one, many or one + "s", gender)


_CENT, _CENTIME = _n("cent"), _n("centime")
_LIVRE = _n("livre", gender="f")
FRENCH = Grammar(
    tag="fr", cardinal=cardinal, ordinal=ordinal, year=cardinal, date=date, time=time, digits=_ONES[:10],
    decimal_mark=",", point="virgule", other_point="point", fraction_digits="number", minus="moins", plus="plus",
    conjunction="et", to="à", percent="pour cent", of_million=" de", money_and="et", months=MONTHS,
    month_short="janv févr mars avr mai juin juil août sept oct nov déc".split(),
    currencies={
        "€": (_n("euro"), _CENTIME), "EUR": (_n("euro"), _CENTIME), "eur": (_n("euro"), _CENTIME),
        "euros": (_n("euro"), _CENTIME), "$": (_n("dollar"), _CENT), "US$": (_n("dollar"), _CENT),
        "USD": (_n("dollar américain", "dollars américains"), _CENT),
        "CAD": (_n("dollar canadien", "dollars canadiens"), _CENT), "$ CA": (_n("dollar canadien", "dollars canadiens"), _CENT),
        "£": (_LIVRE, _n("penny", "pence")), "GBP": (_LIVRE, _n("penny", "pence")),
        "CHF": (_n("franc suisse", "francs suisses"), _CENTIME), "Fr.": (_n("franc"), _CENTIME),
        "¥": (_n("yen"), None), "₹": (_n("roupie", gender="f"), None), "FCFA": (_n("franc CFA", "francs CFA"), None),
        "XOF": (_n("franc CFA", "francs CFA"), None), "MAD": (_n("dirham"), _CENTIME),
    },
    units={
        "km": _n("kilomètre"), "m": _n("mètre"), "cm": _n("centimètre"), "mm": _n("millimètre"), "kg": _n("kilogramme"),
        "g": _n("gramme"), "mg": _n("milligramme"), "µg": _n("microgramme"), "l": _n("litre"), "L": _n("litre"),
        "cl": _n("centilitre"), "ml": _n("millilitre"), "mL": _n("millilitre"),
        "km/h": _n("kilomètre par heure", "kilomètres par heure"), "m/s": _n("mètre par seconde", "mètres par seconde"),
        "m²": _n("mètre carré", "mètres carrés"), "m2": _n("mètre carré", "mètres carrés"),
        "km²": _n("kilomètre carré", "kilomètres carrés"), "m³": _n("mètre cube", "mètres cubes"),
        "h": _n("heure", gender="f"), "min": _n("minute", gender="f"), "min.": _n("minute", gender="f"),
        "mn": _n("minute", gender="f"), "s": _n("seconde", gender="f"), "sec": _n("seconde", gender="f"),
        "sec.": _n("seconde", gender="f"), "ms": _n("milliseconde", gender="f"), "j": _n("jour"), "t": _n("tonne", gender="f"),
        "kWh": _n("kilowattheure"), "kW": _n("kilowatt"), "W": _n("watt"), "V": _n("volt"), "A": _n("ampère"),
        "Ko": _n("kilooctet"), "Mo": _n("mégaoctet"), "Go": _n("gigaoctet"), "To": _n("téraoctet"),
        "MB": _n("mégaoctet"), "GB": _n("gigaoctet"), "Mbit/s": _n("mégabit par seconde", "mégabits par seconde"),
        "Mb/s": _n("mégabit par seconde", "mégabits par seconde"), "Mbps": _n("mégabit par seconde", "mégabits par seconde"),
        "Hz": _n("hertz", "hertz"), "MHz": _n("mégahertz", "mégahertz"), "GHz": _n("gigahertz", "gigahertz"),
        "ha": _n("hectare"), "mmHg": _n("millimètre de mercure", "millimètres de mercure"), "kcal": _n("kilocalorie", gender="f"),
        "c. à s.": _n("cuillère à soupe", "cuillères à soupe", "f"), "càs": _n("cuillère à soupe", "cuillères à soupe", "f"),
        "c. à c.": _n("cuillère à café", "cuillères à café", "f"), "càc": _n("cuillère à café", "cuillères à café", "f"),
        "cp": _n("comprimé"), "ch": _n("cheval", "chevaux"), "pers.": _n("personne", gender="f"), "kHz": _n("kilohertz", "kilohertz"), "mAh": _n("milliampèreheure"),
        "dl": _n("décilitre"), "dL": _n("décilitre"), "lb": _LIVRE, "ft": _n("pied"), "in.": _n("pouce"),
    },
    degrees={"C": "Celsius", "F": "Fahrenheit"}, degree=_n("degré"),
    magnitudes={
        "mille": ("mille",) * 2, "k": ("mille",) * 2, "million": ("million",) * 2, "millions": ("millions",) * 2,
        "M": ("million", "millions"), "milliard": ("milliard",) * 2, "milliards": ("milliards",) * 2,
        "Md": ("milliard", "milliards"), "Mds": ("milliard", "milliards"), "billion": ("billion",) * 2,
        "billions": ("billions",) * 2,
    },
    symbols={
        "&": "et", "+": "plus", "=": "égale", "@": "arobase", "%": "pour cent", "~": "environ", "≈": "environ",
        "<": "inférieur à", ">": "supérieur à", "≤": "inférieur ou égal à", "≥": "supérieur ou égal à", "×": "fois",
        "÷": "divisé par", "±": "plus ou moins", "*": "fois", "/": "sur", "§": "paragraphe", "°": "degrés", "№": "numéro",
        "#": "dièse", "€": "euros", "$": "dollars", "£": "livres", "ext": "poste", "by": "par", "over": "sur",
        "−": "moins", "²": "au carré", "³": "au cube", "‰": "pour mille", "→": "vers",
    },
    address={
        ".": "point", "/": "slash", "-": "tiret", "_": "tiret bas", "@": "arobase", ":": "deux points",
        "?": "point d'interrogation", "=": "égal", "&": "et", "#": "dièse", "+": "plus", "%": "pour cent", "~": "tilde",
    },
    fractions=fraction, and_fraction="et", per="par", star="étoile", pound="dièse",
    key_words="appuyez|appuyer|tapez|taper|composez|composer|faites|touche|touches|saisissez|entrez|pressez",
    code_words=r"iban|chiffres|(?:réf|ref)(?!\.? ?#)|cvv|cryptogramme|code|code pin|pin|mot de passe|se terminant par|finissant par|termine par|terminée par|code postal|(?:(?<=\ble )|(?<=\bdu )|(?<=\bde )|(?<=\bau )|(?<=\bon )|(?<=\bmon )|(?<=\bson )|(?<=\bvotre )|(?<=\bnotre )|(?<=\bun )|(?<=\bce )|(?<=^))compte|"
    "commande|facture|référence|réservation|dossier|carte|vol|chambre|salle|poste|ticket|contrat|client|suivi|numéro|n°|"
    "téléphone|siret|siren|port",
    date_words="le|au|du|avant le|depuis le|jusqu'au|dès le|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche",
    abbreviations={
        "Sté": "société", "fig.": "figure",
        "incl.": "inclus", "CP": "code postal",
        "MM.": "messieurs", "Mme": "madame", "Mmes": "mesdames", "Mlle": "mademoiselle", "Mlles": "mesdemoiselles",
        "Mgr": "monseigneur", "Dr": "docteur", "Dr.": "docteur", "Pr": "professeur", "etc.": "et cetera",
        "p. ex.": "par exemple", "p.ex.": "par exemple", "c.-à-d.": "c'est-à-dire", "env.": "environ", "tél.": "téléphone",
        "Tél.": "téléphone", "av.": "avenue", "Av.": "avenue", "bd": "boulevard", "Bd": "boulevard", "bld": "boulevard",
        "boul.": "boulevard", "pl.": "place", "rdv": "rendez-vous", "RDV": "rendez-vous", "max.": "maximum",
        "min.": "minimum", "réf.": "référence", "Réf.": "référence", "janv.": "janvier", "févr.": "février",
        "juil.": "juillet", "oct.": "octobre", "nov.": "novembre", "déc.": "décembre",
        "lun.": "lundi", "jeu.": "jeudi", "ven.": "vendredi", "sam.": "samedi", "dim.": "dimanche",
        "chap.": "chapitre", "apt.": "appartement", "appt.": "appartement", "bât.": "bâtiment", "ét.": "étage",
        "St": "Saint", "Ste": "Sainte", "svp": "s'il vous plaît", "SVP": "s'il vous plaît", "s.v.p.": "s'il vous plaît",
        "Cie": "compagnie", "ch.": "chambre", "M./Mme": "monsieur, madame", "ref.": "référence",
        "mar.": "mardi", "mer.": "mercredi", "h.t.": "hors taxes", "H.T.": "hors taxes", "T.T.C.": "toutes taxes comprises", "resp.": "responsable", "vs": "contre", "vs.": "contre",
    },
    number_sign="numéro",
    ordinal_pattern=r"(?P<number>\d{1,3}(?: \d{3})+|\d+)(?:ers?|(?P<f>(?:ère|re|nde)s?)|nds?|i?[eè]mes?|es?|d|ᵉ)(?!\w)",
    roman_before={
        **dict.fromkeys(
            "chapitre tome acte partie phase niveau titre article annexe volume guerre louis henri charles philippe jean-paul "
            "benoît jean pie léon clément grégoire alexandre napoléon françois guillaume édouard élisabeth elisabeth catherine frédéric jacques georges".split(), "cardinal"),
    },
    feminine=r"\w+(?:tions?|sions?|xions?|tés?|ées?|ies?|ures?|ettes?|[ae]nces?|esses?|elles?|ines?|ades?|isons?)|"
    r"personnes?|minutes?|heures?|secondes?|places?|nuits?|pages?|chambres?|fois|lignes?|commandes?|cartes?|factures?|"
    r"majuscules?|minuscules?|tables?|pizzas?|quiches?|tartes?|soupes?|bouteilles?|assiettes?|crêpes?|galettes?|formules?|villes?|familles?|filles?|femmes?|équipes?|listes?|lettres?|étapes?|"
    r"erreurs?|gares?|clés?|gouttes?|doses?|taxes?|notes?|visites?|images?|caisses?|ampoules?|langues?|plages?|serviettes?|valises?|portes?|fenêtres?|chaises?|nouvelles?|"
    r"étoiles?|pièces?|livres?|rues?|factures?|tonnes?|tasses?|cuillères?|voitures?|demandes?|boîtes?|adresses?|réponses?|offres?|touches?|petites?|grandes?|bonnes?|longues?",
    not_counted="pour|par|puis|dans|sur|sous|avec|est|sont|sera|était|qui|que|les|des|aux|une|mais|donc|car|afin|vous|nous|"
    "avant|après|chez|sans|entre|vers|ont|peut|doit|expire|arrive|part",
    out_of="sur", times_word="fois", version="version",
)  # fmt: skip
