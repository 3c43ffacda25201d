"""Levels, clipping, the audible part, fades."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.codec_signals import tone
from voicecodecs import pcm
from voicecodecs.fade import HEARD_FRAMES, faded
from voicecodecs.registry import AudioFormat, decoder, encoder


def test_every_int16_survives_float() -> None:
    samples = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)
    np.testing.assert_array_equal(pcm.to_int16(pcm.to_float32(samples)), samples)


def test_too_loud_is_clipped_not_wrapped() -> None:
    loud = np.array([1.0, 1.5, 1e9, -1.0, -1.5, -1e9], np.float32)
    np.testing.assert_array_equal(pcm.to_int16(loud), [32767] * 3 + [-32768] * 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="pcm of 3 samples has NaN or infinite"):
        pcm.to_int16(np.array([0, bad, 0], np.float32))


@given(st.floats(-60, 20))
def test_gain_moves_the_level_by_its_decibels(db: float) -> None:
    voice = tone(440, 0.1, 8000, amplitude=0.05)
    assert pcm.dbov(pcm.gain_db(voice, db)) == pytest.approx(pcm.dbov(voice) + db, abs=1e-3)


def test_levels_are_relative_to_a_full_scale_square() -> None:
    square = np.tile(np.array([-32768, -32768], np.int16), 80)
    assert pcm.dbov(square) == pytest.approx(0, abs=1e-4)
    assert pcm.dbov(tone(1000, 1.0, 8000, amplitude=1.0)) == pytest.approx(-3.01, abs=0.01)
    assert pcm.dbov(pcm.to_int16(tone(1000, 1.0, 8000))) == pytest.approx(-9.03, abs=0.01)
    assert pcm.dbov(np.zeros(160, np.int16)) == pcm.dbov(np.zeros(0, np.float32)) == -127
    assert pcm.dbov(np.full(8, 1e-9, np.float32)) == -127  # a floor, not minus infinity
    with pytest.raises(ValueError, match="int32"):
        pcm.dbov(np.zeros(8, np.int32))  # type: ignore[arg-type]


def test_audible_begins_above_minus_50_dbov() -> None:
    for dbov, audible in ((-49, True), (-51, False)):
        frame = pcm.to_int16(tone(500, 0.02, 8000, amplitude=2**0.5 * 10 ** (dbov / 20)))
        assert pcm.is_audible(frame) is audible
    # Silence of the telephone codecs is not audible, whatever their smallest step.
    for name in ("PCMU", "PCMA"):
        assert not pcm.is_audible(decoder(AudioFormat(name)).decode(AudioFormat(name).silence_frame()))


@pytest.mark.parametrize("sample_rate", [8000, 22050, 24000])
@pytest.mark.parametrize(("before_ms", "after_ms"), [(0, 0), (300, 0), (0, 400), (300, 400)])
def test_trimming_finds_the_audible_part_within_5_ms(sample_rate: int, before_ms: int, after_ms: int) -> None:
    hiss = 0.001 * np.random.default_rng(1).standard_normal(sample_rate * 2).astype(np.float32)  # -60 dBov
    voice = tone(300, 0.5, sample_rate)
    before, after = sample_rate * before_ms // 1000, sample_rate * after_ms // 1000
    clip = np.concatenate((hiss[:before], voice, hiss[:after]))
    start, end = pcm.trim_silence(clip, sample_rate)
    assert start <= before < start + sample_rate * 0.0051 + 1
    assert end - sample_rate * 0.0051 - 1 < before + len(voice) <= end


def test_trimming_silence_leaves_nothing() -> None:
    assert pcm.trim_silence(np.zeros(8000, np.float32), 8000) == (0, 0)
    assert pcm.trim_silence(np.zeros(0, np.float32), 8000) == (0, 0)
    quiet = tone(300, 0.5, 8000, amplitude=0.001)
    assert pcm.trim_silence(quiet, 8000) == (0, 0)
    assert pcm.trim_silence(quiet, 8000, threshold_dbov=-70) == (0, 4000)


def test_a_fade_falls_to_zero_in_5_ms_without_a_jump() -> None:
    voice = tone(400, 0.02, 8000)
    out = pcm.fade_out(voice, 8000)
    assert np.all(np.abs(out) <= np.abs(voice))
    assert not out[40:].any()
    assert out[0] == pytest.approx(voice[0], abs=1e-3)
    # No step is larger than the voice's own steepest one.
    assert np.abs(np.diff(out)).max() <= np.abs(np.diff(voice)).max()
    assert np.array_equal(voice, tone(400, 0.02, 8000))  # the argument is left alone
    assert len(pcm.fade_out(voice[:17], 8000)) == 17


@pytest.mark.parametrize("fmt", [AudioFormat("PCMU"), AudioFormat("PCMA"), AudioFormat("L16", 24000)], ids=str)
def test_a_stateless_frame_is_faded_in_place(fmt: AudioFormat) -> None:
    voice = tone(400, fmt.ptime_ms / 1000, fmt.sample_rate)
    payload = encoder(fmt).encode(pcm.to_int16(voice))
    cut = faded(fmt, payload)
    assert cut is not None
    assert len(cut) == len(payload)
    heard = pcm.to_float32(decoder(fmt).decode(cut))
    edge = fmt.sample_rate * 5 // 1000
    assert np.abs(heard - pcm.fade_out(voice, fmt.sample_rate)).max() < 0.03
    assert pcm.dbov(heard[:edge]) > -20
    assert cut[len(cut) * edge // len(heard) :] == fmt.silence_frame()[len(cut) * edge // len(heard) :]


STATEFUL = [AudioFormat("G722", 16000), AudioFormat("OPUS", 48000), AudioFormat("OPUS", 24000)]


@pytest.mark.parametrize("fmt", STATEFUL, ids=str)
def test_a_frame_with_state_cannot_be_faded_alone(fmt: AudioFormat) -> None:
    assert faded(fmt, fmt.silence_frame()) is None


@pytest.mark.parametrize("ms", [5, 20])
@pytest.mark.parametrize("sent", [17, 24, 31])
@pytest.mark.parametrize("fmt", STATEFUL, ids=str)
def test_a_fade_continues_what_the_far_decoder_has_heard(fmt: AudioFormat, sent: int, ms: int) -> None:
    """The stream's encoder is ahead of the cut, and the far decoder has heard ``sent`` frames of a voice."""
    rate = fmt.sample_rate
    voice = np.sum([tone(130 * k, 0.8, rate, amplitude=0.15 / k) for k in range(1, 16)], axis=0).astype(np.float32)
    coder, far = encoder(fmt), decoder(fmt)
    frames = [coder.encode(part) for part in pcm.to_int16(voice).reshape(-1, fmt.frame_samples)][:sent]
    before = pcm.to_float32(np.concatenate([far.decode(frame) for frame in frames]))[-rate // 10 :]
    tail = faded(fmt, frames[-1], ms, heard=frames[-HEARD_FRAMES:])
    assert tail is not None
    after = pcm.to_float32(far.decode(tail))
    assert len(after) == fmt.frame_samples
    steepest = np.abs(np.diff(before)).max()
    assert abs(after[0] - before[-1]) <= steepest, "no click"
    assert np.abs(np.diff(after)).max() <= 1.2 * steepest and np.abs(after).max() <= 1.6 * np.abs(before).max()
    end = after[-rate * 2 // 1000 :] if ms == 20 else after[rate * 10 // 1000 :]
    assert pcm.dbov(end) < pcm.dbov(before) - (12 if ms == 20 else 25)


def test_fading_half_a_frame_is_an_error() -> None:
    with pytest.raises(ValueError, match="given 100 samples"):
        faded(AudioFormat(), bytes(100))
