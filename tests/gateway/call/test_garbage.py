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
calls, kept = 1, []

def grow():
    kept.extend([] for _ in range(20_000))
    return asyncio.sleep(0.1)

async def frozen_cycle(growth, calls_then):
    # A cycle becomes garbage after it was frozen, and what is frozen grows. Is it there before, and after, there are
    # ``calls_then`` calls?
    global calls
    calls = 100
    del kept[:]
    gc.unfreeze()
    collecting = asyncio.create_task(garbage.collect_between_calls(lambda: calls, period_s=0.1))
    await asyncio.sleep(0)  # the gateway's parts run before what exists is kept
    garbage.keep_what_exists()
    del looked_at[:]
    before = gc.get_freeze_count()
    cycle = Cycle()
    gone = weakref.ref(cycle)
    await asyncio.sleep(0.05)
    await grow()
    del cycle
    while gc.get_freeze_count() < before * growth:
        await grow()
    there = gone() is not None
    calls = calls_then
    await grow()
    collecting.cancel()
    return there, gone() is not None

async def main():
    global calls
    base = [[] for _ in range(150_000)]
    garbage.keep_what_exists()
    del looked_at[:]
    collecting = asyncio.create_task(garbage.collect_between_calls(lambda: calls, period_s=0.1))
    kept.extend([] for _ in range(5_000))  # collections of the second generation, but not enough of them
    await asyncio.sleep(0.15)
    assert not looked_at, looked_at
    collecting.cancel()

    assert await frozen_cycle(1.7, 100) == (True, True)
    assert len(looked_at) > 5 and max(looked_at) < 25_000, looked_at
    assert await frozen_cycle(1.95, 100) == (True, False)  # as much again has been frozen
    assert max(looked_at) > 300_000, looked_at
    assert await frozen_cycle(1.7, 20) == (True, False)  # few calls
    assert await frozen_cycle(1.2, 20) == (True, True)
    assert await frozen_cycle(1.2, 0) == (True, False)

asyncio.Runner(loop_factory=VirtualLoop).run(main())
print("done")
"""


def test_a_collection_looks_at_what_is_young_and_at_everything_when_nobody_waits_or_much_was_frozen() -> None:
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, cwd=root)
    assert ran.stdout == "done\n", ran.stderr
