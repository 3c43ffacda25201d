"""Conversion of a turn's tokens to the text that is spoken. Pure.

Managers may put SSML (W3C, Speech Synthesis Markup Language 1.1) into tokens, as with ConversationRelay; a tag may be
split over tokens. No SSML tag is ever read aloud: ``break`` becomes a pause, ``sub`` its alias, ``say-as`` spells
characters and digits. Other tags are dropped and their content is spoken. Anything else is text: "2 < 3" is spoken as
it stands. After the markup, the route's lexicon replaces words by their spoken forms.

Spoken text differs from written text, so ``Speakable`` stores for every spoken character the position in the written
text. Heard text therefore stays a verbatim prefix of the tokens.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

MAX_TAG_CHARS = 1000
"""Longest tag, and longest content of ``sub`` and ``say-as``, in characters. Anything longer is text."""

_ELEMENTS = frozenset(
    "speak p s break phoneme say-as sub prosody lang voice emphasis audio mark w token desc metadata meta lexicon "
    "lookup par seq media".split()
)
"""Elements of SSML, and elements that every voice vendor added. Other vendor elements have a prefix in ``_VENDORS``."""
_VENDORS = ("amazon:", "google:", "mstts:", "voice:")
_SEPARATORS = frozenset({"p", "s"})
"""Elements that separate words even without white space between tag and word."""

_NAME = r"[A-Za-z][\w.:-]*"
_TAG = re.compile(rf"<(/?)({_NAME})((?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*)\s*(/?)>")
_TAG_SO_FAR = re.compile(
    rf"</?(?:{_NAME}(?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*\s*(?:/|{_NAME}\s*(?:=\s*(?:\"[^\"<]*|'[^'<]*)?)?)?)?"
)
_ATTRIBUTE = re.compile(rf"({_NAME})\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6}));")
_ENTITY_SO_FAR = re.compile(r"&(?:a|am|amp|ap|apo|apos|l|lt|g|gt|q|qu|quo|quot|#[0-9]{0,7}|#x[0-9A-Fa-f]{0,6})?")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_SPECIAL = re.compile(r"[<&]")
_SPELLED = frozenset({"characters", "spell-out", "verbatim"})
_DIGITS = frozenset({"digits", "telephone"})
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
        self._held = _Piece("", array("L"))
        """Text whose last word may still become a word of the lexicon."""
        self._last = ""
        """The character before ``_held``."""

    def feed(self, tokens: str) -> str:
        """Take tokens; return the text to be spoken in addition."""
        if not self._undecided and self._open is None and self._lexicon is None and not _SPECIAL.search(tokens):
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

    def written(self, spoken: int) -> int:
        """Return the number of written characters that the first ``spoken`` characters of ``text`` stand for."""
        return self._ends[min(spoken, len(self._ends)) - 1] if spoken and self._ends else 0

    # --- markup ----------------------------------------------------------------------------------------------------

    def _read_markup(self, *, final: bool) -> None:
        text, at = self._undecided, 0
        while at < len(text):
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
        if len(text) - at > MAX_TAG_CHARS or _TAG_SO_FAR.fullmatch(text, at) is None:
            return False
        name = re.match(rf"</?({_NAME})?", text[at:])
        assert name is not None  # _TAG_SO_FAR has matched
        said = (name[1] or "").lower()
        if at + name.end() < len(text):
            return said in _ELEMENTS or said.startswith(_VENDORS)
        known = (*_ELEMENTS, *_VENDORS)
        return said.startswith(_VENDORS) or any(each.startswith(said) for each in known)

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
        """Apply an SSML tag at ``text[at]``; return its length, or 0 if there is no tag."""
        match = _TAG.match(text, at, at + MAX_TAG_CHARS)
        if match is None:
            return 0
        closing, name, given, empty = match.groups()
        name = name.lower()
        if name not in _ELEMENTS and not name.startswith(_VENDORS):
            return 0
        attributes = {key.lower(): double or single for key, double, single in _ATTRIBUTE.findall(given)}
        tag_end = self._read + match.end()
        if closing and self._open is not None and self._open.element == name:
            self._say_replacement()
        elif closing or empty:
            pass
        elif self._open is None and name in ("sub", "say-as"):
            how = attributes.get("alias" if name == "sub" else "interpret-as", "")
            self._open = _Replaced(name, how, _Piece("", array("L")))
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
            apart = _Piece("", array("L"))
            for char, end in zip(content.text, content.ends, strict=True):
                said = f"{char} " if how in _SPELLED or char.isdigit() else char
                apart.text += said
                apart.ends.extend([end] * len(said))
            content = apart
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


def _pause(attributes: Mapping[str, str]) -> str:
    """Return the text that makes the engine pause for a ``break``: a space (no pause), a line end or a paragraph
    end."""
    match = re.fullmatch(r"\+?(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})(ms|s)", attributes.get("time", "").strip())
    if match is None:
        strength = attributes.get("strength", "medium")
        return " " if strength in _SHORT_BREAKS else "\n\n" if strength == "x-strong" else "\n"
    time_ms = float(match[1]) * (1000 if match[2] == "s" else 1)
    return " " if time_ms < 200 else "\n" if time_ms < 600 else "\n\n"
