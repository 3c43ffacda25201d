"""Quotas, and the counts of one process. Pure.

A window is a log of the amounts taken in its last seconds, so it is exact: the sum never exceeds the limit. A
concurrent count is a set of names, so a name that is reported twice counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WINDOW_S = 60.0

What = Literal["key", "requests", "characters", "calls", "streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRequest:
    """One quota, and the requested amount."""

    tenant: str
    what: What
    limit: int
    amount: int = 1
    """Requested amount of a window; at most ``limit``."""
    holder: str = ""
    """Name of the holder of a concurrent entry. Empty: the quota is a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStanding:
    """The state of a window after a request."""

    what: What
    limit: int
    left: int
    reset_s: float
    """Seconds until the oldest amount is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaVerdict:
    """The decision on asks that were made together: all of them are counted, or none."""

    standings: tuple[QuotaStanding, ...]
    """The windows' states, in the order of the asks."""
    refused: QuotaRequest | None = None
    wait_s: float = 0.0
    """After a refusal: the time until the next try."""


class QuotaWindow:
    """The amounts taken within the last ``WINDOW_S`` seconds. ``now`` never goes back."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    def used(self, now: float) -> int:
        """Return the sum of the amounts."""
        while self._taken and self._taken[0][0] <= now - WINDOW_S:
            self._sum -= self._taken.popleft()[1]
        return self._sum

    def take(self, amount: int, now: float) -> None:
        """Count an amount."""
        self._taken.append((now, amount))
        self._sum += amount

    def wait_s(self, excess: int, now: float) -> float:
        """Return the seconds until ``excess`` of the amounts is forgotten."""
        for at, amount in self._taken:
            excess -= amount
            if excess <= 0:
                return at + WINDOW_S - now
        return WINDOW_S

    def standing(self, what: What, limit: int, now: float) -> QuotaStanding:
        """Return the state of the window."""
        left = max(0, limit - self.used(now))
        reset_s = self._taken[0][0] + WINDOW_S - now if self._taken else 0.0
        return QuotaStanding(what=what, limit=limit, left=left, reset_s=reset_s)


class LocalQuotas:
    """The counts of one process."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, What], QuotaWindow] = {}
        self._held: dict[tuple[str, What], set[str]] = {}

    def decide(self, asks: Sequence[QuotaRequest], now: float) -> QuotaVerdict:
        """Count all asks, or none."""
        for ask in asks:
            if ask.holder:
                held = self._held.get((ask.tenant, ask.what), set())
                if ask.holder not in held and len(held) >= ask.limit:
                    return QuotaVerdict(standings=self._standings(asks, now), refused=ask, wait_s=1.0)
            else:
                window = self._window(ask)
                excess = window.used(now) + ask.amount - ask.limit
                if excess > 0:
                    wait_s = window.wait_s(excess, now)
                    return QuotaVerdict(standings=self._standings(asks, now), refused=ask, wait_s=wait_s)
        self.count(asks, now)
        return QuotaVerdict(standings=self._standings(asks, now))

    def count(self, asks: Sequence[QuotaRequest], now: float) -> None:
        """Count asks that were allowed elsewhere."""
        for ask in asks:
            if ask.holder:
                self._held.setdefault((ask.tenant, ask.what), set()).add(ask.holder)
            else:
                self._window(ask).take(ask.amount, now)

    def release(self, ask: QuotaRequest) -> None:
        """Forget the holder of a concurrent entry, if it holds one."""
        held = self._held.get((ask.tenant, ask.what))
        if held is not None:
            held.discard(ask.holder)
            if not held:
                del self._held[ask.tenant, ask.what]

    def has_room(self, ask: QuotaRequest) -> bool:
        """Return True if one more may be held here."""
        return len(self._held.get((ask.tenant, ask.what), ())) < ask.limit

    def _window(self, ask: QuotaRequest) -> QuotaWindow:
        return self._windows.setdefault((ask.tenant, ask.what), QuotaWindow())

    def _standings(self, asks: Sequence[QuotaRequest], now: float) -> tuple[QuotaStanding, ...]:
        return tuple(self._window(ask).standing(ask.what, ask.limit, now) for ask in asks if not ask.holder)
