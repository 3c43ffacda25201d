"""Threads that do short pieces of work, in turn for tenants and, within a tenant, for calls.

A thread pool alone serves its queue in order, so one tenant with many pieces would delay those of all others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

Whose = tuple[str, str]
"""Tenant and call id."""
_Piece = tuple[Callable[[], Any], asyncio.Future[Any]]


class FairPool:
    """A thread pool whose queue takes turns. Only the event loop calls it.

    Args:
        threads: number of threads.
        name: prefix of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = threads
        self._waiting: OrderedDict[str, OrderedDict[str, deque[_Piece]]] = OrderedDict()
        """Pieces by tenant and call. The first tenant, and its first call, are next."""

    async def run(self, whose: Whose, work: Callable[[], Any]) -> Any:
        """Do one piece of work, when it is the turn of this tenant and call, and return its result. A piece of which
        the caller is cancelled before its turn is not done."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        tenant, call = whose
        self._waiting.setdefault(tenant, OrderedDict()).setdefault(call, deque()).append((work, done))
        self._begin()
        return await done

    def close(self) -> None:
        """Drop what waits. Pieces that run are not awaited."""
        for calls in self._waiting.values():
            for _, done in (piece for pieces in calls.values() for piece in pieces):
                done.cancel()
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._free and (piece := self._next()) is not None:
            work, done = piece
            if done.cancelled():
                continue
            self._free -= 1
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
            running.add_done_callback(partial(self._ended, done))

    def _next(self) -> _Piece | None:
        """Take the next piece, and put its tenant and its call last."""
        if not self._waiting:
            return None
        tenant, calls = self._waiting.popitem(last=False)
        call, pieces = calls.popitem(last=False)
        piece = pieces.popleft()
        if pieces:
            calls[call] = pieces
        if calls:
            self._waiting[tenant] = calls
        return piece

    def _ended(self, done: asyncio.Future[Any], ended: asyncio.Future[Any]) -> None:
        self._free += 1
        if not done.done():
            if ended.cancelled():
                done.cancel()
            elif (error := ended.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(ended.result())
        elif not ended.cancelled():
            ended.exception()  # no one waits for it
        if not ended.get_loop().is_closed():
            self._begin()
