"""The echo guard alone, on our noise and on others'. With speech, and the network in front, see test_barge_in.py."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.uplink.echo_guard import EchoGuard
from gateway.uplink.vad import SAMPLE_RATE
from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat, encoder

Pcm = NDArray[np.float32]
LINE = AudioFormat()
FRAME_S = LINE.ptime_ms / 1000


def noise(seed: int, frames: int) -> Pcm:
    return np.random.default_rng(seed).normal(0, 0.1, frames * LINE.frame_samples).astype(np.float32)


def send(guard: EchoGuard, pcm: Pcm, line: AudioFormat = LINE, *, at: float = 0.0) -> None:
    """Send audio in frames, each when it is due."""
    coder = encoder(line)
    for index, frame in enumerate(np.split(to_int16(pcm), len(pcm) // line.frame_samples)):
        guard.sent(coder.encode(frame), at + index * FRAME_S)


@pytest.mark.parametrize("delay_s", [0.0, 0.12, 0.6])
@pytest.mark.parametrize("line", [LINE, AudioFormat("L16", 16000)])
def test_a_faint_late_copy_of_what_we_sent_is_an_echo_and_another_sound_is_not(
    line: AudioFormat, delay_s: float
) -> None:
    ours = noise(1, 40)
    guard = EchoGuard(line, 0.85)
    sent = np.repeat(ours, line.sample_rate // SAMPLE_RATE)
    send(guard, sent, line)
    end = len(ours) - round(delay_s * SAMPLE_RATE)
    guard.heard(ours[end - 1024 : end] * np.float32(0.03))
    assert guard.is_echo()
    guard.heard(noise(2, 6))
    assert not guard.is_echo()


def test_the_latest_echo_is_found_in_a_long_talkspurt_whose_times_are_rounded() -> None:
    ours = noise(1, 200)
    guard = EchoGuard(LINE, 0.85)
    send(guard, ours, at=50000.5)
    end = len(ours) - round(0.6 * SAMPLE_RATE)
    guard.heard(ours[end - 1024 : end] * np.float32(0.03))
    assert guard.is_echo(), "rounding is no pause, which would take a frame's place"


def test_an_echo_has_the_pause_in_which_we_sent_nothing() -> None:
    before, after = noise(1, 20), noise(2, 2)
    guard = EchoGuard(LINE, 0.85)
    send(guard, before)
    send(guard, after, at=20 * FRAME_S + 0.06)
    guard.heard(np.concatenate((before, np.zeros(480, np.float32), after))[-1024:] * np.float32(0.03))
    assert guard.is_echo()


def test_before_we_have_sent_anything_there_is_no_echo() -> None:
    guard = EchoGuard(LINE, 0.85)
    guard.heard(noise(1, 6))
    assert not guard.is_echo() and not guard.talking_over(0.0)


def test_we_talk_over_the_caller_until_the_echo_of_the_last_frame_even_if_it_was_sent_ahead() -> None:
    guard = EchoGuard(LINE, 0.85)
    for _ in range(10):
        guard.sent(bytes(LINE.frame_samples), 5.0)  # the caller hears them until 5.2
    assert guard.talking_over(5.2) and guard.talking_over(5.2 + 0.6)
    assert not guard.talking_over(5.2 + 0.6 + 0.033), "the whole window has passed"
