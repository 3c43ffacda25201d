"""Shares and rates with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_Z = 1.959964  # 97.5 % quantile of the normal distribution


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, 1927). Without a trial it is 0 to 1."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = hits / n, _Z * _Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def poisson(events: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the mean of a Poisson count (Garwood, 1936), by bisection."""

    def at_most(k: int, mean: float) -> float:
        return sum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(k + 1))

    def solve(k: int, probability: float) -> float:
        low, high = 1e-9, 10.0 + 4.0 * (k + 1)
        for _ in range(60):
            mean = (low + high) / 2
            low, high = (mean, high) if at_most(k, mean) > probability else (low, mean)
        return (low + high) / 2

    return (solve(events - 1, 0.975) if events else 0.0), solve(events, 0.025)


def rate(events: int, minutes: float) -> str:
    """Return events a minute with their interval, as text."""
    if minutes <= 0:
        return "-"
    low, high = poisson(events)
    return f"{events / minutes:.2f} ({low / minutes:.2f}-{high / minutes:.2f}; {events} in {minutes:.1f} min)"


def share(hits: int, n: int) -> str:
    """Return a share with its interval, as text."""
    if n == 0:
        return "-"
    low, high = wilson(hits, n)
    return f"{hits} of {n} ({100 * low:.0f}-{100 * high:.0f} %)"


def delays(seconds: Sequence[float]) -> str:
    """Return median and 95th percentile in milliseconds, as text."""
    if not seconds:
        return "-"
    p50, p95 = np.percentile(seconds, [50, 95])
    return f"{1000 * p50:.0f} / {1000 * p95:.0f} (n {len(seconds)})"
