"""Limits on the calls that one key or one route may place. Pure."""

from __future__ import annotations

from gateway.errors import Rejected
from gateway.listener.source_limit import SourceLimit


class CountedAllowance:
    """Limit on calls a minute and on calls at a time.

    Args:
        per_minute: size of a bucket that refills within a minute.
        at_once: most calls at a time.
        whose: owner of this allowance, for error messages.
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
        """Live calls and all calls counted here; other processes with the same allowance add both."""
        return self._live, self._placed

    def begin(self, elsewhere: tuple[int, int]) -> None:
        """Set the tallies of other processes when this allowance starts: their live calls count, their calls of this
        minute do not."""
        self._elsewhere = elsewhere

    def add(self, elsewhere: tuple[int, int], *, now: float) -> None:
        """Add what other processes have counted.

        Args:
            elsewhere: the sum of their tallies. It falls when one of them ends.
        """
        for _ in range(min(elsewhere[1] - self._elsewhere[1], self._per_minute)):
            self._bucket.take("", now=now)
        self._elsewhere = elsewhere

    def check_rate(self, now: float) -> None:
        """Check that one more call may begin now; nothing is counted.

        Raises:
            Rejected: 429, with the seconds until a call may begin.
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
        """Check that one more call may be live; nothing is counted.

        Raises:
            Rejected: 429 if too many calls are live.
        """
        if self._live + self._elsewhere[0] >= self._at_once:
            raise Rejected(
                f"{self._whose} may have {self._at_once} calls at a time",
                status=429, code="too_many_calls", retry_after_s=1,
            )  # fmt: skip

    def enter(self) -> None:
        """Count a live call until ``leave``."""
        self._live += 1

    def leave(self) -> None:
        """A counted call has ended."""
        self._live -= 1
