"""Makes clauses with enough unplayed audio leave the device to clauses whose callers have heard nothing yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_LOOK_S = 0.05
"""Time between two looks, seconds. Both reasons to wait change with time or in another thread."""


class GivingWay:
    """The waiting clauses of one engine. For one event loop.

    Args:
        somebody_waits: returns whether there is a clause without any sound so far.
    """

    def __init__(self, somebody_waits: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._somebody_waits, self._now = somebody_waits, clock

    async def wait(self, spare_s: Callable[[float], float]) -> None:
        """Wait while another caller waits for a first sound and this caller has sound to spare.

        Args:
            spare_s: returns the seconds of sound that this caller can spare at a second of the clock.
        """
        while self._somebody_waits() and (spare := spare_s(self._now())) > 0:  # noqa: ASYNC110  both reasons change without an event
            await asyncio.sleep(min(spare, _LOOK_S))
