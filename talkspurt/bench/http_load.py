"""Sends requests to ``POST /v1/audio/speech`` at random times, and measures what their listeners hear.

A listener plays from the first audible sample, in real time and without a prebuffer. Sound that comes after all earlier
sound has been played makes a gap.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from talkspurt.bench.load import TurnSupply
from talkspurt.simulator.figures import GAP_S, summary

SAMPLE_RATE = 24000
_AUDIBLE = 10 ** (-50 / 20) * 32768
"""-50 dBov, in s16le."""
_AGAIN_S = 0.25
"""Pause of a refused client before it asks again, seconds."""


@dataclass(slots=True)
class StreamListener:
    """One listener of a stream of s16le samples that are played as they come, without a prebuffer."""

    asked_at: float
    first_ms: float = math.nan
    gaps: list[float] = field(default_factory=list)
    """Duration of each silence within the speech, seconds."""
    samples: int = 0
    _dry_at: float = 0.0
    _odd: bytes = b""

    def take(self, data: bytes, now: float) -> None:
        """Note bytes that came at monotonic second ``now``."""
        data = self._odd + data
        whole = len(data) // 2 * 2
        data, self._odd = data[:whole], data[whole:]
        pcm = np.frombuffer(data, "<i2")
        self.samples += len(pcm)
        if math.isnan(self.first_ms):
            loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > _AUDIBLE)
            if not len(loud):
                return
            self.first_ms, self._dry_at = (now - self.asked_at) * 1000, now
            pcm = pcm[loud[0] :]
        elif now > self._dry_at:
            if now - self._dry_at > GAP_S:
                self.gaps.append(now - self._dry_at)
            self._dry_at = now
        self._dry_at += len(pcm) / SAMPLE_RATE


@dataclass(slots=True)
class HttpLoad:
    """Requests for speech at random times, each with a different text."""

    session: aiohttp.ClientSession
    address: str
    source: TurnSupply
    answer_s: float = 60.0
    """Time from a request after which an answer that has not ended is an error, seconds."""
    sentences: bool = False
    """True: each text is one sentence. False: a whole turn."""
    requests: int = 0
    heard: list[StreamListener] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons of refusals, without the numbers in them."""
    failed: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    """Number of samples received in all answers."""

    async def run(self, rate: float, seconds: float) -> float:
        """Ask for ``rate`` texts a second. Return the seconds until the last answer was complete."""
        rng, begun = random.Random(int(rate * 10)), time.monotonic()
        async with asyncio.TaskGroup() as group:
            while time.monotonic() - begun < seconds:
                await asyncio.sleep(rng.expovariate(rate))
                group.create_task(self.speak(self._text()))
        return time.monotonic() - begun

    async def keep_asking(self, clients: int, seconds: float, *, ramp_s: float) -> float:
        """Let each client ask for its next text as soon as it has the one before, or ``_AGAIN_S`` after a refusal.

        Return the seconds of sound received per second, in the ``seconds`` after the first ``ramp_s``.
        """

        async def client() -> None:
            while True:
                if not await self.speak(self._text()):
                    await asyncio.sleep(_AGAIN_S)

        asking = [asyncio.create_task(client()) for _ in range(clients)]
        try:
            await asyncio.sleep(ramp_s)
            samples, begun = self.samples, time.monotonic()
            await asyncio.sleep(seconds)
            return (self.samples - samples) / SAMPLE_RATE / (time.monotonic() - begun)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def speak(self, text: str) -> bool:
        """Ask for one text, and hear it to its end. Return False if there was no such answer."""
        listening = StreamListener(time.monotonic())
        body = {"model": "tts-1", "input": text, "voice": "alloy", "response_format": "pcm"}
        self.requests += 1
        try:
            async with asyncio.timeout(self.answer_s), self.session.post(self._url, json=body) as answer:
                self.statuses[answer.status] += 1
                if answer.status != 200:
                    self.reasons[re.sub(r"[\d.]+", "N", (await answer.json())["error"]["message"])] += 1
                    return False
                async for data, _ in answer.content.iter_chunks():
                    listening.take(data, time.monotonic())
                    self.samples += len(data) // 2
        except (aiohttp.ClientError, TimeoutError) as exc:
            self.failed[type(exc).__name__] += 1
            return False
        self.heard.append(listening)
        return True

    def _text(self) -> str:
        return self.source.next_sentence() if self.sentences else self.source.next().text

    @property
    def _url(self) -> str:
        return f"http://{self.address}/v1/audio/speech"

    def figures(self, wall_s: float) -> dict[str, Any]:
        heard = [one for one in self.heard if not math.isnan(one.first_ms)]
        return {
            "requests": self.requests,
            "refused": self.statuses[429] + self.statuses[503],
            "statuses": dict(self.statuses),
            "reasons": dict(self.reasons),
            "failed": dict(self.failed),
            "silent": len(self.heard) - len(heard),
            "sound_s": summary([one.samples / SAMPLE_RATE for one in heard]),
            "first_sound_ms": summary([one.first_ms for one in heard]),
            "gap_free_share": round(sum(not one.gaps for one in heard) / len(heard), 4) if heard else None,
            "gap_ms": summary([gap * 1000 for one in heard for gap in one.gaps]),
            "audio_seconds_per_second": round(sum(one.samples for one in heard) / SAMPLE_RATE / wall_s, 1),
        }
