"""Time stretching by tones, voices, clicks and counts: length, pitch, level, seams, delay, and cuts into chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.codecs.codec_signals import tone
from voicecodecs.time_stretch import TimeStretcher

SPEEDS = (0.25, 0.5, 0.8, 1.5, 2.0, 4.0)


def stretch(pcm: NDArray[np.float32], rate: int, speed: float, chunk: int = 1 << 30) -> NDArray[np.float32]:
    stretcher = TimeStretcher(rate, speed)
    pieces = [stretcher.process(pcm[at : at + chunk]) for at in range(0, len(pcm), chunk)]
    return np.concatenate([*pieces, stretcher.flush()])


def voice(hz: float, seconds: float, rate: int) -> NDArray[np.float32]:
    """Ten harmonics that fall like a vowel's, below 3.4 kHz, and rise and fall over the whole like a clause."""
    t = np.arange(int(seconds * rate)) / rate
    harmonics = [n for n in range(1, 11) if n * hz < 3400]
    wave = sum(np.sin(2 * np.pi * n * hz * t + n * n) / n for n in harmonics)
    return (0.2 * wave * np.sin(np.pi * np.arange(len(t)) / len(t))).astype(np.float32)


def pitch_hz(pcm: NDArray[np.float32], near: float, rate: int) -> float:
    """The frequency of the strongest part of the spectrum within a semitone and a half, by a parabola through it."""
    spectrum = np.log(np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)), 4 * len(pcm))) + 1e-12)
    width = rate / (4 * len(pcm))
    low, high = int(near * 0.92 / width), int(near * 1.09 / width)
    top = low + int(np.argmax(spectrum[low:high]))
    before, here, after = spectrum[top - 1 : top + 2]
    return float((top + 0.5 * (before - after) / (before - 2 * here + after)) * width)


@pytest.mark.parametrize("rate", [8000, 24000])
@pytest.mark.parametrize("speed", SPEEDS)
def test_the_length_is_exact(rate: int, speed: float) -> None:
    for samples in (0, 1, rate // 100, rate // 7, rate + 13):
        assert len(stretch(voice(150, 2, rate)[:samples], rate, speed)) == round(samples / speed)


@pytest.mark.parametrize("hz", [70, 95, 130, 180, 260, 390])
@pytest.mark.parametrize("speed", SPEEDS)
def test_voices_keep_their_pitch_within_ten_cents(speed: float, hz: float) -> None:
    heard = stretch(voice(hz, 4.0, 8000), 8000, speed)
    cents = 1200 * np.log2(pitch_hz(heard, hz, 8000) / pitch_hz(voice(hz, 4.0, 8000), hz, 8000))
    assert abs(cents) < 10


@pytest.mark.parametrize("hz", [70, 130, 260])
@pytest.mark.parametrize("speed", SPEEDS)
def test_no_seam_clicks(speed: float, hz: float) -> None:
    """A click is a step that the voice itself does not have; its neighbours do not foretell it."""
    said = voice(hz, 2.0, 24000)
    heard = stretch(said, 24000, speed)
    assert np.abs(np.diff(heard, 2)).max() < 1.3 * np.abs(np.diff(said, 2)).max()


@pytest.mark.parametrize("speed", SPEEDS)
def test_noise_keeps_its_level(speed: float) -> None:
    noise = (0.1 * np.random.default_rng(1).standard_normal(24000)).astype(np.float32)
    heard = stretch(noise, 8000, speed)
    pieces = heard[: len(heard) // 160 * 160].reshape(-1, 160).std(axis=1)[:-4]
    assert np.std(heard) == pytest.approx(0.1, rel=0.05)
    assert pieces.min() > 0.07  # a fade of unlike waves would fall to 0.7 of the level


@pytest.mark.parametrize("speed", SPEEDS)
def test_what_is_heard_at_a_time_was_said_at_that_time_times_the_speed(speed: float) -> None:
    rate = 8000
    said = np.concatenate([tone(hz, 0.4, rate) for hz in (300, 500, 700, 900, 1100)])
    heard = stretch(said, rate, speed)
    for number, hz in enumerate((300, 500, 700, 900, 1100)):
        middle, half = int((number + 0.5) * 0.4 * rate / speed), int(0.03 * rate / speed)
        assert pitch_hz(heard[middle - half : middle + half], hz, rate) == pytest.approx(hz, rel=0.05)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("rate", [8000, 24000])
def test_sound_is_held_back_for_29_ms_or_12_heard_ones(rate: int, speed: float) -> None:
    stretcher, given_samples, returned = TimeStretcher(rate, speed), 0, 0
    said = voice(150, 2, rate)
    for at in range(0, len(said), rate // 100):
        piece = said[at : at + rate // 100]
        given_samples += len(piece)
        returned += len(stretcher.process(piece))
        assert 0 <= given_samples - returned * speed <= max(0.029, 0.012 * speed) * rate


@settings(max_examples=30, deadline=None)
@given(
    speed=st.floats(0.25, 4.0),
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=30),
    rate=st.sampled_from([8000, 24000]),
)
def test_chunks_give_the_same_bits_as_the_whole(speed: float, sizes: list[int], rate: int) -> None:
    said = voice(140, 1.0, rate) + (0.01 * np.random.default_rng(2).standard_normal(rate)).astype(np.float32)
    said = said[: sum(sizes)]
    stretcher, at, pieces = TimeStretcher(rate, speed), 0, []
    for size in sizes:
        pieces.append(stretcher.process(said[at : at + size]))
        at += size
    assert np.array_equal(np.concatenate([*pieces, stretcher.flush()]), stretch(said, rate, speed))


def test_at_speed_1_nothing_changes() -> None:
    said = voice(140, 1.0, 8000)
    assert np.abs(stretch(said, 8000, 1.0) - said).max() < 1e-6


def test_silence_stays_silent_and_a_stretcher_can_be_used_again() -> None:
    stretcher = TimeStretcher(8000, 0.5)
    said = voice(140, 0.5, 8000)
    first = np.concatenate((stretcher.process(said), stretcher.flush()))
    assert np.array_equal(first, np.concatenate((stretcher.process(said), stretcher.flush())))
    assert not stretcher.process(np.zeros(8000, np.float32)).any() and not stretcher.flush().any()


@pytest.mark.parametrize(("rate", "speed"), [(0, 1.0), (8000, 0.0), (8000, -1.0), (8000, float("nan"))])
def test_a_rate_or_a_speed_that_is_none_is_refused(rate: int, speed: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        TimeStretcher(rate, speed)
