"""Comfort noise: packets and sound."""

import numpy as np
import pytest

from voicecodecs.comfort_noise import noise_frames, read_level_dbov, write_level_dbov
from voicecodecs.registry import AudioFormat, decoder


def test_levels_of_packets() -> None:
    # RFC 3389 figure 1: the level is the low seven bits, in -dBov; a filter may follow.
    assert [read_level_dbov(payload) for payload in (b"\x40", b"\xc0\x10\x20", b"\x7f", b"\x00", b"")] == [
        -64,
        -64,
        -127,
        0,
        -127,
    ]
    assert write_level_dbov(-60) == b"\x3c"
    for level in (1, -128):
        with pytest.raises(ValueError, match=str(level)):
            write_level_dbov(level)


@pytest.mark.parametrize("fmt", [AudioFormat("PCMU"), AudioFormat("PCMA"), AudioFormat("G722", 16000)], ids=str)
@pytest.mark.parametrize("level", [-60, -50, -40])
def test_noise_has_its_level_and_does_not_repeat_at_once(fmt: AudioFormat, level: int) -> None:
    frames = noise_frames(fmt, level)
    assert len(set(frames)) == len(frames) == 10
    decode = decoder(fmt).decode
    pcm = np.concatenate([decode(frame) for frame in frames]).astype(np.float64)
    heard = 20 * np.log10(np.sqrt(np.mean(pcm**2)) / 32767)
    assert heard == pytest.approx(level, abs=3.0)


def test_silence_is_silent() -> None:
    fmt = AudioFormat("PCMU")
    assert set(noise_frames(fmt, -127)) == {fmt.silence_frame()}
