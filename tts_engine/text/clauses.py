"""Cuts a stream of text deltas into clauses that can be spoken one by one.

This module decides where a clause ends; it knows nothing of sound. A clause ends after sentence punctuation, after a
line break, or (when it is long enough) after a comma or dash. A text without any of these is cut at a space. No clause
ends inside a number, time, abbreviation, address or e-mail address: ASCII punctuation ends a clause only when white
space or a Han character follows, and Latin abbreviations are known by name.

Two kinds of marks end a clause at once, since no next character could change it: Chinese punctuation, and ``!`` and
``?`` after a word. All other marks wait for the next token, because "amazon." may continue with "com", "3." with "5
percent" and "wait." with two more full stops. ``tentative`` returns the clause that ends if they do not continue.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from tts_engine.speech_marks import PLAIN, Style
from tts_engine.text.scripts import script

FIRST_MIN_WORDS = 3
"""The first clause may end at a comma after this many words. Fewer would make the first sound sooner, but choppier."""

_MIN_WORDS = 8
"""A later clause may end at a comma after this many words. The words before give the voice context for its
intonation."""

MAX_WORDS = 30
"""A later clause without punctuation is cut at a space after this many words."""

MAX_CHARS = 400
"""Longest clause, characters, even without a space. This bounds the work of one step of the engine."""


class ClauseConfig(BaseModel):
    """Length of a clause, in words. A Han character counts as half a word."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    first_max_words: float = Field(default=12, ge=2)
    """Longest first clause without punctuation, words; it is cut at a space once two more words are known. Fewer answer
    sooner; more give the voice more context."""


class Pause(enum.Enum):
    """The kind of separation between a clause and the one before it."""

    NONE = "none"
    COMMA = "comma"
    SEMICOLON = "semicolon"
    SENTENCE = "sentence"
    QUESTION = "question"
    PARAGRAPH = "paragraph"


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of the fed text, verbatim: ``text == fed[start_char:end_char]``."""

    text: str
    start_char: int
    end_char: int
    first: bool
    pause: Pause
    """The pause before this clause."""
    follows: str = ""
    """The script that the text before is in, ``Han`` or ``Latin``, if this clause has no words to tell its own; else
    empty."""
    style: Style = PLAIN
    """The clause's speed, loudness and pitch."""
    pause_ms: float | None = None
    """A pause before this clause that the text asks for, milliseconds. None: that of ``pause``."""


@dataclass(frozen=True, slots=True)
class Tentative:
    """A clause that is complete unless the next token continues it."""

    clause: Clause
    likely: bool
    """True if the clause hardly ever continues: it ends with one mark after a word that is no number, abbreviation or
    address."""


_NEVER_LAST = frozenset(
    "mr mrs ms dr prof st mt gen gov sen rep capt lt col sgt rev hon pres vs cf approx fig vol ch pp no nos nr "
    "e.g i.e tel ext dept jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri "
    "messrs ds lfd mme mlle gr ca al p.o apt bldg sra srta dña av avda núm pág dott sig sig.ra ing bzw usw z.b d.h u.a "
    "hr fr str nº fam www fa lic arq exmo exma ilmo gent spett egr sigg dipl ee attn".split()
)
"""Abbreviations that a word always follows: their full stop never ends a clause."""

_SOMETIMES_LAST = frozenset(
    "inc ltd corp co etc mts ctr jr sr ave blvd rd ln bros p.m a.m u.s u.k u.n e.u ph.d b.c a.d sat sun est max min sq "
    "esq ecc uu llc erw pers stk".split()
)
"""Abbreviations that can end a sentence: the next word decides."""

_BEFORE_NUMBER = frozenset(
    "incl yr pl rs prop pct lvl reg exp ref rif "
    "ste rm fl blk hwy rte wt ht acct conf art cap pág pg sec int lun mar mié jue vie sáb dom mer jeu ven sam "
    "dim gio sab seg ter qua qui sex mo di mi do fr sa so hab cam zi aprox env réf núm nro kap bd inkl zzgl exkl mind "
    "abs gl az tfno "
    "jh std ene abr ago dic janv févr avr juil déc gen mag giu lug set ott mär mai okt dez uds séc "
    "appt appts amt avg qty pkg mgmt apto dpto depto tlf bl cj bd bât esc edif".split()
)
"""Abbreviations that end a clause unless a digit or a lower-case word comes next."""

