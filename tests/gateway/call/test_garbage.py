"""How much collections look at, and what they leave; real garbage, and a child process, since the thresholds are the
process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, gc, weakref
from gateway.call import garbage
from tests.virtual_loop import VirtualLoop

class Cycle:
    def __init__(self):
        self.me = self

looked_at = []
def note(phase, info):
    if phase == "start" and info["generation"] == 2:
        looked_at.append(len(gc.get_objects()))  # what is frozen is not among them

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
    watch.cancel()
    await asyncio.sleep(0)
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


def test_a_collection_looks_at_what_is_young_and_at_everything_when_memory_has_grown() -> None:
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, cwd=root)
    assert ran.stdout == "done\n", ran.stderr
