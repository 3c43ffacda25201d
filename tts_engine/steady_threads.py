"""Threads that keep working when the system gives the process no more of them."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_OF_LOOP = 8
"""Most threads of a loop's own pool. Its work is seldom and waits for a disk or a name server."""


class SteadyThreads(ThreadPoolExecutor):
    """A pool that starts its first thread at once. Python's own starts a thread with the first work, and refuses work
    if it cannot start one more, also when others are idle.

    Raises:
        RuntimeError: the first thread cannot be started.
    """

    def __init__(self, threads: int = _OF_LOOP, name: str = "common", **more: Any) -> None:
        super().__init__(threads, thread_name_prefix=name, **more)
        self.submit(_nothing)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def _nothing() -> None: ...


async def start_threads() -> None:
    """Start the common threads of the running loop, before any work needs them. libuv ends the whole process if it
    cannot start its threads with the first look-up of a name, so a name is looked up that every system knows itself."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(SteadyThreads())
    with contextlib.suppress(OSError):
        await loop.getaddrinfo("localhost", 0)
