"""Notes for how long a core ran nothing at all.

    python freezes.py CORE FILE

A machine that shares its hardware is stopped at times without a word from its kernel: what runs then seems to have used
processor time, and everything is late. A process with real-time priority is never kept waiting by others, so when it
comes late from a sleep, nobody ran. ``FILE`` holds the longest such time, seconds, that of core 0 first; somebody sets
it to 0. Without the right to real-time priority it stays 0.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

CORES = 2
_SLEEP_S = 0.002


def figures(file: Path, *, new: bool) -> np.memmap[tuple[int], np.dtype[np.float64]]:
    """Return the figures in a file."""
    return np.memmap(file, np.float64, "w+" if new else "r+", shape=(CORES,))


def _watch(core: int, file: Path) -> None:
    longest = figures(file, new=False)
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    while True:
        before = time.monotonic()
        time.sleep(_SLEEP_S)
        longest[core] = max(longest[core], time.monotonic() - before - _SLEEP_S)


if __name__ == "__main__":
    try:
        _watch(int(sys.argv[1]), Path(sys.argv[2]))
    except PermissionError as exc:
        print(f"no real-time priority: {exc}; freezes of the machine count as the server's", file=sys.stderr)
