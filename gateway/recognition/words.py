"""The words of an utterance that is heard again and again while it grows. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

ANY_LANGUAGE = "multi"
"""Language tag that asks a recogniser to detect the language; Deepgram's name for it."""


class Words(NamedTuple):
    """The words that a recogniser has heard."""

    text: str
    language: str = ""
    """BCP 47 tag of the spoken language. Empty: that which was asked for."""


def is_english(language: str) -> bool:
    """Return True for BCP 47 tags of English."""
    return language.lower().split("-")[0] == "en"


def agreed(before: str, now: str) -> str:
    """Return the words with which two texts of a growing utterance begin, without the last word of the shorter.

    Words that two hearings agree on do not change any more, except a last one that may be cut off: local agreement of
    Macháček et al., *Turning Whisper into Real-Time Transcription System* (2023), section 2.
    """
    first, second = before.split(" "), now.split(" ")
    most = min(len(first), len(second)) - 1
    count = next((at for at in range(most) if first[at] != second[at]), max(0, most))
    return " ".join(first[:count])


def repetition(text: str) -> int:
    """Return the character at which a text begins again with its first three words. 0: it does not."""
    words = [(word.group().strip(".,!?").casefold(), word.start()) for word in re.finditer(r"\S+", text)]
    plain = [word for word, _ in words]
    return next((words[at][1] for at in range(3, len(words) - 2) if plain[at : at + 3] == plain[:3]), 0)
