"""Shares out the event loop's time to what comes from outside, so that calls wait for a bounded piece of it.

What one peer sends is cheap. What many send at once is not, and frames are due meanwhile: a body in chunks of one byte
costs the loop 7 us a byte, and one turn of the loop may bring 256 kB from each connection and 32 datagrams from each
socket. So it is read in small pieces. What would exceed the time that it has in a turn of the loop waits in line for
the next turn, with nothing more read from its connection meanwhile. Frames that become due do not wait for that turn's
end: they go out between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

log = logging.getLogger(__name__)

TURN_S = 0.0005
"""For so long the steps of one line may run in one turn of the loop. The last one may exceed it."""
_PIECE_BYTES = 1024
"""So much of a connection is one step. As chunks of one byte it costs 1.5 ms, most of them later, in aiohttp's reader
of bodies."""


class Turns:
    """A line of steps, which run in the order in which they came, as many in one turn of the loop as it has time for.

    Args:
        clock: tells the time, seconds.
        frames_first: sends the frames that are due. Called before each step, and by whoever works on the loop besides.
        turn_s: for so long steps may run in one turn of the loop.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        frames_first: Callable[[], None] = lambda: None,
        turn_s: float = TURN_S,
    ) -> None:
        self.buffer = memoryview(bytearray(_PIECE_BYTES))
        """For the read of any connection, which copies what it has read before another one reads."""
        self.clock = clock
        self.frames_first = frames_first
        self._turn_s = turn_s
        self._line: deque[Callable[[], None]] = deque()
        self._used_s = 0.0
        self._is_dealing = False
        self._next: asyncio.Handle | None = None

    def join(self, step: Callable[[], None]) -> None:
        """Put a step in line. It runs in a later turn, or now if ``deal`` is called."""
        self._line.append(step)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    @property
    def has_time(self) -> bool:
        """Has this turn of the loop time for another step?"""
        return self._used_s < self._turn_s

    def spent(self, begun: float) -> None:
        """Take into account a step that did not stand in line.

        Args:
            begun: when it began, on ``clock``.
        """
        self._used_s += self.clock() - begun
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    def deal(self) -> None:
        """Run steps while this turn of the loop has time for them."""
        if self._is_dealing:
            return
        self._is_dealing = True
        try:
            while self._line and self.has_time:
                self.frames_first()
                begun = self.clock()
                try:
                    self._line.popleft()()
                except Exception:  # a bug in one step must not cost the others theirs
                    log.exception("input from outside")
                self._used_s += self.clock() - begun
        finally:
            self._is_dealing = False

    def _begin(self) -> None:
        """A turn of the loop begins."""
        self._used_s = 0.0
        self._next = asyncio.get_running_loop().call_soon(self._begin) if self._line else None
        self.deal()


class InTurns(asyncio.BufferedProtocol):
    """A connection that passes on in turns what it reads: to its socket it is the protocol, to the protocol behind it
    the transport."""

    def __init__(self, behind: Any, turns: Turns) -> None:
        self.behind = behind
        self._turns = turns
        self._transport: asyncio.Transport | None = None
        self._waiting = memoryview(b"")
        self._is_in_line = False
        self._is_full = False
        """Does the protocol behind want nothing more for now?"""
        self._is_read = True

    @property
    def transport(self) -> asyncio.Transport:
        """The socket's."""
        assert self._transport is not None
        return self._transport

    def received(self, data: bytes) -> None:
        """Take what has been read."""
        self._waiting = memoryview(data)
        self._stand_in_line()
        self._turns.deal()
        self._read_or_not()

    def release(self) -> bytes:
        """Leave the connection to another protocol. Return what has been read and not been passed on."""
        rest, self._waiting = bytes(self._waiting), memoryview(b"")
        self.behind = None
        self._is_full = False
        self._read_or_not()
        return rest

    def _step(self) -> None:
        self._is_in_line = False
        if self._waiting and not self._is_full:
            piece, self._waiting = bytes(self._waiting[:_PIECE_BYTES]), self._waiting[_PIECE_BYTES:]
            try:
                self.behind.data_received(piece)
            except Exception:
                self.transport.abort()
                raise
        self._stand_in_line()
        self._read_or_not()

    def _stand_in_line(self) -> None:
        if self._waiting and not (self._is_full or self._is_in_line):
            self._is_in_line = True
            self._turns.join(self._step)

    def _read_or_not(self) -> None:
        wanted = not (self._waiting or self._is_full)
        if wanted == self._is_read or self.transport.is_closing():
            return
        self._is_read = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    # --- the protocol of the socket ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self.behind.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._turns.buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self.behind.eof_received()
        return keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting = memoryview(b"")
        behind, self.behind = self.behind, None  # a circle would outlive the connection (tts_engine.service.garbage)
        self._turns.join(lambda: behind.connection_lost(exc))  # a peer may leave with a thousand of them
        self._turns.deal()

    def pause_writing(self) -> None:
        self.behind.pause_writing()

    def resume_writing(self) -> None:
        self.behind.resume_writing()

    # --- the transport of the protocol behind ------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_full = True
        self._read_or_not()

    def resume_reading(self) -> None:
        if self._is_full:  # aiohttp's reader says it of each chunk
            self._is_full = False
            self._stand_in_line()
            self._read_or_not()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
