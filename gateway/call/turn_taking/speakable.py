"""Conversion of a turn's tokens to the text that is spoken. Pure.

Managers and clients of the speech API may put SSML (W3C, Speech Synthesis Markup Language 1.1) into text, as with
ConversationRelay; a tag may be split over tokens. No well-formed tag is ever read aloud: ``break`` becomes a pause,
``sub`` its alias, ``say-as`` spells characters and digits, and writes numbers and dates so that every voice reads them
as asked. ``break``, ``prosody``, ``lang`` and ``phoneme`` become marks in the text (``tts_engine.speech_marks``). Other
tags are dropped and their content is spoken, except for a model's thoughts. Anything else is text: "2 < 3" is spoken as
it stands. After the markup, the route's lexicon replaces words by their spoken forms.

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

from gateway.call.turn_taking.phonetic_alphabets import to_ipa
from gateway.call.turn_taking.prosody import break_ms, lang, prosody
from gateway.call.turn_taking.said_as import DIGITS, SPELLED, UNSPOKEN, interpretation, said_as
from tts_engine.speech_marks import (
    PLAIN,
    RESERVED,
    Style,
    begin_mark,
    ipa_marks,
    pause_mark,
    style_marks,
    without_marks,
)

MAX_TAG_CHARS = 1000
"""Longest tag, and longest content of ``sub``, ``say-as`` and ``phoneme``, in characters. Anything longer is text."""
_MAX_DEPTH = 32
"""Most ``prosody`` and ``lang`` elements inside each other. Deeper ones change nothing."""
_BLEEP_MS = 300.0

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
_LAST_CODE = 0xEFFFF  # the last before the characters of marks
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_RESTYLED = {"prosody": prosody, "lang": lang}
"""Elements that change how their content is spoken."""
_SPECIAL = re.compile(f"[<&{RESERVED}]")
_NO_MARKS = re.compile(f"[^{RESERVED}]+")
_COLLECTED = {"sub": "alias", "say-as": "interpret-as", "phoneme": "ph"}
"""Elements whose whole content is needed, and the attribute that says what becomes of it."""


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
    """An open element of ``_COLLECTED`` whose content is being collected."""

    element: str
    how: str
    """The alias of ``sub``, the interpretation of ``say-as``, or the IPA of ``phoneme``."""
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
        self._in_cdata = False
        """True in a CDATA section, whose content is text."""
        self._style = PLAIN
        self._outer: list[Style] = []
        """Styles outside the open ``prosody`` elements."""
        self._too_deep = 0
        """Open ``prosody`` elements beyond ``_MAX_DEPTH``."""

    @property
    def has_words(self) -> bool:
        """True if the text so far is more than white space and marks."""
        return bool(without_marks(self.text).strip())

    def feed(self, tokens: str) -> str:
        """Take tokens; return the text to be spoken in addition."""
        if (
            not self._undecided
            and not self._unspoken
            and not self._in_cdata
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
            if self._in_cdata:
                end_at = text.find(_CDATA_END, at)
                kept = 0 if final or end_at >= 0 else _overlap(text, _CDATA_END)
                stop = end_at if end_at >= 0 else max(at, len(text) - kept)
                self._say_verbatim(text, at, stop)
                at = stop
                if end_at < 0:
                    break
                self._in_cdata, at = False, at + len(_CDATA_END)
                continue
            if text.startswith(_CDATA, at):
                self._in_cdata, at = True, at + len(_CDATA)
                continue
            special = _SPECIAL.search(text, at)
            stop = special.start() if special else len(text)
            if stop > at:
                self._say(_verbatim(text[at:stop], self._read + at))
                at = stop
                continue
            if text[at] not in "<&":  # a character of a mark, which text from elsewhere must not hold
                at += 1
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

    def _say_verbatim(self, text: str, start: int, end: int) -> None:
        """Speak text as it was written, without characters of marks."""
        for match in _NO_MARKS.finditer(text, start, end):
            self._say(_verbatim(match.group(), self._read + match.start()))

    def _may_become_markup(self, text: str, at: int) -> bool:
        """Return True if more text may turn ``text[at:]`` into a tag or an entity."""
        if text[at] == "&":
            return _ENTITY_SO_FAR.fullmatch(text, at) is not None
        if _CDATA.startswith(text[at : at + len(_CDATA)]):
            return True
        return len(text) - at <= MAX_TAG_CHARS and _TAG_SO_FAR.fullmatch(text, at) is not None

    def _take_entity(self, text: str, at: int) -> int:
        match = _ENTITY.match(text, at)
        if match is None:
            return 0
        named, decimal, hexadecimal = match.groups()
        code = 0 if named else int(decimal) if decimal else int(hexadecimal, 16)
        if not named and (code > _LAST_CODE or 0xD800 <= code <= 0xDFFF or code < 0x20):
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
        elif self._open is None and name in _COLLECTED:
            how = attributes.get(_COLLECTED[name], "")
            if name == "phoneme":
                how = to_ipa(attributes.get("alphabet", ""), how)
            self._open = _Replaced(name, how, attributes.get("format", "").lower(), _Piece("", array("L")))
        if name == "break" and not closing:
            ms = break_ms(attributes)
            self._say(_replacement(pause_mark(ms) if ms else " ", tag_end))
        elif name in _RESTYLED and not empty:
            self._say(_replacement(self._restyled(name, None if closing else attributes), tag_end))
        elif name in _SEPARATORS:
            self._say(_replacement("\n" if closing else " ", tag_end))
        return match.end() - at

    def _restyled(self, name: str, attributes: Mapping[str, str] | None) -> str:
        """Open an element of ``_RESTYLED``, or close the innermost one (None); return the marks that this needs."""
        before = self._style
        if attributes is None:
            if self._too_deep:
                self._too_deep -= 1
            elif self._outer:
                self._style = self._outer.pop()
        elif len(self._outer) == _MAX_DEPTH:
            self._too_deep += 1
        else:
            self._outer.append(before)
            self._style = _RESTYLED[name](before, attributes)
        return style_marks(before, self._style)

    def _say_replacement(self) -> None:
        """Speak the replacement of the element that was closed."""
        assert self._open is not None
        replaced, self._open = self._open, None
        content = replaced.content
        how, form = interpretation(replaced.how, replaced.form)
        if not content.text:
            return
        end = content.ends[-1]
        if replaced.element == "sub":
            content = _replacement(without_marks(replaced.how), end) if replaced.how else content
        elif replaced.element == "phoneme":
            if replaced.how and without_marks(content.text).strip():
                first, sounds = content.ends[0], ipa_marks(replaced.how)
                text = f"{begin_mark()}{without_marks(content.text)}{sounds}"
                inner = [at for char, at in zip(content.text, content.ends, strict=True) if without_marks(char)]
                content = _Piece(text, array("L", [first, *inner, *[end] * len(sounds)]))
        elif how in SPELLED or how in DIGITS:
            content = _spelled(content)
        elif how in UNSPOKEN:
            content = _replacement(pause_mark(_BLEEP_MS), end)
        elif (said := said_as(content.text.strip(), how, form)) is not None:
            content = _replacement(said, end)
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


def _overlap(text: str, end: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``end``."""
    return next((length for length in range(len(end) - 1, 0, -1) if text.endswith(end[:length])), 0)


def _spelled(content: _Piece) -> _Piece:
    """Return letters and digits one by one. Each other mark becomes a short pause, and ``+`` stays.

    Two spaces keep a letter apart from the digit before it: "7 K" would be seven thousand.
    """
    apart = _Piece("", array("L"))
    for char, end in zip(content.text, content.ends, strict=True):
        if not without_marks(char):
            said = char
        elif char.isalnum() or char == "+":
            said = f" {char} " if char.isalpha() and apart.text[-2:-1].isdigit() else f"{char} "
        else:
            said = " " if char.isspace() else ", " if apart.text else ""
        apart.text += said
        apart.ends.extend([end] * len(said))
    return apart
