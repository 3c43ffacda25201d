"""The echo of a loudspeaker in a room, through the real network, guard and canceller."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.uplink.echo_canceller import EchoCanceller
from gateway.uplink.echo_guard import EchoGuard
from tests.gateway.uplink.test_barge_in import BOT, FRAME, PCMU, Pcm, listen, silence, speech
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_int16

RATE = 8000


def in_room(pcm: Pcm, *, t60_s: float, loss_db: float, delay_s: float) -> Pcm:
    """A direct sound and reflections that decay by 60 dB in ``t60_s``, with the energy of the direct sound together."""
    rng = np.random.default_rng(3)
    times = np.arange(round(t60_s * RATE)) / RATE
    reflections = rng.normal(size=len(times)) * 10 ** (-3 * times / t60_s) * (times > 0.002)
    reflections /= np.sqrt(np.square(reflections).sum())
    reflections[0] = 1.0
    gain = 10 ** (-loss_db / 20) / np.sqrt(2)
    heard = np.concatenate((np.zeros(round(delay_s * RATE)), np.convolve(pcm, reflections * gain)))
    return heard[: len(pcm)].astype(np.float32) + silence(len(pcm) / RATE + 1)[: len(pcm)]


@pytest.mark.parametrize("delay_s", [0.06, 0.45])
@pytest.mark.parametrize(("t60_s", "loss_db"), [(0.1, 10), (0.3, 10), (0.5, 15)])
async def test_the_echo_of_our_voice_in_a_room_is_not_the_caller(t60_s: float, loss_db: float, delay_s: float) -> None:
    ours = np.concatenate((speech(BOT), silence(1.0), speech(BOT)))
    heard = await listen(in_room(ours, t60_s=t60_s, loss_db=loss_db, delay_s=delay_s), ours, wanted_speech=True)
    assert (heard.onsets, heard.speech) == ([], [])


async def test_a_caller_is_heard_over_the_echo_in_a_room() -> None:
    ours = np.concatenate((speech(BOT), speech(BOT)))
    echo = in_room(ours, t60_s=0.3, loss_db=15, delay_s=0.2)
    said = speech("Wait a moment, I have a question.", 0.85)
    at = 5 * RATE
    echo[at : at + len(said)] += said
    heard = await listen(echo, ours)
    assert heard.onsets == [pytest.approx(5.0, abs=0.5)]


def test_a_line_without_an_echo_does_not_pay_and_one_that_falls_silent_no_longer() -> None:
    guard = EchoGuard(PCMU, 0.85)
    canceller = EchoCanceller(PCMU, PCMU, guard)
    ours = np.tile(speech(BOT), 4)
    echo = in_room(ours, t60_s=0.1, loss_db=10, delay_s=0.1)
    loud = speech("My name is Miller.", 0.85)

    def call(first: int, last: int, near: Pcm) -> float:
        """Pass frames through the canceller; return the mean power of its output."""
        power = 0.0
        for index in range(first, last):
            now = index * 0.02
            guard.sent(encode_ulaw(to_int16(ours[index * FRAME : (index + 1) * FRAME])), now)
            pcm = near[index * FRAME : (index + 1) * FRAME]
            guard.heard(pcm)
            power += float(np.square(canceller.process(pcm, now + 0.02)).mean()) / (last - first)
        return power

    call(0, 50, np.concatenate((silence(0.5), loud, silence(2.0))))
    assert not guard.is_echo() and not canceller.running, "a caller, not an echo"
    call(50, 100, echo)
    assert guard.is_echo()
    before = float(np.square(echo[150 * FRAME : 250 * FRAME]).mean())
    call(100, 150, echo)
    assert canceller.running
    assert 10 * np.log10(call(150, 250, echo) / before) < -15
    call(250, 500, np.zeros(len(ours), np.float32))
    assert not canceller.running, "3 s without any echo"
