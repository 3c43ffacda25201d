"""The phonemes of a clause, and those that its text gives (SSML's ``phoneme``) in place of a reader's. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tts_engine.speech_marks import pronounced
from tts_engine.text.normalise import align

PAUSE_PHONEMES = frozenset(";:,.!?—…")


@dataclass(slots=True)
class Token:
    """Phonemes of one token, and the words ``[first, end)`` of the normalised text that the token belongs to."""

    phonemes: str
    first: int
    end: int


_COMMON = (
    *(("t͡ʃ", "ʧ"), ("tʃ", "ʧ"), ("d͡ʒ", "ʤ"), ("dʒ", "ʤ"), ("t͡s", "ʦ"), ("d͡z", "ʣ"), ("\u0361", ""), ("\u035c", "")),
    *(("g", "ɡ"), ("ɫ", "l"), ("'", "ˈ"), ("ˑ", ""), ("\u032f", ""), (".", ""), ("‿", "")),
)
_ENGLISH = (
    *(("eɪ", "A"), ("aɪ", "I"), ("aʊ", "W"), ("ɔɪ", "Y"), ("oʊ", "O"), ("əʊ", "O")),
    *(("ɝː", "ɜɹ"), ("ɝ", "ɜɹ"), ("ɜːr", "ɜɹ"), ("ɚ", "əɹ"), ("ɜːɹ", "ɜɹ"), ("l\u0329", "ᵊl"), ("n\u0329", "ᵊn")),
    *(("m\u0329", "ᵊm"), ("r", "ɹ"), ("ː", ""), ("ɒ", "ɑ"), ("ɾ", "T"), ("ʔ", "t"), ("ʌ", "ʌ"), ("ɐ", "ə")),
)
"""IPA to the symbols that the English voices were trained with, in this order."""
_VOWEL = "aeiouyæɑɐɒɔəɚɛɜɝɪʊʌøœɨɯɤɶʏᵊᵻAIOQWY"
_STRESS = re.compile(f"([ˈˌ])([^{_VOWEL}ˈˌ ]+)(?=[{_VOWEL}])")
_TAIL = re.compile(rf"[{re.escape(''.join(sorted(PAUSE_PHONEMES)))}\s]*$")


def symbols(ipa: str, known: Collection[str], *, english: bool) -> str:
    """Return Kokoro's symbols for IPA. Empty: it has no sound of them.

    A stress mark goes before the vowel, as in the training; in a dictionary it stands before the syllable.

    Args:
        known: all symbols.
        english: the symbols of English diphthongs are used, and length is dropped.
    """
    text = unicodedata.normalize("NFD", ipa).replace("c\u0327", "ç")
    for sound, symbol in (*_COMMON, *(_ENGLISH if english else ())):
        text = text.replace(sound, symbol)
    text = _STRESS.sub(r"\2\1", text)
    text = "".join(char for char in text if char in known and char not in PAUSE_PHONEMES)
    return " ".join(text.split()) if any(map(str.isalpha, text)) else ""


def with_given(
    tokens: list[Token], text: str, normal: str, read: Callable[[str], str], known: Collection[str], *, english: bool
) -> list[Token]:
    """Return the tokens of a clause with the phonemes that its text gives.

    Args:
        text: the clause as it came, with marks.
        normal: the clause in words, from which the tokens were made.
        read: writes one word of the clause as words, see ``align``.
    """
    given = pronounced(text)
    if not given:
        return tokens
    matches = align(text, normal, read)
    for each in given:
        words = [match for match in matches if match.start_char < each.end and match.end_char > each.start]
        said = symbols(each.ipa, known, english=english)
        if not words or not said:
            continue
        places = range(words[0].first_word, words[-1].end_word)
        replaced = [each for each in tokens if each.first in places and _TAIL.sub("", each.phonemes)]
        if replaced:
            tail = _TAIL.search(replaced[-1].phonemes)
            for token in replaced:
                token.phonemes = ""
            replaced[0].phonemes = said + (tail.group() if tail else "")
    return tokens
