"""A tone in what was heard: how much of it there is, and its frequency. Where silence lies between does not matter.

A machine that does much else delivers sound late, and the listener then hears a pause. A lost or repeated piece, a
wrong rate and a wrong byte order are seen all the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PIECE_S = 0.01
_PIECES = 5
"""Pieces in a row of which a frequency is measured."""


def tone(pcm: NDArray[np.float32], rate: int) -> tuple[float, float]:
    """For how long anything sounds in audio of full scale 1, in steps of 10 ms, and at which frequency.

    Args:
        rate: Hz.

    Returns:
        Seconds, and the median of the loudest frequencies of every 50 ms that sound throughout, Hz.
    """
    piece = round(rate * _PIECE_S)
    row = piece * _PIECES
    rows = pcm[: len(pcm) // row * row].reshape(-1, row)
    loud = np.abs(rows.reshape(-1, _PIECES, piece)).max(axis=2) > 0.05
    spectra = np.abs(np.fft.rfft(rows[loud.all(axis=1)] * np.hanning(row), rate))  # padded: a bin is 1 Hz
    return float(loud.sum()) * _PIECE_S, float(np.median(spectra.argmax(axis=1)))
