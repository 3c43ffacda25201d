"""Relays the socket of a dialogue manager that dials in to one worker to all workers, so that it can lead every call.

Every message names its call, and the call's id the worker: ``sessionId`` in text, the same 16 bytes at the head of a
binary message. Messages of the workers go to the manager unchanged.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import aiohttp
from aiohttp import web

from gateway.cluster.passing import close_code
from gateway.cluster.siblings import AGAIN_S, Siblings
from gateway.errors import Rejected

_SESSION = re.compile(r'"sessionId"\s*:\s*"(VX([0-9a-f]{2})[0-9a-f]{30})"')
_LOST = 1011
"""Close code towards the workers if the manager is lost: the calls wait for another manager. The hub takes 1000 and
1001 for an intended end."""
_NO_CLOSE = 1006
_REFUSED = (1002, 1003, 1007, 1008, 1009)
"""Close codes for faults of the manager: a refusal by one worker closes the whole socket."""


class ManagerRelay:
    """The handler of ``GET /v1/dialogue`` in a server of several workers.

    Args:
        ping_s: WebSocket ping interval towards the manager.
    """

    def __init__(self, siblings: Siblings, *, ping_s: float) -> None:
        self._siblings = siblings
        self._ping_s = ping_s

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Relay until the manager disconnects.

        Raises:
            Rejected: this worker's own answer, if it refuses the manager.
        """
        here = self._siblings.index
        async with self._siblings.session(here) as http:
            own = await self._own(http, request)
            if isinstance(own, web.StreamResponse):
                return own
            manager = web.WebSocketResponse(
                compress=False, max_msg_size=self._siblings.message_bytes, heartbeat=self._ping_s, autoclose=False
            )
            await manager.prepare(request)
            relayed = _Relayed(self._siblings, request, manager, {here: own})
            # aiohttp cancels a handler as soon as TCP is gone, but an intended close that came before must count.
            serving = asyncio.create_task(relayed.run(), name="dialogue relay")
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                await serving
                raise
            return manager

    async def _own(
        self, http: aiohttp.ClientSession, request: web.Request
    ) -> aiohttp.ClientWebSocketResponse | web.StreamResponse:
        try:
            return await self._siblings.dial(http, request, self._siblings.index)
        except Rejected as exc:
            if exc.code != "refused":
                raise
        # aiohttp's client does not return the body of a refused upgrade, so the request is repeated without one.
        return await self._siblings.refusal(request)


class _Relayed:
    """The relay of one manager."""

    def __init__(
        self,
        siblings: Siblings,
        request: web.Request,
        manager: web.WebSocketResponse,
        lines: dict[int, aiohttp.ClientWebSocketResponse],
    ) -> None:
        self._siblings = siblings
        self._request = request
        self._manager = manager
        self._lines = lines
        self._calls: dict[int, set[str]] = {worker: set() for worker in siblings.all}
        """The calls of each worker that the manager leads."""

    async def run(self) -> None:
        """Relay until the manager or this worker closes."""
        own = asyncio.create_task(self._from_worker(self._siblings.index))
        others = [
            asyncio.create_task(self._keep(worker)) for worker in self._siblings.all if worker != self._siblings.index
        ]
        up = asyncio.create_task(self._from_manager())
        try:
            await asyncio.wait({own, up, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            code = close_code(self._manager.close_code) if up.done() else _LOST
            for task in (own, up, *others):
                task.cancel()
            await asyncio.gather(own, up, *others, return_exceptions=True)
            for line in self._lines.values():
                with suppress(ConnectionError):
                    await line.close(code=code)

    async def _from_manager(self) -> None:
        async for message in self._manager:
            if message.type is aiohttp.WSMsgType.TEXT:
                found = _SESSION.search(message.data)
                line = self._line(int(found[2], 16) if found is not None else None)
                if line is not None:
                    await line.send_str(message.data)
            elif message.type is aiohttp.WSMsgType.BINARY:
                line = self._line(message.data[0] if message.data else None)
                if line is not None:
                    await line.send_bytes(message.data)

    def _line(self, worker: int | None) -> aiohttp.ClientWebSocketResponse | None:
        """Return the connection to a worker. For a message that names no worker, return this worker's, which reports
        the error. None: the worker is gone, and so are its calls."""
        line = self._lines.get(worker if worker in self._siblings.all else self._siblings.index)  # type: ignore[arg-type]
        return line if line is not None and not line.closed else None

    async def _from_worker(self, worker: int) -> None:
        """Copy a worker's messages. A close by this worker, and a refusal by any, closes the whole socket."""
        line = self._lines[worker]
        async for message in line:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._note(worker, message.data)
                await self._manager.send_str(message.data)
            elif message.type is aiohttp.WSMsgType.BINARY:
                await self._manager.send_bytes(message.data)
        if line.close_code in (None, _NO_CLOSE):
            for call_id in self._calls[worker]:  # no other process can tell the manager
                ended = {
                    "type": "ended",
                    "sessionId": call_id,
                    "reason": "worker_lost",
                    "durationMs": 0,
                    "by": "gateway",
                }
                await self._manager.send_json(ended)
            self._calls[worker].clear()
        if worker == self._siblings.index or line.close_code in _REFUSED:
            await self._manager.close(code=close_code(line.close_code))

    def _note(self, worker: int, text: str) -> None:
        found = _SESSION.search(text)
        if found is not None and '"type":"setup"' in text:
            self._calls[worker].add(found[1])
        elif found is not None and '"type":"ended"' in text:
            self._calls[worker].discard(found[1])

    async def _keep(self, worker: int) -> None:
        """Keep a connection to another worker, across its restarts. Return if that worker refuses the manager."""
        while not self._manager.closed:
            async with self._siblings.session(worker) as http:
                with suppress(Rejected):
                    self._lines[worker] = await self._siblings.dial(http, self._request, worker)
                    await self._from_worker(worker)
                    if self._manager.closed:
                        return
            await asyncio.sleep(AGAIN_S)
