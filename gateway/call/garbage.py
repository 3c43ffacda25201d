"""When cyclic garbage is collected. A collection stops every call on the loop for as long as there are objects to look
at, some 0.2 us each, so each looks at few.

The young generations are collected automatically, the second one more often than by default. What survives five of
its collections is looked at once more, and then frozen: it is freed when nothing refers to it, but never looked at
again. So a collection takes no longer with 300 calls than with one.

What was frozen alive and becomes garbage with cycles, some 200 objects of each call, stays in memory until everything
is thawed and looked at. That waits for a moment without calls, or with few of them. A server that has no such moment
does it when as many objects have been frozen as there were after the last time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

_YOUNG = (700, 3)
_NEVER = 1 << 30
MOST_PENDING = 5
"""Collections of the second generation, at most 3,000 objects each, after which a full one comes even during calls."""
GROWTH = 2.0
"""How many times what the last look at everything left may be frozen, until everything is looked at during calls."""
_GROWTH_FEW_CALLS, _GROWTH_NO_CALLS = 1.5, 1.1

_left = 0
"""Objects that the last look at everything left. The collector is the process's, and so is this."""


def keep_what_exists() -> None:
    """Exempt everything that exists now from later collections, and switch automatic full collections off."""
    global _left
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_YOUNG, _NEVER)
    _left = gc.get_freeze_count()


async def collect_between_calls(calls: Callable[[], int], *, period_s: float = 1.0) -> None:
    """Collect what is young while ``calls()`` is 0, or when ``MOST_PENDING`` is reached, and everything as the module
    says. Runs until cancelled."""
    frozen_since = most_calls = 0
    while True:
        await asyncio.sleep(period_s)
        live = calls()
        most_calls = max(most_calls, live)
        pending = gc.get_count()[2]
        if not pending or (live and pending < MOST_PENDING):
            continue
        gc.collect()
        frozen_since += len(gc.get_objects())
        gc.freeze()
        few = _GROWTH_FEW_CALLS if live <= most_calls / 4 else GROWTH
        most = _left * (few if live else _GROWTH_NO_CALLS)
        if _left + frozen_since > most:  # some of that is gone; counting takes milliseconds
            frozen_since = gc.get_freeze_count() - _left
        if _left + frozen_since > most:
            keep_what_exists()
            frozen_since, most_calls = 0, live
