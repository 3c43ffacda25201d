"""Full collections come between calls; real garbage, and a child process, since the thresholds are the process's."""

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

def old_cycle():
    cycle = Cycle()
    gone = weakref.ref(cycle)
    gc.collect(0), gc.collect(1)  # it has survived the young generations
    return gone

full = []
gc.callbacks.append(lambda phase, info: full.append(info["generation"]) if phase == "start" else None)

async def main():
    garbage.keep_what_exists()
    del full[:]
    calls = 1
    collecting = asyncio.create_task(garbage.collect_between_calls(lambda: calls, period_s=0.01))
    gone = old_cycle()
    kept = [[] for _ in range(30_000)]  # young collections, but not enough of them
    await asyncio.sleep(0.1)
    assert gone() is not None and 2 not in full, full[-5:]
    calls = 0
    await asyncio.sleep(0.1)
    assert gone() is None and full.count(2) == 1, full[-5:]
    calls = 1
    gone = old_cycle()
    kept += [[] for _ in range(100_000)]
    await asyncio.sleep(0.1)
    assert gone() is None
    collecting.cancel()

asyncio.Runner(loop_factory=VirtualLoop).run(main())
print("done")
"""


def test_full_collections_wait_for_a_moment_without_calls_or_for_much_to_collect() -> None:
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, cwd=root)
    assert ran.stdout == "done\n", ran.stderr
