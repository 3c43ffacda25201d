"""The recent wait of new utterances, by which engines are compared and scaled. Pure: time is an argument."""

from __future__ import annotations

import math

_FADES_S = 5.0
"""Seconds after which a wait fades to a third if no other follows: an engine without requests has no queue."""
_WEIGHT = 0.3
"""Share of one wait in the mean."""


class RecentWait:
    """A mean of the latest waits that fades while none come."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._at = 0.0

    def note(self, wait_s: float, *, now: float) -> None:
        """Take the wait of an utterance for its first sound, seconds; ``now``: monotonic seconds."""
        mean_s = self.seconds(now)
        self._mean_s = mean_s + _WEIGHT * (wait_s - mean_s)
        self._at = now

    def seconds(self, now: float) -> float:
        """Return the mean, seconds."""
        return self._mean_s * math.exp(-max(0.0, now - self._at) / _FADES_S)
