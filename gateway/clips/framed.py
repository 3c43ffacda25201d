"""PCM as an ``Utterance``: frames are encoded in threads, piece by piece, when the session asks for them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gateway.limits.fair_turns import FairPool, Whose
from gateway.media.own_sound import OwnSound
from tts_engine.api import AudioChunk
from voicecodecs.packetizer import Packetizer
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat

PIECE_S = 1.0
"""Most sound of a dialogue manager that is encoded at a time, seconds, unless one message has more."""

TAIL_S = 0.3
"""Sound in the playout, seconds, below which the end of a manager's sound is considered after a mark. It is long enough
that the last, partial frame follows without a gap on a busy machine."""

MARK_S = 0.04
"""Wait for more sound after a mark, once ``TAIL_S`` is left, seconds."""

IDLE_S = 0.2
"""Wait for more sound without a mark, once the playout is empty, seconds. Later sound begins another turn."""


class Framed(ABC):
    """Sound as an ``Utterance``.

    Args:
        rate: rate of the pieces, hertz.
        whose: tenant and call, for fair turns in ``threads``.
        engine: name in the figures of the turn.
        stages_ms: time spent before the first piece, milliseconds by stage.
    """

    def __init__(
        self, rate: int, fmt: AudioFormat, threads: FairPool, whose: Whose, engine: str, stages_ms: dict[str, float]
    ) -> None:
        self._format = fmt
        self._threads = threads
        self._whose = whose
        self._engine = engine
        self._stages_ms = stages_ms
        self._packetizer = Packetizer(fmt, rate)
        self._closed = False

    @abstractmethod
    def pieces(self) -> AsyncIterator[NDArray[np.int16] | None]:
        """Yield the samples of each piece. None at the end flushes the codec."""

    def feed(self, text: str) -> None:
        raise RuntimeError("this sound takes no text")

    def end_text(self) -> None:
        """Do nothing: there is no text."""
        return

    def played(self, samples: int, *, at: float) -> None:
        """Do nothing: the pace of this work depends on the playout alone."""
        return

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        first_sample = 0
        async for pcm in self.pieces():
            started = time.monotonic()
            frames = await self.encoded(pcm)
            if self._closed:
                return
            if not frames:
                continue
            samples = len(frames) * self._format.frame_samples
            stages_ms = {**self._stages_ms, "codec": (time.monotonic() - started) * 1000}
            yield AudioChunk(
                frames=frames, first_sample=first_sample, samples=samples, stages_ms=stages_ms, engine=self._engine
            )
            first_sample += samples
            self._stages_ms = {}

    async def encoded(self, pcm: NDArray[np.int16] | None) -> list[bytes]:
        """Return the frames of the next samples. None: the last frames of the codec."""
        frames: list[bytes] = await self._threads.run(self._whose, partial(self._encode, pcm))
        return frames

    def _encode(self, pcm: NDArray[np.int16] | None) -> list[bytes]:
        return self._packetizer.flush() if pcm is None else self._packetizer.push(to_float32(pcm))

    async def aclose(self) -> None:
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class FramedOwnSound(Framed):
    """Sound of a dialogue manager, while it arrives. The turn ends when the playout has run dry (after a mark: nearly)
    and no more sound has arrived for ``IDLE_S`` (``MARK_S``).

    Args:
        buffered_s: returns the seconds of the turn's sound that wait to be sent.
        complete: completes the turn, which ends the sound.
    """

    def __init__(
        self,
        sound: OwnSound,
        fmt: AudioFormat,
        threads: FairPool,
        whose: Whose,
        *,
        buffered_s: Callable[[], float],
        complete: Callable[[], None],
    ) -> None:
        super().__init__(sound.sample_rate, fmt, threads, whose, "own", {})
        self._sound = sound
        self._buffered_s = buffered_s
        self._complete = complete
        self._news = asyncio.Event()
        sound.arrived = self._news.set

    def end_text(self) -> None:
        """The turn is complete."""
        self._sound.end()

    async def pieces(self) -> AsyncIterator[NDArray[np.int16] | None]:
        sound = self._sound
        while True:
            self._news.clear()
            if pcm := sound.take(PIECE_S):
                yield np.frombuffer(pcm, "<i2")
            elif sound.over:
                break
            elif (left_s := self._buffered_s() - (TAIL_S if sound.may_end else 0.0)) > 0:
                await self._wait(left_s)
            elif not await self._wait(MARK_S if sound.may_end else IDLE_S):
                self._complete()
        yield None

    async def _wait(self, seconds: float) -> bool:
        """Wait for more sound, a mark or the end. False: none has come in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True
