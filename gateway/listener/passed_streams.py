"""Passes a media stream on to the worker that has placed its call, byte by byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.listener.passed_on import PEER_HEADER

log = logging.getLogger(__name__)

_CONNECT_S = 2.0
_END_OF_HEAD = b"\r\n\r\n"


class _End(asyncio.Protocol):
    """One end of a passed stream. What it receives goes to ``other``, at the speed at which ``other`` takes it."""

    def __init__(self, other: asyncio.Transport | None = None) -> None:
        self.other = other
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        if self.other is not None:
            self.other.close()


class PassedStreams:
    """The media streams that pass through this worker.

    Args:
        owner: returns the socket of the worker that has the call of an id. None: this one, or it is unknown.
    """

    def __init__(self, owner: Callable[[str], Path | None] = lambda call_id: None) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def owner(self, call_id: str) -> Path | None:
        """Return the socket of another worker that has a call. None: there is none."""
        return self._owner(call_id) if call_id else None

    def pass_on(
        self, transport: asyncio.Transport, data: bytes, socket: Path, peer: str, serve: Callable[[], None]
    ) -> None:
        """Pass a connection on until one end closes.

        Args:
            data: everything received so far, with the head of the request.
            socket: of the other worker.
            peer: the client's address.
            serve: called if that worker is gone; its call is lost then, and this worker takes the stream.
        """
        near = _End()
        transport.pause_reading()
        transport.set_protocol(near)
        task = asyncio.create_task(self._pass(transport, near, data, socket, peer, serve), name="pass a stream on")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        transport: asyncio.Transport,
        near: _End,
        data: bytes,
        socket: Path,
        peer: str,
        serve: Callable[[], None],
    ) -> None:
        far = _End(transport)
        try:
            async with asyncio.timeout(_CONNECT_S):
                made, _ = await asyncio.get_running_loop().create_unix_connection(lambda: far, str(socket))
        except (OSError, TimeoutError) as exc:
            log.warning("a stream's worker is gone", extra={"why": type(exc).__name__})
            if not near.closed.is_set():
                transport.resume_reading()
                serve()
            return
        near.other = made
        try:
            if not near.closed.is_set():
                head, end, rest = data.partition(_END_OF_HEAD)
                # The last header of a name counts, so one that the client has sent does not.
                near.other.write(head + f"\r\n{PEER_HEADER}: {peer}".encode() + end + rest)
                transport.resume_reading()
                await near.closed.wait()
        finally:
            near.other.close()
            transport.close()

    async def wait_ended(self, timeout_s: float) -> None:
        """Wait until no stream passes through, but not longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def aclose(self) -> None:
        """Close all of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
