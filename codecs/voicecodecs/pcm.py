"""Linear PCM: float32 and int16, level, gain, the audible part, fades. Functions on whole arrays, mono throughout.

Levels are dBov: RMS relative to a full-scale square wave (ITU-T G.100.1, RFC 6464 section 3), so a full-scale sine
is -3.01 dBov and digital silence is reported as -127.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.11 and 3.12 announce that the module leaves
    import audioop as audioop  # `audioop-lts` from Python 3.13 on

SILENCE_DBOV = -127.0
"""Level of digital silence, and the floor of every level here (RFC 6464 section 3)."""

AUDIBLE_DBOV = -50.0
"""Louder audio than this is audible on a telephone. First-packet times end at the first such frame."""

_WINDOW_MS = 5


def require(pcm: NDArray[Any], dtype: DTypeLike) -> None:
    """Check that ``pcm`` is a one-dimensional array of ``dtype`` in the machine's byte order.

    Raises:
        ValueError: it is not; the message says what arrived.
    """
    if not isinstance(pcm, np.ndarray):
        raise ValueError(f"pcm is {type(pcm).__name__}, expected a one-dimensional {np.dtype(dtype)} array")
    if pcm.ndim != 1 or pcm.dtype != dtype:
        raise ValueError(f"pcm is {pcm.dtype} of shape {pcm.shape}, expected one-dimensional {np.dtype(dtype)}")


def to_int16(pcm: NDArray[np.float32]) -> NDArray[np.int16]:
    """Round samples in [-1, 1] to int16. Samples outside are clipped, never wrapped.

    Args:
        pcm: shape ``(samples,)``, float32.

    Raises:
        ValueError: wrong shape or type, or a sample that is not finite.
    """
    require(pcm, np.float32)
    # One dot product shows whether all samples are finite: NaN and infinity propagate, and audio cannot overflow it.
    if not math.isfinite(float(pcm @ pcm)):
        raise ValueError(f"pcm of {len(pcm)} samples has NaN or infinite values")
    scaled = pcm * np.float32(32768.0)
    np.rint(scaled, out=scaled)
    np.clip(scaled, -32768.0, 32767.0, out=scaled)
    return scaled.astype(np.int16)


def to_float32(pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    """Convert int16 to float32 in [-1, 1). ``to_int16(to_float32(x))`` equals ``x``."""
    require(pcm, np.int16)
    return pcm * np.float32(1 / 32768)


def gain_db(pcm: NDArray[np.float32], db: float) -> NDArray[np.float32]:
    """Scale by ``db`` decibels (positive is louder). The result is not clipped; :func:`to_int16` does that."""
    require(pcm, np.float32)
    return pcm * np.float32(10 ** (db / 20))


def dbov(pcm: NDArray[np.float32] | NDArray[np.int16]) -> float:
    """Return the RMS level in dBov, at least -127.

    Args:
        pcm: shape ``(samples,)``; int16, or float32 with full scale 1. An empty array counts as silence.

    Raises:
        ValueError: the array has another type or shape.
    """
    if isinstance(pcm, np.ndarray) and pcm.dtype == np.int16:
        pcm = to_float32(pcm)  # type: ignore[arg-type]  # mypy does not narrow a union of arrays by dtype
    require(pcm, np.float32)
    energy = float(pcm @ pcm) / len(pcm) if len(pcm) else 0.0
    return max(SILENCE_DBOV, 10 * math.log10(energy)) if energy > 0 else SILENCE_DBOV


def is_audible(pcm: NDArray[np.int16]) -> bool:
    """Return True if the RMS level over the whole of ``pcm`` (a frame, for example) is above -50 dBov."""
    return dbov(pcm) > AUDIBLE_DBOV


def trim_silence(
    pcm: NDArray[np.float32], sample_rate: int, *, threshold_dbov: float = AUDIBLE_DBOV
) -> tuple[int, int]:
    """Find the start and end of the audible part.

    Args:
        pcm: shape ``(samples,)``, float32.
        sample_rate: Hz.
        threshold_dbov: a window of 5 ms that is louder than this is audible.

    Returns:
        ``(start, end)`` in samples, multiples of 5 ms (``end`` at most ``len(pcm)``); ``(0, 0)`` if all is silence.
    """
    require(pcm, np.float32)
    window = max(1, sample_rate * _WINDOW_MS // 1000)
    energy = np.add.reduceat(pcm * pcm, np.arange(0, len(pcm), window)) if len(pcm) else np.zeros(0, np.float32)
    # If the last window is not full, it is measured as if silence followed.
    loud = np.flatnonzero(energy > window * 10 ** (threshold_dbov / 10))
    if not len(loud):
        return 0, 0
    return int(loud[0]) * window, min(len(pcm), (int(loud[-1]) + 1) * window)


def fade_out(pcm: NDArray[np.float32], sample_rate: int, ms: float = 5) -> NDArray[np.float32]:
    """Return a copy whose first ``ms`` milliseconds fall to zero along a half cosine, followed by silence.

    This is for a cut within speech: a waveform that just stops is heard as a click, a fade of 5 ms is not.
    """
    require(pcm, np.float32)
    length = round(sample_rate * ms / 1000)
    ramp = 0.5 + 0.5 * np.cos(np.pi * (np.arange(length) + 1) / (length + 1), dtype=np.float64)
    faded = np.zeros_like(pcm)
    head = faded[:length]
    head[:] = pcm[:length] * ramp[: len(head)]
    return faded
