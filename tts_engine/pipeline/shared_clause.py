"""A clause that is being made and that several utterances hear.

The utterance that asks first leads: it takes the sound from the voice model, piece by piece. Others that ask for the
same clause meanwhile join: they get the pieces that exist and those that follow. Only the leader has a place in the
model's queue. The work continues while any utterance listens, even if the leader was cancelled, and stops with the last
listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_engine.errors import EngineError, SynthesisFailed, Unavailable
from tts_engine.pipeline.observer import EngineObserver
from tts_engine.pipeline.silence import SilenceTrimmer
from tts_engine.synthesizer import PcmChunk, Playhead, WordSpan


@dataclass(frozen=True, slots=True)
class Piece:
    """The next sound of a clause, without silence at the clause's ends."""

    pcm: NDArray[np.float32]
    """Shape ``(samples,)``, at the rate that the clause is made at."""
    words: Sequence[WordSpan] = ()
    """Words that begin in the sound so far. Samples count from the clause's first audible one."""
    text_ms: float = 0.0
    queue_ms: float = 0.0
    engine_ms: float = 0.0
    last: bool = False


class SharedPlayhead:
    """The urgency of a clause: that of its most urgent listener. A ``tts_engine.synthesizer.Hearing``.

    The event loop adds and removes listeners; schedulers read in any thread, so the tuple is only ever replaced.
    """

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: tuple[Playhead, ...] = ()

    @property
    def ahead(self) -> bool:
        return all(listener.ahead for listener in self.listeners)

    @property
    def tentative(self) -> bool:
        return all(listener.tentative for listener in self.listeners)

    @property
    def speaks(self) -> bool:
        return any(listener.speaks for listener in self.listeners)

    @property
    def head_start_s(self) -> float:
        return max((listener.head_start_s for listener in self.listeners), default=0.0)

    @property
    def state(self) -> object:
        return [listener.state for listener in self.listeners]

    def slack_s(self, now: float) -> float:
        listeners = self.listeners
        if len(listeners) == 1:
            return listeners[0].slack_s(now)
        return min((listener.slack_s(now) for listener in listeners), default=1e6)


class ClauseInMaking:
    """The pieces so far and the listeners. It needs the memory of one clause."""

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        """``task`` is the leader's. It makes the sound."""
        self.task = task
        self.playhead = SharedPlayhead()
        self._pieces: list[Piece] = []
        self._ended = False
        self._error: EngineError | None = None
        self._changed = asyncio.Event()

    # -- a listener's side

    def join(self, playhead: Playhead) -> None:
        """Listen, until ``leave``."""
        self.playhead.listeners = (*self.playhead.listeners, playhead)

    def leave(self, playhead: Playhead) -> bool:
        """Stop listening. Return True if no listener is left, so that the work can stop. Idempotent."""
        self.playhead.listeners = tuple(one for one in self.playhead.listeners if one is not playhead)
        return not self.playhead.listeners

    async def piece(self, number: int) -> Piece:
        """Return a piece, the first one being 0; wait until it exists.

        Raises:
            EngineError: the clause failed before this piece.
        """
        while number >= len(self._pieces):
            if self._error is not None:
                raise self._error.with_traceback(None)
            await self._changed.wait()
        return self._pieces[number]

    # -- the leader's side

    def add(self, piece: Piece) -> None:
        """Give a piece to all listeners. Nothing follows one that is marked ``last``."""
        self._pieces.append(piece)
        self._ended = piece.last
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Tell all listeners why no more pieces come. This does nothing after the last piece."""
        if self._ended:
            return
        self._ended = True
        if isinstance(error, asyncio.CancelledError):
            self._error = Unavailable("the engine is closed")
        elif isinstance(error, EngineError):
            self._error = error
        else:
            self._error = SynthesisFailed(f"the engine failed: {type(error).__name__}")
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed.clear()


async def audible_pieces(
    made: AsyncGenerator[PcmChunk, None], rate: int, model: str, observer: EngineObserver | None
) -> AsyncGenerator[Piece, None]:
    """Yield the sound that the model makes of a clause, without the silence at its ends."""
    trimmer = SilenceTrimmer(rate)
    words: list[WordSpan] = []
    engine_ms, samples = 0.0, 0
    async with aclosing(made) as chunks:
        async for chunk in chunks:
            engine_ms += chunk.engine_ms
            if observer is not None:
                observer.queued(chunk.queue_ms / 1e3)
            words += chunk.words
            pcm = trimmer.push(chunk.pcm)
            audible: list[WordSpan] = []
            if len(pcm):
                audible, words = _moved(words, trimmer.trimmed or 0), []
                samples += len(pcm)
            yield Piece(pcm, audible, chunk.text_ms, chunk.queue_ms, chunk.engine_ms)
    tail = trimmer.finish()
    samples += len(tail)
    if samples and observer is not None:
        observer.realtime_factor(model, engine_ms * rate / 1e3 / samples)
    yield Piece(tail, last=True)


def _moved(words: Sequence[WordSpan], lead: int) -> list[WordSpan]:
    """Return the words with their samples counted from ``lead``, since the samples before were trimmed."""
    return [
        WordSpan(start_char, end_char, max(0, first_sample - lead), max(0, end_sample - lead), exact)
        for start_char, end_char, first_sample, end_sample, exact in words
    ]
