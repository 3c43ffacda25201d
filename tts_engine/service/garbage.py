"""Schedules the collection of cyclic garbage, and the return of free memory, in a process that serves calls. Both stop
every call. A collection takes 0.2 to 0.5 us for each object that it checks, so each collection checks few. A return
takes 0.1 ms per MB, so each returns little. "Call" here means the unit of work of the process: in the gateway a call or
an answer to an HTTP request, in the engine's process an utterance, in a voice model's process a clause.

The young generations are collected automatically, the second one more often than by default, and in addition every
``YOUNG_S``: Python triggers by objects made minus objects freed, and calls free as many as they make. Objects that
survive three collections of the second generation are checked once more and then frozen: they are freed when nothing
refers to them, but never checked again. So a collection takes no longer with 300 calls than with one.

A frozen object that becomes part of a garbage cycle stays in memory until everything is thawed and checked, which takes
tenths of a second. This full collection waits for a moment without calls, or with few of them, and runs during calls
only if memory needs it. A call leaves no such garbage (``tests/gateway/call/test_freed.py``); libraries may.

In the gateway, large blocks return to the system one by one, when they are freed. By default the C library learns from
the first of them to keep such blocks, and protobuf makes it return everything at once after each 10,000 messages: after
some uploads that was 100 MB, which took 14 ms.
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
"""Interval of collections of the youngest generation, seconds. Every fifth one also collects the second generation."""
_SECOND = 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGE_BYTES, _FREE_BYTES = 256 * 1024, 4 * 1024 * 1024
MOST_PENDING = 3
"""Collections of the second generation, of at most 1,500 objects each, after which their survivors are checked and
frozen even during calls."""
GROWTH_NO_CALLS, GROWTH_FEW_CALLS, GROWTH = 200_000, 1_000_000, 2_000_000
"""Growth in small blocks of memory, about 100 bytes each, since the last full collection, after which the next one
runs: without calls, with few calls, with many. Large blocks do not count: a whole file of speech comes and goes, and is
no garbage."""
STAYS_S = 60.0
"""During calls, growth counts only if it lasts this long, seconds. Memory for long texts or many requests is freed
sooner."""


def keep_what_exists() -> None:
    """Exempt everything that exists now from later collections, and switch automatic full collections off."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_YOUNG, _NEVER)


def return_large_blocks() -> None:
    """Let the C library return each block from ``_LARGE_BYTES`` on when it is freed, and the free end of its heap from
    ``_FREE_BYTES`` on. Only the GNU C library needs this, and can do it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _FREE_BYTES)


async def collect_between_calls(
    calls: Callable[[], int], *, period_s: float = 0.2, blocks: Callable[[], int] = sys.getallocatedblocks
) -> None:
    """Collect young objects every ``YOUNG_S``. Check and freeze their survivors while ``calls()`` is 0, or when
    ``MOST_PENDING`` is reached. Run full collections as the module says. Runs until cancelled."""
    loop = asyncio.get_running_loop()

    def collected(phase: str, info: dict[str, int]) -> None:
        # Much may be allocated in a period. Waiting for its end would turn many short stops into one long stop.
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
    """Collect and freeze the survivors, if at least ``pending`` collections of the second generation have run since the
    last time."""
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
