"""Decides by the lateness of ticks whether one more call would cost the others their quality. Pure."""

from __future__ import annotations

from collections import deque

from gateway.histogram import Histogram

LOOK_S = 1.0
"""How often ``look`` is called."""

_LOOKS = 5
_LATE_SHARE = 0.01
_LEAST_TICKS = 200
"""Ticks of a window with which a hundredth means something. One call has 50 a second."""


class Overload:
    """Looks at the ticks of the last five seconds. There is too much to do when the 99th percentile of their lateness
    is over the limit, and no longer when it is below the next smaller bound of the histogram: new calls do not come and
    go with each second.

    Args:
        lateness: of ticks, counted by the ticker.
        limit_s: one of the bounds of ``lateness``, but the first; 0: there is never too much.
    """

    def __init__(self, lateness: Histogram, *, limit_s: float) -> None:
        self._lateness = lateness
        self._limit = lateness.bounds.index(limit_s) if limit_s else None
        self._seen: deque[list[int]] = deque([list(lateness.counts)], maxlen=_LOOKS + 1)
        self.too_much = False

    def look(self) -> bool:
        """Take the ticks since the last look. Return whether there is too much to do."""
        if self._limit is None:
            return False
        self._seen.append(list(self._lateness.counts))
        ticks = [now - then for now, then in zip(self._seen[-1], self._seen[0], strict=True)]
        bound = self._limit - 1 if self.too_much else self._limit
        late = sum(ticks[bound + 1 :])
        enough = self.too_much or sum(ticks) >= _LEAST_TICKS
        self.too_much = enough and late > _LATE_SHARE * sum(ticks)
        return self.too_much
