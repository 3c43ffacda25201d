"""A voice model that hums, for tests. It is deterministic, has no network and reads no clock.

A word lasts 50 ms for each letter. Each clause has a frequency of its own, and silence before and after it, like real
models.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence

import numpy as np

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk, WordSpan

PADDING_MS = 200
LETTER_MS = 50


def tone_hz(text: str) -> int:
    """Return the frequency at which a clause is hummed: 300 to 1290 Hz in steps of 10, chosen by its text."""
    return 300 + 10 * (zlib.crc32(text.encode()) % 100)


class ToneSynthesizer:
    """A ``tts_engine.synthesizer.Synthesizer`` that hums text in any script."""

    name = "tone"
    line_rates: Collection[int] = ()

    def __init__(
        self,
        *,
        sample_rate: int = 24000,
        chunk_ms: int = 400,
        delay_s: Callable[[int], float] = lambda chunk: 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            sample_rate: Hz.
            chunk_ms: length of a chunk.
            delay_s: seconds to wait before chunk 0, 1, ... of a clause, so that a test can let its caller run out of
            sound. sleep: the function that waits.
        """
        self.sample_rate = sample_rate
        self._chunk = sample_rate * chunk_ms // 1000
        self._delay_s = delay_s
        self._sleep = sleep
        self.asked: list[ClauseRequest] = []
        """Every clause that was begun."""
        self.active = 0
        self.chunks_made = 0

    async def start(self) -> None:
        """Do nothing, since there is nothing to load."""

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """Hum the clause. A higher speed makes the sound shorter."""
        self.asked.append(clause)
        self.active += 1
        try:
            padding = self.sample_rate * PADDING_MS // 1000
            words, at = [], padding
            for match in re.finditer(r"\S+", clause.text):
                length = round(len(match.group()) * LETTER_MS * self.sample_rate / 1000 / clause.speed)
                words.append(WordSpan(match.start(), match.end(), at, at + length))
                at += length
            time_s = np.arange(at - padding) / self.sample_rate
            hum = 0.4 * np.sin(2 * np.pi * tone_hz(clause.text) * time_s)
            pcm = np.pad(hum, padding).astype(np.float32)
            for number, first in enumerate(range(0, len(pcm), self._chunk)):
                await self._sleep(self._delay_s(number))
                self.chunks_made += 1
                yield PcmChunk(pcm=pcm[first : first + self._chunk], words=() if number else words)
        finally:
            self.active -= 1

    def voices(self) -> Sequence[VoiceInfo]:
        """Return the one voice, which speaks every language."""
        return [VoiceInfo(voice_id="tone", name="Tone", languages=["mul"], engine=self.name)]

    def status(self) -> EngineStatus:
        return EngineStatus(ready=True, engine=self.name, model="tone", models=["tone"], active=self.active)

    async def aclose(self) -> None:
        """Do nothing, since there is nothing to free."""
