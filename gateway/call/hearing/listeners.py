"""Clients that listen in to a call. They hear both sides and cannot be heard. Each has a bounded queue, so a slow
connection loses sound and delays nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.errors import Rejected

PIECES = 50
"""Longest queue of a listener, about one second. Beyond it the oldest pieces are dropped and counted."""

LISTENERS = 8
"""Most listeners of one call."""


class Hearer(Protocol):
    """Takes the sound of both sides."""

    def put(self, pcm: bytes) -> None:
        """Take the next sound: s16le, caller left, bot right."""
        ...

    def end(self) -> None:
        """The call is over."""
        ...


class Listener:
    """One listening client. Iterate over it for the audio until the call is over."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._over = False
        self.dropped = 0
        """Pieces lost because the listener's connection was too slow."""

    def put(self, pcm: bytes) -> None:
        """Queue audio; called on the loop that paces calls."""
        if len(self._pieces) >= PIECES:
            self._pieces.popleft()
            self.dropped += 1
        self._pieces.append(pcm)
        self._arrived.set()

    def end(self) -> None:
        """The call is over: iteration ends after the queued audio."""
        self._over = True
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the next piece: s16le, caller left, bot right."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._over:
                return
            self._arrived.clear()
            await self._arrived.wait()


class Listeners:
    """The listeners of one call.

    Args:
        wanted: called with True when the first listener joins, with False when the last one leaves.
    """

    def __init__(self, wanted: Callable[[bool], None]) -> None:
        self._wanted: Callable[[bool], None] | None = wanted
        """None: the call is over."""
        self._all: list[Hearer] = []

    @contextmanager
    def join(self) -> Iterator[Listener]:
        """Listen in while the context lasts.

        Raises:
            Rejected: 429 if ``LISTENERS`` clients listen already.
        """
        if sum(isinstance(each, Listener) for each in self._all) >= LISTENERS:
            raise Rejected(f"{LISTENERS} clients already listen in to this call", status=429, code="too_many_listeners")
        listener = Listener()
        self.add(listener)
        try:
            yield listener
        finally:
            self.remove(listener)

    def add(self, listener: Hearer) -> None:
        """Pass the sound to one more listener. After the call, it is told at once that the call is over."""
        if self._wanted is None:
            listener.end()
            return
        self._all.append(listener)
        if len(self._all) == 1:
            self._wanted(True)

    def remove(self, listener: Hearer) -> None:
        """Pass no more sound to a listener."""
        if listener in self._all:
            self._all.remove(listener)
            if not self._all and self._wanted is not None:
                self._wanted(False)

    def put(self, pcm: bytes) -> None:
        """Queue audio for every listener."""
        for listener in list(self._all):
            listener.put(pcm)

    def close(self) -> None:
        """The call is over: end every listener."""
        self._wanted = None
        listeners, self._all = self._all, []
        for listener in listeners:
            listener.end()
