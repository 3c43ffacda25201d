"""A TCP connection to another server that may be slow, let nothing through, or break off."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Line:
    """The connection between a gateway and a server that it uses.

    Args:
        to: the server's port on loopback, or the path of its Unix socket.
    """

    def __init__(self, to: int | str) -> None:
        self._to = to
        self._passes = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self.delay_s = 0.0
        """Added to each piece, seconds."""
        self.answer_bytes: int | None = None
        """A connection breaks off after so many bytes of a piece of its answers. None: never."""
        self.connections = 0
        """Number of those that were made so far."""
        self.port = 0

    async def __aenter__(self) -> Line:
        self.go_on()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        while self._tasks:  # a connection that was being made adds its own
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang(self) -> None:
        """Take connections, and pass nothing on."""
        self._passes.clear()

    def go_on(self) -> None:
        """Pass on what waits, and all that follows."""
        self._passes.set()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._start(self._connect(reader, writer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await (
                asyncio.open_connection("127.0.0.1", self._to)
                if isinstance(self._to, int)
                else asyncio.open_unix_connection(self._to)
            )
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        self._start(self._pass_on(reader, there[1], answers=False))
        self._start(self._pass_on(there[0], writer, answers=True))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await source.read(65536):
                await self._passes.wait()
                await asyncio.sleep(self.delay_s)
                if answers and self.answer_bytes is not None:
                    sink.write(data[: self.answer_bytes])
                    return
                sink.write(data)
        except ConnectionError:
            pass
        finally:
            sink.close()
