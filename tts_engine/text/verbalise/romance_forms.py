"""Written forms of French, Italian, Portuguese and Spanish that the shared rules do not have."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.grammar import Grammar
from tts_engine.text.verbalise.numbers import ROMAN_FORM, Rule, roman


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates."""
    return {"fr": _french, "it": _italian, "pt": _portuguese, "es": _spanish}.get(grammar.tag, lambda _: [])(grammar)


def endings(tag: str) -> list[Rule]:
    """Return the rules for words that change before the words of a number. They come after all others."""
    if tag == "fr":
        return [
            (re.compile(r"\b([Dd])e (?=euros?\b|yens?\b|hectares?\b|octets?\b)"), lambda m: f"{m[1]}'"),
        ]
    if tag == "it":
        return [
            (re.compile(r"\b([Aa])ll[ea] una\b(?! e \w+ volte)"), lambda m: f"{m[1]}ll'una"),
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
        (re.compile(r"\b[Nn]\.?[°º] ?(?=\d)"), lambda _: "número "),
        (re.compile(r"(?<![\w.,])(?P<n>[1-9])°(?= (?:piso|grado|lugar|año|puesto|planta|nivel|día|turno)\b)"), lambda m: g.ordinal(int(m["n"]), "m")),
    ]  # fmt: skip
