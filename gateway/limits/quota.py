"""What is limited, and the counts of one process. Pure.

A window is a log of what was taken in its last seconds, so it is exact: at no moment has more been taken within them
than is allowed. A count at once is a set of names, so that one that is told twice counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WINDOW_S = 60.0

What = Literal["key", "requests", "characters", "calls", "streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One quota, and what is wanted of it."""

    tenant: str
    what: What
    limit: int
    amount: int = 1
    """How much of a window is wanted; at most ``limit``."""
    holder: str = ""
    """Who wants one of those at once. Empty: the quota is a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a window stands after it was asked."""

    what: What
    limit: int
    left: int
    reset_s: float
    """Seconds until the oldest of what was taken is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was decided on asks that were made together: all of them are counted, or none."""

    standings: tuple[Standing, ...]
    """Of the windows, in the order of the asks."""
    refused: Ask | None = None
    wait_s: float = 0.0
    """Where one is refused: when to ask again."""


class Window:
    """What was taken within the last ``WINDOW_S`` seconds. ``now`` never goes back."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    def used(self, now: float) -> int:
        """Return how much was taken."""
        while self._taken and self._taken[0][0] <= now - WINDOW_S:
            self._sum -= self._taken.popleft()[1]
        return self._sum

    def take(self, amount: int, now: float) -> None:
        """Count so much more."""
        self._taken.append((now, amount))
        self._sum += amount

    def wait_s(self, excess: int, now: float) -> float:
        """Return the seconds until ``excess`` of what was taken is forgotten."""
        for at, amount in self._taken:
            excess -= amount
            if excess <= 0:
                return at + WINDOW_S - now
        return WINDOW_S

    def standing(self, what: What, limit: int, now: float) -> Standing:
        """Return how the window stands."""
        left = max(0, limit - self.used(now))
        reset_s = self._taken[0][0] + WINDOW_S - now if self._taken else 0.0
        return Standing(what=what, limit=limit, left=left, reset_s=reset_s)


class LocalQuotas:
    """The counts of one process."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, What], Window] = {}
        self._held: dict[tuple[str, What], set[str]] = {}

    def decide(self, asks: Sequence[Ask], now: float) -> Verdict:
        """Count all asks, or none."""
        for ask in asks:
            if ask.holder:
                held = self._held.get((ask.tenant, ask.what), set())
                if ask.holder not in held and len(held) >= ask.limit:
                    return Verdict(standings=self._standings(asks, now), refused=ask, wait_s=1.0)
            else:
                window = self._window(ask)
                excess = window.used(now) + ask.amount - ask.limit
                if excess > 0:
                    wait_s = window.wait_s(excess, now)
                    return Verdict(standings=self._standings(asks, now), refused=ask, wait_s=wait_s)
        self.count(asks, now)
        return Verdict(standings=self._standings(asks, now))

    def count(self, asks: Sequence[Ask], now: float) -> None:
        """Count what was allowed elsewhere."""
        for ask in asks:
            if ask.holder:
                self._held.setdefault((ask.tenant, ask.what), set()).add(ask.holder)
            else:
                self._window(ask).take(ask.amount, now)

    def release(self, ask: Ask) -> None:
        """Forget who holds one of those at once. Nothing happens to who holds none."""
        held = self._held.get((ask.tenant, ask.what))
        if held is not None:
            held.discard(ask.holder)
            if not held:
                del self._held[ask.tenant, ask.what]

    def has_room(self, ask: Ask) -> bool:
        """Whether one more may be held here."""
        return len(self._held.get((ask.tenant, ask.what), ())) < ask.limit

    def _window(self, ask: Ask) -> Window:
        return self._windows.setdefault((ask.tenant, ask.what), Window())

    def _standings(self, asks: Sequence[Ask], now: float) -> tuple[Standing, ...]:
        return tuple(self._window(ask).standing(ask.what, ask.limit, now) for ask in asks if not ask.holder)
