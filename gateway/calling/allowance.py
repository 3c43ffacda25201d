"""How many calls one key or one route may place. Pure."""

from __future__ import annotations

from gateway.errors import Rejected
from gateway.listener.source_limit import SourceLimit


class Allowance:
    """Calls a minute and calls at once.

    Args:
        per_minute: a bucket of this many calls, which fills again within a minute.
        at_once: most calls that may be going on.
        whose: who has this allowance, for error messages.
    """

    def __init__(self, *, per_minute: int, at_once: int, whose: str) -> None:
        self._per_minute = per_minute
        self._bucket = SourceLimit(per_s=per_minute / 60, burst=per_minute, sources=1)
        self._at_once = at_once
        self._whose = whose
        self._live = 0
        self._placed = 0
        self._elsewhere = (0, 0)

    @property
    def tally(self) -> tuple[int, int]:
        """The calls that go on now, and all that were counted: what other processes with the same allowance add."""
        return self._live, self._placed

    def begin(self, elsewhere: tuple[int, int]) -> None:
        """Take what other processes had counted before this allowance was here: of calls that go on, nothing of this
        minute's."""
        self._elsewhere = elsewhere

    def add(self, elsewhere: tuple[int, int], *, now: float) -> None:
        """Count what other processes have counted, too.

        Args:
            elsewhere: the sum of their tallies. It falls when one of them ends.
        """
        for _ in range(min(elsewhere[1] - self._elsewhere[1], self._per_minute)):
            self._bucket.take("", now=now)
        self._elsewhere = elsewhere

    def check_rate(self, now: float) -> None:
        """Check that one more call may begin now; nothing is counted.

        Raises:
            Rejected: 429, with the seconds until one may.
        """
        if self._bucket.empty("", now=now):
            raise Rejected(
                f"{self._whose} may call {self._per_minute} times a minute",
                status=429, code="rate_limited", retry_after_s=self._bucket.wait_s("", now=now),
            )  # fmt: skip

    def count(self, now: float) -> None:
        """Count one more call of this minute."""
        self._bucket.take("", now=now)
        self._placed += 1

    def check_room(self) -> None:
        """Check that one more call may go on; nothing is counted.

        Raises:
            Rejected: 429, there are too many.
        """
        if self._live + self._elsewhere[0] >= self._at_once:
            raise Rejected(
                f"{self._at_once} calls at a time are allowed to {self._whose}",
                status=429, code="too_many_calls", retry_after_s=1,
            )  # fmt: skip

    def enter(self) -> None:
        """Count a call that goes on until ``leave``."""
        self._live += 1

    def leave(self) -> None:
        """A call that was counted is over."""
        self._live -= 1
