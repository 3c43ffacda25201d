"""The work of collections, and the garbage that they and the C library leave. It is real; a child process makes it,
since the thresholds are the process's."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, gc, weakref
from collections import deque
from tts_engine.service import garbage
from tests.virtual_loop import VirtualLoop

class Cycle:
    def __init__(self):
        self.me = self

looked_at, young = [], []
def note(phase, info):
    if phase == "start" and info["generation"] == 2:
        looked_at.append(len(gc.get_objects()))  # what is frozen is not among them
    elif phase == "start":
        young.append(len(gc.get_objects(generation=0)))

gc.callbacks.append(note)
calls, kept, blocks = 1, [], 0

def grow():
    kept.extend([] for _ in range(20_000))
    return asyncio.sleep(0.3)

def collecting():
    return asyncio.create_task(garbage.collect_between_calls(lambda: calls, period_s=0.1, blocks=lambda: blocks))

async def frozen_cycle(grown, calls_then, stays=True):
    # A cycle becomes garbage after it was frozen. Is it gone once memory has grown, with ``calls_then`` calls?
    global calls, blocks
    calls = 100
    watch = collecting()
    await asyncio.sleep(0)
    cycle = Cycle()
    gone = weakref.ref(cycle)
    await grow()
    del cycle
    await grow()
    assert gone() is not None
    calls, blocks = calls_then, blocks + grown
    await grow()
    if not stays:
        blocks -= grown
    await asyncio.sleep(2 * garbage.STAYS_S)
    watch.cancel()
    return gone() is None

async def main():
    global calls
    base = [[] for _ in range(150_000)]
    garbage.keep_what_exists()
    del looked_at[:]
    watch = collecting()
    kept.extend([] for _ in range(2_500))  # collections of the second generation, but not enough of them
    await asyncio.sleep(0.15)
    assert not looked_at, looked_at
    for _ in range(20):  # much at once, before the next period
        kept.extend([] for _ in range(5_000))
        await asyncio.sleep(0)
    assert len(looked_at) > 5 and max(looked_at) < 12_000, looked_at
    in_hand = deque(([] for _ in range(20_000)), maxlen=20_000)
    await asyncio.sleep(1)
    del young[:]
    for _ in range(1_000):  # as in calls: for each frame that is made, one is freed
        in_hand.extend([] for _ in range(20))
        await asyncio.sleep(0.001)
    assert max(young) < 2_000, young
    watch.cancel()
    await asyncio.wait({watch})
    assert gc.callbacks == [note]

    assert not await frozen_cycle(garbage.GROWTH - 1, 100)
    assert not await frozen_cycle(garbage.GROWTH_FEW_CALLS - 1, 20)
    assert not await frozen_cycle(garbage.GROWTH_NO_CALLS - 1, 0)
    assert len(looked_at) > 3 and max(looked_at) < 50_000, looked_at
    assert not await frozen_cycle(3 * garbage.GROWTH, 100, stays=False)
    assert not await frozen_cycle(3 * garbage.GROWTH, 20, stays=False)
    assert await frozen_cycle(garbage.GROWTH + 1, 100)
    assert max(looked_at) > 150_000, looked_at
    assert await frozen_cycle(garbage.GROWTH_FEW_CALLS + 1, 20)
    assert await frozen_cycle(garbage.GROWTH_NO_CALLS + 1, 0)

asyncio.Runner(loop_factory=VirtualLoop).run(main())
print("done")
"""

RETURNS = """
import ctypes
from tts_engine.service import garbage

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Figures

def free_bytes():
    bytes(30_000_000)  # the library learns that such blocks are freed soon, and would keep the next ones
    uploads = [bytes(1_000_000) for _ in range(50)]
    last = bytes(200_000)
    del uploads
    return mallinfo2().fordblks

assert free_bytes() > 45_000_000
garbage.return_large_blocks()
assert free_bytes() < 45_000_000 / 5
print("done")
"""


def test_a_collection_looks_at_what_is_young_and_at_everything_when_memory_has_grown() -> None:
    assert_done(PROGRAM)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library keeps large blocks")
def test_large_blocks_are_returned_when_they_are_freed_and_not_all_at_once_later() -> None:
    assert_done(RETURNS)


def assert_done(program: str) -> None:
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=root)
    assert ran.stdout == "done\n", ran.stderr
