"""The urgency of a clause, as a model's process knows it. The engine's process sends it, and sends it again after each
change."""

from __future__ import annotations

import math
from typing import NamedTuple

from tts_engine.synthesizer import Hearing

_LATER_S = 10.0
"""A listener whose slack is smaller this many seconds later is playing sound."""
_SAME_S = 0.001
"""Two times at which a listener runs out of sound count as equal if they differ by less, seconds."""


class HeardPosition(NamedTuple):
    """A ``Hearing`` at one moment. Both processes have one monotonic clock, the kernel's."""

    ahead: bool
    tentative: bool
    speaks: bool
    head_start_s: float
    still_s: float
    """The slack while no listener plays sound, seconds; else 0."""
    dry_at: float
    """The monotonic second at which the playing listener runs out of sound; -inf if none plays."""

    @staticmethod
    def of(hearing: Hearing, now: float) -> HeardPosition:
        """Return the state of ``hearing`` at monotonic second ``now``."""
        slack_s = hearing.slack_s(now)
        plays = hearing.slack_s(now + _LATER_S) < slack_s
        return HeardPosition(
            hearing.ahead,
            hearing.tentative,
            hearing.speaks,
            hearing.head_start_s,
            0.0 if plays else slack_s,
            now + slack_s if plays else -math.inf,
        )

    def differs(self, other: HeardPosition) -> bool:
        """Return True if a scheduler would see a difference."""
        return self[:5] != other[:5] or (self.dry_at != other.dry_at and abs(self.dry_at - other.dry_at) > _SAME_S)


class RemoteHearing:
    """The ``Hearing`` of listeners in another process. Read in any thread; ``heard`` is only ever replaced."""

    __slots__ = ("heard",)

    def __init__(self, heard: HeardPosition) -> None:
        self.heard = heard

    @property
    def ahead(self) -> bool:
        return self.heard.ahead

    @property
    def tentative(self) -> bool:
        return self.heard.tentative

    @property
    def speaks(self) -> bool:
        return self.heard.speaks

    @property
    def head_start_s(self) -> float:
        return self.heard.head_start_s

    @property
    def state(self) -> object:
        return self.heard

    def slack_s(self, now: float) -> float:
        """See ``Hearing``."""
        heard = self.heard
        return max(heard.still_s, heard.dry_at - now)
