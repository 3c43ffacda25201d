"""Chooses the length of a clause's first chunk (``first_hop: auto``). Pure: it takes loads and times.

A short first chunk is heard sooner, but the second chunk is also due sooner. It needs 7 to 14 more ids from the
language model, and a place in a batch after the first chunks of other clauses. The choice is the shortest first chunk
whose audio lasts until the second is ready. It is made when the ids of the shortest one are there; by then all waiting
clauses of a burst are known.

The time of a second chunk is estimated from recent ones that followed a short first chunk. After a long one, the second
is not urgent, so its time says nothing. The estimate fades, so that short first chunks are tried again after a burst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_FADES_S = 10.0
"""Half-life of a measurement, seconds. A shorter one would try short chunks more often than a steady load bears."""
_MARGIN = 1.25
IN_HAND_S = 0.05
"""Seconds of sound that shall be left when the second chunk comes, since its time is a forecast."""


class FirstChunk:
    """Remembers how long second chunks took, and chooses. Not thread-safe."""

    def __init__(self) -> None:
        self._slowest_s, self._at = 0.0, 0.0

    def followed(self, seconds: float, *, now: float) -> None:
        """Note that a clause's second chunk came so many seconds behind a first one that was not the longest."""
        if seconds > self.slowest_s(now):
            self._slowest_s, self._at = seconds, now

    def slowest_s(self, now: float) -> float:
        """Return what was noted, in seconds: the largest, as far as it has not faded."""
        return self._slowest_s * math.exp2(-max(now - self._at, 0.0) / _FADES_S)

    def choose(self, sounds_s: Sequence[float], *, slack_s: float, wait_s: float, now: float) -> int:
        """Return which of the prepared first chunks to make.

        Args:
            sounds_s: seconds of sound that each of them gives, shortest first.
            slack_s: seconds of sound that the caller has in hand. With enough, no one waits for this chunk.
            wait_s: expected wait for the first chunks that are due, seconds (``Admission.wait_s``).
        """
        longest = len(sounds_s) - 1
        if slack_s > sounds_s[longest]:
            return longest  # fewer chunks are less work
        needed_s = (self.slowest_s(now) + wait_s) * _MARGIN + IN_HAND_S
        return next((place for place, sound_s in enumerate(sounds_s) if slack_s + sound_s >= needed_s), longest)
