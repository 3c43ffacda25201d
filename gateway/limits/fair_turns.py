"""Work that waits for a place, in turn for tenants and, within a tenant, for calls.

A queue alone is served in order, so one tenant with much work would delay that of all others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tts_engine.supervision import SteadyThreads

Whose = tuple[str, str]
"""Tenant and call id. Work outside a call has an empty id."""


class FairTurns:
    """Places for work, taken in turn. Only the event loop calls it.

    Args:
        places: number of places.
        of_one: most places that one tenant has at a time. Where others' work may last long, some places are then free
            for a tenant that has none. None: all.
    """

    def __init__(self, places: int, *, of_one: int | None = None) -> None:
        self._free = places
        self._of_one = places if of_one is None else of_one
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        """The waiting work, by tenant and call. The first tenant, and its first call, are next."""

    @asynccontextmanager
    async def place(self, whose: Whose) -> AsyncIterator[None]:
        """Have a place during the block, when it is the turn of this tenant and call."""
        await self.take(whose)
        try:
            yield
        finally:
            self.give_back(whose)

    async def take(self, whose: Whose) -> None:
        """Wait for a place. ``give_back`` ends its use."""
        tenant, call = whose
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, OrderedDict()).setdefault(call, deque()).append(turn)
        self._deal()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same time
                self.give_back(whose)
            raise

    def give_back(self, whose: Whose) -> None:
        """Free a place, for the next that waits."""
        self._free += 1
        self._taken[whose[0]] -= 1
        if not self._taken[whose[0]]:
            del self._taken[whose[0]]
        self._deal()

    def close(self) -> None:
        """Cancel what waits."""
        for calls in self._waiting.values():
            for turn in (turn for turns in calls.values() for turn in turns):
                turn.cancel()
        self._waiting.clear()

    def _deal(self) -> None:
        while self._free and (tenant := self._next_tenant()) is not None:
            turn = self._next_of(tenant)
            if not turn.done():
                self._free -= 1
                self._taken[tenant] += 1
                turn.set_result(None)

    def _next_tenant(self) -> str | None:
        return next((tenant for tenant in self._waiting if self._taken[tenant] < self._of_one), None)

    def _next_of(self, tenant: str) -> asyncio.Future[None]:
        """Take the next turn of a tenant, and put the tenant and its call last."""
        calls = self._waiting.pop(tenant)
        call, turns = calls.popitem(last=False)
        turn = turns.popleft()
        if turns:
            calls[call] = turns
        if calls:
            self._waiting[tenant] = calls
        return turn


class FairPool:
    """A thread pool for short pieces of work, whose queue takes turns. Only the event loop calls it.

    Args:
        threads: number of threads.
        name: prefix of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = SteadyThreads(threads, name)
        self._turns = FairTurns(threads)

    async def run(self, whose: Whose, work: Callable[[], Any]) -> Any:
        """Do one piece of work, when it is the turn of this tenant and call, and return its result. A piece of which
        the caller is cancelled before its turn is not done."""
        await self._turns.take(whose)
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        except BaseException:  # no thread could be started
            self._turns.give_back(whose)
            raise

        def ended(running: asyncio.Future[Any]) -> None:
            if not running.cancelled():
                running.exception()  # perhaps no one waits for it
            if not running.get_loop().is_closed():
                self._turns.give_back(whose)

        running.add_done_callback(ended)
        return await asyncio.shield(running)  # a piece that runs keeps its thread, whatever becomes of the caller

    def close(self) -> None:
        """Drop what waits. Pieces that run are not awaited."""
        self._turns.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