_ALSO_WORDS = frozenset("so do art mind sex set cap mar mi vie jeu mer mai ven dim dom fr".split())
"""Those of them that are words, too. These often end a sentence, as in "I think so"."""

_BEFORE_ORDINAL = re.compile(
    r"(?:^|\s)(?:der|die|das|dem|den|des|im|(?<!I )am|vom|zum|zur|beim|bis|seit|jede[rsnm]?|diese[rsnm]?|ihre?[rsnm]?)"
    r" $|\d\. (?:und|oder|bis) $|, $",
    re.I,
)
"""German words before a number with a full stop: "der 2. Termin"."""

_AFTER_ORDINAL = frozenset(
    "januar februar märz april mai juni juli august september oktober november dezember montag "
    "dienstag mittwoch donnerstag freitag samstag sonntag stock etage stockwerk platz "
    "mal og obergeschoss klasse reihe tag runde quartal weltkrieg jahrhundert kapitel semester halbjahr".split()
)
"""German words after a number with a full stop."""

_TITLE = re.compile(
    r"(?:(?:^|[\s(¿¡])(?:el|al|del|un|y|o|ao|do|e|para|com|con|estimado|caro)\s+|^)sr$"  # English: "John Smith Sr."
    r"|\b(?:dr|prof)\.\s(?:med|jur|phil|rer|nat|ing)$",
    re.I,
)
"""The title "Sr." in Spanish and Portuguese, and the field of a German doctor."""

_NUMERAL = re.compile(r"(?!I\b)[IVXLC]+\b")

_UNITS = frozenset("in ft yd mi lb lbs oz pt qt gal min mins sec secs hr hrs yr yrs wk wks mo mos kg km cm mm".split())
"""Units that are written with a full stop. After a number, the next word decides if they end a sentence."""

_NOT_FIRST = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun january february march april "
    "may june july august september october november december est edt et cst cdt ct mst mdt mt pst pdt pt gmt utc bst "
    "cet eastern central mountain pacific nw ne sw se apt ste suite unit floor room bldg ltd llc inc".split()
)
"""Words with a capital that continue a sentence after a time, a unit or a street."""

_FIRST = frozenset(
    "i we you he she it they this that these those the a an my our your his her their there here please thank thanks "
    "what when where who why how which would could can do does did is are will if in on at for but and so or then now "
    "yes no let just also however after before once with while to from all any some not as by call press say".split()
)
"""Words that begin a sentence. After initials ("U.S."), a sentence ends only before one of these."""

_MONTHS = frozenset("january february march april may june july august september october november december".split())
_WORDS_TOO = _ALSO_WORDS | frozenset("al no ca".split())
"""Abbreviations that are words if they have no full stop."""
_BEFORE_CODE = 3
"""Most words between the word that makes a number a code, and the number: "ending with the digits 1234"."""
_BACK_WORDS = 7
"""Most words by which the cut of a long clause moves to the front, so that it is not beside a number."""

_BLOCK = 1024
"""Characters of a delta that are processed at a time."""

