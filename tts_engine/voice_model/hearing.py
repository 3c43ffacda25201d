"""What a model's process knows of those who hear a clause: the engine's process says it, and says it anew when it has
changed."""

from __future__ import annotations

import math
from typing import NamedTuple

from tts_engine.synthesizer import Hearing

_LATER_S = 10.0
"""A listener whose slack is less so many seconds later is one who plays sound."""
_SAME_S = 0.001
"""Two times at which a listener has no more sound are one if they differ by less."""


class Heard(NamedTuple):
    """A ``Hearing`` at one moment. Both processes have one monotonic clock, the kernel's."""

    ahead: bool
    tentative: bool
    speaks: bool
    head_start_s: float
    still_s: float
    """The slack while nobody plays sound, seconds; else 0."""
    dry_at: float
    """The monotonic second at which who plays sound has none left; -inf while nobody plays any."""

    @staticmethod
    def of(hearing: Hearing, now: float) -> Heard:
        """Return what there is to know at monotonic second ``now``."""
        slack_s = hearing.slack_s(now)
        plays = hearing.slack_s(now + _LATER_S) < slack_s
        return Heard(
            hearing.ahead,
            hearing.tentative,
            hearing.speaks,
            hearing.head_start_s,
            0.0 if plays else slack_s,
            now + slack_s if plays else -math.inf,
        )

    def differs(self, other: Heard) -> bool:
        """Return whether a scheduler would see a difference."""
        return self[:5] != other[:5] or (self.dry_at != other.dry_at and abs(self.dry_at - other.dry_at) > _SAME_S)


class RemoteHearing:
    """The ``Hearing`` of listeners in another process. Read in any thread; ``heard`` is only ever replaced."""

    __slots__ = ("heard",)

    def __init__(self, heard: Heard) -> None:
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
