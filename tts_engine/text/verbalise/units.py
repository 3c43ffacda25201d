"""Units of data, electricity and heat, which every language forms from the same signs: a prefix and a base."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Noun

_PREFIXES = {
    "en": ("kilo", "mega", "giga", "tera", "milli", "hecto"),
    "es": ("kilo", "mega", "giga", "tera", "mili", "hecto"),
    "fr": ("kilo", "méga", "giga", "téra", "milli", "hecto"),
    "it": ("kilo", "mega", "giga", "tera", "milli", "etto"),
    "pt": ("quilo", "mega", "giga", "tera", "mili", "hecto"),
    "de": ("kilo", "mega", "giga", "tera", "milli", "hekto"),
}
"""Names of k, M, G, T, m and h."""
_SIGNS = "kMGTmh"
_BASES: dict[str, dict[str, tuple[str, str, Gender]]] = {
    "en": {
        "bit": ("bit", "bits", "m"), "B": ("byte", "bytes", "m"), "W": ("watt", "watts", "m"), "V": ("volt", "volts", "m"),
        "VA": ("volt amp", "volt amps", "m"), "Hz": ("hertz", "hertz", "m"), "Wh": ("watt hour", "watt hours", "m"), "Ah": ("amp hour", "amp hours", "m"),
        "Pa": ("pascal", "pascals", "m"), "J": ("joule", "joules", "m"), "cal": ("calorie", "calories", "m"),
    },
    "es": {
        "bit": ("bit", "bits", "m"), "B": ("byte", "bytes", "m"), "W": ("vatio", "vatios", "m"),
        "V": ("voltio", "voltios", "m"), "VA": ("voltamperio", "voltamperios", "m"), "Hz": ("hercio", "hercios", "m"), "Wh": ("vatio hora", "vatios hora", "m"),
        "Ah": ("amperio hora", "amperios hora", "m"), "Pa": ("pascal", "pascales", "m"), "J": ("julio", "julios", "m"),
        "cal": ("caloría", "calorías", "f"),
    },
    "fr": {
        "bit": ("bit", "bits", "m"), "B": ("octet", "octets", "m"), "o": ("octet", "octets", "m"),
        "W": ("watt", "watts", "m"), "V": ("volt", "volts", "m"), "VA": ("voltampère", "voltampères", "m"), "Hz": ("hertz", "hertz", "m"),
        "Wh": ("wattheure", "wattheures", "m"), "Ah": ("ampèreheure", "ampèreheures", "m"),
        "Pa": ("pascal", "pascals", "m"), "J": ("joule", "joules", "m"), "cal": ("calorie", "calories", "f"),
    },
    "it": {
        "bit": ("bit", "bit", "m"), "B": ("byte", "byte", "m"), "W": ("watt", "watt", "m"), "V": ("volt", "volt", "m"),
        "VA": ("voltampere", "voltampere", "m"), "Hz": ("hertz", "hertz", "m"), "Wh": ("wattora", "wattora", "m"), "Ah": ("amperora", "amperora", "m"),
        "Pa": ("pascal", "pascal", "m"), "J": ("joule", "joule", "m"), "cal": ("caloria", "calorie", "f"),
    },
    "pt": {
        "bit": ("bit", "bits", "m"), "B": ("byte", "bytes", "m"), "W": ("watt", "watts", "m"), "V": ("volt", "volts", "m"),
        "VA": ("volt-ampere", "volt-amperes", "m"), "Hz": ("hertz", "hertz", "m"), "Wh": ("watt-hora", "watts-hora", "m"),
        "Ah": ("ampere-hora", "amperes-hora", "m"), "Pa": ("pascal", "pascais", "m"), "J": ("joule", "joules", "m"),
        "cal": ("caloria", "calorias", "f"),
    },
    "de": {
        "bit": ("bit", "bit", "m"), "B": ("byte", "byte", "m"), "W": ("watt", "watt", "m"), "V": ("volt", "volt", "m"),
        "VA": ("voltampere", "voltampere", "m"), "Hz": ("hertz", "hertz", "m"), "Wh": ("wattstunde", "wattstunden", "f"),
        "Ah": ("amperestunde", "amperestunden", "f"), "Pa": ("pascal", "pascal", "m"), "J": ("joule", "joule", "m"),
        "cal": ("kalorie", "kalorien", "f"),
    },
}  # fmt: skip
_A_SECOND = {"en": "per second", "es": "por segundo", "fr": "par seconde", "it": "al secondo", "pt": "por segundo", "de": "pro Sekunde"}  # fmt: skip
_USED = {"bit": "kMGT", "B": "kMGT", "o": "kMGT", "W": "kMGm", "V": "km", "Hz": "kMG", "Wh": "kMG", "Ah": "m", "Pa": "kMh", "VA": "k", "J": "kM", "cal": "k"}  # fmt: skip


def units(tag: str) -> dict[str, Noun]:
    """Return the units with a prefix for a language: ``Mbps``, ``GB``, ``MB/s``, ``kWh``, ``mAh``."""
    names = dict(zip(_SIGNS, _PREFIXES[tag], strict=True))
    found: dict[str, Noun] = {}
    for base, (one, many, gender) in _BASES[tag].items():
        for sign in _USED[base]:
            single, several = (names[sign] + each for each in (one, many))
            noun = Noun(single, several, gender) if tag != "de" else Noun(single.title(), several.title(), gender)
            signs = [sign + base] if base != "bit" else []
            if base == "B" and sign == "k":
                signs.append("KB")
            if base in ("bit", "B", "o"):
                rate = Noun(f"{noun.one} {_A_SECOND[tag]}", f"{noun.many} {_A_SECOND[tag]}", gender)
                forms = ("bit/s", "bps", "b/s") if base == "bit" else (f"{base}/s",)
                found |= {sign + form: rate for form in forms}
                if base == "bit":
                    found |= dict.fromkeys((sign + base, *([sign + "b"] if sign in "MG" else [])), noun)
                    if sign == "k":
                        found["Kbps"] = rate
            found |= dict.fromkeys(signs, noun)
    return found
