"""Sounds for a leg that waits: the ringing of the other one, the route's clip, touch tones, a background."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

RINGBACK_HZ = 8000

_RINGBACK_TONES_HZ = (440.0, 480.0)
_RINGBACK_ON_S, _RINGBACK_OFF_S = 2.0, 4.0
_RINGBACK_LEVEL_DB = -24.0


class ClipSamples(Protocol):
    """Decodes clips."""

    async def samples(self, source: str, *, route: str = "", call_id: str = "") -> tuple[NDArray[np.int16], int]:
        """Return a clip's samples and their rate, Hz. Raises ``ClipError``."""
        ...


def ringback() -> NDArray[np.int16]:
    """Return one period of the ringback tone of ITU-T E.180 for North America, at ``RINGBACK_HZ``: int16."""
    at = np.arange(round(_RINGBACK_ON_S * RINGBACK_HZ)) / RINGBACK_HZ
    wave = np.zeros(round((_RINGBACK_ON_S + _RINGBACK_OFF_S) * RINGBACK_HZ))
    for hz in _RINGBACK_TONES_HZ:
        wave[: len(at)] += np.sin(2 * np.pi * hz * at)
    return (wave * 10 ** (_RINGBACK_LEVEL_DB / 20) * 32767).astype(np.int16)
