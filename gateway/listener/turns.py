"""Limits the event loop's time for input from outside, so that calls wait only a bounded time.

Input of one peer is cheap, but input of many at once is not, and frames are due meanwhile: a body in chunks of one byte
costs the loop 7 us a byte, and one turn of the loop may bring 256 kB from each connection and 32 datagrams from each
socket. So input is handled in small steps. When the time for one turn is used up, the remaining steps wait for the next
turn, and their connections are not read meanwhile. Frames that become due are sent between two steps.
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
"""Longest time for the steps of one queue in one turn of the loop. The last step may exceed it."""
_PIECE_BYTES = 1024
"""Bytes of a connection in one step. As chunks of one byte they cost 1.5 ms, most of it later, in aiohttp's body
reader."""


class LoopTurns:
    """A queue of steps, run in order, as many in one turn of the loop as its time allows.

    Args:
        clock: returns the time in seconds.
        frames_first: sends the audio frames that are due. Called before each step, and by other work on the loop.
        turn_s: longest time for steps in one turn of the loop.
        share: share of a turn's length that steps may use if that is more. A loop that is busy, or that gets little of
            its processor, makes few turns, and input must not wait for hundreds of them.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        frames_first: Callable[[], None] = lambda: None,
        turn_s: float = TURN_S,
        share: float = 0.0,
    ) -> None:
        self.buffer = memoryview(bytearray(_PIECE_BYTES))
        """Read buffer of all connections; each read is copied before the next one."""
        self.clock = clock
        self.frames_first = frames_first
        self._turn_s = turn_s
        self._share = share
        self._allowed_s = turn_s
        """Longest time for steps in this turn of the loop."""
        self._begun: float | None = None
        """Begin of this turn. None: there was none, or the queue was empty since."""
        self._line: deque[Callable[[], None]] = deque()
        self._used_s = 0.0
        self._is_dealing = False
        self._next: asyncio.Handle | None = None

    def join(self, step: Callable[[], None]) -> None:
        """Queue a step. It runs in a later turn, or now if ``deal`` is called."""
        self._line.append(step)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    @property
    def has_time(self) -> bool:
        """True if this turn of the loop has time for another step."""
        return self._used_s < self._allowed_s

    def spent(self, begun: float) -> None:
        """Count the time of a step that was not queued.

        Args:
            begun: its start, on ``clock``.
        """
        self._used_s += self.clock() - begun
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    def deal(self) -> None:
        """Run steps while this turn of the loop has time."""
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
                    log.exception("a step of input failed")
                self._used_s += self.clock() - begun
        finally:
            self._is_dealing = False

    def _begin(self) -> None:
        """Start a new turn of the loop."""
        now, before = self.clock(), self._begun
        self._used_s = 0.0
        self._allowed_s = self._turn_s if before is None else max(self._turn_s, self._share * (now - before))
        self._next = asyncio.get_running_loop().call_soon(self._begin) if self._line else None
        self._begun = now if self._line else None
        self.deal()


class InTurns(asyncio.BufferedProtocol):
    """A connection that passes on its input in turns. To its socket it is the protocol; to the wrapped protocol, the
    transport.

    Args:
        on_lost: called with the connection when its socket is closed, unless the socket has another protocol by then.
    """

    def __init__(self, inner: Any, turns: LoopTurns, on_lost: Callable[[InTurns], None] = lambda connection: None):
        self.inner = inner
        self._on_lost = on_lost
        self._turns = turns
        self._transport: asyncio.Transport | None = None
        self._waiting = memoryview(b"")
        self._is_in_line = False
        self._is_full = False
        """True while the wrapped protocol accepts no more input."""
        self._is_read = True

    @property
    def transport(self) -> asyncio.Transport:
        """The socket's transport."""
        assert self._transport is not None
        return self._transport

    def received(self, data: bytes) -> None:
        """Handle received bytes."""
        self._waiting = memoryview(data)
        self._stand_in_line()
        self._turns.deal()
        self._read_or_not()

    def release(self) -> bytes:
        """Detach the wrapped protocol. Return the bytes that were read and not passed on."""
        rest, self._waiting = bytes(self._waiting), memoryview(b"")
        self.inner = None
        self._is_full = False
        self._read_or_not()
        return rest

    def _step(self) -> None:
        self._is_in_line = False
        if self._waiting and not self._is_full:
            piece, self._waiting = bytes(self._waiting[:_PIECE_BYTES]), self._waiting[_PIECE_BYTES:]
            try:
                self.inner.data_received(piece)
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
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport has the methods, but is of another class
        self.inner.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._turns.buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self.inner.eof_received()
        return keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        self._waiting = memoryview(b"")
        inner, self.inner = (
            self.inner,
            None,
        )  # a reference cycle would outlive the connection (tts_engine.service.garbage)
        self._turns.join(lambda: inner.connection_lost(exc))  # a peer may close a thousand connections at once
        self._turns.deal()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # --- the transport of the wrapped protocol ------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_full = True
        self._read_or_not()

    def resume_reading(self) -> None:
        if self._is_full:  # aiohttp's reader calls this for each chunk
            self._is_full = False
            self._stand_in_line()
            self._read_or_not()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
