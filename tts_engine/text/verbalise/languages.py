"""Chooses the rules of a language."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tts_engine.text.verbalise.english import ENGLISH
from tts_engine.text.verbalise.french import FRENCH
from tts_engine.text.verbalise.german import GERMAN
from tts_engine.text.verbalise.italian import ITALIAN
from tts_engine.text.verbalise.portuguese import PORTUGUESE
from tts_engine.text.verbalise.rules import ReadingRules
from tts_engine.text.verbalise.spanish import SPANISH
from tts_engine.text.verbalise.units import units


def primary(language: str) -> str:
    """Return the primary subtag of a BCP 47 tag, in lower case."""
    return language.replace("_", "-").partition("-")[0].lower()


_GRAMMARS = {grammar.tag: grammar for grammar in (GERMAN, ENGLISH, FRENCH, ITALIAN, PORTUGUESE, SPANISH)}
LANGUAGES = tuple(_GRAMMARS)
"""Primary subtags of the languages that have rules here. Mandarin's are in ``chinese``."""


@cache
def _rules(language: str) -> ReadingRules:
    grammar = _GRAMMARS[language]
    dotted = {
        f"{short}.": words for short, words in grammar.abbreviations.items() if short.isalpha() and short.islower()
    }
    short_forms = {**dotted, **grammar.abbreviations}
    capitals = {short[0].upper() + short[1:]: words for short, words in short_forms.items()}
    return ReadingRules(
        replace(
            grammar,
            units={**units(language), **grammar.units},
            abbreviations={**capitals, **short_forms},
        )
    )


def verbalise(text: str, language: str) -> str:
    """Write the numbers, dates, amounts, codes, addresses and signs of a text as words.

    Args:
        text: cleaned text (``tts_engine.text.normalise.clean``).
        language: BCP 47 tag. A text in a language without rules is returned as it is.
    """
    tag = primary(language)
    return _rules(tag)(text) if tag in LANGUAGES else text
