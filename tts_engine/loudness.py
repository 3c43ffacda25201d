"""A gain with a soft limit. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_KNEE = 0.8


def louder(pcm: NDArray[np.float32], db: float) -> NDArray[np.float32]:
    """Apply a gain with a soft limit: linear up to 0.8, and bent above so that 1 is never reached."""
    out = pcm * np.float32(10 ** (db / 20))
    over = np.abs(out) > _KNEE
    if over.any():
        peak = out[over]
        room = 1 - _KNEE
        out[over] = np.sign(peak) * (_KNEE + room * np.tanh((np.abs(peak) - _KNEE) / room))
    return out
