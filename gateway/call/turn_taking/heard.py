"""Text of each turn that the caller has heard, and the reports of it to the dialogue manager. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from gateway.call.turn_taking.turn import Turn
from gateway.media.playout import Playout
from gateway.seams.messages import Caption, HeardWord, Info, MarkReached, Outbound, timing_of

SAID_WORDS = 60
"""Number of the bot's words that are remembered: the recogniser's echo of them comes some seconds later."""


class Position(NamedTuple):
    """The part of a turn that the caller has heard."""

    samples: int
    ms: int
    chars: int
    """Characters of the turn's text, including the current word. Never less than the manager has already been told."""


class Heard:
    """Conversion of positions in a turn's sound to positions in its text. ``tell`` sends to the dialogue manager.

    Args:
        tokens_played: the manager receives ``tokensPlayed``.
    """

    def __init__(
        self,
        playout: Playout,
        tell: Callable[[Outbound], None],
        *,
        sample_rate: int,
        frame_samples: int,
        tokens_played: bool,
    ) -> None:
        self._playout = playout
        self._tell = tell
        self._rate = sample_rate
        self._frame_samples = frame_samples
        self._tokens_played = tokens_played
        self.said: deque[str] = deque(maxlen=SAID_WORDS)
        """The last text that the caller has heard, one entry for each caption."""

    def position(self, turn: Turn, now: float) -> Position:
        """Return the part of the turn that the caller has heard."""
        samples = self._samples(turn, now)
        chars = turn.reported_chars
        for span in turn.spans:
            if span.first_sample >= samples:
                break
            chars = max(chars, span.end_char)
        return Position(samples, round(samples * 1000 / self._rate), chars)

    def _samples(self, turn: Turn, now: float) -> int:
        return int(self._playout.heard_frames(turn.track, now) * self._frame_samples)

    def last_word_at(self, turn: Turn, now: float) -> int:
        """Return the sample at which the last word begins that the caller has heard, wholly or partly."""
        heard = self._samples(turn, now)
        return max((span.first_sample for span in turn.spans if span.first_sample < heard), default=heard)

    def pass_marks(self, turn: Turn, now: float) -> None:
        """Report the marks inside the turn that have been heard."""
        if not turn.marks:
            return
        heard = self._samples(turn, now)
        while turn.marks:
            chars, name = turn.marks[0]
            if turn.kind == "audio":
                if heard * 1000 < chars * self._rate:
                    return
                turn.marks.pop(0)
                self._tell(MarkReached(name=name, cleared=False))
                continue
            after = next((span for span in turn.spans if span.end_char > chars), None)
            before = [span for span in turn.spans if span.end_char <= chars]
            # A mark has been heard only when the word after it has begun, or when the word before it is over and is the
            # last of its text. A mark at the very end is reported when the turn has finished.
            if after is None or not before or heard < before[-1].end_sample:
                return
            turn.marks.pop(0)
            self._tell(MarkReached(name=name, cleared=False))

    def follow(self, turn: Turn, now: float) -> float:
        """Report the words of the speaking turn that have begun since the last call, and the segments that have been
        heard.

        Returns:
            The time of the next report; infinity: not before more sound of the turn has arrived.
        """
        heard = self._samples(turn, now)
        following = [self._follow_words(turn, heard), self._follow_segments(turn, heard)]
        return min((now + (sample - heard) / self._rate for sample in following if sample is not None), default=inf)

    def _follow_words(self, turn: Turn, heard: int) -> int | None:
        """Report captions; return the sample at which the next word begins."""
        while turn.captioned_spans < len(turn.spans):
            span = turn.spans[turn.captioned_spans]
            if span.first_sample >= heard:
                return span.first_sample
            turn.captioned_spans += 1
            self._caption(turn, span.end_char)
        return None

    def _follow_segments(self, turn: Turn, heard: int) -> int | None:
        """Report ``tokensPlayed``; return the sample at which the next segment ends.

        The last segment is reported when the turn has been heard to its end, together with the text after its last
        word. A turn that is reported whole has only that one.
        """
        while len(turn.segments) > turn.track.done and not turn.told_whole:
            end_sample, end_char = turn.segments[0]
            if end_sample > heard:
                return end_sample
            turn.segments.popleft()
            self._report_played(turn, end_char)
        return None

    def report(self, turn: Turn, end_char: int) -> None:
        """Report what has been heard of a turn that ends."""
        self._caption(turn, end_char)
        self._report_played(turn, end_char)

    def _caption(self, turn: Turn, end_char: int) -> None:
        if end_char > turn.captioned_chars:
            text = turn.text[turn.captioned_chars : end_char]
            turn.captioned_chars = end_char
            self.said.append(text)
            if not turn.silent:
                self._tell(Caption(turn=turn.id, text=text))

    def _report_played(self, turn: Turn, end_char: int) -> None:
        """Report ``tokensPlayed`` up to ``end_char``: one message for each segment heard to its end, and one for the
        rest when the turn ends or is cut."""
        if not self._tokens_played or (turn.silent and turn.kind == "text"):
            return
        if end_char > turn.reported_chars:
            value = turn.text[turn.reported_chars : end_char]
            self._tell(Info(name="tokensPlayed", value=value, turn=turn.id, words=self._words(turn, end_char)))
            turn.reported_chars = end_char

    def _words(self, turn: Turn, end_char: int) -> list[HeardWord]:
        """Return the words up to ``end_char`` that have not been reported, with their times."""
        words: list[HeardWord] = []
        while turn.reported_spans < len(turn.spans) and turn.spans[turn.reported_spans].end_char <= end_char:
            span = turn.spans[turn.reported_spans]
            turn.reported_spans += 1
            words.append(
                HeardWord(
                    text=turn.text[span.start_char : span.end_char],
                    at_ms=span.first_sample * 1000 // self._rate,
                    end_ms=span.end_sample * 1000 // self._rate,
                    timing=timing_of(span.exact),
                )
            )
        return words
