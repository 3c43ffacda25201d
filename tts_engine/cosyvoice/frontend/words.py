"""Estimates when the words of a clause are heard, from their syllables.

The networks give only the length of a clause, not of its words. Start and end of a clause are exact, because a clause
is one request to the language model. Within it, each word gets a share of the length in proportion to its syllables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from tts_engine.cosyvoice.frontend.normalise import Normalised, is_only_punctuation
from tts_engine.cosyvoice.frontend.tokenizer import control_pattern

SYLLABLE_S = 0.2
"""Expected length of a syllable, seconds; used until the clause's length is known."""

_PAUSE = {",": 1.0, "，": 1.0, "、": 0.7, ";": 1.3, "；": 1.3, ":": 1.3, "：": 1.3}
"""Silence after a mark inside a clause, in syllables."""

_SOUNDS = frozenset(
    f"[{sound}]"
    for sound in ("breath noise laughter cough clucking quick_breath hissing sigh vocalized-noise lipsmack mn".split())
)
_CURRENCY = "$€£¥￥"
_WIDE = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"(?:{control_pattern().pattern})|[{_WIDE}][^\w\s<\[{_CURRENCY}]*|[^\s{_WIDE}<\[]+|[<\[]")
_VOWELS = re.compile(r"[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýāēěīńōūǎǐǒǔǘǚǜαεηιουωаеёиоуыэюя]+")


Word = tuple[int, int, float]
"""``(start_char, end_char, weight)``, see ``expected_words``."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The spoken text of a clause, its ids and its words."""

    normalised: Normalised
    ids: Sequence[int]
    """Ids of the spoken text."""
    words: Sequence[Word]

    @classmethod
    def of(cls, normalised: Normalised, encode: Callable[[str], Sequence[int]]) -> Self:
        return cls(normalised, encode(normalised.text), expected_words(normalised))


def expected_words(normalised: Normalised) -> list[Word]:
    """Return the words of a clause and their weights, in order.

    Returns:
        ``(start_char, end_char, weight)``. The characters are those of the source text and include punctuation that
        touches the word. The weight is the number of spoken syllables (``4512`` has eight) plus the pause after the
        word. A Chinese or Japanese character is a word. Silent controls (``<strong>``) are not words.
    """
    words: list[Word] = []
    for match in _WORD.finditer(normalised.source):
        start, end = match.span()
        written = match.group()
        if control_pattern().fullmatch(written):
            weight = _control_syllables(written)
        elif is_only_punctuation(written):
            continue
        else:
            spoken = normalised.spoken_for(start, end)
            weight = max(syllables(spoken), 0.5) + _PAUSE.get(written[-1], 0.0)
        if weight > 0.0:
            words.append((start, end, weight))
    return words


def _control_syllables(control: str) -> float:
    if control in _SOUNDS:
        return 2.0
    if control.startswith("[") and control != "[accent]":  # a phoneme; only a vowel counts as a syllable
        return 1.0 if unicodedata.normalize("NFD", control)[1] in "AEIOUaeiouv" else 0.0  # v is pinyin's ü
    return 0.0


def syllables(text: str) -> float:
    """Estimate the number of syllables: vowel groups, Chinese characters, letters of acronyms."""
    total = 0.0
    for run in re.findall(rf"[{_WIDE}]|\d|[^\W\d_]+(?:['’][^\W\d_]+)*", text):
        if len(run) == 1:
            total += 1.0
        elif run.isupper() and (len(run) <= 3 or not _VOWELS.search(run.lower())):
            total += len(run) + 2 * run.count("W")
        else:
            word = run.lower()
            groups = len(_VOWELS.findall(word))
            silent_e = word.endswith("e") and not word.endswith(("le", "ee", "ye", "oe", "ae", "ie", "ue"))
            total += max(1, groups - silent_e)
    return total
