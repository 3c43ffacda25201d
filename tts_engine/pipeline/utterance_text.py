"""The text side of an utterance: deltas of text in, clauses out. Pure but for the clock that it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tts_engine.errors import InvalidRequest
from tts_engine.pipeline.growing import GrowingText
from tts_engine.speech_marks import LONGEST_PAUSE_MS, PLAIN, STYLE, applied
from tts_engine.text.clauses import FIRST_MIN_WORDS, Clause, ClauseSplitter, Pause, Tentative
from tts_engine.text.scripts import is_speakable

PHRASE_WAIT_S = 1.5
"""Longest wait for the end of a clause while the caller hears silence, seconds. Then the whole words that have come are
spoken."""


@dataclass(frozen=True, slots=True)
class CutClause:
    """A clause that was cut off the text, with the times that this took."""

    clause: Clause
    fed_at: float
    """Time at which its last character came."""
    token_ms: float
    """Wait for the text that showed the clause to be complete, milliseconds, if nothing was made meanwhile."""
    text_ms: float
    """Duration of the cut, milliseconds."""


class UtteranceText:
    """The text of one utterance.

    Args:
        max_chars: most characters of an utterance (``speech.max_chars``).
        clock: monotonic seconds.
        speaks: returns whether the voice speaks a language. One that it does not speak changes nothing.
    """

    def __init__(
        self, splitter: ClauseSplitter, *, max_chars: int, clock: Callable[[], float], speaks: Callable[[str], bool]
    ) -> None:
        self._splitter = splitter
        self._speaks = speaks
        self._max_chars = max_chars
        self._clock = clock
        self._fed_chars = 0
        self._fed: deque[tuple[int, float]] = deque()
        """(number of characters so far, time at which they came) for the text that is not cut into clauses yet."""
        self._style = PLAIN
        """Style of the text since the last mark."""
        self._pause_ms: float | None = None
        """Pause that the text asks for before its next clause, milliseconds."""
        self.ended = False
        """True if no more text comes."""
        self.growing: GrowingText | None = None
        """The first clause, if the model was given the clause's beginning."""

    @property
    def grows(self) -> bool:
        """True while the first clause is spoken before it is whole."""
        return self.growing is not None and not self.growing.ended

    def feed(self, text: str) -> Sequence[CutClause]:
        """Append text, and return the clauses that it completes.

        Raises:
            InvalidRequest: the text had ended, or is too long.
        """
        if self.ended:
            raise InvalidRequest("text was fed after the end of the text")
        self._fed_chars += len(text)
        if self._fed_chars > self._max_chars:
            raise InvalidRequest(
                f"text has {self._fed_chars} characters or more, at most {self._max_chars} "
                "are spoken in one utterance (engine.speech.max_chars)"
            )
        begun = self._clock()
        self._fed.append((self._fed_chars, begun))
        if STYLE.search(text) is None:
            return self._cut(self._splitter.feed(text), begun)
        cuts: list[CutClause] = []
        at = 0
        for mark in STYLE.finditer(text):
            cuts += self._cut(self._splitter.feed(text[at : mark.start()]), begun)
            style, pause_ms = applied(mark.group(), self._style)
            if style.language and not self._speaks(style.language):
                style = replace(style, language="")
            if pause_ms or style != self._style:
                cuts += self._cut(self._splitter.flush(Pause.NONE), begun)
            self._style = style
            if pause_ms:
                self._pause_ms = min(pause_ms + (self._pause_ms or 0.0), LONGEST_PAUSE_MS)
            self._splitter.feed(" ")  # in the place of the mark, so that positions stay
            at = mark.end()
        return [*cuts, *self._cut(self._splitter.feed(text[at:]), begun)]

    def settle(self) -> Sequence[CutClause]:
        """No text has come for a while: return the clauses that are complete because of that."""
        return self._cut(self._splitter.settle(), self._clock())

    def settle_late(self) -> Sequence[CutClause]:
        """No text has come for long: a number may be complete too."""
        return self._cut(self._splitter.settle(patient=True), self._clock())

    def phrase(self) -> Sequence[CutClause]:
        """Return the whole words that have come, if they have waited for ``PHRASE_WAIT_S``. Call it while the caller
        hears silence."""
        now, start = self._clock(), self._splitter.pending_start
        since = next((at for end, at in self._fed if end > start), now)
        if self.growing is not None or now - since < PHRASE_WAIT_S:
            return ()
        return self._cut(self._splitter.phrase(), now)

    def end(self) -> Sequence[CutClause]:
        """Make clauses of the text that is left."""
        self.ended = True
        return self._cut(self._splitter.flush(), self._clock())

    def drop(self) -> None:
        """Take no more text, and end a clause that grows where it is."""
        self.ended = True
        if self.growing is not None:
            self.growing.end(self.growing.text)

    def tentative(self) -> Tentative | None:
        """Return the clause that ends with the text so far, if it may be complete."""
        tentative = self._splitter.tentative()
        return tentative and replace(tentative, clause=self._styled(tentative.clause))

    def grow(self, *, may_begin: bool) -> bool:
        """Pass on more of a clause that grows. Return True if the first clause begins to grow now.

        Args:
            may_begin: True if the model can speak a clause before it is whole, and has not begun to speak.
        """
        if self.growing is not None:
            self.growing.grow(self._splitter.pending)
        elif may_begin:
            growing = GrowingText(self._splitter.pending_start, self._style, self._pause_ms)
            if growing.grow(self._splitter.pending) >= FIRST_MIN_WORDS and is_speakable(growing.text):
                self.growing, self._pause_ms = growing, None
                return True
        return False

    def _styled(self, clause: Clause) -> Clause:
        if self._style is PLAIN and self._pause_ms is None:
            return clause
        return replace(clause, style=self._style, pause_ms=self._pause_ms)

    def _cut(self, clauses: Sequence[Clause], begun: float) -> Sequence[CutClause]:
        if clauses and self.growing is not None and not self.growing.ended:
            self.growing.end(clauses[0].text)
            clauses = clauses[1:]
        text_ms = (self._clock() - begun) * 1e3
        cuts = []
        for plain in clauses:
            clause = self._styled(plain)
            self._pause_ms = None
            fed_at = self._fed_at(clause.end_char)
            cuts.append(CutClause(clause, fed_at, (begun - fed_at) * 1e3, text_ms))
        return cuts

    def _fed_at(self, chars: int) -> float:
        """Return the time at which the text up to this character had come. Call it with growing ``chars`` only."""
        while self._fed[0][0] < chars:
            self._fed.popleft()
        return self._fed[0][1]