_HARD = ".!?…。！？"
_SOFT = ",;:，；：—–"
_CLOSERS = "\"'”’)]}»」』）】》*_"
_WIDE = "。！？，；：…"
_LEAD = re.compile(r"[\s。！？，；：…”’」』）】》]*")
"""Characters in front of a clause that are no part of it. Closing quotes and marks are among them, because a clause
that ends with Chinese punctuation does not wait for what follows."""
_END = re.compile(rf"[。！？，；：…]|[.!?]+|[{_SOFT}]|\n")
_OPENERS = '([{"“‘—–/'
_TAIL = _CLOSERS + "!?.…"
"""Characters that may directly follow ``!`` or ``?`` at a clause's end. They are not spoken."""
_WORD_BEFORE = re.compile(rf"""(?:^|[\s{_WIDE}])[({{\["'“‘«「『（【《*_]*(?:I|[^\W\d_](?:[^\W\d_]|['’-])*[^\W\d_])$""")
"""A plain word of two or more letters at the end of a text: no number, initial, address or abbreviation with full
stops."""
_WORD_CHARS = 40
"""Longest word that is searched for, characters."""
_LETTERS = re.compile(r"[^\W\d_]+")
_AFTER_NUMBER = re.compile(r"[\d½¼¾⅓⅔][ /-]?$")
_ADDRESS = re.compile(r"://|@\w|[^\W\d_]{2}\.[^\W\d_]", re.I)
"""A mark that only a web or e-mail address has."""
_PART = re.compile(r"[*#]|[a-z]{1,9}\.? ?", re.I)
"""The text behind a number and a comma or dash, if the next characters decide whether it is ``_NEXT_PART``."""
_NEXT_PART = re.compile(r"[*#](?!\w)|(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]*\.? ?\d", re.I)
"""A telephone key or a date: "press 2, *", "Dec 28 – Jan 2"."""
_STREETS = frozenset("dr blvd ave st rd ln way pkwy hwy ct pl".split())
_COUNTRIES = frozenset({"u.s", "u.k", "u.n", "e.u"})
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
_PAUSES = {
    **dict.fromkeys(",，—–…", Pause.COMMA),
    **dict.fromkeys(";:；：", Pause.SEMICOLON),
    **dict.fromkeys(".!。！", Pause.SENTENCE),
    **dict.fromkeys("?？", Pause.QUESTION),
    "\n": Pause.SENTENCE,
}


