"""Cleans a clause for a voice, and finds the characters of the original text that each spoken word stands for.

Voices read numbers and dates in their own way. This module has what all of them need: ``clean`` removes noise (emoji,
control characters, mark-up), and ``align`` relates a rewritten text to the original one.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher

from tts_engine.text.scripts import is_noise

_NAME = r"[A-Za-z][\w.:-]*"
_TAG = re.compile(rf"<!--.*?-->|</?{_NAME}(?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'|[\w#%./-]+))*\s*/?>", re.S)
"""A comment, or a well-formed tag of HTML or XML."""
_SEPARATING = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|td|th|h[1-6]|hr|table|s|speak|break)\b", re.I)
"""Beginning of a tag that separates words."""
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z\d]{1,30}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_UNSPOKEN = re.compile(r"<(think|thinking|reasoning|thoughts?|script|style)\b[^<>]*>.*?</\1>", re.S | re.I)
"""The thoughts of a model before its answer, and what a page does not show."""
_AUTOLINK = re.compile(r"<(?:mailto:)?(https?://[^\s<>]+|[\w.+-]+@[\w.-]+)>")
_ESCAPED = re.compile(r"\\(?=[!-/:-@\[-`{-~]|$)", re.M)
"""The backslash before a mark that Markdown would take for its own, and at the end of a line."""
_LINK_TARGET = re.compile(r"^[ \t]*\[[^\]\n]+\]: ?(?:https?://|/|#)\S+.*$", re.M)
"""The line that gives the address of a reference: ``[1]: https://example.com``."""
_DECORATION = re.compile(r"(?<![\w+=~])([+=~])\1{2,}(?![\w+=~])")
"""A row of marks before or after a title."""
_LINK = re.compile(r"!?\[([^\]\n]*)\]\((?!/)[^)\s]*(?: \"[^\"\n]*\")?\)")
_REFERENCE = re.compile(r"(?<=[\w.,!?\])]) ?\[\^?\d{1,3}\](?![(\w])")
"""A footnote or a source: ``[1]``, ``[^2]``."""
_NOTE = re.compile(r"^[ \t]*\[\^[\w-]+\]: ?", re.M)
"""The mark before the text of a footnote: ``[^2]: See below.``"""
_FORMULA = re.compile(r"(?<![\w$])(\$\$?)((?=[A-Za-z\\(])[^$\n]{0,80}[=^\\_+][^$\n]{0,80})\1(?!\w)")
"""A formula between the marks of TeX: ``$E = mc^2$``."""
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[\w+-]*[ \t]*$", re.M)
_RULE = re.compile(
    r"^[ \t]*(?:(?:[-*_=][ \t]*){3,}|\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)*\|?)[ \t]*$", re.M
)
"""A horizontal rule, or the line below the head of a table."""
_LINE_START = re.compile(
    r"^[ \t]*(?![#*] (?:to|for|key|pour|para|per|zum|um|für)\b)"
    r"(?:(?:[-+*•‣◦▪>]|#{1,6})[ \t]+)+(?:\[[ xX]\][ \t]+)?(?=\S)",
    re.M,
)
"""Mark of a heading, a quotation, an entry of a list or a task."""
_EMPHASIS = re.compile(
    r"\*{2,3}(?=[^\s\d*])|(?<=[^\s*])\*{2,3}(?!\*)|(?<!\w)_{1,3}(?=[\w\"'“(\[])|(?<=[\w.!?,;:)\"'”\]])_{1,3}(?!\w)"
    r"|~~(?=\S)|(?<=\S)~~|(?<![\w*])\*(?=[^\W\d_][^*\n]*)|(?<=[^\W\d_])(?<![按拨键入])\*(?!\w)|(?<=[.!?,;:)\"'”\]])\*(?![\w*])|`+"
    r"|\*{2}(?=\d[^*]*\*{2})|(?<=\d)\*{1,2}(?=[\s.,;:!?]|$)(?! ?(?:h[oô]tel|resort|rating|review))"
    r"|(?<!\w)\*(?=\d[^*\n]*\*(?![\w*]))"
    r"|(?<!\w)#{1,6}(?=[^\W\d_])(?![A-Z]{1,4}-?\d|s \d)"
)
"""Marks of emphasis and code, ``#`` of a hashtag. A star that stands alone or before digits is a key."""
_MASKED = re.compile(r"(?<=\d{3})[ -](?:\*{2,}[ -]?)+(?=\d{3})")
"""The hidden digits of a card: ``4111-****-****-1111``."""
_SOUND = re.compile(
    r" ?\[(?:(?:quick_)?breath|noise|laugh(?:s|ter|ing)?|coughs?|clucking|hissing|sighs?|vocalized-noise|lipsmack|mn|"
    r"whispers?|pause)\]",
    re.I,
)
"""A sound that only some voices can make, as CosyVoice's ``[laughter]``. Those take it from the text before."""
_HAN_EMPHASIS = re.compile(r"(?<!\*)\*([\u4e00-\u9fff][^*\n]*)\*(?!\*)")
"""Emphasis in Chinese, which has no spaces around it."""
_HASHTAG = re.compile(r"(?<!\w)#(?:[A-Z][a-z]+){2,}\b")
"""A tag of several words: ``#BlackFriday``."""
_CONTROL = re.compile(r"<\|\w+\|>")
"""A token of a model's template that leaked into the text: ``<|im_end|>``."""
_TABLE_ROW = re.compile(r"^[ \t]*\|(.*?)\|?[ \t]*$", re.M)
_OTHER_FOLDED = "\\ufb00-\\ufb06\\u2000-\\u200a\\u202f\\u00a0\\U0001d400-\\U0001d7ff\\u2160-\\u217f℃℉\\u3371-\\u33df"
_FOLDED = re.compile(f"[\\uff01-\\uff5e{_OTHER_FOLDED}]+")
"""Full-width forms, ligatures, odd spaces, mathematical alphabets, Roman numerals and units of one character."""
_FOLDED_BUT_MARKS = re.compile(f"(?:(?![！（），：；？])[\\uff01-\\uff5e{_OTHER_FOLDED}])+")
_RAISED = re.compile(r"(?<=[^\W\d_])[²³](?!\w)|[²³¹⁰⁴-⁹₀-₉]+")
"""Digits above or below the line. Voices read squares and cubes; the others become plain numbers."""
_HYPHENS = {0x2010: "-", 0x2011: "-", 0xFE63: "-", 0xAD: None, 0x2060: None, 0xFEFF: None}
"""Language models write U+2011 for many hyphens. The others show only where a line breaks, and are not read."""
_CIRCLED = re.compile("[①-⑳]")


