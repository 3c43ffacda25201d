"""Conversion of a turn's tokens to the text that is spoken. Pure.

Managers and clients of the speech API may put SSML (W3C, Speech Synthesis Markup Language 1.1) into text, as with
ConversationRelay; a tag may be split over tokens. No well-formed tag is ever read aloud: ``break`` becomes a pause,
``sub`` its alias, ``say-as`` spells characters and digits, and writes numbers and dates so that every voice reads them
as asked. Other tags are dropped and their content is spoken, except for a model's thoughts. Anything else is text:
"2 < 3" is spoken as it stands. After the markup, the route's lexicon replaces words by their spoken forms.

Spoken text differs from written text, so ``Speakable`` stores for every spoken character the position in the written
text. Heard text therefore stays a verbatim prefix of the tokens.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

MAX_TAG_CHARS = 1000
"""Longest tag, and longest content of ``sub`` and ``say-as``, in characters. Anything longer is text."""

_SEPARATORS = frozenset({"p", "s", "br", "div", "li", "tr", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6"})
"""Elements that separate words even without white space between tag and word."""
_UNSPOKEN = frozenset("think thinking thought thoughts reasoning metadata desc script style".split())
"""Elements whose content is not spoken: a model's thoughts, and what describes a document."""

_NAME = r"[A-Za-z][\w.:-]*"
_VALUE = r"(?:\"[^\"<]*\"|'[^'<]*'|[^\s\"'<>=/]+)"
_TAG = re.compile(
    rf"<(/?)({_NAME})((?:\s+{_NAME}\s*=\s*{_VALUE})*)\s*(/?)>|<!--(?:[^-]|-(?!->))*-->|<\?[^<>?]*\?>|<![A-Z][^<>]*>"
)
"""A tag of SSML, HTML or a vendor; a comment; the head of a document."""
_TAG_SO_FAR = re.compile(
    rf"</?(?:{_NAME}(?:\s+{_NAME}\s*=\s*{_VALUE})*\s*"
    rf"(?:/|{_NAME}\s*(?:=\s*(?:\"[^\"<]*|'[^'<]*|[^\s\"'<>=/]*)?)?)?)?"
    r"|<!(?:-(?:-(?:[^-]|-(?!->))*)?)?|<\?[^<>?]*\??|<![A-Z][^<>]*"
)
_ATTRIBUTE = re.compile(rf"({_NAME})\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'<>=/]+))")
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6}));")
_ENTITY_SO_FAR = re.compile(r"&(?:a|am|amp|ap|apo|apos|l|lt|g|gt|q|qu|quo|quot|#[0-9]{0,7}|#x[0-9A-Fa-f]{0,6})?")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_SPECIAL = re.compile(r"[<&]")
_SPELLED = frozenset({"characters", "spell-out", "verbatim"})
_DIGITS = frozenset({"digits", "telephone"})
_QUANTITIES = frozenset({"cardinal", "number"})
_SHORT_BREAKS = frozenset({"none", "x-weak", "weak"})


