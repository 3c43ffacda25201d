"""Portuguese words, in Brazil's spelling."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

_ONES = (
    "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete dezoito "
    "dezenove"
).split()
_TENS = "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa".split()
_HUNDREDS = "cento duzentos trezentos quatrocentos quinhentos seiscentos setecentos oitocentos novecentos".split()
_SCALES = (("milhão", "milhões"), ("bilhão", "bilhões"), ("trilhão", "trilhões"), ("quatrilhão", "quatrilhões"),
           ("quintilhão", "quintilhões"), ("sextilhão", "sextilhões"), ("septilhão", "septilhões"),
           ("octilhão", "octilhões"), ("nonilhão", "nonilhões"), ("decilhão", "decilhões"))  # fmt: skip
MONTHS = "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro".split()


def _below_thousand(number: int, gender: Gender) -> str:
    if number == 100:
        return "cem"
    hundreds, rest = divmod(number, 100)
    parts = []
    if hundreds:
        parts.append(_HUNDREDS[hundreds - 1].replace("tos", "tas") if gender == "f" else _HUNDREDS[hundreds - 1])
    if rest >= 20:
        parts.append(_TENS[rest // 10 - 2])
        rest %= 10
    if rest:
        parts.append({1: "uma", 2: "duas"}.get(rest, _ONES[rest]) if gender == "f" else _ONES[rest])
    return " e ".join(parts)


def cardinal(number: int, gender: Gender = "m", before_noun: bool = False) -> str:
    """Return the name of a number; "uma", "duas", "duzentas" before a feminine noun."""
    if number == 0:
        return "zero"
    large, small = divmod(number, 1_000_000)
    groups = []
    while large:
        large, group = divmod(large, 1000)
        groups.append(group)
    words = ""
    for at in range(len(groups) - 1, -1, -1):
        if groups[at]:
            one, many = _SCALES[at]
            part = f"um {one}" if groups[at] == 1 else f"{_below_thousand(groups[at], 'm')} {many}"
            words = _joined(words, part, groups[at], last=not any(groups[:at]) and not small)
    thousands, rest = divmod(small, 1000)
    if thousands:
        part = "mil" if thousands == 1 else f"{_below_thousand(thousands, gender)} mil"
        words = _joined(words, part, thousands, last=not rest)
    if rest:
        words = _joined(words, _below_thousand(rest, gender), rest, last=True)
    return words


def _joined(before: str, part: str, value: int, *, last: bool) -> str:
    """Join a group of three digits; "e" is said before the last group if it is below a hundred or round."""
    joint = " e " if last and (value < 100 or value % 100 == 0) else " "
    return f"{before}{joint}{part}" if before else part


_ORDINALS = "zero primeiro segundo terceiro quarto quinto sexto sétimo oitavo nono".split()
_ORDINAL_TENS = (
    "décimo vigésimo trigésimo quadragésimo quinquagésimo sexagésimo septuagésimo octogésimo nonagésimo".split()
)
_ORDINAL_HUNDREDS = (
    "centésimo ducentésimo trecentésimo quadringentésimo quingentésimo sexcentésimo septingentésimo octingentésimo "
    "noningentésimo"
).split()


def ordinal(number: int, gender: Gender = "m") -> str:
    """Return "primeiro", "segunda", "décimo primeiro" ..."""
    if number == 0 or number > 1000:
        return cardinal(number, gender)
    if number == 1000:
        words = ["milésimo"]
    else:
        words = [_ORDINAL_HUNDREDS[number // 100 - 1]] if number >= 100 else []
        if number % 100 >= 10:
            words.append(_ORDINAL_TENS[number % 100 // 10 - 1])
        if number % 10:
            words.append(_ORDINALS[number % 10])
    return " ".join(word[:-1] + "a" if gender == "f" else word for word in words)


def date(day: int, month: int, year_: int | None) -> str:
    """Return "quatro de março de dois mil e vinte e cinco"."""
    first = "primeiro" if day == 1 else cardinal(day)
    return f"{first} de {MONTHS[month - 1]}" + (f" de {cardinal(year_)}" if year_ is not None else "")


def time(hour: int, minute: int, second: int | None, half: str) -> str:
    """Return "nove horas e cinco"."""
    words = f"{cardinal(hour, 'f')} hora{'' if hour == 1 else 's'}"
    if second is not None:
        words += f" e {cardinal(minute)} minuto{'' if minute == 1 else 's'} e {cardinal(second)} segundo"
        words += "" if second == 1 else "s"
    elif minute:
        words += f" e {cardinal(minute)}"
    if half:
        words += " da manhã" if half == "a" else " da noite" if 6 <= hour < 12 else " da tarde"
    return words


def fraction(over: int, under: int) -> str | None:
    """Return "três quartos"."""
    if not 2 <= under <= 1000 or not 0 < over < under * 4:
        return None
    if under == 2:
        name = "meio"
    elif under == 3:
        name = "terço"
    elif under <= 10 or under in (100, 1000):
        name = ordinal(under)
    else:
        return f"{cardinal(over)} {cardinal(under)} avos"
    return f"{cardinal(over)} {name}{'' if over == 1 else 's'}"


def _n(one: str, many: str = "", gender: Gender = "m") -> Noun:
    return Noun(one, many or one + "s", gender)


_CENT, _DOLLAR, _REAL = _n("centavo"), _n("dólar", "dólares"), _n("real", "reais")
_HOUR, _MINUTE, _SECOND = _n("hora", gender="f"), _n("minuto"), _n("segundo")
_POUND = _n("libra", gender="f")
PORTUGUESE = Grammar(
    tag="pt", cardinal=cardinal, ordinal=ordinal, year=cardinal, date=date, time=time, digits=_ONES[:10],
    decimal_mark=",", point="vírgula", other_point="ponto", fraction_digits="digits", minus="menos", plus="mais",
    conjunction="e", to="a", percent="por cento", of_million=" de", money_and="e", months=MONTHS,
    month_short="jan fev mar abr mai jun jul ago set out nov dez".split(),
    currencies={
        "R$": (_REAL, _CENT), "BRL": (_REAL, _CENT), "reais": (_REAL, _CENT), "€": (_n("euro"), _CENT),
        "EUR": (_n("euro"), _CENT), "euros": (_n("euro"), _CENT), "$": (_DOLLAR, _CENT), "US$": (_DOLLAR, _CENT),
        "USD": (_n("dólar americano", "dólares americanos"), _CENT), "£": (_POUND, _n("penny", "pence")),
        "GBP": (_POUND, _n("penny", "pence")), "CHF": (_n("franco suíço", "francos suíços"), _n("cêntimo")),
        "¥": (_n("iene"), None), "₹": (_n("rupia", gender="f"), None), "Kz": (_n("kwanza"), None),
    },
    units={
        "km": _n("quilômetro"), "m": _n("metro"), "cm": _n("centímetro"), "mm": _n("milímetro"), "kg": _n("quilo"),
        "g": _n("grama"), "mg": _n("miligrama"), "l": _n("litro"), "L": _n("litro"), "ml": _n("mililitro"),
        "mL": _n("mililitro"), "km/h": _n("quilômetro por hora", "quilômetros por hora"),
        "m/s": _n("metro por segundo", "metros por segundo"), "m²": _n("metro quadrado", "metros quadrados"),
        "m2": _n("metro quadrado", "metros quadrados"), "km²": _n("quilômetro quadrado", "quilômetros quadrados"),
        "m³": _n("metro cúbico", "metros cúbicos"), "h": _HOUR, "hs": _HOUR, "hrs": _HOUR, "min": _MINUTE, "min.": _MINUTE,
        "s": _SECOND, "seg": _SECOND, "seg.": _SECOND, "ms": _n("milissegundo"), "t": _n("tonelada", gender="f"),
        "kWh": _n("quilowatt-hora", "quilowatts-hora"), "kW": _n("quilowatt"), "W": _n("watt"), "V": _n("volt"),
        "KB": _n("kilobyte"), "MB": _n("megabyte"), "GB": _n("gigabyte"), "TB": _n("terabyte"),
        "Mbps": _n("megabit por segundo", "megabits por segundo"), "Hz": _n("hertz", "hertz"),
        "MHz": _n("mega-hertz", "mega-hertz"), "GHz": _n("giga-hertz", "giga-hertz"), "ha": _n("hectare"),
        "mmHg": _n("milímetro de mercúrio", "milímetros de mercúrio"), "kcal": _n("quilocaloria", gender="f"),
        "un.": _n("unidade", gender="f"), "un": _n("unidade", gender="f"), "unid.": _n("unidade", gender="f"), "col.": _n("colher", "colheres", "f"),
        "cl": _n("centilitro"), "A": _n("ampere"), "comp.": _n("comprimido"), "mAh": _n("miliampere-hora", "miliamperes-hora"), "µg": _n("micrograma"), "mcg": _n("micrograma"),
        "dl": _n("decilitro"), "dL": _n("decilitro"),
        "ft": _n("pé"), "in.": _n("polegada", gender="f"),
    },
    degrees={"C": "Celsius", "F": "Fahrenheit"}, degree=_n("grau"),
    magnitudes={
        "mil": ("mil",) * 2, "milhão": ("milhão",) * 2, "milhões": ("milhões",) * 2, "mi": ("milhão", "milhões"),
        "bilhão": ("bilhão",) * 2, "bilhões": ("bilhões",) * 2, "bi": ("bilhão", "bilhões"), "trilhão": ("trilhão",) * 2,
        "trilhões": ("trilhões",) * 2,
    },
    symbols={
        "&": "e", "+": "mais", "=": "igual a", "@": "arroba", "%": "por cento", "~": "cerca de", "≈": "cerca de",
        "<": "menor que", ">": "maior que", "≤": "menor ou igual a", "≥": "maior ou igual a", "×": "vezes",
        "÷": "dividido por", "±": "mais ou menos", "*": "vezes", "/": "barra", "§": "parágrafo", "°": "graus",
        "№": "número", "#": "jogo da velha", "€": "euros", "$": "dólares", "£": "libras", "ext": "extensão", "by": "por",
        "over": "por", "−": "menos", "²": "ao quadrado", "³": "ao cubo", "‰": "por mil", "→": "para",
    },
    address={
        ".": "ponto", "/": "barra", "-": "hífen", "_": "underline", "@": "arroba", ":": "dois pontos",
        "?": "interrogação", "=": "igual", "&": "e", "#": "jogo da velha", "+": "mais", "%": "por cento", "~": "til",
    },
    fractions=fraction, and_fraction="e", per="por", star="asterisco", pound="jogo da velha",
    key_words="pressione|pressionar|aperte|tecle|digite|digitar|disque|discar|tecla|teclas|marque|prima|carregue",
    code_words=r"iban|dígitos|(?:ref)(?!\.? ?#)|cvv|código|codigo|pin|senha|final|terminado em|terminada em|termina em|cep|conta|agência|pedido|fatura|"
    "ligue|ligue para|ligue para o|disque|referência|reserva|protocolo|cartão|voo|quarto|sala|ramal|bilhete|contrato|cliente|rastreio|número|telefone|cpf|rg|nif",
    date_words="dia|em|até|do dia|no dia|desde|segunda|terça|quarta|quinta|sexta|sábado|domingo|segunda-feira|"
    "terça-feira|quarta-feira|quinta-feira|sexta-feira",
    abbreviations={
        "fig.": "figura", "ag.": "agência", "Ag.": "agência", "cj.": "conjunto", "desc.": "desconto", "d.u.": "dias úteis",
        "incl.": "incluindo", "and.": "andar", "esq.": "esquerda", "dir.": "direita", "Sr.ª": "senhora", "pes.": "pessoas",
        "Sr.": "senhor", "Sra.": "senhora", "Srs.": "senhores", "Srta.": "senhorita", "sr.": "senhor", "sra.": "senhora",
        "Dr.": "doutor", "Dra.": "doutora", "Prof.": "professor", "Profa.": "professora", "Eng.": "engenheiro",
        "D.": "dom", "etc.": "etcétera", "p. ex.": "por exemplo", "a.a.": "ao ano", "p.ex.": "por exemplo", "ex.": "exemplo", "Ex.": "exemplo",
        "tel.": "telefone", "Tel.": "telefone", "cel.": "celular", "Cel.": "celular", "av.": "avenida", "Av.": "avenida",
        "R.": "rua", "r.": "rua", "n.º": "número", "nº": "número", "Nº": "número", "N.º": "número", "nr.": "número",
        "pág.": "página", "aprox.": "aproximadamente", "máx.": "máximo", "mín.": "mínimo", "ref.": "referência",
        "Ref.": "referência", "apto.": "apartamento", "ap.": "apartamento", "Ltda.": "limitada", "seg.": "segunda",
        "qua.": "quarta", "qui.": "quinta", "sex.": "sexta", "sáb.": "sábado", "dom.": "domingo",
        "cap.": "capítulo", "séc.": "século", "Rod.": "rodovia", "Al.": "alameda", "Pça.": "praça", "pça.": "praça", "Trav.": "travessa", "bl.": "bloco", "Bl.": "bloco", "art.": "artigo", "Sto.": "Santo", "Sta.": "Santa", "cód.": "código", "Cód.": "código", "S.": "São", "Cia.": "companhia", "vs.": "contra", "s/n": "sem número",
    },
    number_sign="número", ordinal_pattern=r"(?P<number>\d{1,4})(?:\.?[º°]|(?P<f>\.?ª))(?!\w)",
    roman_before={
        **dict.fromkeys("rua século séculos capítulo tomo volume ato parte fase nível título artigo guerra".split(), "cardinal"),
        **dict.fromkeys(
            "pedro joão papa rei luís carlos henrique filipe paulo pio bento leão manuel afonso sancho "
            "francisco afonso napoleão".split(), "ordinal"),
        **dict.fromkeys("maria isabel elizabeth elisabete catarina".split(), "feminine"),
    },
    feminine=r"(?!(?i:megas?|gigas?)\b|dias?\b|\w*(?:gramas?|temas?|emas?|mapas?|planetas?|turistas?|motoristas?|atletas?)\b)\w+as?|\w+(?:ção|ções|são|sões|dades?|agens?|gens|gem)|"
    r"noites?|vezes|vez|mulher(?:es)?|partes?|redes?|fases?|chaves?|fontes?|unidades?|colher(?:es)?|flor(?:es)?|sedes?|bases?|frases?|suítes?|luzes|m[ãa]os",
    not_counted="para|por|pelo|pela|com|que|dos|das|nos|nas|sobre|até|uma|mas|ele|ela|está|são|foi|será|era|vence|chega|sai|"
    "contra|entre|sem|após|ainda|agora|toda|cada|pra|seja|fica|deixa|volta|custa",
    roman_after="Guerra|República|Congresso|Feira",
    out_of="de", times_word="vezes", version="versão",
)  # fmt: skip