@dataclass(frozen=True, slots=True)
class Match:
    """Words ``[first_word, end_word)`` of the rewritten text stand for characters ``[start_char, end_char)``."""

    start_char: int
    end_char: int
    first_word: int
    end_word: int


def clean(text: str, *, wide_marks: bool = False) -> str:
    """Drop what no voice reads, and fold compatibility forms (full-width digits, ligatures) into plain characters.

    Dropped are Markdown (the label of a link stays), tags of HTML, thoughts of a model with their content, emoji,
    control characters and lone surrogates. Entities become their characters. With ``wide_marks``, Chinese punctuation
    stays.
    """
    if not text.isascii():
        text = text.translate(_HYPHENS)
    if _MARKED.search(text):
        text = _without_markup(text)
    kept = "".join(" " if is_noise(char) else char for char in text)
    kept = _RAISED.sub(lambda m: m[0] if m[0] in ("²", "³") else f" {unicodedata.normalize('NFKC', m[0])} ", kept)
    kept = _CIRCLED.sub(lambda m: f" {unicodedata.normalize('NFKC', m[0])} ", kept)
    folded = _FOLDED_BUT_MARKS if wide_marks else _FOLDED
    # NFKC is not applied to everything, because it turns the micro sign into a Greek letter and spells out fractions.
    return unicodedata.normalize("NFC", folded.sub(lambda m: unicodedata.normalize("NFKC", m.group()), kept))


