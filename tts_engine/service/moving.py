"""An utterance that continues at another engine when its own refuses it or is lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from tts_engine.api import AudioChunk, TextSpan, Utterance
from tts_engine.errors import EngineError, Exhausted, Unavailable

Reopen = Callable[[bool], Utterance | None]
"""Opens the same request at the next engine to be tried, or returns None if there is none. The argument is True if the
turn is being heard already.
"""


class MovingUtterance:
    """An ``Utterance`` over several engines.

    A refusal costs nothing, so every engine is asked, and one of them a second time, where the turn then waits. This
    very text may have crashed a lost engine, so a second loss fails the utterance. The next engine gets the text from
    the first word that was not handed over in whole, and the positions in its chunks are shifted by what was handed
    over. Time that the first chunk lost at other engines is its stage ``moved``.
    """

    def __init__(
        self,
        first: Utterance,
        reopen: Reopen,
        *,
        moved: Callable[[], None],
        errors: tuple[type[EngineError], ...] = (Exhausted, Unavailable),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``moved`` is called when speech continues at another engine after its first sound. ``errors``: errors after
        which the utterance moves. ``clock``: seconds."""
        self._utterance, self._chunks = first, aiter(first)
        self._reopen, self._moved, self._errors = reopen, moved, errors
        self._clock = clock
        self._text: list[str] = []
        """Everything that was fed; the engine's ``speech.max_chars`` bounds it."""
        self._fed_at: list[float] = []
        """Time at which each of these pieces came."""
        self._moved_at: float | None = None
        self._ended = self._lost = False
        self._samples = 0
        """Number of samples that were handed over."""
        self._spans: list[TextSpan] = []
        """Words that were handed over, in whole or in part."""
        self._first_sample = self._first_char = 0
        """Begin of the current engine's part."""

    def feed(self, text: str) -> None:
        self._text.append(text)
        self._fed_at.append(self._clock())
        self._utterance.feed(text)

    def end_text(self) -> None:
        self._ended = True
        self._utterance.end_text()

    def played(self, samples: int, *, at: float) -> None:
        # Until the next engine's part begins, the caller hears the part before it.
        self._utterance.played(max(0, samples - self._first_sample), at=at)

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        while True:
            try:
                chunk = await anext(self._chunks)
            except self._errors as error:
                lost = isinstance(error, Unavailable)
                if (lost and self._lost) or (following := self._reopen(self._samples > 0)) is None:
                    raise
                self._lost = self._lost or lost
                await self._utterance.aclose()
                self._move(following)
            else:
                return self._placed(chunk)

    async def aclose(self) -> None:
        await self._utterance.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _move(self, following: Utterance) -> None:
        self._utterance, self._chunks = following, aiter(following)
        self._moved_at = self._clock()
        if self._samples:
            self._moved()
        self._first_sample = self._samples
        self._first_char = next_char(self._spans, self._samples)
        text = "".join(self._text)[self._first_char :]
        if text:
            following.feed(text)
        if self._ended:
            following.end_text()

    def _arrived_at(self, chars: int) -> float:
        """Return the time at which the text up to this character had been fed."""
        for text, at in zip(self._text, self._fed_at, strict=True):
            chars -= len(text)
            if chars <= 0:
                return at
        return self._clock()

    def _placed(self, chunk: AudioChunk) -> AudioChunk:
        samples, chars = self._first_sample, self._first_char
        if samples:
            spans = [
                TextSpan(
                    span.start_char + chars,
                    span.end_char + chars,
                    span.first_sample + samples,
                    span.end_sample + samples,
                    span.exact,
                )
                for span in chunk.spans
            ]
            chunk = replace(
                chunk,
                first_sample=chunk.first_sample + samples,
                spans=spans,
                clause_end_char=chunk.clause_end_char + chars,
            )
        elif self._moved_at is not None:
            lost_s = self._moved_at - self._arrived_at(chunk.clause_end_char)
            chunk = replace(chunk, stages_ms={"moved": max(0.0, lost_s) * 1000, **chunk.stages_ms})
            self._moved_at = None
        self._spans += chunk.spans
        self._samples = chunk.first_sample + chunk.samples
        return chunk


def next_char(spans: Sequence[TextSpan], samples: int) -> int:
    """Return the first character of the first word that does not end within ``samples``, or the one after all words."""
    for span in spans:
        if span.end_sample > samples:
            return span.start_char
    return spans[-1].end_char if spans else 0
