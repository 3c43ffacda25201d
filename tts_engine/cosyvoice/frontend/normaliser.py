"""Normalises clauses for the engine's event loop: it remembers them, and has other processes make them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Protocol

from tts_engine.cosyvoice.frontend.normaliser_process import Asked, NormaliserProcess
from tts_engine.cosyvoice.frontend.words import Wording

_REMEMBERED_CHARS = 1 << 20
"""Most characters of remembered clauses. With their blocks, words and ids these take some 50 MB."""


class NormaliserObserver(Protocol):
    """Counts look-ups. It is called on the event loop."""

    def normalised(self, *, hit: bool) -> None:
        """Note whether a clause was remembered."""
        ...


class Normaliser:
    """Call ``start`` before use and ``aclose`` at the end. The event loop alone may use it."""

    def __init__(
        self,
        make: Callable[[str, str], Wording],
        *,
        processes: Sequence[NormaliserProcess] = (),
        observer: NormaliserObserver | None = None,
    ) -> None:
        """
        Args:
            make: words a text, whose BCP 47 tag it takes too. It is called on the event loop while no process can be
                asked.
            processes: are started and ended here.
            observer: counts look-ups. None: nobody does.
        """
        self._make, self._observer = make, observer
        self._processes = processes
        self._made: OrderedDict[tuple[str, str], Wording] = OrderedDict()
        """Remembered wordings, least recently asked for first."""
        self._chars = 0
        """Number of their characters."""
        self._asked: dict[tuple[str, str], Asked] = {}
        """What a process is wording."""

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

    async def wordings(self, text: str, language: str) -> AsyncGenerator[Wording, None]:
        """Yield the wording of a clause, see ``normalise.normalise``, and before it, if a process can tell it sooner,
        what it most likely is; the same object twice: it was right. A clause that many ask for at once is worded
        once."""
        key = (text, language)
        made, asked = self._made.get(key), self._asked.get(key)
        if self._observer is not None:
            self._observer.normalised(hit=made is not None or asked is not None)
        if made is not None:
            self._made.move_to_end(key)
            yield made
            return
        if asked is None:
            ready = [process for process in self._processes if process.ready]
            if not ready:
                yield self._remember(key, self._make(text, language))
                return
            asked = self._asked[key] = min(ready, key=lambda process: process.waiting).ask(text, language)
            asked.made.add_done_callback(partial(self._worded, key))
        # Shielded: others may wait for the wording when this clause is cancelled.
        if (likely := await asyncio.shield(asked.likely)) is not None:
            yield likely
        try:
            made = await asyncio.shield(asked.made)
        except ConnectionError:  # the process ended meanwhile, and another one is being started
            made = self._remember(key, self._make(text, language))
        yield made

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
