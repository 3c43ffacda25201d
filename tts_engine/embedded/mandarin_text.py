"""Reads Mandarin text with English words in it as phoneme ids of Kokoro. Each word keeps its original characters.

Numbers, dates and amounts are verbalised as for CosyVoice. Chinese is cut into words by jieba and read by pypinyin,
character by character, in the symbols of Kokoro 1.0 (those of the library misaki). Latin letters are read by the
embedded English voice's reader, which has the same phonemes as Kokoro. Nothing is skipped silently: an unknown script
or character is an error.
"""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tts_engine.cosyvoice.frontend.normalise import Normalised, default_verbaliser, normalise
from tts_engine.embedded.hibari_text import PhonemeReader, SpokenPiece, Word, parts
from tts_engine.embedded.phonemes import PAUSE_PHONEMES
from tts_engine.errors import InvalidRequest, Unavailable
from tts_engine.text.normalise import clean
from tts_engine.text.scripts import foreign_scripts, is_speakable, script

HOW_TO_INSTALL = "pip install 'talkspurt[mandarin]'"

# Each character is replaced by one character, so positions stay. Unicode has 〇 as a numeral; a reader says a syllable.
_FOLD = str.maketrans("，。、！？；：（）「」『』《》【】〈〉﹑～〇", ",.,!?;:()“”“”“”“”“”,—零")
_SYMBOLS = (
    *(("ts", "ʦ"), ("tɕ", "ʨ"), ("ʈʂ", "ꭧ")),  # affricates
    *(("ɻ\u0329", "ɨ"), ("ɹ\u0329", "ɨ")),  # the vowel of zhi and zi
    *(("˧˩˧", "↓"), ("˧˥", "↗"), ("˥˩", "↘"), ("˥", "→")),  # tones 3, 2, 4, 1
    ("\u032f", ""),  # not syllabic
)
"""IPA to Kokoro's symbols, in this order."""
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
"""Full-width forms to ASCII, as in ``clean``, so that the reading differs from the text only where it was rewritten."""
_HAN = "\u4e00-\u9fff"
_SAID = f"[^\\W_{_HAN}]|[%&@$€£¥₹₩¢+=°№]"
"""Letters and digits except Chinese ones, and symbols that are read as words."""
_RUN = re.compile(f"(?P<chinese>[{_HAN}]+)|(?P<other>(?:{_SAID})(?:[^{_HAN}]*(?:{_SAID}))?)|.", re.DOTALL)


@dataclass(slots=True)
class _Unit:
    """Phonemes of ``text[start:end]`` of the normalised text."""

    start: int
    end: int
    phonemes: str

    @property
    def sounds(self) -> bool:
        """True if this unit has a sound. Punctuation has none."""
        return any(map(str.isalpha, self.phonemes))


class MandarinReader:
    """Turns text into phonemes. It may be used in one thread only. Loading takes a second."""

    def __init__(self, english: PhonemeReader, cache_folder: Path) -> None:
        """
        Args:
            english: reads Latin letters.
            cache_folder: where jieba's dictionary is kept in its fast form; it is created if it is missing.

        Raises:
            Unavailable: the extra is not installed.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # jieba's source has escapes that newer Pythons warn of
                import jieba
                from pinyin_to_ipa import pinyin_to_ipa
                from pypinyin import Style, lazy_pinyin
        except ImportError as exc:
            raise Unavailable(f"Mandarin needs an extra: {HOW_TO_INSTALL} (no module {exc.name!r})") from exc
        jieba.setLogLevel(logging.CRITICAL)  # jieba logs how long it loads, and a folder that it cannot write to
        self._segmenter = jieba.Tokenizer()
        # jieba's own choice is a file of a known name in /tmp, where another user may have put a file.
        with suppress(OSError):  # without a folder the dictionary is read anew at each start
            cache_folder.mkdir(parents=True, exist_ok=True)
        self._segmenter.tmp_dir = str(cache_folder)
        self._segmenter.initialize()
        self._pinyin: Callable[[str], list[str]] = partial(lazy_pinyin, style=Style.TONE3, neutral_tone_with_five=True)
        self._ipa = pinyin_to_ipa
        self._verbalise = default_verbaliser()
        self._english = english

    def read(self, text: str) -> list[SpokenPiece]:
        """Return the phoneme ids of a clause. A clause without anything to speak gives no piece.

        Raises:
            InvalidRequest: the text has letters of another script, or Chinese characters of unknown reading.
        """
        readable = clean(text)
        if foreign := foreign_scripts(readable, {"Latin", "Han"}):
            raise InvalidRequest(
                f"text holds {' and '.join(foreign)} letters, the voice speaks Mandarin and English words only: "
                "choose a voice of that language"
            )
        if not is_speakable(readable):
            return []
        normal = normalise(text.translate(_NARROW), "zh", verbalise=self._verbalise)
        pieces = [self._piece(part, normal) for part in parts(self._units(normal.text.translate(_FOLD)))]
        return [piece for piece in pieces if piece.words]

    def _units(self, text: str) -> list[_Unit]:
        units: list[_Unit] = []
        for match in _RUN.finditer(text):
            run, start = match.group(), match.start()
            if match["chinese"]:
                units += self._chinese(run, start)
            elif match["other"]:
                if unknown := sum(script(char) == "Han" for char in run):
                    raise _unknown(unknown)
                units += [_Unit(start + a, start + b, phonemes) for a, b, phonemes in self._english.words(run)]
                if units:
                    units[-1].phonemes += " "
            elif run in PAUSE_PHONEMES or run in "()“”":
                if units:
                    units[-1].phonemes = units[-1].phonemes.rstrip()
                units.append(_Unit(start, start + 1, run + " "))
        return units

    def _chinese(self, run: str, start: int) -> Iterator[_Unit]:
        """Yield a unit for each character. The space after a word belongs to the word's last unit."""
        for word in self._segmenter.cut(run):
            readings = self._pinyin(word)
            for at, reading in enumerate(readings, 1):
                try:
                    phonemes = "".join(self._ipa(reading)[0])
                except ValueError:
                    raise _unknown(1) from None
                for ipa, symbol in _SYMBOLS:
                    phonemes = phonemes.replace(ipa, symbol)
                yield _Unit(start, start + 1, phonemes + " " * (at == len(readings)))
                start += 1

    def _piece(self, units: Sequence[_Unit], normal: Normalised) -> SpokenPiece:
        ids, words = [0], list[Word]()
        for unit in units:
            first, known = len(ids), [char for char in unit.phonemes if char in self._english.ids]
            ids += [self._english.ids[char] for char in known]
            end_id = first + len("".join(known).rstrip())
            if not unit.sounds:
                continue
            start, end = spoken_range(normal.source, *normal.source_for(unit.start, unit.end))
            last = words[-1] if words else Word(0, 0, first, first)
            if words and (start < last.end_char or start == end or last.start_char == last.end_char):
                # Several syllables may stand for the same characters ("15" has three), and one may stand for none.
                begin = start if last.start_char == last.end_char else last.start_char
                words[-1] = Word(begin, max(last.end_char, end), last.first_id, end_id)
            else:
                words.append(Word(start, end, first, end_id))
        return SpokenPiece([*ids, 0], words)


def spoken_range(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the range of ``text[start:end]`` without spaces, punctuation and mark-up at its ends."""
    said = [at for at in range(start, end) if is_speakable(text[at]) or unicodedata.category(text[at]) == "Sc"]
    return (said[0], said[-1] + 1) if said else (start, start)


def _unknown(count: int) -> InvalidRequest:
    return InvalidRequest(f"text holds {count} Chinese characters or more whose reading is not known")
