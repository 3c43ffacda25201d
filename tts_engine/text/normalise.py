"""Cleans a clause for a voice, and finds the characters of the original text that each spoken word stands for.

Voices read numbers and dates in their own way. This module has what all of them need: ``clean`` removes noise (emoji,
control characters, mark-up), and ``align`` relates a rewritten text to the original one.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from difflib import SequenceMatcher

from tts_engine.text.scripts import is_noise

_LINK = re.compile(r"!?\[([^\]\n]*)\]\((?!/)[^)\s]*\)")
_MARKUP = re.compile(
    r"(?<!\w)[*_`~#>]{1,3}(?=[\w\"'“(\[])|(?<=[\w.!?,;:)\"'”\]])[*_`~]{1,3}(?!\w)|^\s*(?:[-*•>]|#+)\s+", re.M
)
_FOLDED = re.compile(
    "[\\uff01-\\uff5e\\ufb00-\\ufb06\\u2000-\\u200a\\u202f\\u00a0\\U0001d400-\\U0001d7ff\\u2160-\\u217f\\u3371-\\u33df]+"
)
"""Full-width forms, ligatures, odd spaces, mathematical alphabets, Roman numerals and units of one character."""
_RAISED = re.compile(r"(?<=[^\W\d_])[²³](?!\w)|[²³¹⁰⁴-⁹₀-₉①-⑳]+")
"""Digits above or below the line, or in a circle. Voices read squares and cubes; the others become plain numbers."""


@dataclass(frozen=True, slots=True)
class Match:
    """Words ``[first_word, end_word)`` of the rewritten text stand for characters ``[start_char, end_char)``."""

    start_char: int
    end_char: int
    first_word: int
    end_word: int


def clean(text: str) -> str:
    """Drop characters that no voice reads, and fold compatibility forms (full-width digits, ligatures) into plain
    characters.

    Mark-up of chat models goes too: ``**bold**``, ``# heading``, ``[label](address)`` (the label stays).
    """
    text = _LINK.sub(r"\1", text)
    text = _MARKUP.sub("", text)
    kept = "".join(" " if is_noise(char) else char for char in text)
    kept = _RAISED.sub(lambda m: m[0] if m[0] in ("²", "³") else f" {unicodedata.normalize('NFKC', m[0])} ", kept)
    # NFKC is not applied to everything, because it turns the micro sign into a Greek letter and spells out fractions.
    return unicodedata.normalize("NFC", _FOLDED.sub(lambda m: unicodedata.normalize("NFKC", m.group()), kept))


def _key(word: str) -> str:
    return "".join(filter(str.isalnum, word)).lower() or word


def align(source: str, rewritten: str) -> list[Match]:
    """Find the characters of ``source`` that each word of ``rewritten`` was made from. White space separates words.

    Words that are the same in both texts (but for case and punctuation) are anchors. If both texts have the same number
    of words between two anchors, the words correspond one to one. Otherwise the whole stretch is one match: "7:30 pm"
    is read as three words. Every word of ``rewritten`` is in exactly one match, in order.
    """
    places = [(m.start(), m.end(), m.group()) for m in re.finditer(r"\S+", source)]
    words = rewritten.split()
    before = [_key(word) for _, _, word in places]
    after = [_key(word) for word in words]
    if before == after:
        return [Match(start, end, i, i + 1) for i, (start, end, _) in enumerate(places)]
    matches: list[Match] = []
    for _, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if i_end - i == j_end - j:
            matches += [Match(places[i + k][0], places[i + k][1], j + k, j + k + 1) for k in range(j_end - j)]
        elif i_end > i and j_end > j:
            matches.append(Match(places[i][0], places[i_end - 1][1], j, j_end))
        elif j_end > j:  # words without a source word ("$5 million" is read "5 million dollars")
            if matches:
                last = matches.pop()
                matches.append(Match(last.start_char, last.end_char, last.first_word, j_end))
            else:
                end = places[0][1] if places else len(source)
                matches.append(Match(0, end, j, j_end))
    return matches
