"""Touch tones inside the audio: making them (ITU-T Q.23) and finding them (ITU-T Q.24).

For legs without telephone events; digits that arrive as RFC 4733 events or websocket messages never pass here.
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
"""Of mu-law (G.711 table 2 note 1), so of amplitude 1 here."""

PAUSE_W_MS = 500
"""A ``w`` among the digits."""


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
    """The sound of a digit string: each digit a tone and a pause, 0.39 s together as a carrier was heard to dial.

    Args:
        digits: of ``0-9 A-D * #``; ``w`` is a pause of 500 ms.
        sample_rate: Hz.
        tone_ms: at least 40 to be understood everywhere (Q.24 table A-1).
        pause_ms: silence after each tone, at least 40 for the same reason.
        level_dbm0: of the low tone.
        twist_db: how much louder the high tone is; lines lose more of it.

    Returns:
        float32, shape ``(samples,)``, [-1, 1].

    Raises:
        ValueError: a character that is no key, or a duration under 40 ms. The character itself is not repeated: digits
            may be a card number.
    """
    if tone_ms < 40 or pause_ms < 40:
        raise ValueError(f"tone_ms is {tone_ms} and pause_ms {pause_ms}, expected at least 40 each (ITU-T Q.24)")
    pieces = [np.zeros(0, np.float32)]
    for at, digit in enumerate(digits):
        if digit == "w":
            pieces.append(np.zeros(round(sample_rate * PAUSE_W_MS / 1000), np.float32))
            continue
        if digit.upper() not in _FREQUENCIES:
            raise ValueError(f"character {at + 1} of {len(digits)} is no key, expected 0-9, A-D, *, # or w")
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
    """Find digits in one stream of audio, chunk by chunk. Not thread-safe.

    The eight frequencies are correlated with windows of 12.75 ms, each half over the one before (what the Goertzel
    algorithm computes, as one matrix product). A window names a digit when, by Q.24 table A-1 with a margin:

    * both tones reach -27 dBm0 (operate: -25),
    * the high tone is at most 5 dB above and 10.5 dB below the low one (operate: +4, -8),
    * no other of the same group is within 5 dB (a low tone 8 dB louder leaks almost so much into the high group),
    * three quarters of all the energy is in the two (speech, which has more, fails here: talk-off),
    * by the turn of phase since the last window, both are within 2.5 % (operate: 1.5 %, refuse: 3.5 %).

    A digit counts once four windows in a row agree, which 40 ms always give and 23 ms never; it is over after four
    windows without it, so a drop-out of 10 ms does not double it and a pause of 40 ms does separate.
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
            ValueError: a rate that cannot carry the tones.
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
        self._held = np.zeros(0, np.float32)
        self._last_hop = np.zeros(8, np.complex64)
        self._last_energy = 0.0
        self._last_window = np.zeros(8, np.complex64)
        self._candidate = ""
        self._seen = 0
        self._digit = ""
        self._missed = 0

    def process(self, pcm: NDArray[np.float32]) -> str:
        """Take the next chunk of any length; return the digits that were recognised in it, mostly none.

        Args:
            pcm: shape ``(samples,)``, float32, [-1, 1].

        Raises:
            ValueError: wrong type or shape.
        """
        require(pcm, np.float32)
        self._held = np.concatenate((self._held, pcm))
        hops = len(self._held) // self._hop
        if not hops:
            return ""
        frames = self._held[: hops * self._hop].reshape(hops, self._hop)
        self._held = self._held[hops * self._hop :]

        hop = np.concatenate((self._last_hop[None], (frames @ self._basis).view(np.complex64)))
        energy = np.concatenate(([self._last_energy], np.einsum("ij,ij->i", frames, frames)))
        window = hop[:-1] + hop[1:] * self._turn
        names = self._names(window, np.concatenate((self._last_window[None], window[:-1])), energy[:-1] + energy[1:])
        self._last_hop, self._last_energy, self._last_window = hop[-1], float(energy[-1]), window[-1]
        return "".join(digit for name in names if (digit := self._settle(name)))

    def _names(
        self, window: NDArray[np.complex64], before: NDArray[np.complex64], energy: NDArray[np.float64]
    ) -> list[str]:
        """The digit each window holds, or ``""``."""
        length = 2 * self._hop
        power = (np.abs(window) * (2 / length)) ** 2  # squared amplitude of each tone
        low, high = power[:, :4].argmax(1), power[:, 4:].argmax(1)
        rows = np.arange(len(power))
        p_low, p_high = power[rows, low], power[rows, high + 4]
        ranked = np.sort(power.reshape(-1, 2, 4), axis=2)
        # Phase that a window gained on its nominal tone, over one hop: the frequency's error, to within 78 Hz.
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
        """The digit that becomes certain with this window, or ``""``."""
        self._seen = self._seen + 1 if name and name == self._candidate else int(bool(name))
        self._candidate = name
        self._missed = 0 if name and name == self._digit else self._missed + 1
        if self._missed >= self._WINDOWS:
            self._digit = ""
        if self._seen == self._WINDOWS and name != self._digit:
            self._digit, self._missed = name, 0
            return name
        return ""