class Lexicon:
    """Words and their spoken forms. A lower-case entry matches any case, any other entry only its own spelling."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._exact = dict(words)
        small = {word: spoken for word, spoken in words.items() if word == word.lower()}
        self._lower_case = {word.casefold(): spoken for word, spoken in small.items()}
        self._beginnings = {word[:length].casefold() for word in words for length in range(1, len(word) + 1)}
        self._longest = max(map(len, words))
        alternatives = "|".join(
            "".join(map(_in_any_case, word)) if word in small else re.escape(word)
            for word in sorted(words, key=len, reverse=True)
        )
        self.pattern = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")

    def spoken(self, word: str) -> str:
        """Return the spoken form of a match of ``pattern``."""
        return self._exact.get(word) or self._lower_case.get(word.casefold(), word)

    def undecided(self, text: str, start: int) -> int:
        """Return the first position in ``text[start:]`` at which a word of the lexicon may begin that later text must
        complete."""
        for at in range(max(start, len(text) - self._longest), len(text)):
            inside_word = at and _is_word(text[at - 1])
            if not inside_word and text[at:].casefold() in self._beginnings:
                return at
        return len(text)


def _in_any_case(char: str) -> str:
    # re.IGNORECASE also matches "ı" for "i", which casefold() keeps apart.
    same = {each for each in (char, char.upper()) if each.casefold() == char.casefold() and len(each) == 1}
    return f"[{''.join(map(re.escape, sorted(same)))}]"


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


@lru_cache(maxsize=64)
def lexicon(words: tuple[tuple[str, str], ...]) -> Lexicon | None:
    """Return the lexicon of a route, compiled once for all its calls."""
    return Lexicon(dict(words)) if words else None


@dataclass(slots=True)
class _Piece:
    """Text, and for each character the number of written characters that complete it."""

    text: str
    ends: array[int]


@dataclass(slots=True)
class _Replaced:
    """An open ``sub`` or ``say-as`` whose content is being collected."""

    element: str
    how: str
    """The alias of ``sub``, or the interpretation of ``say-as``."""
    form: str
    """The format of ``say-as``."""
    content: _Piece


def _verbatim(text: str, written: int) -> _Piece:
    """Return text that is spoken as written, starting at written character ``written``."""
    return _Piece(text, array("L", range(written + 1, written + 1 + len(text))))


def _replacement(text: str, written: int) -> _Piece:
    """Return text that is spoken in place of written text that ends at ``written``."""
    return _Piece(text, array("L", [written]) * len(text))


class Speakable:
    """The spoken text of one turn's tokens. Text in pieces gives the same result as the whole text."""

    def __init__(self, words: Lexicon | None = None) -> None:
        self.text = ""
        """All text to be spoken so far."""
        self._ends = array("L")
        self._lexicon = words
        self._undecided = ""
        """Written text that may become a tag or an entity."""
        self._read = 0
        """Number of written characters before ``_undecided``."""
        self._open: _Replaced | None = None
        self._unspoken = ""
        """Name of the open element whose content is not spoken, or empty."""
        self._held = _Piece("", array("L"))
        """Text whose last word may still become a word of the lexicon."""
        self._last = ""
        """The character before ``_held``."""

    def feed(self, tokens: str) -> str:
        """Take tokens; return the text to be spoken in addition."""
        if (
            not self._undecided
            and not self._unspoken
            and self._open is None
            and self._lexicon is None
            and not _SPECIAL.search(tokens)
        ):
            self.text += tokens  # the usual case
            self._ends.extend(range(self._read + 1, self._read + 1 + len(tokens)))
            self._read += len(tokens)
            return tokens
        self._undecided += tokens
        before = len(self.text)
        self._read_markup(final=False)
        return self.text[before:]

    def close(self) -> str:
        """End the tokens; return the text to be spoken in addition."""
        before = len(self.text)
        self._read_markup(final=True)
        if self._open is not None:  # never closed: the content is text
            content, self._open = self._open.content, None
            self._say(content)
        self._say_words(final=True)
        return self.text[before:]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of written characters that ``text[start:end]`` stands for."""
        first, last = self.written(start + 1), self.written(end)
        same = bisect_left(self._ends, first)  # a replacement's characters all end where its written text does
        is_verbatim = same == start and (start + 1 == len(self._ends) or self._ends[start + 1] > first)
        return (first - 1 if is_verbatim else self.written(same)), last

    def written(self, spoken: int) -> int:
        """Return the number of written characters that the first ``spoken`` characters of ``text`` stand for."""
        return self._ends[min(spoken, len(self._ends)) - 1] if spoken and self._ends else 0

    # --- markup ----------------------------------------------------------------------------------------------------

    def _read_markup(self, *, final: bool) -> None:
        text, at = self._undecided, 0
        while at < len(text):
            if self._unspoken:
                end = re.compile(rf"</{self._unspoken}\s*>", re.I).search(text, at)
                if end is None:
                    # Of a closing tag that is not complete yet, no more than its own length may stand here.
                    at = len(text) if final else max(at, text.rfind("<", max(at, len(text) - MAX_TAG_CHARS)), 0)
                    if not final and text[at : at + 2] not in ("<", "</"):
                        at = len(text)
                    break
                self._unspoken, at = "", end.end()
                continue
            special = _SPECIAL.search(text, at)
            stop = special.start() if special else len(text)
            if stop > at:
                self._say(_verbatim(text[at:stop], self._read + at))
                at = stop
                continue
            length = self._take_tag(text, at) if text[at] == "<" else self._take_entity(text, at)
            if length:
                at += length
            elif not final and self._may_become_markup(text, at):
                break
            else:
                self._say(_verbatim(text[at], self._read + at))
                at += 1
        self._read += at
        self._undecided = text[at:]

    def _may_become_markup(self, text: str, at: int) -> bool:
        """Return True if more text may turn ``text[at:]`` into a tag or an entity."""
        if text[at] == "&":
            return _ENTITY_SO_FAR.fullmatch(text, at) is not None
        return len(text) - at <= MAX_TAG_CHARS and _TAG_SO_FAR.fullmatch(text, at) is not None

    def _take_entity(self, text: str, at: int) -> int:
        match = _ENTITY.match(text, at)
        if match is None:
            return 0
        named, decimal, hexadecimal = match.groups()
        code = 0 if named else int(decimal) if decimal else int(hexadecimal, 16)
        if not named and (code > 0x10FFFF or 0xD800 <= code <= 0xDFFF or code < 0x20):
            return 0
        self._say(_replacement(_ENTITIES[named] if named else chr(code), self._read + match.end()))
        return match.end() - at

    def _take_tag(self, text: str, at: int) -> int:
        """Apply a tag at ``text[at]``; return its length, or 0 if there is no tag."""
        match = _TAG.match(text, at, at + MAX_TAG_CHARS)
        if match is None:
            return 0
        closing, name, given, empty = match.groups()
        if name is None:
            return match.end() - at
        name = name.lower()
        attributes = {key.lower(): double or single or bare for key, double, single, bare in _ATTRIBUTE.findall(given)}
        tag_end = self._read + match.end()
        if closing and self._open is not None and self._open.element == name:
            self._say_replacement()
        elif closing or empty:
            pass
        elif name in _UNSPOKEN:
            self._unspoken = name
        elif self._open is None and name in ("sub", "say-as"):
            how = attributes.get("alias" if name == "sub" else "interpret-as", "")
            self._open = _Replaced(name, how, attributes.get("format", "").lower(), _Piece("", array("L")))
        if name == "break" and not closing:
            self._say(_replacement(_pause(attributes), tag_end))
        elif name in _SEPARATORS:
            self._say(_replacement("\n" if closing else " ", tag_end))
        return match.end() - at

    def _say_replacement(self) -> None:
        """Speak the replacement of the ``sub`` or ``say-as`` that was closed."""
        assert self._open is not None
        replaced, self._open = self._open, None
        content, how = replaced.content, replaced.how.lower()
        if replaced.element == "sub":
            if replaced.how and content.text:
                content = _replacement(replaced.how, content.ends[-1])
        elif how in _SPELLED or how in _DIGITS:
            content = _spelled(content)
        elif content.text and (said := _said_as(content.text.strip(), how, replaced.form)) is not None:
            content = _replacement(said, content.ends[-1])
        self._say(content)

    # --- words -----------------------------------------------------------------------------------------------------

    def _say(self, piece: _Piece) -> None:
        if self._open is not None:
            content = self._open.content
            content.text += piece.text
            content.ends.extend(piece.ends)
            if len(content.text) > MAX_TAG_CHARS:
                self._open = None
                self._say(content)
            return
        if self._lexicon is None:
            self.text += piece.text
            self._ends.extend(piece.ends)
            return
        self._held.text += piece.text
        self._held.ends.extend(piece.ends)
        self._say_words(final=False)

    def _say_words(self, *, final: bool) -> None:
        """Say the held text, except last words that may still become a word of the lexicon."""
        words = self._lexicon
        if words is None or not self._held.text:
            return
        text, ends, lead = self._last + self._held.text, self._held.ends, len(self._last)
        stop = len(text) if final else words.undecided(text, lead)
        at = lead
        for match in words.pattern.finditer(text, lead):
            if match.start() >= stop:
                break
            if match.end() > stop:  # the possible beginning of a word turned out to be the end of this one
                stop = words.undecided(text, match.end())
            self.text += text[at : match.start()]
            self._ends.extend(ends[at - lead : match.start() - lead])
            spoken = words.spoken(match.group())
            self.text += spoken
            self._ends.extend([ends[match.end() - 1 - lead]] * len(spoken))
            at = match.end()
        self.text += text[at:stop]
        self._ends.extend(ends[at - lead : stop - lead])
        self._last = text[stop - 1 : stop] if stop else ""
        self._held = _Piece(text[stop:], ends[stop - lead :])


def _spelled(content: _Piece) -> _Piece:
    """Return letters and digits one by one. Each other mark becomes a short pause, and ``+`` stays."""
    apart = _Piece("", array("L"))
    for char, end in zip(content.text, content.ends, strict=True):
        said = f"{char} " if char.isalnum() or char == "+" else " " if char.isspace() else ", "
        apart.text += said
        apart.ends.extend([end] * len(said))
    return apart


def _said_as(text: str, how: str, form: str) -> str | None:
    """Return text written so that every voice reads it as ``how`` asks, or None if it stays as it is.

    A quantity gets separators, by which it is neither a year nor a code; a date becomes year-month-day.
    """
    if how in _QUANTITIES and re.fullmatch(r"-?\d{4,}", text):
        return re.sub(r"(?<=\d)(?=(?:\d{3})+$)", "'", text)
    if how == "ordinal" and text.isdecimal():
        return f"{text}{'th' if text[-2:-1] == '1' else {'1': 'st', '2': 'nd', '3': 'rd'}.get(text[-1], 'th')}"
    if how == "date":
        parts = re.findall(r"\d+", text)
        if len(parts) == 1 and len(text) == 8:
            parts, form = [text[:4], text[4:6], text[6:]], form or "ymd"
        order = {"yyyymmdd": "ymd", "mmddyyyy": "mdy", "ddmmyyyy": "dmy"}.get(form, form)
        if len(parts) == 3 and sorted(order) == ["d", "m", "y"]:
            value = dict(zip(order, parts, strict=True))
            year = value["y"] if len(value["y"]) == 4 else f"20{value['y']:0>2}"
            return f"{year}-{value['m']:0>2}-{value['d']:0>2}"
    return None


def _pause(attributes: Mapping[str, str]) -> str:
    """Return the text that makes the engine pause for a ``break``: a space (no pause), a line end or a paragraph
    end."""
    match = re.fullmatch(r"\+?(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})(ms|s)", attributes.get("time", "").strip())
    if match is None:
        strength = attributes.get("strength", "medium")
        return " " if strength in _SHORT_BREAKS else "\n\n" if strength == "x-strong" else "\n"
    time_ms = float(match[1]) * (1000 if match[2] == "s" else 1)
    return " " if time_ms < 200 else "\n" if time_ms < 600 else "\n\n"
