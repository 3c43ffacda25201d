"""Losses are hidden: measured against what should have been there, and against plain silence."""

import numpy as np
import pytest
from numpy.typing import NDArray

from voicecodecs.conceal import Concealer, ConcealingDecoder
from voicecodecs.registry import AudioFormat, decoder, encoder

FORMATS = [AudioFormat("PCMU"), AudioFormat("PCMA"), AudioFormat("G722", 16000), AudioFormat("OPUS", 48000)]


def voice(rate: int, seconds: float = 1.0, pitch_hz: float = 140.0) -> NDArray[np.int16]:
    """A steady vowel: harmonics that fall off."""
    t = np.arange(int(rate * seconds)) / rate
    wave = sum(np.sin(2 * np.pi * pitch_hz * k * t + k) / k for k in range(1, 12))
    return (np.asarray(wave) * 6000).astype(np.int16)


def through(fmt: AudioFormat, lost: set[int], pcm: NDArray[np.int16]) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Return the decoded sound without and with the losses."""
    size = fmt.frame_samples
    encode = encoder(fmt).encode
    payloads = [encode(pcm[at : at + size]) for at in range(0, len(pcm) - size + 1, size)]
    clean, hearing = decoder(fmt), ConcealingDecoder(fmt)
    whole = np.concatenate([clean.decode(payload) for payload in payloads])
    heard = np.concatenate([hearing.decode(b"" if n in lost else payload) for n, payload in enumerate(payloads)])
    return whole, heard


def rms(pcm: NDArray[np.generic]) -> float:
    return float(np.sqrt(np.mean(np.square(pcm.astype(np.float64)))))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.encoding)
def test_a_lost_packet_of_voice_sounds_on(fmt: AudioFormat) -> None:
    whole, heard = through(fmt, {30}, voice(fmt.sample_rate))
    assert len(heard) == len(whole)
    gap = slice(30 * fmt.frame_samples, 31 * fmt.frame_samples)
    # Silence would be an error as large as the voice itself, and a level of nothing.
    assert rms(heard[gap] - whole[gap].astype(np.int32)) < 0.6 * rms(whole[gap])
    assert rms(heard[gap]) > 0.5 * rms(whole[gap])


# Not of G.722: its decoder itself overshoots after a loss, until its predictor has found the wave again.
@pytest.mark.parametrize("fmt", FORMATS[:2], ids=lambda fmt: fmt.encoding)
def test_the_joints_do_not_click(fmt: AudioFormat) -> None:
    whole, heard = through(fmt, {30}, voice(fmt.sample_rate))
    steepest = np.abs(np.diff(whole.astype(np.int32))).max()
    around = heard[30 * fmt.frame_samples - 2 : 31 * fmt.frame_samples + fmt.sample_rate // 100].astype(np.int32)
    assert np.abs(np.diff(around)).max() < 1.5 * steepest


@pytest.mark.parametrize("fmt", FORMATS[:3], ids=lambda fmt: fmt.encoding)
def test_a_long_outage_fades_to_silence_and_keeps_time(fmt: AudioFormat) -> None:
    whole, heard = through(fmt, set(range(20, 40)), voice(fmt.sample_rate))
    frames = heard[: 50 * fmt.frame_samples].reshape(50, -1)
    levels = [rms(frame) for frame in frames[20:40]]
    assert levels[0] > levels[1] > levels[2] > levels[3] == 0.0
    assert not any(levels[3:])
    assert rms(heard[42 * fmt.frame_samples :]) == pytest.approx(rms(whole[42 * fmt.frame_samples :]), rel=0.05)


def glide(seconds: float = 1.0) -> NDArray[np.int16]:
    """A voice that rises at 48 kHz: concealment can only continue as before."""
    t = np.arange(int(48_000 * seconds)) / 48_000
    wave = sum(np.sin(2 * np.pi * k * (120 * t + 80 * t**2)) / k for k in range(1, 12))
    return (np.asarray(wave) * 5000).astype(np.int16)


def test_a_lost_opus_packet_is_taken_from_its_copy_in_the_next_one() -> None:
    fmt = AudioFormat("OPUS", 48_000)
    encode, clean = encoder(fmt).encode, decoder(fmt)
    payloads = [encode(frame) for frame in glide().reshape(-1, 960)]
    whole = np.concatenate([clean.decode(payload) for payload in payloads]).astype(np.float64)

    def error(following: dict[int, bytes]) -> float:
        hearing = ConcealingDecoder(fmt)
        heard = [
            hearing.decode(b"" if n % 5 == 3 else payload, following.get(n, b"")) for n, payload in enumerate(payloads)
        ]
        return rms(np.concatenate(heard) - whole)

    copies = {n: payloads[n + 1] for n in range(3, 49, 5)}
    assert error(copies) < 0.6 * error({})
    assert error(dict.fromkeys(copies, b"\xff\xff\xff")) == error({}), "what cannot be read is no copy"


def test_a_loss_before_anything_was_heard_is_silence() -> None:
    for fmt in FORMATS:
        assert not ConcealingDecoder(fmt).decode(b"").any()


def test_a_loss_is_as_long_as_the_packet_before_it() -> None:
    hearing = ConcealingDecoder(AudioFormat("PCMU"))
    hearing.decode(bytes(240))
    assert len(hearing.decode(b"")) == 240


@pytest.mark.parametrize("pitch_hz", [70, 110, 200, 320])
def test_the_pitch_is_kept(pitch_hz: float) -> None:
    pcm = voice(8000, 0.2, pitch_hz)
    concealer = Concealer(8000)
    concealer.heard(pcm[:-160])
    invented = concealer.conceal(160).astype(np.float64)
    true = pcm[-160:].astype(np.float64)
    assert float(invented @ true) > 0.85 * np.linalg.norm(invented) * np.linalg.norm(true)
