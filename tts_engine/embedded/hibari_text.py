"""Reads English text as phoneme ids of the embedded voice. Each word keeps its characters in the original text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import hibari.tts
from hibari.g2p import G2P

from tts_engine.embedded.phonemes import PAUSE_PHONEMES, Token, with_given
from tts_engine.errors import InvalidRequest
from tts_engine.text.normalise import align, clean
from tts_engine.text.scripts import foreign_scripts, is_speakable
from tts_engine.text.verbalise.languages import verbalise

PIECE_PHONEMES = hibari.tts.MAX_PHONEMES
"""Longest sentence that the network was trained on. A longer clause is spoken in pieces."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word: its characters in the clause, and the ids that speak it."""

    start_char: int
    end_char: int
    first_id: int
    end_id: int


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """The phonemes that the network speaks at once."""

    ids: list[int]
    """Phoneme ids with the 0 at both ends."""
    words: list[Word]


class Spoken(Protocol):
    """Anything that has phonemes."""

    phonemes: str


S = TypeVar("S", bound=Spoken)


def require_latin(text: str, language: str) -> None:
    """Check that a voice of a language in Latin script can speak all letters of a text.

    Args:
        language: name of the voice's language, for the message.

    Raises:
        InvalidRequest: the text has letters of another script.
    """
    if foreign := foreign_scripts(text, {"Latin"}):
        raise InvalidRequest(
            f"text holds {' and '.join(foreign)} letters, the voice speaks {language} (Latin script) only: "
            "choose a voice of that language"
        )


class PhonemeReader:
    """Text to phonemes. One instance serves all threads."""

    languages = ("en", "en-US", "en-GB")

    def __init__(self) -> None:
        self._g2p = G2P()
        self._g2p.oov("warm")  # loads the network for unknown words
        vocabulary = Path(hibari.tts.ASSETS, "vocab.json").read_text("utf-8")
        self.ids: dict[str, int] = json.loads(vocabulary)
        """Id of each phoneme. Kokoro, from whose voice this one was made, has the same ids."""

    def read(self, text: str) -> list[SpokenPiece]:
        """Return the phoneme ids of a clause. A clause without anything to speak gives no piece.

        Raises:
            InvalidRequest: the text has letters of a script that the voice cannot speak and would skip in silence.
        """
        readable = clean(text)
        require_latin(readable, "English")
        if not is_speakable(readable):
            return []
        normal = _reading(readable if readable.strip() not in ("A", "a") else "A.")  # without a stop it is an article
        tokens = with_given(self._tokens(normal), text, normal, _reading, self.ids, english=True)
        pieces = [spoken_piece(self.ids, part, text, normal, _reading) for part in parts(tokens)]
        return [piece for piece in pieces if piece.words]

    def words(self, text: str) -> list[tuple[int, int, str]]:
        """Read English words inside a text of another language, for a network with the same phonemes.

        Returns:
            ``(start_char, end_char, phonemes)`` in order, with the spaces and pauses that follow a word.
        """
        normal = _reading(text)
        heard: dict[int, str] = {}
        for token in self._tokens(normal):
            heard[token.first] = heard.get(token.first, "") + token.phonemes
        return [
            (m.start_char, m.end_char, "".join(heard.get(word, "") for word in range(m.first_word, m.end_word)))
            for m in align(text, normal, _reading)
        ]

    def _tokens(self, normal: str) -> list[Token]:
        tokens, word = [], 0
        for token in self._g2p.phonemize_tokens(self._g2p.tokenize(normal)):
            inner = max(0, len(token.text.split()) - 1)
            space = bool(token.whitespace)
            tokens.append(Token((token.phonemes or "") + " " * space, word, word + inner + 1))
            word += inner + space
        return tokens


def spoken_piece(
    ids_of: Mapping[str, int], tokens: Sequence[Token], text: str, normal: str, read: Callable[[str], str]
) -> SpokenPiece:
    """Return the piece of some tokens of a clause.

    Args:
        ids_of: id of each phoneme. Symbols without one are left out.
        tokens: the tokens of the piece, in order.
        text: the clause as it came.
        normal: the clause in words.
        read: writes one word of the clause as words, see ``align``.
    """
    ids: list[int] = [0]
    reach: dict[int, tuple[int, int]] = {}
    """Index of a word of the normalised text -> its first id and its end."""
    for token in tokens:
        first = len(ids)
        ids += [ids_of[char] for char in token.phonemes if char in ids_of]
        spoken = len([char for char in token.phonemes.rstrip() if char in ids_of])
        if any(char not in PAUSE_PHONEMES for char in token.phonemes.strip()):
            for word in range(token.first, token.end):
                reach[word] = (min(first, reach.get(word, (first, 0))[0]), first + spoken)
    ids.append(0)
    words = []
    for match in align(text, normal, read):
        spans = [reach[word] for word in range(match.first_word, match.end_word) if word in reach]
        if spans:
            words.append(Word(match.start_char, match.end_char, spans[0][0], spans[-1][1]))
    return SpokenPiece(ids, words)


_LAST_LETTER = re.compile(r"(?<!\S)A$|^a$")
"""The letter A at the end. The network's reader takes it for the article unless a full stop follows."""


def _reading(text: str) -> str:
    """Return cleaned English text in words."""
    # The library's own normaliser is not used: it takes "Part Clinic" for a Roman numeral.
    words = re.sub(r"\s+([,.;:!?])", r"\1", " ".join(verbalise(text, "en").replace("’", "'").split()))
    return _LAST_LETTER.sub("A.", words)


def parts(spoken: Sequence[S]) -> list[list[S]]:
    """Split into parts of at most ``PIECE_PHONEMES``, after punctuation where there is some."""
    parts: list[list[S]] = []
    part: list[S] = []
    size = 0
    for each in spoken:
        if part and size + len(each.phonemes) > PIECE_PHONEMES:
            cut = max((i for i, s in enumerate(part, 1) if s.phonemes.strip()[-1:] in PAUSE_PHONEMES), default=0)
            cut = cut or len(part)
            parts.append(part[:cut])
            part = part[cut:]
            size = sum(len(s.phonemes) for s in part)
        part.append(each)
        size += len(each.phonemes)
    return [*parts, part] if part else parts
