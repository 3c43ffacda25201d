"""Lets clauses whose callers have enough sound in hand leave the device to those who have heard nothing yet.

In a rush somebody always waits for a first sound. Then each clause goes on when its own sound runs short, by itself,
and the device is busy all the time with few clauses. A step of the language model takes as long for many as for one,
and a batch of token-to-wave hardly longer. So those that give way may go on together as soon as they fill one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_LOOK_S = 0.05
"""Time between two looks, since both reasons to wait change with time or in another thread."""


class GivingWay:
    """The clauses of one engine that wait. For one event loop.

    Args:
        somebody_waits: whether there is a clause without any sound so far.
        together: so many go on together. 0: each by itself.
    """

    def __init__(
        self, somebody_waits: Callable[[], bool], *, together: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._somebody_waits, self._together, self._now = somebody_waits, together, clock
        self._waiting: set[asyncio.Future[bool]] = set()
        """True settles one whose clause goes on with others, False one that looks again."""

    async def wait(self, spare_s: Callable[[float], float]) -> None:
        """Wait while somebody waits for a first sound, this caller has sound to spare, and too few wait here.

        Args:
            spare_s: returns the seconds of sound that this caller can spare at a second of the clock.
        """
        loop = asyncio.get_running_loop()
        while self._somebody_waits() and (spare := spare_s(self._now())) > 0:
            if 0 < self._together <= len(self._waiting) + 1:
                for other in self._waiting:
                    _settle(other, True)
                self._waiting.clear()
                return
            called: asyncio.Future[bool] = loop.create_future()
            timer = loop.call_later(min(spare, _LOOK_S), _settle, called, False)  # as cheap as a sleep
            self._waiting.add(called)
            try:
                if await called:
                    return
            finally:
                timer.cancel()
                self._waiting.discard(called)


def _settle(called: asyncio.Future[bool], goes_on: bool) -> None:
    if not called.done():
        called.set_result(goes_on)
