"""Finds sound that was heard before in the same call: an announcement that is played again. Pure.

Only the loudness over time is compared, in steps of 20 ms: a recording has the same pauses and stresses each time, and
no person repeats them. So the voice, the language and the noise of the line do not matter.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

HOP_S = 0.02
LOOK_S = 3.0
"""Length of the latest sound that is searched, seconds. A shorter announcement is not recognised."""
REMEMBERED_S = 90.0
"""Sound that is remembered, seconds. Queues repeat their announcement after 20 to 60 s."""

_LOOK = round(LOOK_S / HOP_S)
_REMEMBERED = round(REMEMBERED_S / HOP_S)
_APART = round(1.0 / HOP_S)  # between the two sounds at least
_FLOOR_DB = -55.0
_LOUD_DB = -40.0
_LEAST_LOUD = 0.5  # share of loud steps; a pause is like any other
_LEAST_SPREAD_DB = 5.0  # standard deviation; even sound is like any other
_ALIKE = 0.93  # least correlation. Different sentences of one speaker reach 0.91, the same sound 0.95 and more


class Repeats:
    """The loudness of one stream. Not thread-safe. It holds 36 kB."""

    def __init__(self) -> None:
        self._level_db = np.full(_REMEMBERED, _FLOOR_DB)
        self._count = 0

    def take(self, energy: float) -> None:
        """Take the mean square of the next 20 ms."""
        self._level_db[self._count % _REMEMBERED] = max(_FLOOR_DB, 10 * math.log10(energy + 1e-9))
        self._count += 1

    def likeness(self) -> float:
        """Return the highest correlation of the latest sound with an earlier one, -1 to 1. 0: there is too little sound
        to tell."""
        known = min(self._count, _REMEMBERED)
        if known < 2 * _LOOK + _APART:
            return 0.0
        levels = np.roll(self._level_db, -(self._count % _REMEMBERED))[_REMEMBERED - known :]
        latest, earlier = levels[-_LOOK:], levels[: -_LOOK - _APART]
        if float((latest > _LOUD_DB).mean()) < _LEAST_LOUD or float(latest.std()) < _LEAST_SPREAD_DB:
            return 0.0
        return float(_correlation(latest - latest.mean(), earlier).max())

    @property
    def heard_again(self) -> bool:
        """True if the latest sound was heard before."""
        return self.likeness() > _ALIKE


def _correlation(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation coefficient of a part without mean with each place of the whole."""
    size = 1 << (len(whole) - 1).bit_length()
    places = len(whole) - len(part) + 1
    product = np.fft.irfft(np.fft.rfft(whole, size) * np.conj(np.fft.rfft(part, size)), size)[:places]
    sums, squares = (np.concatenate(([0.0], np.cumsum(each))) for each in (whole, np.square(whole)))
    mean = (sums[len(part) :] - sums[: -len(part)]) / len(part)
    variance = (squares[len(part) :] - squares[: -len(part)]) - len(part) * np.square(mean)
    found: NDArray[np.float64] = product / np.sqrt(np.maximum(variance, 1.0) * float(np.square(part).sum()))
    return found
