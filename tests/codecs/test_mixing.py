"""Sums and gains of samples, and packet lengths that a mixer needs."""

import numpy as np
import pytest

from voicecodecs import opus
from voicecodecs.mixing import FrameResampler, amplified, mixed


def samples(*values: int) -> np.ndarray:
    return np.array(values, np.int16)


def test_a_sum_is_exact_and_clipped() -> None:
    one, other, third = samples(1, -1, 32767, -32768, 20000), samples(2, -3, 1, -1, 20000), samples(0, 0, 0, 0, -20000)
    assert mixed([one, other]).tolist() == [3, -4, 32767, -32768, 32767]
    assert mixed([one]).tolist() == one.tolist()
    assert mixed([one, one]).tolist() == [2, -2, 32767, -32768, 32767]
    assert mixed([third, one, other]).tolist() == [3, -4, 32767, -32768, 20000]


def test_a_gain_is_clipped() -> None:
    assert amplified(samples(100, -100, 20000, -20000), 2.0).tolist() == [200, -200, 32767, -32768]
    assert amplified(samples(100, -100), 0.5).tolist() == [50, -50]


@pytest.mark.parametrize("frames", [[], [samples(1), samples(1, 2)], [np.zeros(2, np.float32)]])
def test_frames_that_do_not_fit_are_refused(frames: list) -> None:
    with pytest.raises(ValueError):
        mixed(frames)


@pytest.mark.parametrize("rate_in", [8000, 16000, 24000, 48000])
@pytest.mark.parametrize("rate_out", [8000, 16000, 24000, 48000])
def test_every_frame_becomes_one_frame(rate_in: int, rate_out: int) -> None:
    resampler = FrameResampler(rate_in, rate_out)
    at = np.arange(rate_in) / rate_in
    wave = (np.sin(2 * np.pi * 440 * at) * 8000).astype(np.int16)
    frames = [resampler.convert(frame) for frame in wave.reshape(50, -1)]
    assert {len(frame) for frame in frames} == {rate_out // 50}
    made = np.concatenate(frames)[rate_out // 10 :].astype(float)
    assert np.sqrt((made**2).mean()) == pytest.approx(8000 / np.sqrt(2), rel=0.01)


@pytest.mark.parametrize("ms", opus.FRAME_MS)
@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_the_length_of_an_opus_packet_is_read_from_it(ms: int, rate: int) -> None:
    packet = opus.Encoder(rate).encode(np.zeros(rate * ms // 1000, np.int16))
    assert opus.packet_s(packet) == pytest.approx(ms / 1000)
    assert len(opus.Decoder(48000).decode(packet)) == 48 * ms


def test_packets_of_several_frames_and_broken_ones_have_a_length() -> None:
    # RFC 6716 section 3.2: two frames of equal size (code 1), and a count of frames (code 3).
    assert opus.packet_s(bytes([31 << 3 | 1, 0, 0])) == pytest.approx(0.04)
    assert opus.packet_s(bytes([16 << 3 | 3, 6, 0])) == pytest.approx(0.015)
    assert opus.packet_s(bytes([12 << 3 | 3])) == 0.0
    assert opus.packet_s(b"") == 0.0
