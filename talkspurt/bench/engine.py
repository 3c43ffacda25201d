"""Puts load on the speech engine alone, through its gRPC client. Measures first chunk, gaps, throughput, freed work.

Playback is simulated: the listener begins with the first audible frame, and hears silence while the next chunk has not
come. The load does not depend on the voice model, so it measures a laptop and a GPU alike.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from talkspurt.bench.load import LoadError, TurnSupply
from talkspurt.bench.server_metrics import histograms, quantiles_ms
from talkspurt.simulator.figures import GAP_S, summary
from tts_engine.api import AudioChunk, SpeechEngine, UtteranceRequest
from tts_engine.errors import EngineError
from tts_engine.service.client import GrpcEngine
from voicecodecs.pcm import is_audible
from voicecodecs.registry import AudioFormat, Decoder, decoder

FREED = "talkspurt_engine_freed_seconds"

_RETRY_S = 0.1
"""Pause of a refused listener before it tries again, seconds, so that it does not ask a full engine in a tight loop."""


@dataclass(slots=True)
class UtteranceListener:
    """Plays an utterance in real time and counts the moments without sound. Times are arguments, in seconds."""

    format: AudioFormat
    started_at: float | None = None
    """Time at which the first audible frame came. None: nothing was audible yet."""
    audio_s: float = 0.0
    """Audio from the first audible frame on."""
    gaps_s: list[float] = field(default_factory=list)
    chunks: int = 0
    _runs_dry_at: float = 0.0

    def hear(self, frames: Sequence[bytes], hear: Decoder, *, now: float) -> None:
        """Take the next chunk."""
        self.chunks += 1
        if self.started_at is None:
            frames = list(itertools.dropwhile(lambda frame: not is_audible(hear.decode(frame)), frames))
            if not frames:
                return
            self.started_at = self._runs_dry_at = now
        if now > self._runs_dry_at:
            if now - self._runs_dry_at > GAP_S:
                self.gaps_s.append(now - self._runs_dry_at)
            self._runs_dry_at = now
        length_s = len(frames) * self.format.ptime_ms / 1000
        self.audio_s += length_s
        self._runs_dry_at += length_s

    def left_s(self, now: float) -> float:
        """Return the seconds of sound that the listener has left."""
        return max(0.0, self._runs_dry_at - now)


@dataclass(slots=True)
class EngineLoad:
    """One step: utterances by ``calls`` listeners in turn, or by a Poisson stream of ``rate`` per second."""

    engine: SpeechEngine
    source: TurnSupply
    calls: int
    seconds: float
    rate: float | None = None
    cancel_share: float = 0.0
    voice: str = ""
    format: AudioFormat = field(default_factory=AudioFormat)
    seed: int = 1
    first_chunks_ms: list[float] = field(default_factory=list)
    listeners: list[UtteranceListener] = field(default_factory=list)
    """Listeners of utterances that were heard until their end or their cancellation."""
    errors: Counter[str] = field(default_factory=Counter)
    elapsed_s: float = 0.0
    _active: int = 0
    _most_active: int = 0
    _number: int = 0

    async def run(self) -> None:
        """Speak for ``seconds``, then let all utterances finish."""
        rng = random.Random(self.seed)
        began_at = time.monotonic()
        until = began_at + self.seconds
        try:
            await self._run(rng, began_at, until)
        except* LoadError as failed:
            raise failed.exceptions[0] from None  # one is enough, since all say the same
        self.elapsed_s = time.monotonic() - began_at

    async def _run(self, rng: random.Random, began_at: float, until: float) -> None:
        async with asyncio.TaskGroup() as group:
            if self.rate is None:
                for number in range(self.calls):
                    group.create_task(self._call(random.Random(self.seed * 1000 + number), until))
            else:
                # Arrivals have absolute times, so that a busy load does not send fewer turns than it should.
                at = began_at
                while (at := at + rng.expovariate(self.rate)) < until:
                    await asyncio.sleep(max(0.0, at - time.monotonic()))
                    group.create_task(self._utterance(rng.random() < self.cancel_share, rng.uniform(0.2, 1.2)))

    def figures(self) -> dict[str, Any]:
        """Return the measurements of the listeners."""
        heard = self.listeners
        gaps = [gap * 1000 for listener in heard for gap in listener.gaps_s]
        return {
            "turns": len(heard),
            "most_active": self._most_active,
            "first_chunk_ms": summary(self.first_chunks_ms),
            "gaps": len(gaps),
            "gap_ms": summary(gaps),
            "gap_free_share": round(sum(not item.gaps_s for item in heard) / len(heard), 4) if heard else None,
            "audio_seconds_per_second": round(sum(item.audio_s for item in heard) / self.elapsed_s, 1),
            "errors": sum(self.errors.values()),
            "errors_by_kind": dict(self.errors),
        }

    async def _call(self, rng: random.Random, until: float) -> None:
        """Run one listener after another. Calls begin at different points of their first answer."""
        await asyncio.sleep(rng.uniform(0.0, min(3.0, self.seconds / 2)) if self.calls > 1 else 0.0)
        while time.monotonic() < until:
            await self._utterance(rng.random() < self.cancel_share, rng.uniform(0.2, 1.2))

    async def _utterance(self, cancelled: bool, cancel_after_s: float) -> None:
        self._number += 1
        self._active += 1
        self._most_active = max(self._most_active, self._active)
        try:
            request = UtteranceRequest(utterance_id=f"bench-{self._number}", format=self.format, voice=self.voice)
            listener = UtteranceListener(self.format)
            async with self.engine.open(request) as utterance:
                utterance.feed(self.source.next().text)
                utterance.end_text()
                sent_at = time.monotonic()
                played = asyncio.timeout(None)
                try:
                    async with played:
                        hear = decoder(self.format)
                        async for chunk in utterance:
                            now = time.monotonic()
                            started = listener.started_at is not None
                            listener.hear(chunk.frames, hear, now=now)
                            utterance.played(self._position(listener, chunk, now), at=now)
                            if not started and listener.started_at is not None:
                                self.first_chunks_ms.append((now - sent_at) * 1000)
                                if cancelled:
                                    played.reschedule(asyncio.get_running_loop().time() + cancel_after_s)
                        await asyncio.sleep(listener.left_s(time.monotonic()))
                except TimeoutError:
                    pass  # cut in mid-speech; leaving the block cancels the rest of the utterance
            if listener.started_at is None:
                self.errors["an utterance without sound"] += 1
            else:
                self.listeners.append(listener)
        except EngineError as exc:
            self.errors[exc.code] += 1
            await asyncio.sleep(_RETRY_S)
        finally:
            self._active -= 1

    def _position(self, listener: UtteranceListener, chunk: AudioChunk, now: float) -> int:
        """Return how many samples of the utterance were heard: the received ones minus those still to be played."""
        return chunk.first_sample + chunk.samples - int(listener.left_s(now) * self.format.sample_rate)


async def engine_step(load: EngineLoad) -> dict[str, Any]:
    """Run a step against a gRPC engine. The result also has the engine's own time from cancel to its last step."""
    engine = load.engine
    assert isinstance(engine, GrpcEngine)
    before = histograms((await engine.metrics()).decode(), [FREED])[FREED]
    await load.run()
    after = histograms((await engine.metrics()).decode(), [FREED])[FREED]
    return {"calls": load.calls, **load.figures(), "engine_freed_ms": quantiles_ms(before, after)}
