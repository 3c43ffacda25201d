"""Telephone speech of the embedded voice, for the recognition tests."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from hibari import Hibari
from numpy.typing import NDArray

from gateway.seams.recogniser import FRAME_BYTES
from voicecodecs.pcm import to_int16
from voicecodecs.resample import Resampler


@cache
def _voice() -> Hibari:
    return Hibari(threads=1)


@cache
def speech(text: str, *, rate: int = 8000) -> NDArray[np.float32]:
    """Return a sentence within the telephone band, from its first sound to its last, in a voice that is not the bot's.

    Played slower, a voice is lower: the resampler is told a rate that the samples do not have. Without a seed, a
    sentence would sound a little different each time.
    """
    pcm = _voice()(text, seed=3).astype(np.float32)
    narrow = _resampled(pcm, 20400, 8000)
    loud = np.flatnonzero(np.abs(narrow) > 0.01)
    return _resampled(narrow[loud[0] : loud[-1]], 8000, rate)


def _resampled(pcm: NDArray[np.float32], rate_in: int, rate_out: int) -> NDArray[np.float32]:
    if rate_in == rate_out:
        return pcm
    resampler = Resampler(rate_in, rate_out)
    return np.concatenate((resampler.process(pcm), resampler.flush()))


def frames(pcm: NDArray[np.float32]) -> list[bytes]:
    """Audio at 16 kHz as it is pushed."""
    data = to_int16(pcm).tobytes()
    return [data[i : i + FRAME_BYTES] for i in range(0, len(data) - FRAME_BYTES + 1, FRAME_BYTES)]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())
