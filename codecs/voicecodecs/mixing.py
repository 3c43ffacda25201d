"""Sums and gains of 16-bit samples that saturate, for mixing in real time.

The sum and the gain are those of ``audioop``, which Python had up to 3.12 and ``audioop-lts`` has since. A frame of 20
ms is too short for NumPy, whose calls cost more than the work. Three legs added and clipped, and one gain,
microseconds:

=====  ==========  =============  ==========  =============
Hz     NumPy sum   audioop sum    NumPy gain  audioop gain
=====  ==========  =============  ==========  =============
8000   16          2.4            5.5         2.1
16000  9.7         3.7            10          3.0
48000  13          4.8            8.0         7.7
=====  ==========  =============  ==========  =============

(Best of five runs on a machine that did other work.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import audioop, require
from voicecodecs.resample import Resampler

if TYPE_CHECKING:
    from typing_extensions import Buffer  # NumPy's types say that an array is one from Python 3.12 on

Pcm = NDArray[np.int16]


def mixed(frames: Sequence[Pcm]) -> Pcm:
    """Return the sum of frames of equal length. A sample out of range is clipped, not wrapped.

    Args:
        frames: one or more arrays of int16, shape ``(samples,)``.

    Raises:
        ValueError: there is none, or one has another type or length.
    """
    if not frames:
        raise ValueError("no frames to mix, expected at least one")
    total: Any = frames[0]
    require(total, np.int16)
    for frame in frames[1:]:
        require(frame, np.int16)
        if len(frame) != len(frames[0]):
            raise ValueError(f"frames have {len(frames[0])} and {len(frame)} samples, expected one length")
        total = audioop.add(total, cast("Buffer", frame), 2)
    return np.frombuffer(total, np.int16)


def amplified(pcm: Pcm, factor: float) -> Pcm:
    """Return the samples times ``factor``, clipped to 16 bits. Raises ``ValueError`` for another type or shape."""
    require(pcm, np.int16)
    return pcm if factor == 1.0 else np.frombuffer(audioop.mul(cast("Buffer", pcm), 2, factor), np.int16)


class FrameResampler:
    """One stream of frames of 20 ms to another rate, frame by frame. The resampler's delay (3.6 ms at most) is filled
    with silence at the start. Not thread-safe.

    Args:
        rate_in, rate_out: Hz, multiples of 50.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._resampler = Resampler(rate_in, rate_out)
        self._samples = rate_out // 50
        self._waiting = np.zeros(int(np.ceil(self._resampler.delay_s * rate_out)), np.int16)

    def convert(self, pcm: Pcm) -> Pcm:
        """Return the next 20 ms at the other rate: int16, shape ``(rate_out / 50,)``."""
        if self._resampler.rate_in == self._resampler.rate_out:
            return pcm
        made = np.rint(self._resampler.process(pcm.astype(np.float32)))
        np.clip(made, -32768.0, 32767.0, out=made)
        waiting = np.concatenate((self._waiting, made.astype(np.int16)))
        self._waiting = waiting[self._samples :]
        return waiting[: self._samples]
