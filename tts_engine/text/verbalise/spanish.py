"""Spanish words."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

_ONES = (
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete "
    "dieciocho diecinueve veinte veintiuno veintidós veintitrés veinticuatro veinticinco veintiséis veintisiete "
    "veintiocho veintinueve"
).split()
_TENS = "treinta cuarenta cincuenta sesenta setenta ochenta noventa".split()
_HUNDREDS = (
    "ciento doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos novecientos"
).split()
_SCALES = (("millón", "millones"), ("billón", "billones"), ("trillón", "trillones"), ("cuatrillón", "cuatrillones"),
           ("quintillón", "quintillones"))  # fmt: skip
MONTHS = "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre".split()


def _below_thousand(number: int, gender: Gender, noun: bool) -> str:
    hundreds, rest = divmod(number, 100)
    parts = []
    if number == 100:
        return "cien"
    if hundreds:
        words = _HUNDREDS[hundreds - 1]
        parts.append(f"{words[:-2]}as" if gender == "f" and hundreds > 1 else words)
    if rest:
        words = _ONES[rest] if rest < 30 else _TENS[rest // 10 - 3] + (f" y {_ONES[rest % 10]}" if rest % 10 else "")
        if words.endswith("uno"):
            if gender == "f":
                words = words[:-1] + "a"
            elif noun:
                words = "veintiún" if rest == 21 else words[:-1]
        parts.append(words)
    return " ".join(parts)


def _below_million(number: int, gender: Gender, noun: bool) -> str:
    thousands, rest = divmod(number, 1000)
    parts = []
    if thousands:
        parts.append("mil" if thousands == 1 else f"{_below_thousand(thousands, gender, True)} mil")
    if rest:
        parts.append(_below_thousand(rest, gender, noun))
    return " ".join(parts)


def cardinal(number: int, gender: Gender = "m", before_noun: bool = False) -> str:
    """Return the name of a number; "un" or "una" before a noun."""
    if number == 0:
        return "cero"
    groups = []
    while number:
        number, group = divmod(number, 1_000_000)
        groups.append(group)
    parts = []
    for at in range(len(groups) - 1, 0, -1):
        if groups[at]:
            one, many = _SCALES[at - 1]
            parts.append(f"un {one}" if groups[at] == 1 else f"{_below_million(groups[at], 'm', True)} {many}")
    if groups[0]:
        parts.append(_below_million(groups[0], gender, before_noun))
    return " ".join(parts)


_ORDINALS = ("cero primero segundo tercero cuarto quinto sexto séptimo octavo noveno décimo undécimo duodécimo "
             "decimotercero decimocuarto decimoquinto decimosexto decimoséptimo decimoctavo decimonoveno").split()  # fmt: skip
_ORDINAL_TENS = ("vigésimo", "trigésimo", "cuadragésimo", "quincuagésimo", "sexagésimo", "septuagésimo", "octogésimo",
                 "nonagésimo")  # fmt: skip


def ordinal(number: int, gender: Gender = "m") -> str:
    """Return "primero", "segunda", "vigésimo primero" ..."""
    if number < 20:
        words = [_ORDINALS[number]]
    elif number < 100:
        words = [_ORDINAL_TENS[number // 10 - 2], *([_ORDINALS[number % 10]] if number % 10 else [])]
    else:
        return cardinal(number, gender)
    return " ".join(word[:-1] + "a" if gender == "f" else word for word in words)


def date(day: int, month: int, year_: int | None) -> str:
    """Return "cuatro de marzo de dos mil veinticinco"."""
    first = "primero" if day == 1 else cardinal(day)
    return f"{first} de {MONTHS[month - 1]}" + (f" de {cardinal(year_)}" if year_ is not None else "")


def time(hour: int, minute: int, second: int | None, half: str) -> str:
    """Return "nueve y cinco", "dos y media de la tarde"."""
    words = cardinal(hour, "f")
    if minute:
        words += f" y {cardinal(minute) if minute not in (15, 30) else 'cuarto' if minute == 15 else 'media'}"
    if second is not None:
        words += f" y {cardinal(second)} segundos"
    if half:
        words += " de la mañana" if half == "a" else " de la noche" if 8 <= hour < 12 else " de la tarde"
    return words


def fraction(over: int, under: int) -> str | None:
    """Return "tres cuartos"."""
    names = {2: "medio", 3: "tercio", 4: "cuarto", 5: "quinto", 6: "sexto", 7: "séptimo", 8: "octavo", 9: "noveno",
             10: "décimo"}  # fmt: skip
    if under not in names or not 0 < over < under * 4:
        return None
    return f"{cardinal(over, 'm', True)} {names[under]}{'' if over == 1 else 's'}"


def _n(one: str, many: str = "", gender: Gender = "m") -> Noun:
    return Noun(one, many or one + "s", gender)


_CENT, _CENTIMO = _n("centavo"), _n("céntimo")
SPANISH = Grammar(
    tag="es", cardinal=cardinal, ordinal=ordinal, year=cardinal, date=date,
    time=time, digits=_ONES[:10], decimal_mark=",", point="coma", other_point="punto", fraction_digits="number",
    minus="menos", plus="más", conjunction="y", to="a", percent="por ciento", of_million=" de", money_and="con",
    months=MONTHS, month_short="ene feb mar abr may jun jul ago sep oct nov dic".split(),
    currencies={
        "€": (_n("euro"), _CENTIMO), "EUR": (_n("euro"), _CENTIMO), "$": (_n("dólar", "dólares"), _CENT),
        "US$": (_n("dólar", "dólares"), _CENT), "USD": (_n("dólar estadounidense", "dólares estadounidenses"), _CENT),
        "MXN": (_n("peso mexicano", "pesos mexicanos"), _CENT), "MX$": (_n("peso mexicano", "pesos mexicanos"), _CENT),
        "£": (_n("libra", gender="f"), _n("penique")), "GBP": (_n("libra", gender="f"), _n("penique")),
        "pesos": (_n("peso"), _CENT), "¥": (_n("yen", "yenes"), None), "CHF": (_n("franco suizo", "francos suizos"), _n("céntimo")),
        "R$": (_n("real", "reales"), _CENT), "₹": (_n("rupia", gender="f"), None), "S/": (_n("sol", "soles"), _CENTIMO),
        "S/.": (_n("sol", "soles"), _CENTIMO), "PEN": (_n("sol", "soles"), _CENTIMO), "₡": (_n("colón", "colones"), _CENTIMO),
        "COP": (_n("peso colombiano", "pesos colombianos"), _CENT), "ARS": (_n("peso argentino", "pesos argentinos"), _CENT),
        "CLP": (_n("peso chileno", "pesos chilenos"), None), "UYU": (_n("peso uruguayo", "pesos uruguayos"), _CENT),
    },
    units={
        "km": _n("kilómetro"), "m": _n("metro"), "cm": _n("centímetro"), "mm": _n("milímetro"), "kg": _n("kilogramo"),
        "g": _n("gramo"), "mg": _n("miligramo"), "l": _n("litro"), "L": _n("litro"), "ml": _n("mililitro"),
        "km/h": _n("kilómetro por hora", "kilómetros por hora"), "m²": _n("metro cuadrado", "metros cuadrados"),
        "km²": _n("kilómetro cuadrado", "kilómetros cuadrados"), "m³": _n("metro cúbico", "metros cúbicos"),
        "m/s": _n("metro por segundo", "metros por segundo"), "mph": _n("milla por hora", "millas por hora", "f"),
        "h": _n("hora", gender="f"), "hs": _n("hora", gender="f"), "min": _n("minuto"), "min.": _n("minuto"),
        "s": _n("segundo"), "seg": _n("segundo"), "seg.": _n("segundo"), "kWh": _n("kilovatio hora", "kilovatios hora"),
        "MB": _n("megabyte"), "GB": _n("gigabyte"), "TB": _n("terabyte"), "Mbps": _n("megabit por segundo", "megabits por segundo"),
        "W": _n("vatio"), "kW": _n("kilovatio"), "V": _n("voltio"), "ha": _n("hectárea", gender="f"),
        "lpm": _n("latido por minuto", "latidos por minuto"), "mmHg": _n("milímetro de mercurio", "milímetros de mercurio"), "lb": _n("libra", gender="f"),
        "cl": _n("centilitro"), "m2": _n("metro cuadrado", "metros cuadrados"), "Hz": _n("hercio"), "µg": _n("microgramo"),
        "mcg": _n("microgramo"), "ms": _n("milisegundo"), "comp.": _n("comprimido"), "A": _n("amperio"), "t": _n("tonelada", gender="f"),
        "kcal": _n("kilocaloría", gender="f"), "ud.": _n("unidad", "unidades", "f"), "uds.": _n("unidad", "unidades", "f"),
        "ud": _n("unidad", "unidades", "f"), "uds": _n("unidad", "unidades", "f"), "cda.": _n("cucharada", gender="f"),
        "cdas.": _n("cucharada", gender="f"), "cdta.": _n("cucharadita", gender="f"), "cdtas.": _n("cucharadita", gender="f"),
        "dl": _n("decilitro"), "dL": _n("decilitro"),
        "ft": _n("pie"), "in.": _n("pulgada", gender="f"),
    },
    degrees={"C": "Celsius", "F": "Fahrenheit"}, degree=_n("grado"),
    magnitudes={
        "mil": ("mil",) * 2, "k": ("mil",) * 2, "K": ("mil",) * 2, "M": ("millón", "millones"), "millón": ("millón", "millones"), "millones": ("millón", "millones"),
        "billón": ("billón", "billones"), "billones": ("billón", "billones"), "trillones": ("trillón", "trillones"),
    },
    symbols={
        "&": "y", "+": "más", "=": "igual a", "@": "arroba", "%": "por ciento", "~": "unos", "<": "menor que",
        ">": "mayor que", "×": "por", "÷": "entre", "±": "más menos", "*": "por", "/": "barra", "°": "grados", "№": "número",
        "#": "almohadilla", "€": "euros", "$": "dólares", "£": "libras", "ext": "extensión", "by": "por", "over": "sobre",
        "−": "menos", "²": "al cuadrado", "³": "al cubo",
    },
    address={
        ".": "punto", "/": "barra", "-": "guion", "_": "guion bajo", "@": "arroba", ":": "dos puntos",
        "?": "interrogación", "=": "igual", "&": "y", "#": "almohadilla", "+": "más", "%": "por ciento", "~": "virgulilla",
    },
    fractions=fraction, and_fraction="y", per="por", star="asterisco", pound="almohadilla",
    key_words="pulse|pulsa|presione|presiona|marque|marca|oprima|tecla|teclee|ingrese|introduzca",
    code_words=r"iban|dígitos|(?:ref)(?!\.? ?#)|código|codigo|pin|clave|contraseña|terminada en|terminado en|termina en|acabada en|acabado en|puerto|código postal|cuenta|pedido|orden|"
    "factura|referencia|reserva|tarjeta|vuelo|habitación|sala|extensión|caso|expediente|dni|cvv|número|teléfono",
    date_words="el|hasta el|desde el|al|del|lunes|martes|miércoles|jueves|viernes|sábado|domingo",
    abbreviations={
        "dto.": "descuento", "ptos.": "puntos", "fig.": "figura", "cel.": "celular",
        "Sr.": "señor", "Sra.": "señora", "Srta.": "señorita", "Dr.": "doctor", "Dra.": "doctora", "D.": "don", "Sres.": "señores", "Dres.": "doctores",
        "Dña.": "doña", "etc.": "etcétera", "p. ej.": "por ejemplo", "p.ej.": "por ejemplo", "Ud.": "usted",
        "Uds.": "ustedes", "ref.": "referencia", "aprox.": "aproximadamente", "tel.": "teléfono", "Tel.": "teléfono", "av.": "avenida",
        "Av.": "avenida", "Avda.": "avenida", "núm.": "número", "Núm.": "número", "pág.": "página", "EE. UU.": "Estados Unidos",
        "EE.UU.": "Estados Unidos", "C/": "calle", "c/": "calle", "Pza.": "plaza", "Avda": "avenida", "Col.": "colonia", "C.P.": "código postal", "lun.": "lunes", "mié.": "miércoles", "jue.": "jueves", "sáb.": "sábado", "dom.": "domingo", "hab.": "habitación", "Hab.": "habitación",
        "Pl.": "plaza", "P.º": "paseo", "Pº": "paseo", "izq.": "izquierda", "izqda.": "izquierda", "dcha.": "derecha", "CP": "código postal",
        "dpto.": "departamento", "depto.": "departamento", "esq.": "esquina", "Lic.": "licenciado", "Ing.": "ingeniero", "Prof.": "profesor",
        "Sto.": "Santo", "Sta.": "Santa", "Cía.": "compañía", "vto.": "vencimiento", "art.": "artículo", "incl.": "incluido", "izda.": "izquierda", "Tfno.": "teléfono", "tfno.": "teléfono", "D.ª": "doña", "c/u": "cada uno", "pers.": "personas", "mens.": "mensajes", "máx": "máximo", "mín": "mínimo", "s/n": "sin número",
        "ext.": "extensión", "Ext.": "extensión", "int.": "interior", "FF. AA.": "Fuerzas Armadas", "vs.": "contra", "Nro.": "número", "nro.": "número", "No.": "número", "máx.": "máximo", "apdo.": "apartado", "mín.": "mínimo",
    },
    number_sign="número", ordinal_pattern=r"(?P<number>\d{1,3})(?:\.?(?:º|°(?! ?[CF])|er|o\b)|(?P<f>\.?ª|\.?a\b)|(?:st|nd|rd|th)\b)",
    roman_before={
        **dict.fromkeys("siglo capítulo tomo guerra".split(), "cardinal"),
        **dict.fromkeys("felipe carlos alfonso enrique luis juan pablo pío fernando jaime benedicto".split(), "ordinal"),
        **dict.fromkeys("isabel catalina maría".split(), "feminine"),
    },
    feminine=r"(?!(?i:megas?|gigas?)\b|días?\b|\w*(?:gramas?|emas?|omas?|climas?|mapas?|planetas?|turistas?|ta?xistas?)\b)\w+as?|"
    r"(?!(?:avi|cami|gui|escorpi)[oó]n)\w+i[oó]n(?:es)?|\w+(?:dad|tud)(?:es)?|\w+umbres?|señal(?:es)?|sucursal(?:es)?|credencial(?:es)?|noches?|vez|veces|mujer(?:es)?|partes?|redes?|fases?|llaves?|calles?|clases?|tardes?|imágenes|órdenes|manos?|fotos?|flores|sedes?|bases?|series?|suites?|nubes?",
    not_counted="para|por|con|que|los|las|del|una|desde|hasta|sobre|entre|pero|está|son|fue|será|era|vence|llega|sale|sin|"
    "cada|ahora|toda|contra|según|cuesta|todavía|queda",
    roman_after="Guerra|República|Congreso|Feria|Cumbre",
    out_of="de", times_word="veces", version="versión",
)  # fmt: skip
