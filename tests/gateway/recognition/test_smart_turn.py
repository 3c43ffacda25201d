"""The features of the turn model, against the definition written out plainly. ``tests/peers/recognition`` has the
network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.recognition.smart_turn import SmartTurn, TurnModelError, features


def plain_features(pcm: NDArray[np.float32]) -> NDArray[np.float64]:
    """Frame by frame and band by band: 8 s with silence in front, scaled, 25 ms windows every 10 ms, 80 mel bands."""
    sound = np.concatenate((np.zeros(128000), pcm))[-128000:]
    sound = (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)
    padded = np.pad(sound, 200, mode="reflect")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    power = np.array([np.abs(np.fft.rfft(padded[at : at + 400] * hann)) ** 2 for at in range(0, 128000, 160)])

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    top = 15 + 27 * np.log(8) / np.log(6.4)
    edges = [hertz(mel) for mel in np.linspace(0, top, 82)]
    bands = np.zeros((80, 800))
    for band, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        for index in range(201):
            rise, fall = (index * 40 - low) / (middle - low), (high - index * 40) / (high - middle)
            bands[band] += max(0.0, min(rise, fall)) * 2 / (high - low) * power[:, index]
    logs = np.log10(np.maximum(bands, 1e-10))
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


@pytest.mark.parametrize("samples", [0, 1, 200, 16000, 40123, 127800, 127990, 128000, 150000])
def test_features_are_those_of_the_definition(samples: int) -> None:
    pcm = np.random.default_rng(samples).normal(0.01, 0.1, samples).astype(np.float32)
    assert features(pcm).shape == (80, 800) and features(pcm).dtype == np.float32
    assert features(pcm) == pytest.approx(plain_features(pcm), abs=1e-5)


def test_a_file_that_is_no_network_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"no network")
    for name in ("other.onnx", "missing.onnx"):
        with pytest.raises(TurnModelError, match=rf"{name} cannot be used as Smart Turn v3"):
            SmartTurn(tmp_path / name)
