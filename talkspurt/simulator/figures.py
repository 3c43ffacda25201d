"""Turns measurements of the simulated peers into figures: percentiles, and errors against a timetable. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PACED_FRAMES = 20
"""Fewest frames from which a timetable can be computed. Fewer are mostly the opening burst."""

GAP_S = 0.001
"""Shortest gap: time within a turn for which a listener had nothing to play, seconds. In a stream without lead, the
timers of two machines leave shorter holes. A phone's jitter buffer hides longer ones, so the legs of phones have one
(``CarrierPlayout.delay_s``)."""


def summary(values: Sequence[float] | NDArray[Any], digits: int = 2) -> dict[str, float] | None:
    """Return ``p50 p95 p99 max n`` of the values, or None if there are none. Percentiles interpolate linearly."""
    if not len(values):
        return None
    p50, p95, p99, top = np.percentile(values, (50, 95, 99, 100))
    figures = {"p50": p50, "p95": p95, "p99": p99, "max": top}
    return {name: round(float(value), digits) for name, value in figures.items()} | {"n": len(values)}


@dataclass(slots=True)
class Talkspurt:
    """Frames that the caller heard without a break, with their arrival times."""

    dry_samples: int
    """Samples for which the playout buffer had been dry before the talkspurt."""
    arrivals: list[float] = field(default_factory=list)
    """Arrival time of each message, seconds."""
    samples: list[int] = field(default_factory=list)
    """Number of samples in each message."""


def interarrival_errors_ms(spurt: Talkspurt, sample_rate: int) -> NDArray[np.float64]:
    """Return |gap - message length| for each gap between two messages, milliseconds.

    The opening burst (gaps below half a length) is left out, because the server runs ahead on purpose.
    """
    arrivals = np.asarray(spurt.arrivals, np.float64)
    lengths = np.asarray(spurt.samples[:-1]) / sample_rate
    apart: NDArray[np.float64] = np.diff(arrivals)
    paced = np.cumsum(apart >= lengths / 2) > 0
    return np.abs(apart - lengths)[paced] * 1000


def pacing_errors_ms(spurt: Talkspurt, sample_rate: int) -> NDArray[np.float64]:
    """Return |arrival - due| of each message of a talkspurt, milliseconds. A talkspurt that is too short gives no
    values.

    The timetable sends a lead at once and then one frame per frame length. The server chooses the lead, so the lead is
    read from the second half of the talkspurt: the median of how far ahead of real time the messages came.
    """
    if len(spurt.arrivals) < _PACED_FRAMES:
        return np.zeros(0)
    arrivals = np.asarray(spurt.arrivals)
    played_at = (np.cumsum(spurt.samples) - spurt.samples) / sample_rate
    # Messages of the opening burst are due with the first one. All others are due one lead before they are played.
    offset = np.median((arrivals - played_at)[len(arrivals) // 2 :])
    errors: NDArray[np.float64] = np.abs(arrivals - np.maximum(arrivals[0], played_at + offset)) * 1000
    return errors
