"""Reads text word by word as phoneme ids of Kokoro. Each word keeps its characters in the original text.

Numbers, dates and amounts are verbalised as for every other voice. A subclass knows the phonemes of a language.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tts_engine.embedded.hibari_text import SpokenPiece, parts, require_latin, spoken_piece
from tts_engine.embedded.phonemes import Token, with_given
from tts_engine.text.normalise import clean
from tts_engine.text.scripts import is_speakable
from tts_engine.text.verbalise.languages import verbalise


class WordReader:
    """Turns text of one language into phonemes."""

    def __init__(self, language: str, name: str, ids: Mapping[str, int]) -> None:
        """
        Args:
            language: primary subtag.
            name: name of the language, for messages.
            ids: id of each phoneme.
        """
        self._language = language
        self._name = name
        self._ids = ids
        self._reading = partial(verbalise, language=language)

    def read(self, text: str) -> list[SpokenPiece]:
        """Return the phoneme ids of a clause. A clause without anything to speak gives no piece.

        Raises:
            InvalidRequest: the text has letters of a script that the voice cannot speak.
        """
        readable = clean(text)
        require_latin(readable, self._name)
        if not is_speakable(readable):
            return []
        normal = " ".join(self._reading(readable).split())
        tokens = with_given(self._tokens(normal), text, normal, self._reading, self._ids, english=False)
        pieces = [spoken_piece(self._ids, part, text, normal, self._reading) for part in parts(tokens)]
        return [piece for piece in pieces if piece.words]

    def _tokens(self, normal: str) -> list[Token]:
        """Return one token for each word of the normalised text, with the space after it."""
        raise NotImplementedError
