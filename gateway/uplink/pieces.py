"""Cutting of audio into the 20 ms pieces for subscribers and the recogniser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import to_int16
from voicecodecs.resample import Resampler

Pcm = NDArray[np.float32]
"""Samples of one side, shape ``(samples,)``; full scale is 1."""


def at_rate(rate_in: int, rate_out: int) -> Callable[[Pcm], Pcm]:
    """Return a function that resamples one stream from ``rate_in`` to ``rate_out`` Hz."""
    return Resampler(rate_in, rate_out).process if rate_in != rate_out else lambda pcm: pcm


class Pieces:
    """Resamples one stream of audio from ``rate_in`` to ``rate_out`` Hz and cuts it."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._resample = at_rate(rate_in, rate_out)
        self._rest: Pcm = np.zeros(0, np.float32)
        self._size = rate_out // 50

    def cut(self, pcm: Pcm) -> Iterator[bytes]:
        """Take the next audio. Yield complete pieces, s16le."""
        self._rest = np.concatenate((self._rest, self._resample(pcm)))
        while len(self._rest) >= self._size:
            piece = to_int16(self._rest[: self._size]).tobytes()
            self._rest = self._rest[self._size :]
            yield piece
