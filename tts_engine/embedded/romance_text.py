"""Reads Spanish and Portuguese by the phonemes of ``piper-plus-g2p`` (MIT), in the symbols of Kokoro 1.0."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import unicodedata
from collections.abc import Mapping

from tts_engine.embedded.phonemes import Token
from tts_engine.embedded.word_reader import WordReader
from tts_engine.errors import Unavailable

PACKAGE = "piper_plus_g2p"
LANGUAGES = {
    "es": ("spanish", "SpanishPhonemizer"),
    "pt": ("portuguese", "PortuguesePhonemizer"),
}
"""Primary subtag -> module and class of the package. Its French left 40 % of the words unintelligible (measured)."""
NAMES = {"es": "Spanish", "pt": "Portuguese"}
HOW_TO_INSTALL = "pip install 'talkspurt[kokoro]'"

_AFFRICATES = (("tʃ", "ʧ"), ("dʒ", "ʤ"), ("ts", "ʦ"), ("dz", "ʣ"))
_DIPHTHONG = re.compile("([aeoɛɔ]\u0303?)ˈ([iu])")
"""In Portuguese, a stressed i or u after another vowel, which the package takes for a syllable of its own."""
_NASAL = re.compile("[ãẽĩõũ]")
_GLIDE = re.compile(r"(?<=[^\saeiouˈ,.;:!?])(ˈ?)([iu])(?=[aeo])")
"""In Spanish, i or u before another vowel."""


def installed() -> bool:
    """Return True if the extra is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


class RomanceReader(WordReader):
    """Turns text of one language into phonemes. Immutable once made, so threads may share it."""

    def __init__(self, language: str, ids: Mapping[str, int]) -> None:
        """
        Args:
            language: a key of ``LANGUAGES``.
            ids: id of each phoneme.

        Raises:
            Unavailable: the extra is not installed.
        """
        module, name = LANGUAGES[language]
        logging.getLogger(PACKAGE).setLevel(logging.ERROR)  # it warns of languages whose packages are missing
        try:
            made = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)()
        except ImportError as exc:
            raise Unavailable(f"{NAMES[language]} needs an extra: {HOW_TO_INSTALL} (no module {exc.name!r})") from exc
        super().__init__(language, NAMES[language], ids)
        self._sounds = made

    def _tokens(self, normal: str) -> list[Token]:
        """Return one token a word: of the whole text, since a word's end depends on the next word's beginning."""
        words = normal.split(" ")
        said = self._phonemes(normal).strip().split(" ")
        if len(said) != len(words):
            said = [self._phonemes(word).replace(" ", "") for word in words]
        return [
            Token(self._symbols(sound, word) + " ", at, at + 1)
            for at, (sound, word) in enumerate(zip(said, words, strict=True))
        ]

    def _phonemes(self, text: str) -> str:
        """Return the phonemes of words, with a space between two words."""
        if self._language == "es":
            return "".join(self._sounds.phonemize(text))
        sounds, tones = self._sounds.phonemize_with_prosody(text)  # Portuguese has its stress beside the phonemes
        marked = (f"ˈ{sound}" if tone is not None and tone.a2 == 2 and tone.a3 > 2 else sound
                  for sound, tone in zip(sounds, tones, strict=True))  # fmt: skip
        # Kokoro has the tilde of a nasal vowel as a symbol of its own.
        return "".join(_NASAL.sub(lambda m: unicodedata.normalize("NFD", m[0]), sound) for sound in marked)

    def _symbols(self, phonemes: str, word: str) -> str:
        """Return Kokoro's symbols for the phonemes of a word."""
        for pair, one in _AFFRICATES:
            phonemes = phonemes.replace(pair, one)
        if self._language == "es" and not re.search("[íúÍÚ]", word):
            phonemes = _GLIDE.sub(lambda m: ("j" if m[2] == "i" else "w") + m[1], phonemes)
        if self._language == "pt" and not re.search("[íúÍÚ]", word):
            phonemes = _DIPHTHONG.sub(r"ˈ\1\2", phonemes)
        return phonemes
