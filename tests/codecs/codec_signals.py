"""Signals with a known content, and how to find it again."""

import numpy as np
from numpy.typing import NDArray


def tone(hz: float, seconds: float, sample_rate: int, *, amplitude: float = 0.5) -> NDArray[np.float32]:
    t = np.arange(round(seconds * sample_rate)) / sample_rate
    return (amplitude * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def peak_hz(pcm: NDArray[np.generic], sample_rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(np.asarray(pcm, np.float64) * np.hanning(len(pcm))))
    return float(spectrum.argmax() * sample_rate / len(pcm))


def amplitude_at(pcm: NDArray[np.generic], hz: float, sample_rate: int) -> float:
    """Amplitude of the sine of that frequency, by correlation under a window with side lobes below -90 dB."""
    n = np.arange(len(pcm))
    window = np.kaiser(len(pcm), 14)
    turned = np.asarray(pcm, np.float64) * window * np.exp(-2j * np.pi * hz * n / sample_rate)
    return float(2 * abs(turned.sum()) / window.sum())


def snr_db(reference: NDArray[np.generic], heard: NDArray[np.generic]) -> float:
    signal = reference.astype(np.float64)
    noise = signal - heard.astype(np.float64)
    return float(10 * np.log10(np.sum(signal**2) / max(np.sum(noise**2), 1e-9)))
