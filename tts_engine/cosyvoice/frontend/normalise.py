"""Turns text into the wording that the model reads aloud, aligned with the characters of the source text.

The rules and their order are upstream's. Before them, the text is cleaned, and its numbers, dates and amounts are
verbalised as for every other voice (``TextVerbaliser``).
A text that contains ``<|`` and ``|>`` is not changed. The rules do not apply to inline controls (``[laughter]``,
``<strong>``, phonemes).
"""

from __future__ import annotations

import difflib
import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, cast

from tts_engine.cosyvoice.frontend.tokenizer import control_pattern
from tts_engine.text.normalise import clean
from tts_engine.text.verbalise.chinese import prepare
from tts_engine.text.verbalise.languages import LANGUAGES, primary, verbalise

log = logging.getLogger(__name__)

Script = Literal["zh", "en", "es", "fr", "it", "pt", "de", ""]
"""Set of rules: one language's, or none (for other languages only white space is changed)."""


class Verbaliser(Protocol):
    """Turns written numbers, dates, amounts and abbreviations into words."""

    def __call__(self, text: str, script: Script) -> str: ...


# -- verbalising -------------------------------------------------------------------------------------------------------


class TextVerbaliser:
    """Cleans a text and verbalises it: Chinese with wetext's transducers if it is installed, every other language with
    ``tts_engine.text.verbalise``."""

    def __init__(self) -> None:
        self._chinese: Callable[[str], str] | None = None
        try:
            from wetext import Normalizer
        except ImportError:
            log.warning("wetext is not installed: Chinese dates and amounts are not verbalised")
        else:
            # The language is fixed, because wetext detects a text of digits as Chinese.
            self._chinese = Normalizer(lang="zh", operator="tn", remove_erhua=False).normalize

    def __call__(self, text: str, script: Script) -> str:
        text = clean(text, wide_marks=script == "zh").strip()
        if not script:
            return text
        if script != "zh":
            return verbalise(text, script)
        text = prepare(re.sub(r"\s+", " ", text))
        return self._wetext(text) if self._chinese is not None else text

    def _wetext(self, text: str) -> str:
        """Verbalise; if wetext cannot read the text, verbalise its halves, so that only the unreadable part stays as it
        is."""
        assert self._chinese is not None
        try:
            return self._chinese(text)
        except (AssertionError, RuntimeError, TypeError, ValueError, IndexError):
            if len(text) == 1:
                return text
            log.warning("part of a text could not be verbalised", extra={"characters": len(text)})
        ends = [match.end() for match in _PART_END.finditer(text, 1, len(text) - 1)]
        middle = min(ends, key=lambda end: abs(end - len(text) // 2)) if ends else len(text) // 2
        return self._wetext(text[:middle]) + self._wetext(text[middle:])


_PART_END = re.compile(
    r"[\s，。、；：！？,;!?]+|(?<=[\u4e00-\u9fff])(?![\u4e00-\u9fff])|(?<![\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
)
"""Places at which a Chinese text may be cut: after punctuation, and between Chinese and other characters."""


def plain_verbaliser(text: str, script: Script) -> str:
    """Return the text unchanged. The rules still spell out the digits of an English text."""
    return text


def default_verbaliser() -> Verbaliser:
    """Return a ``TextVerbaliser``."""
    return TextVerbaliser()


# -- rules -------------------------------------------------------------------------------------------------------------


def contains_chinese(text: str) -> bool:
    """Return True if the text has a character from U+4E00 to U+9FFF."""
    return any("\u4e00" <= char <= "\u9fff" for char in text)


_LATIN_WORD = re.compile(r"[A-Za-z]{2,}")
_ENGLISH_WORDS = 3
"""Fewest Latin words by which a text without Chinese characters counts as English in a Chinese turn. Fewer may be names
and units."""


def detect_script(text: str, language: str = "") -> Script:
    """Return the set of rules for ``text``. ``language`` is its BCP 47 tag, or empty.

    A text without letters is in the language of its turn.
    """
    tag = primary(language)
    if contains_chinese(text) and tag != "ja":
        return "zh"
    if tag in ("zh", "yue", "cmn"):
        return "en" if len(_LATIN_WORD.findall(text)) >= _ENGLISH_WORDS else "zh"
    if tag in LANGUAGES:
        return cast(Script, tag)
    return "" if tag else "en"


def replace_blank(text: str) -> str:
    """Drop every space that is not between two non-space ASCII characters."""
    last = len(text) - 1

    def latin(index: int) -> bool:
        return 0 <= index <= last and text[index].isascii() and text[index] != " "

    return "".join(c for i, c in enumerate(text) if c != " " or (latin(i - 1) and latin(i + 1)))


def replace_corner_mark(text: str) -> str:
    return text.replace("²", "平方").replace("³", "立方")


def remove_bracket(text: str) -> str:
    return re.sub("[（）【】`]", "", text).replace("——", " ")


_NAMED_DIGITS = 36
"""Most digits of a number that inflect can name."""


def spell_out_number(text: str) -> str:
    """Turn each run of digits into English words: ``10:30`` becomes ``ten:thirty``."""
    return re.sub(r"\d+", lambda match: _in_words(match.group()), text)


def _in_words(digits: str) -> str:
    """Return a number in words. A number with more than ``_NAMED_DIGITS`` digits is returned unchanged, because inflect
    would read it digit by digit, which could be thousands of characters."""
    return str(_number_words()(digits)) if len(digits) <= _NAMED_DIGITS else digits


@cache
def _number_words() -> Callable[[str], object]:
    import inflect  # the import takes half a second, and only English texts with digits need it

    return inflect.engine().number_to_words


def is_only_punctuation(text: str) -> bool:
    """Return True if every character is punctuation or a symbol, also for an empty text."""
    return all(unicodedata.category(char)[0] in "PS" for char in text)


def _chinese_rules(text: str) -> str:
    text = replace_corner_mark(replace_blank(text.replace("\n", "")))
    text = remove_bracket(text.replace(".", "。").replace(" - ", "，"))
    return re.sub("[，,、]+$", "。", text)


def _rules(text: str, script: Script, verbalise: Verbaliser) -> str:
    spoken = verbalise(text, script)
    if script == "zh":
        return _chinese_rules(spoken)
    return spell_out_number(spoken) if script == "en" else spoken


# -- normalising with alignment ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpokenBlock:
    """An alignment: characters ``spoken_start:spoken_end`` of the spoken text stand for ``start:end`` of the source."""

    spoken_start: int
    spoken_end: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Normalised:
    """A spoken text, aligned with its source text."""

    source: str
    text: str
    blocks: Sequence[SpokenBlock]
    """Blocks in order, without gaps on either side. The two sides of a block are equal, or one replaces the other."""

    def spoken_for(self, start: int, end: int) -> str:
        """Return the spoken text of ``source[start:end]``. A part of a replacement gets a proportional part of the
        spoken text."""
        parts = []
        for block in self.blocks:
            low, high = max(start, block.start), min(end, block.end)
            if low >= high:
                continue
            size, spoken = block.end - block.start, block.spoken_end - block.spoken_start
            first = block.spoken_start + (low - block.start) * spoken // size
            parts.append(self.text[first : block.spoken_start + (high - block.start) * spoken // size])
        return "".join(parts)

    def source_for(self, start: int, end: int) -> tuple[int, int]:
        """Return the source range that ``text[start:end]`` stands for. A part of a replacement maps to all of its
        source."""
        first = last = -1
        for block in self.blocks:
            low, high = max(start, block.spoken_start), min(end, block.spoken_end)
            if low >= high:
                continue
            begin, finish = block.start, block.end
            if self.source[begin:finish] == self.text[block.spoken_start : block.spoken_end]:
                finish = begin + high - block.spoken_start
                begin += low - block.spoken_start
            first, last = begin if first < 0 else first, finish
        return max(first, 0), max(last, 0)


def normalise(text: str, language: str = "", *, verbalise: Verbaliser = plain_verbaliser) -> Normalised:
    """Return the spoken text of ``text``.

    Args:
        text: a clause.
        language: BCP 47 tag. Empty: Chinese if the text has Chinese characters, else English.
        verbalise: see ``default_verbaliser``.
    """
    if "<|" in text and "|>" in text:
        spoken = text
    else:
        script = detect_script(text, language)
        spoken = "".join(
            piece if control else _keep_outer_space(piece, script, verbalise)
            for piece, control in _between_controls(text.strip())
        )
    return Normalised(text, spoken, tuple(_align(text, spoken)))


def _between_controls(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of ``text`` in order, each with True if it is an inline control."""
    position = 0
    for match in control_pattern().finditer(text):
        if match.start() > position:
            yield text[position : match.start()], False
        yield match.group(), True
        position = match.end()
    if position < len(text):
        yield text[position:], False


def _keep_outer_space(piece: str, script: Script, verbalise: Verbaliser) -> str:
    inner = piece.strip()
    if not inner:
        return piece
    start = piece.index(inner)
    return piece[:start] + _rules(inner, script, verbalise) + piece[start + len(inner) :]


_WIDE = "\u3040-\u30ff\u3400-\u9fff"
_UNIT = re.compile(rf"[{_WIDE}]|[^\W\d_{_WIDE}]+(?:['’][^\W\d_{_WIDE}]+)*|\d+|\s+|.", re.DOTALL)


def _align(source: str, spoken: str) -> Iterator[SpokenBlock]:
    """Yield the blocks of a longest-match alignment by words (in Chinese, by characters)."""
    if source == spoken:
        if source:
            yield SpokenBlock(0, len(spoken), 0, len(source))
        return
    written: list[str] = _UNIT.findall(source)
    read: list[str] = _UNIT.findall(spoken)
    source_at, spoken_at = _offsets(written), _offsets(read)
    for _, i1, i2, j1, j2 in difflib.SequenceMatcher(None, written, read, autojunk=False).get_opcodes():
        yield SpokenBlock(spoken_at[j1], spoken_at[j2], source_at[i1], source_at[i2])


def _offsets(units: Sequence[str]) -> list[int]:
    position, offsets = 0, [0]
    for unit in units:
        position += len(unit)
        offsets.append(position)
    return offsets


# -- segments of a long text -------------------------------------------------------------------------------------------

_STOPS: dict[str, frozenset[str]] = {"zh": frozenset("。？！；：、.?!;"), "en": frozenset(".?!;:")}
_COMMAS = frozenset("，,")


def split_paragraph(
    text: str,
    tokenize: Callable[[str], Sequence[Any]],
    *,
    script: Literal["zh", "en"],
    max_length: int = 80,
    min_length: int = 60,
    merge_length: int = 20,
    comma_split: bool = False,
) -> list[str]:
    """Split a text after its sentence marks and join the pieces greedily into segments.

    Lengths count characters (zh) or ids (en). A segment ends if it is longer than ``min_length`` and the next piece
    would make it longer than ``max_length``. A segment can therefore be much longer than ``max_length``. A last segment
    shorter than ``merge_length`` is joined to the one before.
    """
    if not text:
        return []
    stops = _STOPS[script] | (_COMMAS if comma_split else frozenset())
    if text[-1] not in stops:
        text += "。" if script == "zh" else "."
    pieces, start = [], 0
    for index, char in enumerate(text):
        if char not in stops:
            continue
        end = index + 1
        closes_quote = end < len(text) and text[end] in '"”'
        if index > start:
            pieces.append(text[start : end + closes_quote])
        elif closes_quote and pieces:
            pieces[-1] += text[end]
        start = end + closes_quote

    def length(piece: str) -> int:
        return len(piece) if script == "zh" else len(tokenize(piece))

    segments: list[str] = []
    current = ""
    for piece in pieces:
        if length(current + piece) > max_length and length(current) > min_length:
            segments.append(current)
            current = ""
        current += piece
    if current and segments and length(current) < merge_length:
        segments[-1] += current
    elif current:
        segments.append(current)
    return segments


def segments(
    text: str, tokenize: Callable[[str], Sequence[Any]], *, verbalise: Verbaliser = plain_verbaliser
) -> list[str]:
    """Split a whole text as upstream does: into normalised segments, one request each, without those that have no
    words."""
    if not text or ("<|" in text and "|>" in text):
        return [text]
    spoken = normalise(text, verbalise=verbalise).text
    script: Literal["zh", "en"] = "zh" if contains_chinese(text) else "en"
    return [part for part in split_paragraph(spoken, tokenize, script=script) if not is_only_punctuation(part)]
