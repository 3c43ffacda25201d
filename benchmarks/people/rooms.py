"""Sound on its way to a telephone line: rooms, loudspeakers, the band of the line, levels."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.signal import oaconvolve

Pcm = NDArray[np.float32]
RATE = 8000
_SOUND_M_S = 343.0


def impulse_response(
    t60_s: float, *, room_m: tuple[float, float, float] = (4.2, 3.4, 2.6), distance_m: float = 1.0, seed: int = 0
) -> Pcm:
    """Return the impulse response of a rectangular room at ``RATE``, by the image-source method (Allen and Berkley,
    1979), its direct sound at the first sample and its energy 1.

    Args:
        t60_s: reverberation time; the walls' reflection follows from it by Eyring's formula.
        distance_m: from the source to the microphone.
    """
    rng = np.random.default_rng(seed)
    size = np.array(room_m)
    volume, surface = float(np.prod(size)), 2 * float(size[0] * size[1] + size[1] * size[2] + size[0] * size[2])
    reflection = np.sqrt(np.exp(-0.161 * volume / (surface * t60_s)))  # of pressure; the absorption is 1 - r**2
    source = size * rng.uniform(0.3, 0.45, 3)
    direction = rng.normal(size=3)
    microphone = np.clip(source + distance_m * direction / np.linalg.norm(direction), 0.2, size - 0.2)
    length = round(min(1.2 * t60_s, 0.5) * RATE)
    orders = [int(np.ceil(length / RATE * _SOUND_M_S / (2 * each))) + 1 for each in size]
    grid = np.array(list(itertools.product(*(range(-n, n + 1) for n in orders))))
    response = np.zeros(length + 64, np.float64)
    nearest = float(np.linalg.norm(source - microphone))
    for mirrored in itertools.product((0, 1), repeat=3):
        p = np.array(mirrored)
        images = (1 - 2 * p) * source + 2 * grid * size
        far = np.linalg.norm(images - microphone, axis=1)
        bounces = np.abs(grid - p).sum(axis=1) + np.abs(grid).sum(axis=1)
        at = (far - nearest) / _SOUND_M_S * RATE
        kept = (at >= 0) & (at < length)
        whole = np.floor(at[kept]).astype(int)
        share = at[kept] - whole
        gain = reflection ** bounces[kept] / np.maximum(far[kept], 0.1)
        # Each reflection from another wall's material and angle: a little of its own, so that no two rooms are alike.
        gain = gain * rng.normal(1.0, 0.1, len(gain))
        np.add.at(response, whole, gain * (1 - share))
        np.add.at(response, whole + 1, gain * share)
    scaled: Pcm = (response / np.sqrt(np.square(response).sum())).astype(np.float32)
    return scaled


def in_room(pcm: Pcm, t60_s: float, *, distance_m: float = 1.0, seed: int = 0) -> Pcm:
    """Return a sound as a microphone in a room hears it, at about its level before."""
    return convolve(pcm, impulse_response(t60_s, distance_m=distance_m, seed=seed))


def convolve(pcm: Pcm, response: Pcm) -> Pcm:
    """Return the convolution, by overlap-add: a sound of minutes needs no spectrum of its length."""
    both: Pcm = oaconvolve(pcm, response)
    return both


def telephone_band(pcm: Pcm) -> Pcm:
    """Return a sound within 300 to 3400 Hz, with slopes of an octave's tenth."""
    spectrum = np.fft.rfft(pcm)
    hz = np.fft.rfftfreq(len(pcm), 1 / RATE)
    spectrum *= 1 / (1 + (300 / np.maximum(hz, 1)) ** 8) / (1 + (hz / 3500) ** 40)
    return np.fft.irfft(spectrum, len(pcm)).astype(np.float32)


def active_db(pcm: Pcm) -> float:
    """Return the level of the active speech: the mean power of the 20 ms pieces within 20 dB of the loudest, dBov."""
    pieces = len(pcm) // 160
    if not pieces:
        return -200.0
    power = np.square(pcm[: pieces * 160].reshape(pieces, 160)).mean(axis=1) + 1e-12
    return float(10 * np.log10(power[power > power.max() / 100].mean()))


def at_level(pcm: Pcm, dbov: float) -> Pcm:
    """Return a sound whose active level is ``dbov``."""
    return (pcm * np.float32(10 ** ((dbov - active_db(pcm)) / 20))).astype(np.float32)


def trimmed(pcm: Pcm, below_peak_db: float = 32.0) -> Pcm:
    """Return a sound from its first 10 ms that are near its loudest to its last."""
    pieces = len(pcm) // 80
    power = np.square(pcm[: pieces * 80].reshape(pieces, 80)).mean(axis=1) if pieces else np.zeros(0)
    loud = np.flatnonzero(power > max(power.max(initial=0.0) * 10 ** (-below_peak_db / 10), 1e-7))
    return pcm[loud[0] * 80 : (loud[-1] + 1) * 80] if len(loud) else pcm[:0]
