"""``WS /v1/calls/{id}/listen``: a supervisor hears both sides of a live call and is not heard."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.call.directory import Directory
from gateway.call.hearing.listeners import Listener
from gateway.call.session import Session
from gateway.errors import Rejected
from gateway.http.call_api.calls import live_call
from gateway.http.request.auth import WHO
from gateway.http.request.routes import Route

_PING_S = 20.0
_MESSAGE_BYTES = 1024
"""Longest message from a listener, who has nothing to send."""


class Listen:
    """The handler."""

    def __init__(self, directory: Directory[Session]) -> None:
        self._directory = directory

    def route(self) -> Route:
        """Return the route for ``make_app``. Listening has the same scope as control of calls, since it can do as much
        harm."""
        return Route(
            method="GET", path="/v1/calls/{id}/listen", handler=self.handle,
            summary="Both sides of a live call (WebSocket): stereo s16le, the caller left", tags=["calls"],
        )  # fmt: skip

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send the call's audio until the call ends or the listener disconnects."""
        session = live_call(self._directory, request)
        rate = session.caller.listen_rate
        if not rate:
            raise Rejected("listening to calls is not available", status=409, code="not_available")
        socket = web.WebSocketResponse(compress=False, heartbeat=_PING_S, max_msg_size=_MESSAGE_BYTES)
        if not socket.can_prepare(request):
            raise Rejected("expected a WebSocket", status=426, code="no_websocket")
        with session.listen_in(request[WHO].tenant) as listener:
            await socket.prepare(request)
            await socket.send_json({"type": "listening", "sampleRate": rate, "channels": 2, "encoding": "s16le"})
            sending = asyncio.create_task(_send(socket, listener), name=f"listener of {session.call_id}")
            try:
                async for _ in socket:
                    pass
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        return socket


async def _send(socket: web.WebSocketResponse, listener: Listener) -> None:
    try:
        async for pcm in listener:
            await socket.send_bytes(pcm)
        await socket.send_json({"type": "ended"})
    except ConnectionError:  # the listener has disconnected, which the reader of the socket notices too
        return
    await socket.close()
