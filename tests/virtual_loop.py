"""An event loop whose time is a number: when every task waits for a timer, the clock jumps to that timer.

A test marked ``virtual_time`` runs on this loop. ``loop.time()``, ``asyncio.sleep``, ``asyncio.timeout`` and
``call_later`` then take no time of this machine and do not depend on its load. ``await asyncio.sleep(5)`` returns after
everything that happens within these five seconds has happened. The clock stands still while a job of
``run_in_executor`` runs. What is written to a UNIX socket can be read at once, so both ends of such a connection may be
on this loop. It does not know of other threads and of bytes on their way through a network, so it is not for tests with
other sockets.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

BEGINS_S = 100.0
"""The clock's first time."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks like any loop and skips the waiting between timers."""

    def __init__(self) -> None:
        self.now = BEGINS_S
        self.jobs = 0
        """Jobs in threads: their results come at the present time, however long they take."""
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        self.jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _future: asyncio.Future[Any]) -> None:
        self.jobs -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.jobs:
            return super().select(None if timeout else timeout)
        ready = super().select(0)
        if not ready:
            self._loop.now += timeout
        return ready
