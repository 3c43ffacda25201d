"""Finds announced AudioSocket calls in a server of several workers.

Calls are announced to the first worker, and any worker may get their connection. That worker asks the first one for the
call, and all others if the call is live there. They use sockets that only workers reach.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any
from uuid import UUID

from aiohttp import web

from gateway.call.expected import ExpectedCall
from gateway.cluster.siblings import FIRST, Siblings
from gateway.listener.audiosocket import AudioSocketServer


class AnnouncedCalls:
    """Implements ``gateway.listener.audiosocket.OtherWorkers``."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings

    async def take(self, uuid: UUID) -> ExpectedCall | None:
        """Return the announcement of a call from the first worker, which then forgets it. None: there is none, or that
        worker is restarting."""
        return _read(await self._siblings.ask(FIRST, "/audiosocket/take", uuid=str(uuid)))

    async def live(self, uuid: UUID) -> ExpectedCall | None:
        """Return the announcement of a call that is live in another worker. None: no worker has it."""
        others = [worker for worker in self._siblings.all if worker != self._siblings.index]
        asked = await asyncio.gather(
            *(self._siblings.ask(worker, "/audiosocket/live", uuid=str(uuid)) for worker in others)
        )
        return next((found for answer in asked if (found := _read(answer)) is not None), None)


def _read(answer: dict[str, Any] | None) -> ExpectedCall | None:
    return None if answer is None else ExpectedCall(**answer)


def answers(server: AudioSocketServer) -> list[web.RouteDef]:
    """Return the routes on which a worker answers the others."""

    def answering(method: Any) -> Any:
        async def answer(request: web.Request) -> web.Response:
            call = method(UUID(request.query["uuid"]))
            return web.json_response(None if call is None else asdict(call))

        return answer

    return [
        web.get("/audiosocket/take", answering(server.expected.take)),
        web.get("/audiosocket/live", answering(server.live)),
    ]