class ClauseSplitter:
    """Splits the text of one utterance. All offsets count in the concatenation of everything that was fed."""

    def __init__(self, config: ClauseConfig | None = None) -> None:
        self._config = config or ClauseConfig()
        self._text = ""
        self._base = 0
        """Offset of ``_text[0]``. Everything before it has been returned."""
        self._scan = 0
        """No clause ends before this position of ``_text``, as a scan has shown."""
        self._weighed = (0, 0.0)
        """A position of ``_text`` that no word crosses, and the number of words before it."""
        self._first = True
        self._after = Pause.NONE
        self._script = ""
        """Script of the last clause with words."""
        self._line_breaks = 0
        """Line breaks at the end of the returned text. Together with those that follow, two make a paragraph."""
        self._tail = False
        """True if the text continues directly after ``!`` or ``?``."""

    @property
    def pending(self) -> str:
        """The text that was fed and has not been returned yet."""
        return self._text[_lead(self._text) :]

    @property
    def pending_start(self) -> int:
        """Offset at which ``pending`` begins."""
        return self._base + _lead(self._text)

    def feed(self, delta: str) -> list[Clause]:
        """Append text; return the clauses that are complete now."""
        clauses = []
        for at in range(0, len(delta), _BLOCK):  # cutting off a clause copies the rest of the text
            self._text += delta[at : at + _BLOCK]
            if self._tail:
                self._skip_tail()
            if self._text[:1].isspace():  # dropped at once, or every delta would read all earlier blanks again
                self._skip(0, self._after)
            clauses += self._cut()
        return clauses

    def tentative(self) -> Tentative | None:
        """Return the clause that ends with the text so far, unless the next token continues it."""
        text = self._text.rstrip()
        if text[-1:] not in _LAST:
            return None
        scan = self._scan
        found = self._next_end(final=True)
        self._scan = scan  # the next character may make this an end
        if found is None or found[0] < len(text) or _lead(self._text) >= len(text):
            return None
        return Tentative(self._clause(found[0]), _is_likely(text))

    def settle(self, *, patient: bool = False) -> list[Clause]:
        """Return the last clause although no next character shows its end. Call this after a pause in the text.

        A number may continue after a full stop ("3." and "50 dollars"), so it ends a clause only after a long pause:
        ``patient``. A title or a month never does.
        """
        tentative = self.tentative()
        if tentative is not None and tentative.likely:
            return self._cut(final=True)
        stripped = self._text.rstrip().rstrip(_CLOSERS)
        if stripped and stripped[-1] in _HARD and not self._must_continue(stripped, patient=patient):
            return self.flush()
        return []

    def phrase(self) -> list[Clause]:
        """Cut the pending text after its last whole word, if it has enough words. Call this when a text without
        punctuation has kept a caller waiting."""
        end = len(self._text.rstrip()) if self._text[-1:].isspace() else self._text.rfind(" ") + 1
        while end > 0:
            kept = self._text[:end].rstrip()
            if self._words(len(kept)) < FIRST_MIN_WORDS:
                return []
            if _PHRASE_END.search(kept) and not _BOUND.search(kept) and not _joins(kept.rpartition(" ")[2]):
                return [self._take(end, Pause.NONE)]
            end = kept.rfind(" ") + 1
        return []

    def _must_continue(self, text: str, *, patient: bool = False) -> bool:
        """Return True if the text ends inside what may be a number, a title, an abbreviation or an address."""
        word = re.split(r"[\s(\[{\"'“‘—]", text[:-1])[-1]
        if not patient and _ADDRESS.search(word) is not None:
            return True
        if text[-1] not in ".,:":
            return text[-1].isdigit()
        lower = word.lower()
        return (
            (word[-1:].isdigit() and not patient)
            or lower in _NEVER_LAST
            or (_before_number(lower) and not patient)
            or (len(word) == 1 and word.isalpha() and word != "I")
        )

    def flush(self, pause: Pause = Pause.SENTENCE) -> list[Clause]:
        """End the text: return everything that is left, the last clause with or without punctuation.

        More text may follow. It comes after ``pause`` if there is no punctuation before it.
        """
        clauses = self._cut(final=True)
        if _lead(self._text) < len(self._text):
            mark = self._text.rstrip().rstrip(_CLOSERS)[-1:]
            clauses.append(self._take(len(self._text), _PAUSES.get(mark, pause)))
        return clauses

    def _cut(self, *, final: bool = False) -> list[Clause]:
        clauses = []
        while (found := self._next_end(final=final)) is not None:
            end, pause = found
            if _lead(self._text) < len(self._text[:end].rstrip()):
                clauses.append(self._take(end, pause))
            else:
                self._skip(end, pause)
        return clauses

    def _next_end(self, *, final: bool) -> tuple[int, Pause] | None:
        """Return the end of the next clause in ``_text`` and the pause after it, or None if that is not known yet."""
        text = self._text
        limit = self._config.first_max_words if self._first else MAX_WORDS
        enough = FIRST_MIN_WORDS if self._first else _MIN_WORDS
        # Text after the longest clause decides nothing. So a long run of marks or blanks is not read repeatedly.
        window = min(len(text), MAX_CHARS + 1)
        for match in _END.finditer(text, self._scan, window):
            mark, end = match.group(), match.end()
            too_long = self._too_long(match.start(), limit, final=True)
            if too_long:
                return too_long, Pause.NONE
            if mark == "\n":
                return end, Pause.SENTENCE
            if match.start() >= MAX_CHARS:
                break  # with its mark the clause would be too long
            if mark[0] in "!?" and _ends_with_word(text, match.start()):
                return match.start() + 1, _PAUSES[mark[0]]
            if mark not in _WIDE:
                while end < window and text[end] in _CLOSERS:
                    end += 1
                if end > MAX_CHARS:
                    break  # the marks themselves go beyond the longest clause
                if end == len(text) and not final:
                    return None  # the next character decides
            if not self._is_boundary(match.start(), end):
                self._scan = match.end()
                continue
            if mark == ".":
                verdict = self._ends_sentence(match.start(), end, window, final=final)
                if verdict is None:
                    return None
                if not verdict:
                    self._scan = match.end()
                    continue
            ellipsis = mark.startswith(("…", ".."))
            if (mark in _SOFT or ellipsis) and self._words(end) < enough:
                self._scan = match.end()
                continue
            if mark in (",", ":", "–", "—"):
                rest = text[end:window].lstrip()
                if not rest and not final and window <= MAX_CHARS:
                    return None
                more = rest[:1] in "*#" or text[: match.start()].rstrip()[-1:].isdigit()
                if more and _PART.fullmatch(rest) and not final and window <= MAX_CHARS:
                    return None
                if rest[:1].isdigit() or more and _NEXT_PART.match(rest):  # "March 5, 2025", "am Do., 12.03."
                    self._scan = match.end()
                    continue
            return end, Pause.COMMA if ellipsis else _PAUSES[mark[-1]]
        too_long = self._too_long(window, limit, final=final or window > MAX_CHARS) or (
            MAX_CHARS if window > MAX_CHARS else 0
        )
        return (too_long, Pause.NONE) if too_long else None

    def _is_boundary(self, start: int, end: int) -> bool:
        """Return True if the character after the punctuation (and its closing quotes) lets a clause end."""
        text = self._text
        if end == len(text) or text[end].isspace() or text[start] in _WIDE:
            return True
        if script(text[end]) == "Han":
            return True
        # A dash between words may have no spaces around it, but "3–5" and "1990–2000" are ranges.
        return text[start] == "—" and not text[end].isdigit()

    def _ends_sentence(self, start: int, end: int, window: int, *, final: bool) -> bool | None:
        """Return True if the single full stop at ``start`` ends a sentence. None: the next visible character decides,
        if it comes before ``window``."""
        text = self._text
        begin = start
        while begin and not text[begin - 1].isspace() and text[begin - 1] not in _OPENERS:
            begin -= 1
        word = text[begin:start]
        lower = word.lower().lstrip("'")
        if lower in _NEVER_LAST or lower.endswith("nr") or (len(word) == 1 and word.isalpha() and word != "I"):
            return False
        if _TITLE.search(text, max(0, begin - _WORD_CHARS), start):
            return False
        if word.isdigit() and not text[:begin].strip():
            return False  # "1. First item"
        if (unit := re.search(r"(?<=[\d½¼¾][-/])[a-z]+$", lower)) is not None:  # "24-oz. bottle", "$118/mo. x 12"
            word = lower = unit.group()
            begin = start - len(word)
        after_number = lower in _UNITS and _AFTER_NUMBER.search(text, max(0, begin - _WORD_CHARS), begin) is not None
        ordinal = word.isdigit() and len(word) <= 3 and _BEFORE_ORDINAL.search(text, max(0, begin - _WORD_CHARS), begin)
        if re.fullmatch(r"(?:\d{1,2}\.?-)?\d{1,2}", word) or _NUMERAL.fullmatch(word):  # "12.-15. Mai"
            rest = text[end:window].lstrip()
            following = _LETTERS.match(rest)
            if (
                not final
                and window <= MAX_CHARS
                and (not rest or following is not None and following.end() == len(rest))
            ):
                return None
            if following is not None and following.group().lower() in _AFTER_ORDINAL:
                return False
        if lower in _BEFORE_NUMBER and not after_number or lower.endswith("str") or ordinal:
            rest = text[end:window].lstrip()
            following = _LETTERS.match(rest)
            if not rest or following is not None and following.end() == len(rest):
                if not final and window <= MAX_CHARS:
                    return None
                if not rest:
                    return True
            numeral = _NUMERAL.match(rest) if lower in _BEFORE_NUMBER else None
            return not (
                rest[0].isdigit() or rest[0].islower() or rest[0] in "$€£#" or numeral or ordinal and rest[0].isalpha()
            )
        if lower in _SOMETIMES_LAST or after_number or _INITIALS.fullmatch(word):
            rest = text[end:window].lstrip()
            word_after = _LETTERS.match(rest)
            is_whole = final or window > MAX_CHARS or (word_after is not None and word_after.end() < len(rest))
            if not rest or word_after is not None and not is_whole and rest[0].isupper():
                return None if not final and window <= MAX_CHARS else True
            if word_after is None or not rest[0].isupper():
                return not rest[0].isalnum() and rest[0] not in "$€£#(-&+" or script(rest[0]) == "Han"
            next_word = word_after.group().lower()
            if lower in ("jr", "sr", "ctr") and next_word in _STREETS:
                return False  # "Martin Luther King Jr. Blvd."
            if after_number and text[begin - 1] == "-":
                return next_word in _FIRST  # "a 20-oz. Coke"
            if lower in _COUNTRIES or _INITIALS.fullmatch(word) and lower not in _SOMETIMES_LAST:
                return next_word in _FIRST
            return next_word not in _NOT_FIRST
        return True

    def _too_long(self, end: int, limit: float, *, final: bool) -> int:
        """Return where to cut a clause up to ``end`` that is too long and has no end; 0 if it is within its limits, or
        if the last word may continue (unless ``final``). The few words behind the cut must be known, too."""
        text, most = self._text, limit + _BEFORE_CODE - 1
        if end < most and end <= MAX_CHARS:
            return 0  # so few characters cannot hold that many words
        behind, before = self._weighed
        if before + len(_WORD.findall(text, behind, end)) <= most and end <= MAX_CHARS:
            return 0  # no word weighs more than 1
        for _, stop, words in self._weigh(end):
            if words > most or stop > MAX_CHARS:
                start = self._over(limit)
                if not text[:start].strip():
                    return MAX_CHARS
                if not text[start - 1].isspace():
                    return start  # between two Han characters
                return self._apart(start, stop) if final or stop < len(text) or stop > MAX_CHARS else 0
        return 0

    def _over(self, limit: float) -> int:
        """Return the start of the first word that is beyond a limit."""
        words = 0.0
        for match in _WORD.finditer(self._text):
            words += _weight(match.group())
            if words > limit or match.end() > MAX_CHARS:
                return match.start()
        return len(self._text)

    def _apart(self, cut: int, known: int) -> int:
        """Return ``cut``, or the start of one of the few words before it, so that the cut is not inside an amount, a
        date, a code or an address: behind a number, shortly before one, or behind an abbreviation.

        Args:
            known: the end of the last word that is looked at.
        """
        words = list(re.finditer(r"\S+", self._text[:known]))
        at = sum(word.start() < cut for word in words)
        for after in (_BEFORE_CODE, 1):
            for index in range(at, max(at - _BACK_WORDS, FIRST_MIN_WORDS) - 1, -1):
                around = [word.group() for word in words[index - 1 : index + after]]
                if after > 1 and _BOUND.search(around[0]):
                    continue
                if not any(map(_is_number, around)) and not _joins(around[0]) and not any(map(_follows, around[1:2])):
                    return words[index].start() if index < len(words) else cut
        return cut

    def _words(self, end: int) -> float:
        """Return the number of words in ``_text[:end]``; a Han character is half a word."""
        return max((words for _, _, words in self._weigh(end)), default=self._weighed[1])

    def _weigh(self, end: int) -> Iterator[tuple[int, int, float]]:
        """Yield the words of ``_text[:end]`` that were not counted before: start, end, number of words up to this one.

        Each word that ends before ``end`` is counted only once. Otherwise a text with many possible ends would be
        counted from its start at each of them.
        """
        words = self._weighed[1]
        for match in _WORD.finditer(self._text, self._weighed[0], end):
            words += _weight(match.group())
            yield match.start(), match.end(), words
            if match.end() < end:
                self._weighed = match.end(), words

    def _clause(self, end: int) -> Clause:
        """Return the clause up to ``end``."""
        lead = _lead(self._text)
        before = self._after
        if before is not Pause.NONE and self._text[:lead].count("\n") + self._line_breaks >= 2:
            before = Pause.PARAGRAPH
        body = self._text[lead:end].rstrip()
        start = self._base + lead
        return Clause(body, start, start + len(body), self._first, before, "" if _script_of(body) else self._script)

    def _take(self, end: int, pause: Pause) -> Clause:
        clause = self._clause(end)
        self._skip(end, pause)
        self._first = False
        self._script = _script_of(clause.text) or self._script
        return clause

    def _skip(self, end: int, pause: Pause) -> None:
        """Drop ``_text[:end]`` and the blanks after it. The next clause comes after ``pause``."""
        rest = self._text[end:]
        if end and self._text[end - 1] in "!?":
            rest = rest.lstrip(_TAIL)
            self._tail = not rest
        rest = rest.lstrip()
        gone = self._text[: len(self._text) - len(rest)]
        self._line_breaks = gone[len(gone.rstrip()) :].count("\n") + (self._line_breaks if not gone.strip() else 0)
        if gone.strip() or self._after is Pause.NONE:
            self._after = pause if gone.strip() else Pause.NONE
        self._text = rest
        self._base += len(gone)
        self._scan = 0
        self._weighed = 0, 0.0

    def _skip_tail(self) -> None:
        """Drop marks and closing quotes that follow the ``!`` or ``?`` of the previous clause."""
        rest = self._text.lstrip(_TAIL)
        self._base += len(self._text) - len(rest)
        self._text = rest
        self._tail = not rest


