"""Normalises clauses for the engine's event loop: it remembers them, and has other processes make them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tts_engine.cosyvoice.frontend.normalise import has_only_words, normalise
from tts_engine.cosyvoice.frontend.normaliser_process import NormaliserProcess
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
        encode: Callable[[str], Sequence[int]],
        *,
        processes: Sequence[NormaliserProcess] = (),
        observer: NormaliserObserver | None = None,
    ) -> None:
        """
        Args:
            make: words a text, whose BCP 47 tag it takes too. It is called on the event loop while no process can be
                asked.
            encode: returns the ids of what is spoken.
            processes: are started and ended here.
            observer: counts look-ups. None: nobody does.
        """
        self._make, self._encode, self._observer = make, encode, observer
        self._processes = processes
        self._made: OrderedDict[tuple[str, str], Wording] = OrderedDict()
        """Remembered wordings, least recently asked for first."""
        self._chars = 0
        """Number of their characters."""
        self._asked: dict[tuple[str, str], asyncio.Future[Wording]] = {}
        """What a process is making."""

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

    def guess(self, text: str, language: str) -> Wording | None:
        """Return what a process is most likely to answer, without words. None: there is nothing to wait for, or it
        cannot be told, or there are others for whom the event loop has no time to lose."""
        if (text, language) in self._made or self._asked or not self._processes or not has_only_words(text):
            return None
        guess = normalise(text, language)
        return Wording(guess, self._encode(guess.text), ())

    async def wording(self, text: str, language: str) -> Wording:
        """Return the wording of a clause, see ``normalise.normalise``. One that many ask for at once is made once."""
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
            asked.add_done_callback(partial(self._answered, key))
        try:
            return await asyncio.shield(asked)  # others may wait for the wording when this clause is cancelled
        except ConnectionError:  # the process ended meanwhile, and another one is being started
            return self._remember(key, self._make(text, language))

    def _answered(self, key: tuple[str, str], answer: asyncio.Future[Wording]) -> None:
        del self._asked[key]
        if answer.exception() is None:
            self._remember(key, answer.result())

    def _remember(self, key: tuple[str, str], made: Wording) -> Wording:
        if key not in self._made:
            self._made[key] = made
            self._chars += len(key[0])
            while self._chars > _REMEMBERED_CHARS:
                (oldest, _), _ = self._made.popitem(last=False)
                self._chars -= len(oldest)
        return made
