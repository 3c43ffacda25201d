"""Caller speech, heard by the real network in its real thread: onsets are found, noise, echo and hums are not."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
import pytest
from hibari import Hibari
from numpy.typing import NDArray

from gateway.config import BargeInConfig, RouteConfig
from gateway.uplink_worker import UplinkWorker
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat
from voicecodecs.resample import Resampler

PCMU = AudioFormat()
FRAME = 160
Pcm = NDArray[np.float32]


@cache
def voice() -> Hibari:
    return Hibari(threads=1)


@cache
def speech(text: str) -> Pcm:
    """Telephone speech that begins with its first sound, at about -20 dB."""
    resampler = Resampler(24000, 8000)
    pcm = np.concatenate((resampler.process(voice()(text).astype(np.float32)), resampler.flush()))
    loud = np.flatnonzero(np.abs(pcm) > 0.02)
    pcm = pcm[loud[0] : loud[-1]]
    return pcm * np.float32(0.1 / np.sqrt(np.mean(pcm**2)))


class Heard:
    def __init__(self) -> None:
        self.onsets: list[float] = []
        self.ends = 0
        self.pcm: list[bytes] = []
        self.speech: list[bytes] = []

    def on_speech_started(self, *, onset: float) -> None:
        self.onsets.append(onset)

    def on_speech_ended(self) -> None:
        self.ends += 1

    def on_pcm(self, pcm: bytes) -> None:
        self.pcm.append(pcm)

    def on_speech(self, pcm: bytes) -> None:
        self.speech.append(pcm)


async def listen(
    caller: Pcm, ours: Pcm | None = None, *, vad: bool = True, pcm_rate: int = 0, wanted_speech: bool = False
) -> Heard:
    """Feed 20 ms frames with the times a call would have; the thread's own speed does not matter."""
    worker = UplinkWorker({"r": RouteConfig()}, BargeInConfig())
    heard = Heard()
    stream = worker.open("VX", PCMU, PCMU, "r", heard)
    stream.want(vad=vad, pcm_rate=pcm_rate, speech=wanted_speech)
    assert stream.needed
    for index in range(len(caller) // FRAME):
        now = (index + 1) * 0.02
        if ours is not None and (index + 1) * FRAME <= len(ours):
            stream.spoke(encode_ulaw(to_int16(ours[index * FRAME : (index + 1) * FRAME])), now=now - 0.02)
        stream.push(encode_ulaw(to_int16(caller[index * FRAME : (index + 1) * FRAME])), now=now)
        if index % 4 == 3:
            while stream.waiting:  # noqa: ASYNC110  the thread under test sets no event
                await asyncio.sleep(0.002)
    while stream.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)
    worker.close()
    assert stream.dropped == 0
    return heard


def silence(seconds: float) -> Pcm:
    return np.random.default_rng(1).normal(0, 0.0005, int(seconds * 8000)).astype(np.float32)


BOT = "Thank you for calling. Your order has been shipped, and it should arrive on Friday before noon. " * 3


@pytest.mark.parametrize("text", ["Wait, stop please.", "Can I talk to somebody?", "No, that is wrong.", "Excuse me."])
async def test_speech_over_our_voice_is_found_soon_after_its_onset(text: str) -> None:
    ours = speech(BOT)
    caller = np.concatenate((silence(2.0), speech(text), silence(0.5)))
    heard = await listen(caller, ours[: len(caller)])
    assert len(heard.onsets) == 1
    assert heard.onsets[0] == pytest.approx(2.0, abs=0.12)


async def test_the_end_of_speech_is_found_too() -> None:
    heard = await listen(np.concatenate((silence(0.5), speech("Hello there."), silence(1.0))))
    assert (len(heard.onsets), heard.ends) == (1, 1)


@pytest.mark.parametrize("level", [0.003, 0.02, 0.1])
async def test_noise_is_not_speech(level: float) -> None:
    noise = np.random.default_rng(2).normal(0, level, 8000 * 20).astype(np.float32)
    assert (await listen(noise, speech(BOT))).onsets == []


@pytest.mark.parametrize("gain_db", [-10, -20, -30])
async def test_the_echo_of_our_own_voice_is_not_the_caller(gain_db: float) -> None:
    ours = speech(BOT)
    delay = np.zeros(8 * 120, np.float32)
    echo = np.concatenate((delay, ours))[: len(ours)] * np.float32(10 ** (gain_db / 20)) + silence(len(ours) / 8000)
    assert (await listen(echo, ours)).onsets == []


@pytest.mark.parametrize("text", ["Mhm.", "Mm-hmm.", "Hmm.", "Mmm."])
async def test_a_hum_of_agreement_does_not_cut(text: str) -> None:
    caller = np.concatenate((silence(1.0), speech(text), silence(1.0)))
    assert (await listen(caller, speech(BOT)[: len(caller)])).onsets == []


async def test_a_subscription_gets_20_ms_pieces_at_its_rate() -> None:
    heard = await listen(speech("Hello there."), vad=False, pcm_rate=16000)
    assert heard.onsets == []
    assert {len(piece) for piece in heard.pcm} == {640}
    assert len(heard.pcm) == pytest.approx(len(speech("Hello there.")) / FRAME, abs=2)


async def test_the_recogniser_gets_speech_with_its_beginning_and_nothing_else() -> None:
    said = speech("What are your opening hours?")
    caller = np.concatenate((silence(3.0), said, silence(2.0), said, silence(1.0)))
    heard = await listen(caller, wanted_speech=True)
    assert len(heard.onsets) == heard.ends == 2
    assert {len(piece) for piece in heard.speech} == {640}
    heard_s = len(heard.speech) * 0.02
    said_s = 2 * len(said) / 8000
    # A quarter of a second before, the silence that ends it behind; payloads come four at a time here.
    assert said_s + 0.5 < heard_s < said_s + 2 * (0.25 + 0.3 + 0.4)
    pcm = np.concatenate([np.frombuffer(piece, "<i2") for piece in heard.speech]) / 32768
    loud = np.flatnonzero(np.abs(pcm) > 0.05)
    assert 0.1 < loud[0] / 16000 < 0.5, "the first sound is there, behind a little silence"


async def test_without_a_recogniser_no_speech_is_cut_out() -> None:
    assert (await listen(np.concatenate((silence(0.5), speech("Hello there."), silence(1.0))))).speech == []


async def test_noise_is_not_sent_to_the_recogniser() -> None:
    noise = np.random.default_rng(2).normal(0, 0.05, 8000 * 10).astype(np.float32)
    assert (await listen(noise, wanted_speech=True)).speech == []
