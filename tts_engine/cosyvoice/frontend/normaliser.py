"""Normalises clauses for the event loop, in child processes and with a cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tts_engine.cosyvoice.frontend.normaliser_process import NormaliserProcess
from tts_engine.cosyvoice.frontend.words import Wording

_REMEMBERED_CHARS = 1 << 20
"""Most source characters in the cache. With blocks, words and ids they take some 50 MB."""


class NormaliserObserver(Protocol):
    """Counts look-ups, on the event loop."""

    def normalised(self, *, hit: bool) -> None:
        """Count a look-up. ``hit``: the clause was in the cache or already being normalised."""
        ...


class Normaliser:
    """A cache of wordings over child processes. Call ``start`` before use and ``aclose`` at the end. Use it only on the
    event loop."""

    def __init__(
        self,
        make: Callable[[str, str], Wording],
        *,
        processes: Sequence[NormaliserProcess] = (),
        observer: NormaliserObserver | None = None,
    ) -> None:
        """
        Args:
            make: returns the wording of a text and its BCP 47 tag. Called on the event loop if no process is ready.
            processes: child processes, which this object starts and ends.
            observer: counts look-ups.
        """
        self._make, self._observer = make, observer
        self._processes = processes
        self._made: OrderedDict[tuple[str, str], Wording] = OrderedDict()
        """Cached wordings by text and language, least recently used first."""
        self._chars = 0
        """Number of source characters in the cache."""
        self._asked: dict[tuple[str, str], asyncio.Future[Wording]] = {}
        """Requests in progress."""

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

    async def wording(self, text: str, language: str) -> Wording:
        """Return the wording of a clause. Concurrent requests for the same clause share one computation."""
        key = (text, language)
        made, asked = self._made.get(key), self._asked.get(key)
        if self._observer is not None:
            self._observer.normalised(hit=made is not None or asked is not None)
        if made is not None:
            self._made.move_to_end(key)
            return made
        if asked is None:
            ready = [process for process in self._processes if process.ready]
            if not ready:
                return self._remember(key, self._make(text, language))
            asked = self._asked[key] = min(ready, key=lambda process: process.waiting).ask(text, language)
            asked.add_done_callback(partial(self._worded, key))
        try:
            # Shielded: other clauses may wait for the same wording when this one is cancelled.
            return await asyncio.shield(asked)
        except ConnectionError:  # the process ended; another one is being started
            return self._remember(key, self._make(text, language))

    def _worded(self, key: tuple[str, str], made: asyncio.Future[Wording]) -> None:
        del self._asked[key]
        if made.exception() is None:
            self._remember(key, made.result())

    def _remember(self, key: tuple[str, str], made: Wording) -> Wording:
        if key not in self._made:
            self._made[key] = made
            self._chars += len(key[0])
            while self._chars > _REMEMBERED_CHARS:
                (oldest, _), _ = self._made.popitem(last=False)
                self._chars -= len(oldest)
        return made