_MARKED = re.compile(r"[*_`~#>|<&\[\\•‣◦▪]|\$[A-Za-z(]|[+=]{3}|^[ \t]*[-+=]|[\ud800-\udfff]", re.M)


def _without_markup(text: str) -> str:
    if _SURROGATE.search(text):
        text = join_surrogates(text)
    if "<" in text:
        text = _CONTROL.sub(" ", text)
        text = _AUTOLINK.sub(r"\1", _UNSPOKEN.sub(" ", text))
        text = _TAG.sub(lambda m: " " if _SEPARATING.match(m[0]) else "", text)
    if "&" in text:
        text = _ENTITY.sub(lambda m: html.unescape(m[0]), text)
    if "[" in text:
        text = _SOUND.sub("", text)
        text = _NOTE.sub("", _REFERENCE.sub("", _LINK.sub(r"\1", _LINK_TARGET.sub("", text))))
    if "$" in text:
        text = _FORMULA.sub(r"\2", text)
    if "\\" in text:
        text = _ESCAPED.sub("", text)
    text = _RULE.sub("", _FENCE.sub("", text))
    if "|" in text:
        text = _TABLE_ROW.sub(lambda m: ", ".join(cell for each in m[1].split("|") if (cell := each.strip())), text)
    text = _LINE_START.sub("", text)
    if "*" in text:
        text = _MASKED.sub("-", text)
    text = _HASHTAG.sub(lambda m: re.sub(r"(?<=[a-z])(?=[A-Z])", " ", m[0][1:]), text)
    return _DECORATION.sub(" ", _EMPHASIS.sub("", _HAN_EMPHASIS.sub(r"\1", text)))


_SURROGATE = re.compile("[\ud800-\udfff]")


def join_surrogates(text: str) -> str:
    """Join the two halves of a character beyond the Basic Multilingual Plane; drop a half without its partner."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")


def _key(word: str) -> str:
    return "".join(filter(str.isalnum, word)).lower() or word


def align(source: str, rewritten: str, read: Callable[[str], str] | None = None) -> list[Match]:
    """Find the characters of ``source`` that each word of ``rewritten`` was made from. White space separates words.

    Words that are the same in both texts (but for case and punctuation) are anchors. If both texts have the same number
    of words between two anchors, the words correspond one to one. Otherwise the whole stretch is one match: "7:30 pm"
    is read as three words. ``read``, if given, rewrites one word; the stretch is divided by it where the words of its
    parts add up. Every word of ``rewritten`` is in exactly one match, in order.
    """
    places = [(m.start(), m.end(), m.group()) for m in re.finditer(r"\S+", source)]
    words = rewritten.split()
    before = [_key(word) for _, _, word in places]
    after = [_key(word) for word in words]
    if before == after:
        return [Match(start, end, i, i + 1) for i, (start, end, _) in enumerate(places)]
    matches: list[Match] = []
    for _, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if i_end - i == j_end - j:
            matches += [Match(places[i + k][0], places[i + k][1], j + k, j + k + 1) for k in range(j_end - j)]
        elif i_end > i and j_end > j:
            counts = [len(read(word).split()) for _, _, word in places[i:i_end]] if read is not None else []
            if 0 in counts or sum(counts) != j_end - j:
                matches.append(Match(places[i][0], places[i_end - 1][1], j, j_end))
                continue
            for (start, end, _), count in zip(places[i:i_end], counts, strict=True):
                matches.append(Match(start, end, j, j + count))
                j += count
        elif j_end > j:  # words without a source word ("$5 million" is read "5 million dollars")
            if matches:
                last = matches.pop()
                matches.append(Match(last.start_char, last.end_char, last.first_word, j_end))
            else:
                end = places[0][1] if places else len(source)
                matches.append(Match(0, end, j, j_end))
    return matches
