"""``talkspurt serve`` with a clock on its event loop, so that production code needs no hook for a benchmark.

    python clock.py FOLDER DESCRIPTORS serve ...

The clock ticks every millisecond. ``FOLDER/clock`` holds numbers, in seconds but for the count, that grow until
somebody sets them to 0:

0. the most processor time that the loop's own thread used between two ticks: how long one piece of work, or all work
   that was ready at once, kept everything else waiting. A machine that does other things does not lengthen this.
1. the longest time between two ticks, less the planned pause and less the time in which the thread had work but no
   core. Waiting for Python's lock, which another thread held, counts here.
2. the most processor time that a collection of garbage used on the loop's thread. It is part of 0.
3. the processor time of a piece of work that is always the same and is done every 50 ms, in all; and 4. how often it
   was done. A core that shares its parts with another machine's takes longer for it, as for everything.

``FOLDER/log`` takes what the server writes to its standard error. DESCRIPTORS is the limit of open files.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np

from talkspurt import build
from talkspurt.cli import main
from talkspurt.config.settings import Config

_PAUSE_S = 0.001
_TICKS_A_PIECE = 50


def _piece() -> float:
    """Do the piece of work. Return the processor time that it took, seconds."""
    begun = time.thread_time()
    sum(number * number for number in range(1000))
    return time.thread_time() - begun


class _Clock:
    def __init__(self, file: Path) -> None:
        self._figures = np.memmap(file, np.float64, "w+", shape=(5,))
        self._loop = asyncio.get_running_loop()
        # The file stays that of the thread that opened it, which is the loop's.
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._thread, self._collecting_since = threading.get_ident(), 0.0
        gc.callbacks.append(self._collected)
        self._ticks, self._before = 0, self._times()
        self._loop.call_later(_PAUSE_S, self._tick)

    def _collected(self, phase: str, _: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._figures[2] = max(self._figures[2], time.thread_time() - self._collecting_since)

    def _times(self) -> tuple[float, float, float]:
        """Return now, the thread's processor time, and its time on the run queue without a core, seconds."""
        queued_ns = int(os.pread(self._schedule, 100, 0).split()[1])
        return time.monotonic(), time.thread_time(), queued_ns / 1e9

    def _tick(self) -> None:
        after = self._times()
        passed, used, queued = (new - old for old, new in zip(self._before, after, strict=True))
        self._figures[0] = max(self._figures[0], used)
        self._figures[1] = max(self._figures[1], passed - queued - _PAUSE_S)
        self._ticks += 1
        if self._ticks % _TICKS_A_PIECE == 0:
            self._figures[3] += _piece()
            self._figures[4] += 1
            after = self._times()
        self._before = after
        self._loop.call_later(_PAUSE_S, self._tick)


def _run(folder: Path, descriptors: int, arguments: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    with (folder / "log").open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    serve = build._serve

    async def serve_with_clock(config: Config) -> int:
        clock = _Clock(folder / "clock")
        code = await serve(config)
        del clock
        return code

    build._serve = serve_with_clock
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
