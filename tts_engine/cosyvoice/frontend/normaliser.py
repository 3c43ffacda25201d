"""Normalises clauses for the engine's event loop: it remembers them, and has other processes make them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tts_engine.cosyvoice.frontend.normalise import Normalised
from tts_engine.cosyvoice.frontend.normaliser_process import NormaliserProcess

_REMEMBERED_CHARS = 1 << 20
"""Most characters of remembered clauses. With their blocks these take some 20 MB."""


class NormaliserObserver(Protocol):
    """Counts look-ups. It is called on the event loop."""

    def normalised(self, *, hit: bool) -> None:
        """Note whether a clause was remembered."""
        ...


class Normaliser:
    """Call ``start`` before use and ``aclose`` at the end. The event loop alone may use it."""

    def __init__(
        self,
        normalise: Callable[[str, str], Normalised],
        *,
        processes: int,
        observer: NormaliserObserver | None = None,
    ) -> None:
        """
        Args:
            normalise: takes a text and its BCP 47 tag. It is called on the event loop while no process can be asked.
            processes: number of processes. 0: ``normalise`` makes all clauses.
            observer: counts look-ups. None: nobody does.
        """
        self._normalise, self._observer = normalise, observer
        self._processes = [NormaliserProcess() for _ in range(processes)]
        self._made: OrderedDict[tuple[str, str], asyncio.Task[Normalised]] = OrderedDict()
        """Remembered clauses, and those under way, least recently asked for first."""
        self._chars = 0
        """Number of their characters."""

    async def start(self) -> None:
        """Start the processes. Raises Unavailable."""
        try:
            await asyncio.gather(*(process.start() for process in self._processes))
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End the processes. Idempotent."""
        await asyncio.gather(*(process.aclose() for process in self._processes))

    async def normalise(self, text: str, language: str) -> Normalised:
        """Return the wording of a clause, see ``normalise.normalise``. One that many ask for at once is made once."""
        key = (text, language)
        task = self._made.get(key)
        if self._observer is not None:
            self._observer.normalised(hit=task is not None)
        if task is not None:
            self._made.move_to_end(key)
        else:
            task = self._made[key] = asyncio.create_task(self._make(text, language), name="normalise")
            self._chars += len(text)
            while self._chars > _REMEMBERED_CHARS:
                self._forget(next(iter(self._made)))
        try:
            return await asyncio.shield(task)  # others may wait for the wording when this clause is cancelled
        except Exception:
            if self._made.get(key) is task:
                self._forget(key)
            raise

    def _forget(self, key: tuple[str, str]) -> None:
        del self._made[key]
        self._chars -= len(key[0])

    async def _make(self, text: str, language: str) -> Normalised:
        ready = [process for process in self._processes if process.ready]
        if ready:
            try:
                return await min(ready, key=lambda process: process.waiting).normalise(text, language)
            except ConnectionError:
                pass  # it ended meanwhile, and another one is being started
        return self._normalise(text, language)
