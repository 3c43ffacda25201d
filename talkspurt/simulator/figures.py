"""What the simulated peers measure, as numbers: percentiles, and how well a talkspurt kept its timetable. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PACED_FRAMES = 20
"""Fewer frames are mostly the opening burst; no timetable can be read from them."""


def summary(values: Sequence[float] | NDArray[Any], digits: int = 2) -> dict[str, float] | None:
    """``p50 p95 p99 max n`` of the values, None without any. Percentiles interpolate linearly."""
    if not len(values):
        return None
    p50, p95, p99, top = np.percentile(values, (50, 95, 99, 100))
    figures = {"p50": p50, "p95": p95, "p99": p99, "max": top}
    return {name: round(float(value), digits) for name, value in figures.items()} | {"n": len(values)}


@dataclass(slots=True)
class Talkspurt:
    """Frames that the caller heard without a break, as they arrived."""

    dry_samples: int
    """For how long the playout buffer had been dry before it."""
    arrivals: list[float] = field(default_factory=list)
    """When each message came, seconds."""
    samples: list[int] = field(default_factory=list)
    """How much audio each message held."""


def interarrival_errors_ms(spurt: Talkspurt, sample_rate: int) -> NDArray[np.float64]:
    """How far each message came from one message's length after the one before, milliseconds.

    Messages of the opening burst (less than half a length apart) are left out: the lead is on purpose.
    """
    arrivals = np.asarray(spurt.arrivals, np.float64)
    lengths = np.asarray(spurt.samples[:-1]) / sample_rate
    apart: NDArray[np.float64] = np.diff(arrivals)
    paced = np.cumsum(apart >= lengths / 2) > 0
    return np.abs(apart - lengths)[paced] * 1000


def pacing_errors_ms(spurt: Talkspurt, sample_rate: int) -> NDArray[np.float64]:
    """|arrival - due| of each message of a talkspurt, milliseconds; empty for a talkspurt too short to tell.

    The timetable sends a lead at once and then one frame per frame length. The lead is the server's choice, so it
    is read from the second half of the talkspurt, as the median of how far ahead of real time the messages came.
    """
    if len(spurt.arrivals) < _PACED_FRAMES:
        return np.zeros(0)
    arrivals = np.asarray(spurt.arrivals)
    played_at = (np.cumsum(spurt.samples) - spurt.samples) / sample_rate
    # Messages of the opening burst are due with the first one, all others a lead before they are played.
    offset = np.median((arrivals - played_at)[len(arrivals) // 2 :])
    errors: NDArray[np.float64] = np.abs(arrivals - np.maximum(arrivals[0], played_at + offset)) * 1000
    return errors
