"""Overload detection from the lateness of the event loop: whether one more call would degrade the others. Pure."""

from __future__ import annotations

from collections import deque

from gateway.histogram import Histogram

LOOK_S = 1.0
"""Interval of calls of ``look``, seconds."""

_WINDOW_LOOKS = 5
_LATE_SHARE = 0.01
_LEAST_TICKS = 200
"""Fewest ticks of a window for which a share of one percent is meaningful. One call has 50 ticks a second."""


class Overload:
    """Overload detector over the ticks of the last five seconds. Overload begins when the 99th percentile of their
    lateness exceeds the limit. It ends when the percentile is below the next smaller bound of the histogram; this
    hysteresis avoids a change every second.

    Args:
        lateness: how late the event loop came to ticks, counted by the ticker.
        limit_s: one of the bounds of ``lateness`` except the first; 0 disables the detection.
    """

    def __init__(self, lateness: Histogram, *, limit_s: float) -> None:
        self._lateness = lateness
        self._limit = lateness.bounds.index(limit_s) if limit_s else None
        self._snapshots: deque[list[int]] = deque([list(lateness.counts)], maxlen=_WINDOW_LOOKS + 1)
        self.too_much = False

    def look(self) -> bool:
        """Take the ticks since the last call. Return True if the process is overloaded."""
        if self._limit is None:
            return False
        self._snapshots.append(list(self._lateness.counts))
        ticks = [now - then for now, then in zip(self._snapshots[-1], self._snapshots[0], strict=True)]
        bound = self._limit - 1 if self.too_much else self._limit
        late = sum(ticks[bound + 1 :])
        enough = self.too_much or sum(ticks) >= _LEAST_TICKS
        self.too_much = enough and late > _LATE_SHARE * sum(ticks)
        return self.too_much
