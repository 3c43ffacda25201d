"""When a process that serves calls collects cyclic garbage, and when it returns free memory. Both stop every call: a
collection for as long as there are objects to look at, some 0.2 to 0.5 us each, so each looks at few; a return for
0.1 ms per MB, so each returns little. A call is what the process has most of: in the gateway a call or an answer to an
HTTP request, in the engine's process an utterance, in a voice model's a clause.

The young generations are collected automatically, the second one more often than by default, and besides every
``YOUNG_S``: Python counts what was made less what was freed, and calls free as much as they make. What survives three
collections of the second generation is looked at once more, and then frozen: it is freed when nothing refers to it, but
never looked at again. So a collection takes no longer with 300 calls than with one.

What was frozen alive and becomes garbage with cycles stays in memory until everything is thawed and looked at, which
takes tenths of a second. That waits for a moment without calls, or with few of them, and comes during calls only if
memory needs it. A call leaves no such garbage (``gateway.upward``); libraries may.

In the gateway, large blocks go back to the system one by one, when they are freed. The C library would learn from the
first of them to keep such blocks, and protobuf makes it return everything at once after each 10,000 messages: after
some uploads that was 100 MB, 14 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

_YOUNG = (350, 3)
_NEVER = 1 << 30
YOUNG_S = 0.05
"""By the clock, the youngest generation is collected so often, and the second one at every fifth time."""
_SECOND = 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGE_BYTES, _FREE_BYTES = 256 * 1024, 4 * 1024 * 1024
MOST_PENDING = 3
"""Collections of the second generation, at most 1,500 objects each, after which a full one comes even during calls."""
GROWTH_NO_CALLS, GROWTH_FEW_CALLS, GROWTH = 200_000, 1_000_000, 2_000_000
"""By how many small blocks of memory, some 100 bytes each, there may be more than after the last look at everything,
until everything is looked at. Large ones do not count: a whole file of speech comes and goes, and is no garbage."""
STAYS_S = 60.0
"""During calls, only what is there for so long counts: what much text or many requests need is freed sooner."""


def keep_what_exists() -> None:
    """Exempt everything that exists now from later collections, and switch automatic full collections off."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_YOUNG, _NEVER)


def return_large_blocks() -> None:
    """Let the C library return each block from ``_LARGE_BYTES`` on when it is freed, and the free end of its heap from
    ``_FREE_BYTES`` on. Only GNU's needs it, and can do it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _FREE_BYTES)


async def collect_between_calls(
    calls: Callable[[], int], *, period_s: float = 0.2, blocks: Callable[[], int] = sys.getallocatedblocks
) -> None:
    """Collect what is young every ``YOUNG_S``, what survived it while ``calls()`` is 0, or as soon as ``MOST_PENDING``
    is reached, and everything as the module says. Runs until cancelled."""
    loop = asyncio.get_running_loop()

    def collected(phase: str, info: dict[str, int]) -> None:
        # Much may be allocated in a period: waiting for its end would make one long stop of many short ones.
        if phase == "stop" and info["generation"] == 1 and gc.get_count()[2] >= MOST_PENDING:
            loop.call_soon_threadsafe(_collect, MOST_PENDING)

    gc.callbacks.append(collected)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_collect_young())
            both.create_task(_look(calls, period_s, blocks))
    finally:
        gc.callbacks.remove(collected)


def _collect(pending: int) -> None:
    """Collect what is young and freeze what survives, if so many collections of the second generation wait for it."""
    if gc.get_count()[2] >= pending:
        gc.collect()
        gc.freeze()


async def _collect_young() -> None:
    while True:
        await asyncio.sleep(YOUNG_S)
        gc.collect(1 if gc.get_count()[1] >= _SECOND else 0)


async def _look(calls: Callable[[], int], period_s: float, blocks: Callable[[], int]) -> None:
    now = asyncio.get_running_loop().time
    since, most_calls = now(), 0
    at_last_look = fewest = blocks()
    while True:
        await asyncio.sleep(period_s)
        live, held = calls(), blocks()
        most_calls, fewest = max(most_calls, live), min(fewest, held)
        grown = 0 if live else held - at_last_look
        if now() - since >= STAYS_S:
            grown = max(grown, fewest - at_last_look)
            since, fewest = now(), held
        few = GROWTH_FEW_CALLS if live <= most_calls / 4 else GROWTH
        if grown > (few if live else GROWTH_NO_CALLS):
            keep_what_exists()
            at_last_look = fewest = blocks()
            most_calls = live
        else:
            _collect(MOST_PENDING if live else 1)
