"""Caller speech, heard by the real network in its real thread: onsets are found, noise, echo and hums are not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hibari import Hibari
from numpy.typing import NDArray

from gateway.config import BargeInConfig, RouteConfig
from gateway.uplink.vad import SpeechDetector, Window
from gateway.uplink.worker import UplinkWorker
from tests.gateway.uplink.uplink_fakes import PCMU, Heard, settled
from voicecodecs.dtmf import tones
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_int16
from voicecodecs.resample import Resampler

FRAME = 160
Pcm = NDArray[np.float32]


@cache
def voice() -> Hibari:
    return Hibari(threads=1)


@cache
def speech(text: str, pitch: float = 1.0) -> Pcm:
    """Telephone speech that begins with its first sound, at about -20 dB; at another pitch it is another's voice."""
    resampler = Resampler(round(24000 * pitch), 8000)
    pcm = np.concatenate((resampler.process(voice()(text, seed=1).astype(np.float32)), resampler.flush()))
    loud = np.flatnonzero(np.abs(pcm) > 0.02)
    pcm = pcm[loud[0] : loud[-1]]
    return pcm * np.float32(0.1 / np.sqrt(np.mean(pcm**2)))


async def listen(
    caller: Pcm,
    ours: Pcm | None = None,
    *,
    vad: bool = True,
    pcm_rate: int = 0,
    dtmf: bool = False,
    lost: frozenset[int] = frozenset(),
    wanted_speech: bool = False,
) -> Heard:
    """Feed 20 ms frames with the times a call would have; the thread's own speed does not matter."""
    worker = UplinkWorker({"r": RouteConfig()}, BargeInConfig(), gather_s=0.0)
    heard = Heard()
    stream = worker.open("VX", PCMU, PCMU, "r", heard)
    stream.want(vad=vad, pcm_rate=pcm_rate, dtmf=dtmf, speech=wanted_speech)
    assert stream.needed
    for index in range(len(caller) // FRAME):
        now = (index + 1) * 0.02
        mine = ours[index * FRAME : (index + 1) * FRAME] if ours is not None else caller[:0]
        if len(mine) == FRAME:
            stream.spoke(encode_ulaw(to_int16(mine)), now=now - 0.02, heard_at=now - 0.02)
        payload = encode_ulaw(to_int16(caller[index * FRAME : (index + 1) * FRAME]))
        stream.push(b"" if index in lost else payload, now=now)
        if index % 4 == 3:
            await settled(worker)
    await settled(worker)
    worker.close()
    assert not worker.dropped
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


async def test_what_was_heard_is_counted_in_the_audio_and_up_to_each_event() -> None:
    """Also if a network delivers all at once: then the clock says nothing about where in it the caller paused."""

    class Told(Heard):
        def on_speech_started(self, *, onset: float) -> None:
            self.onsets.append(stream.heard_s)

        def on_lull(self, *, since: float, silence_s: float) -> None:
            assert silence_s == 0.16
            self.lulls.append(stream.heard_s)

    hello = speech("Hello.")
    sound = np.concatenate((silence(0.3), hello, silence(0.5)))
    worker = UplinkWorker({"r": RouteConfig()}, BargeInConfig())
    told = Told()
    stream = worker.open("VX", PCMU, PCMU, "r", told)
    stream.want(vad=True, pcm_rate=0, speech=True, lulls=True)
    for index in range(len(sound) // FRAME):
        stream.push(encode_ulaw(to_int16(sound[index * FRAME : (index + 1) * FRAME])), now=3.0)
    await settled(worker)
    worker.close()
    assert told.onsets == [pytest.approx(0.3 + 0.13, abs=0.06)]
    assert told.lulls == [pytest.approx(0.3 + len(hello) / 8000 + 0.16, abs=0.06)]
    assert stream.heard_s == pytest.approx(len(sound) / 8000, abs=0.06)


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
    heard = await listen(caller, speech(BOT)[: len(caller)])
    assert heard.onsets == []
    assert heard.dismissed == len(heard.suspected), "a pause for a hum ends with it"


@pytest.mark.parametrize(("text", "pitch"), [("Mhm, mhm.", 0.8), ("Mhm mhm mhm.", 0.8)])
@pytest.mark.parametrize("offset", [0, 64])
async def test_the_breath_before_a_hum_is_no_open_mouth(text: str, pitch: float, offset: int) -> None:
    """It is open and, until the hum follows, the loudest of the onset."""
    caller = np.concatenate((silence(1.0 + offset / 8000), speech(text, pitch), silence(1.0)))
    heard = await listen(caller, speech(BOT)[: len(caller)])
    assert heard.suspected == heard.onsets == []


@pytest.mark.parametrize("text", ["Wait, stop please.", "Maybe later.", "My name is Nina."])
async def test_a_pause_comes_before_the_decision(text: str) -> None:
    caller = np.concatenate((silence(2.0), speech(text), silence(0.5)))
    heard = await listen(caller, speech(BOT)[: len(caller)])
    assert heard.suspected[:1] == heard.onsets == [pytest.approx(2.0, abs=0.12)]


@pytest.mark.parametrize(
    ("text", "pitch"),
    [
        ("Can you speak a little slower?", 0.85),
        ("Please call me back tomorrow.", 0.92),
        ("Please call me back tomorrow.", 1.1),
    ],
)
async def test_close_vowels_are_no_hum(text: str, pitch: float) -> None:
    """Their first formant is as low as a hum's; half a second passed before a vowel opened."""
    beginning = speech(text, pitch)[: int(0.28 * 8000)] * np.float32(0.5)
    beginning[-400:] *= np.linspace(1, 0, 400, dtype=np.float32) ** 2  # an end without a click
    caller = np.concatenate((silence(2.0), beginning, silence(0.5)))
    assert (await listen(caller, speech(BOT)[: len(caller)])).suspected


@pytest.mark.parametrize("offset", range(0, 256, 43))
async def test_a_first_phrase_that_passes_for_a_hum_does_not_hide_the_next(offset: int) -> None:
    """Its own level is no background that the rest would have to outshout."""
    caller = np.concatenate((silence(2.0 + offset / 8000), speech("Excuse me, I have a question."), silence(0.5)))
    assert (await listen(caller, speech(BOT)[: len(caller)])).onsets


@pytest.mark.parametrize(
    ("text", "pitch"),
    [
        ("Thanks, that is all I need.", 1.1),
        ("Agent, please.", 1.1),
    ],
)
async def test_what_was_said_before_does_not_hide_a_beginning(text: str, pitch: float) -> None:
    """Behind a sentence and some seconds of silence the network took the next 0.2-0.4 s for no speech."""
    before = np.concatenate((silence(1.0), speech("Excuse me, I have a question.", 0.9), silence(4.0)))
    caller = np.concatenate((before, speech(text, pitch), silence(0.5)))
    heard = await listen(caller, np.resize(speech(BOT), len(caller)))
    said_at = len(before) / 8000
    first = min(onset for onset in heard.suspected + heard.onsets if onset > said_at - 0.1)
    assert first == pytest.approx(said_at, abs=0.12)


async def test_who_spoke_when_nobody_listened_any_more_does_not_speak_for_ever() -> None:
    """Cut in mid-sentence, the VAD rests until we speak again: what is said then is said anew."""
    worker = UplinkWorker({"r": RouteConfig()}, BargeInConfig(), gather_s=0.0)
    heard = Heard()
    stream = worker.open("VX", PCMU, PCMU, "r", heard)
    stream.want(vad=True, pcm_rate=0)
    said = speech("Wait, stop please.")
    for begins in (0.0, 3.0):
        for index in range(25):
            pcm = said[index * FRAME : (index + 1) * FRAME]
            stream.push(encode_ulaw(to_int16(pcm)), now=begins + (index + 1) * 0.02)
        await settled(worker)
    worker.close()
    assert heard.onsets == [pytest.approx(0.0, abs=0.15), pytest.approx(3.0, abs=0.15)]
    assert heard.ends == 1, "who reads started and ended would believe that the first one still speaks"


async def test_people_in_the_background_do_not_cut() -> None:
    lines = ["Can I talk to somebody?", "No, that is wrong.", "Wait, stop please.", "Hello there.", BOT]
    people = [np.resize(np.roll(speech(text), 1777 * index), 8000 * 12) for index, text in enumerate(lines)]
    babble: Pcm = np.sum(people, axis=0, dtype=np.float32)
    babble *= np.float32(10 ** (-35 / 20) / np.sqrt(np.mean(babble**2)))
    assert (await listen(babble, speech(BOT))).onsets == []


def test_a_room_that_is_loud_from_the_start_does_not_cut() -> None:
    """The sound before the call is not known: people in the background were louder than nothing."""
    detector = SpeechDetector()
    for index in range(100):
        level_db = -33.0 if index % 3 else -37.0
        window = Window(
            end=index * 0.032, probability=0.9, level_db=level_db, bright_db=-3.0, front_db=-10.0, talking_over=True
        )
        assert detector.feed(window) is None


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


async def test_keys_are_found_in_the_audio_and_not_in_speech() -> None:
    pressed = tones("159#", 8000, tone_ms=100, pause_ms=100)
    heard = await listen(np.concatenate((speech(BOT), pressed, speech(BOT))), vad=False, dtmf=True)
    assert heard.dtmf == "159#"


async def test_lost_packets_neither_shorten_nor_end_the_speech() -> None:
    caller = np.concatenate((silence(0.5), speech("Can I talk to somebody about my order?"), silence(0.5)))
    every_tenth = frozenset(range(5, len(caller) // FRAME, 10))
    heard = await listen(caller, pcm_rate=8000, lost=every_tenth)
    assert (len(heard.onsets), heard.ends) == (1, 1)
    assert sum(map(len, heard.pcm)) == len(caller) // FRAME * FRAME * 2


@pytest.mark.parametrize("pause_s", [0.5, 1.5])
async def test_a_short_sound_is_given_at_once_and_the_sentence_that_follows_soon_without_a_gap(pause_s: float) -> None:
    # A longer sound is speech or none by the processor's rounding.
    before = np.concatenate((silence(2.0), speech("Mm."), silence(pause_s)))
    caller = np.concatenate((before, speech("Stop talking now, please."), silence(0.25)))
    heard = await listen(caller, speech(BOT)[: len(caller)], wanted_speech=True)
    ((onset, sound),) = heard.short_sounds
    assert onset == pytest.approx(2.0, abs=0.12)
    speech_s, sound_s = len(heard.speech) * 0.02, len(sound) * 0.02
    if pause_s < 0.6:
        assert speech_s + sound_s == pytest.approx(len(caller) / 8000 - 2.0 + 0.25, abs=0.1)
    else:
        assert len(caller) / 8000 - speech_s == pytest.approx(len(before) / 8000, abs=0.5)
        assert sound_s < 0.25 + len(speech("Mm.")) / 8000 + 0.5
