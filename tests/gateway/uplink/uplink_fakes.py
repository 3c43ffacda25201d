"""A session that records what the uplink thread reports, and a way to wait for that thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.seams.uplink import LineTone
from gateway.uplink.worker import UplinkWorker
from voicecodecs.registry import AudioFormat

PCMU = AudioFormat()
HANG_S = 30.0


class Heard:
    """Stands where the session stands."""

    def __init__(self) -> None:
        self.onsets: list[float] = []
        self.suspected: list[float] = []
        self.dismissed = 0
        self.short_sounds: list[tuple[float, list[bytes]]] = []
        self.ends = 0
        self.lulls: list[float] = []
        self.resumed = 0
        self.pcm: list[bytes] = []
        self.speech: list[bytes] = []
        self.dtmf = ""
        self.tones: list[tuple[LineTone, float]] = []
        self.both: list[bytes] = []
        self.lost: list[str] = []

    def on_dtmf_heard(self, digit: str) -> None:
        self.dtmf += digit

    def on_tone(self, tone: LineTone, *, ended_at: float) -> None:
        self.tones.append((tone, ended_at))

    def on_speech_started(self, *, onset: float) -> None:
        self.onsets.append(onset)

    def on_speech_suspected(self, *, onset: float) -> None:
        self.suspected.append(onset)

    def on_speech_dismissed(self) -> None:
        self.dismissed += 1

    def on_short_sound(self, *, onset: float, sound: Sequence[bytes]) -> None:
        self.short_sounds.append((onset, list(sound)))

    def on_speech_ended(self) -> None:
        self.ends += 1

    def on_lull(self, *, since: float, silence_s: float) -> None:
        self.lulls.append(since)

    def on_speech_resumed(self) -> None:
        self.resumed += 1

    def on_pcm(self, pcm: bytes) -> None:
        self.pcm.append(pcm)

    def on_speech(self, pcm: bytes) -> None:
        self.speech.append(pcm)

    def on_both(self, pcm: bytes) -> None:
        self.both.append(pcm)

    def on_recording_lost(self, reason: str) -> None:
        self.lost.append(reason)


class _Behind(Heard):
    def __init__(self) -> None:
        super().__init__()
        self.come = asyncio.Event()

    def on_pcm(self, pcm: bytes) -> None:
        self.come.set()


async def settled(worker: UplinkWorker) -> None:
    """Wait until all earlier payloads have been worked on and reported: one that was pushed after them has come back.

    The worker needs a route ``r`` whose call named ``behind`` is not recorded.
    """
    behind = _Behind()
    stream = worker.open("behind", PCMU, PCMU, "r", behind)
    stream.want(vad=False, pcm_rate=8000)
    stream.push(PCMU.silence_frame(), now=0.0)
    async with asyncio.timeout(HANG_S):
        await behind.come.wait()