_BOUND = re.compile(
    r"(?:^|\s)(?:a|an|the|of|to|in|on|at|for|from|by|with|and|or|is|are|my|your|our|el|la|los|las|de|del|en|y|le|les|du|et"
    r"|il|di|e|o|os|as|do|da|der|die|das|und|zu|im)$",
    re.I,
)
"""Words that do not end a phrase."""
_PHRASE_END = re.compile(r"(?:^|\s)[^\s\d]+\s[\"'“‘(]*[^\W\d_](?:[^\W\d_]|['’-])+[,;:.!?\"'”’)]*$")
"""Two words without digits, of which the last has two letters. The words next to a number may belong to it."""
_LAST = _HARD + _SOFT + _CLOSERS
_WORD = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]|[^\s\u2e80-\u9fff\uf900-\ufaff]+")


def _ends_with_word(text: str, end: int) -> bool:
    """Return True if ``text[:end]`` ends with a plain word."""
    return _WORD_BEFORE.search(text, max(0, end - _WORD_CHARS), end) is not None


def _is_likely(text: str) -> bool:
    """Return True if this text, which may be complete, ends like a complete one."""
    text = text.rstrip(_CLOSERS)
    if not _ends_with_word(text, len(text) - 1) or text[-1] == ":":
        return False
    word = re.split(r"\W", text[:-1])[-1].lower()
    return text[-1] != "." or word not in _SOMETIMES_LAST and not _before_number(word)


