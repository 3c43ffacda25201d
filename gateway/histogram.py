"""A histogram for values that come with every frame: an observation takes 0.2 us, one of prometheus_client takes 2."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

PACING_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0)


class Histogram:
    """Counts values per bucket. ``bounds`` are the upper bounds of the buckets in seconds; the last bucket has +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = PACING_BUCKETS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value, in seconds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus buckets: each upper bound as text, and the number of observations at or below it."""
        running = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows
