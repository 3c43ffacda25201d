"""An event loop timer for pure code with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timed(Protocol):
    """Code that takes the time as an argument."""

    def deadline(self) -> float | None:
        """Return the time of the next ``on_timer``, monotonic seconds. None: not before another event."""
        ...

    def on_timer(self, now: float) -> None: ...


class DeadlineTimer:
    """Calls ``on_timer`` at the deadline. Call ``arm`` after everything that may make the deadline earlier.

    If the deadline has become later, ``on_timer`` is called once too early. This avoids cancelling and setting a timer
    for every packet.

    Args:
        clock: returns seconds on the clock of the deadlines.
    """

    def __init__(self, timed: Timed, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timed = timed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._closed = False

    def arm(self) -> None:
        """Read the deadline again."""
        due = self._timed.deadline()
        if due is None or self._closed or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(max(0.0, due - self._clock()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        # uvloop's timers have steps of 1 ms and may fire half a step early. The due time then counts as now.
        self._timed.on_timer(max(self._clock(), self._due))
        self.arm()

    def close(self) -> None:
        """Stop; ``on_timer`` is not called any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