def _before_number(word: str) -> bool:
    """Return True if a number probably follows this word with its full stop."""
    return word in _BEFORE_NUMBER and word not in _ALSO_WORDS


_HAN = re.compile("[\u3400-\u9fff]")
_LATIN_WORD = re.compile(r"[^\W\d_]{2,}")
_FEWEST_LATIN_WORDS = 3
"""Fewer words may be names and units in a Chinese text."""


def _script_of(text: str) -> str:
    """Return ``Han``, ``Latin`` (other alphabets included), or '' for a text of digits, marks and at most two words."""
    if _HAN.search(text):
        return "Han"
    return "Latin" if len(_LATIN_WORD.findall(text)) >= _FEWEST_LATIN_WORDS else ""


def _lead(text: str) -> int:
    match = _LEAD.match(text)
    return match.end() if match else 0


def _is_number(word: str) -> bool:
    """Return True if a word has a digit or is a Roman numeral."""
    return any(map(str.isdigit, word)) or _NUMERAL.fullmatch(word.rstrip(".,;:!?)")) is not None


def _joins(word: str) -> bool:
    """Return True if a number or a name belongs to this word: an abbreviation or a month."""
    lower = word.lower().rstrip(".").lstrip("([{\"'")
    if lower in _WORDS_TOO and not word.endswith("."):
        return False
    return lower in _NEVER_LAST or lower in _BEFORE_NUMBER or lower in _MONTHS or word in ("$", "€", "£", "#")


def _follows(word: str) -> bool:
    """Return True if a word belongs to a number or a name before it: a unit or an abbreviation."""
    lower = word.lower().rstrip(".,;:!?)")
    if lower in _WORDS_TOO and not word.endswith("."):
        return False
    return any(lower in known for known in (_SOMETIMES_LAST, _NEVER_LAST, _UNITS))


def _weight(word: str) -> float:
    return 0.5 if script(word[0]) == "Han" else 1.0 if any(map(str.isalnum, word)) else 0.0
