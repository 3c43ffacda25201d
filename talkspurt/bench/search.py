"""Searches the largest number of calls that a gateway carries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

APART = 25
"""Precision of the search, calls."""
MOST_PACING_ERROR_MS = 5.0


def search(first: int, steps: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the calls of the next step: a third more until a step fails, then bisect.

    Args:
        first: the calls of the first step.
        steps: the measured steps so far; the last one is the step that was yielded last.
    """
    most, too_many = 0, None
    calls = first
    while calls > most and calls != too_many:
        yield calls
        if passes(steps[-1]):
            most = calls
        else:
            too_many = calls
        if too_many is None:
            calls = most + max(1, round(most / 3 / APART)) * APART
        else:
            calls = (most + too_many) // 2 // APART * APART


def passes(step: Mapping[str, Any]) -> bool:
    """Return True if a gateway carries the calls of a step: no error, no gap, and 99 of 100 frames within 5 ms of their
    time."""
    pacing = step["pacing_error_ms"]
    return not step["errors"] and not step["gaps"] and pacing is not None and pacing["p99"] <= MOST_PACING_ERROR_MS
