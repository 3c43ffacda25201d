"""Makes touch tones in audio (ITU-T Q.23) and finds them in audio (ITU-T Q.24).

This is for legs without telephone events. Digits that arrive as RFC 4733 events or WebSocket messages never pass here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import require

LOW_HZ = (697, 770, 852, 941)
HIGH_HZ = (1209, 1336, 1477, 1633)
_KEYS = ("123A", "456B", "789C", "*0#D")
"""Rows by low frequency, columns by high frequency (Q.23 figure 1)."""

_FREQUENCIES = {key: (LOW_HZ[r], HIGH_HZ[c]) for r, row in enumerate(_KEYS) for c, key in enumerate(row)}

_LARGEST_SINE_DBM0 = 3.17
"""Level of the largest sine that mu-law can carry (G.711 table 2 note 1). Its amplitude is 1 here."""

PAUSE_W_MS = 500
"""Length of the pause for a ``w`` among the digits."""


def _amplitude(dbm0: float) -> float:
    return float(10 ** ((dbm0 - _LARGEST_SINE_DBM0) / 20))


def tones(
    digits: str,
    sample_rate: int,
    *,
    tone_ms: float = 250,
    pause_ms: float = 140,
    level_dbm0: float = -9,
    twist_db: float = 2,
) -> NDArray[np.float32]:
    """Return the sound of a digit string. A digit is a tone and a pause, by default 0.39 s together.

    Args:
        digits: characters of ``0-9 A-D * #``; ``w`` is a pause of 500 ms.
        sample_rate: Hz.
        tone_ms: length of a tone; every detector understands 40 and more (Q.24 table A-1).
        pause_ms: silence after each tone, at least 40 for the same reason.
        level_dbm0: level of the low tone.
        twist_db: how much louder the high tone is, because lines attenuate it more.

    Returns:
        float32, shape ``(samples,)``, [-1, 1].

    Raises:
        ValueError: a character stands for no tone, or a duration is under 40 ms. The message does not repeat the
            character, because digits may be a card number.
    """
    if tone_ms < 40 or pause_ms < 40:
        raise ValueError(f"tone_ms is {tone_ms} and pause_ms {pause_ms}, expected at least 40 each (ITU-T Q.24)")
    pieces = [np.zeros(0, np.float32)]
    for at, digit in enumerate(digits):
        if digit == "w":
            pieces.append(np.zeros(round(sample_rate * PAUSE_W_MS / 1000), np.float32))
            continue
        if digit.upper() not in _FREQUENCIES:
            raise ValueError(f"character {at + 1} of {len(digits)} is not a key, expected 0-9, A-D, *, # or w")
        low, high = _FREQUENCIES[digit.upper()]
        t = np.arange(round(sample_rate * tone_ms / 1000)) / sample_rate
        tone = _amplitude(level_dbm0) * np.sin(2 * np.pi * low * t)
        tone += _amplitude(level_dbm0 + twist_db) * np.sin(2 * np.pi * high * t)
        # 2 ms of rise and fall, so that no click reaches the neighbouring frequencies.
        edge = np.sin(np.linspace(0, np.pi / 2, round(sample_rate * 0.002))) ** 2
        tone[: len(edge)] *= edge
        tone[-len(edge) :] *= edge[::-1]
        pieces += [tone.astype(np.float32), np.zeros(round(sample_rate * pause_ms / 1000), np.float32)]
    return np.concatenate(pieces)


class Detector:
    """Finds digits in one stream of audio, chunk by chunk. Not thread-safe.

    The eight frequencies are correlated with windows of 12.75 ms that overlap by half. This is what the Goertzel
    algorithm computes, here as one matrix product. A window names a digit if all of these hold (Q.24 table A-1, with a
    margin):

    * both tones reach -27 dBm0 (operate: -25),
    * the high tone is at most 5 dB above and 10.5 dB below the low one (operate: +4, -8),
    * no other tone of the same group is within 5 dB (a low tone that is 8 dB louder leaks almost that much into the
      high group),
    * the two tones hold three quarters of all the energy (speech has other components and fails here),
    * both frequencies are within 2.5 %, by the turn of phase since the last window (operate: 1.5 %, refuse: 3.5 %).

    A digit counts when four windows in a row agree: a tone of 40 ms always gives four, a tone of 23 ms never does. The
    digit is over after four windows without it. So a drop-out of 10 ms does not count the digit twice, and a pause of
    40 ms separates two digits.
    """

    _HOP_S = 0.006375
    _MIN_DBM0 = -27
    _MAX_TWIST_DB = 5
    _MIN_TWIST_DB = -10.5
    _MIN_LEAD_DB = 5
    _MIN_SHARE = 0.75
    _MAX_OFFSET = 0.025
    _WINDOWS = 4

    def __init__(self, sample_rate: int) -> None:
        """
        Args:
            sample_rate: Hz, 8000 or more.

        Raises:
            ValueError: the rate cannot carry the tones.
        """
        if sample_rate < 8000:
            raise ValueError(f"sample_rate is {sample_rate} Hz, expected at least 8000")
        self._hop = round(self._HOP_S * sample_rate)
        self._hz = np.array(LOW_HZ + HIGH_HZ, np.float64)
        self._hop_s = self._hop / sample_rate
        n = np.arange(self._hop)[:, None]
        # Real and imaginary parts side by side: a product of real matrices.
        self._basis = np.exp(-2j * np.pi * self._hz * n / sample_rate).astype(np.complex64).view(np.float32)
        # A window is two hops; the second one's phases are counted from the window's start.
        self._turn = np.exp(-2j * np.pi * self._hz * self._hop_s).astype(np.complex64)
        self._waiting_pcm = np.zeros(0, np.float32)
        self._last_hop = np.zeros(8, np.complex64)
        self._last_energy = 0.0
        self._last_window = np.zeros(8, np.complex64)
        self._candidate = ""
        self._seen = 0
        self._digit = ""
        self._missed = 0

    def process(self, pcm: NDArray[np.float32]) -> str:
        """Take the next chunk, of any length; return the digits that became certain, usually none.

        Args:
            pcm: shape ``(samples,)``, float32, [-1, 1].

        Raises:
            ValueError: the type or the shape is wrong.
        """
        require(pcm, np.float32)
        self._waiting_pcm = np.concatenate((self._waiting_pcm, pcm))
        hops = len(self._waiting_pcm) // self._hop
        if not hops:
            return ""
        frames = self._waiting_pcm[: hops * self._hop].reshape(hops, self._hop)
        self._waiting_pcm = self._waiting_pcm[hops * self._hop :]

        hop = np.concatenate((self._last_hop[None], (frames @ self._basis).view(np.complex64)))
        energy = np.concatenate(([self._last_energy], np.einsum("ij,ij->i", frames, frames)))
        window = hop[:-1] + hop[1:] * self._turn
        names = self._names(window, np.concatenate((self._last_window[None], window[:-1])), energy[:-1] + energy[1:])
        self._last_hop, self._last_energy, self._last_window = hop[-1], float(energy[-1]), window[-1]
        return "".join(digit for name in names if (digit := self._settle(name)))

    @property
    def sounding(self) -> bool:
        """True if a digit's tone is in the last audio, or was until about 25 ms before its end."""
        return bool(self._digit)

    def _names(
        self, window: NDArray[np.complex64], before: NDArray[np.complex64], energy: NDArray[np.float64]
    ) -> list[str]:
        """Return the digit in each window, or ``""``."""
        length = 2 * self._hop
        power = (np.abs(window) * (2 / length)) ** 2  # squared amplitude of each tone
        low, high = power[:, :4].argmax(1), power[:, 4:].argmax(1)
        rows = np.arange(len(power))
        p_low, p_high = power[rows, low], power[rows, high + 4]
        ranked = np.sort(power.reshape(-1, 2, 4), axis=2)
        # How far a window's phase ran ahead of its nominal tone in one hop. This gives errors of frequency up to 78 Hz.
        gained = np.angle(window * np.conj(before) * self._turn)
        offset = np.abs(gained / (2 * np.pi * self._hop_s) / self._hz)

        def factor(db: float) -> float:
            return float(10 ** (db / 10))

        good = np.minimum(p_low, p_high) > _amplitude(self._MIN_DBM0) ** 2
        good &= (p_high < p_low * factor(self._MAX_TWIST_DB)) & (p_high > p_low * factor(self._MIN_TWIST_DB))
        good &= (ranked[:, :, 3] > ranked[:, :, 2] * factor(self._MIN_LEAD_DB)).all(1)
        good &= (p_low + p_high) * (length / 2) > self._MIN_SHARE * energy
        good &= (offset[rows, low] < self._MAX_OFFSET) & (offset[rows, high + 4] < self._MAX_OFFSET)
        return [_KEYS[r][c] if ok else "" for ok, r, c in zip(good, low, high, strict=True)]

    def _settle(self, name: str) -> str:
        """Return the digit that becomes certain with this window, or ``""``."""
        self._seen = self._seen + 1 if name and name == self._candidate else int(bool(name))
        self._candidate = name
        self._missed = 0 if name and name == self._digit else self._missed + 1
        if self._missed >= self._WINDOWS:
            self._digit = ""
        if self._seen == self._WINDOWS and name != self._digit:
            self._digit, self._missed = name, 0
            return name
        return ""


class WaryDetector(Detector):
    """Finds possible touch tones in order to hide them, including those too weak, short, noisy or off frequency to
    count as pressed. An occasional false alarm in speech costs a syllable."""

    _MIN_DBM0 = -42
    _MAX_TWIST_DB = 9
    _MIN_TWIST_DB = -13
    _MIN_LEAD_DB = 4
    _MIN_SHARE = 0.6
    _MAX_OFFSET = 0.035
    _WINDOWS = 2
