"""A session that records, an application on a real loopback socket, and a way to wait for either."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import WSMsgType, web

from gateway.seams.leg import CallInfo
from gateway.seams.messages import Inbound

HEX = "0123456789abcdef0123456789abcdef"


def call(number: int = 0, route: str = "demo", **more: Any) -> CallInfo:
    return CallInfo(call_id=f"VX{number:032x}", route=route, transport="twilio", **more)


class RecordingSink:
    """Stands where the session stands."""

    def __init__(self) -> None:
        self.messages: list[Inbound] = []
        self.events: list[str] = []
        self.ready = 0
        self.round_trips_s: list[float] = []
        self.raises: Exception | None = None

    def on_message(self, message: Inbound) -> None:
        if self.raises is not None:
            raise self.raises
        self.messages.append(message)

    def on_dialogue_ready(self) -> None:
        self.ready += 1

    def on_dialogue_closed(self) -> None:
        self.events.append("closed")

    def on_dialogue_lost(self) -> None:
        self.events.append("lost")

    def on_dialogue_resumed(self) -> None:
        self.events.append("resumed")

    def on_dialogue_skipped(self, kind: str, number: int) -> None:
        self.events.append(f"skipped: {kind} {number}")

    def on_dialogue_failed(self, description: str) -> None:
        self.events.append(f"failed: {description}")

    def on_round_trip(self, seconds: float) -> None:
        self.round_trips_s.append(seconds)


class App:
    """A ConversationRelay application: records what comes, keeps its sockets for the test to speak on."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.requests: list[web.Request] = []
        self.received: list[list[dict[str, Any]]] = []
        self.binary: list[bytes] = []
        self.closed: list[int | None] = []
        self.refuse = False
        self.refused = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.refuse:
            self.refused += 1
            return web.Response(status=503)
        self.headers.append(dict(request.headers))
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        mine: list[dict[str, Any]] = []
        self.received.append(mine)
        self.requests.append(request)
        self.sockets.append(socket)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                mine.append(orjson.loads(message.data))
            elif message.type is WSMsgType.BINARY:
                self.binary.append(message.data)
        self.closed.append(socket.close_code)
        return socket

    def drop(self, number: int = -1) -> None:
        """Cut TCP without a close frame."""
        transport = self.requests[number].transport
        assert transport is not None
        transport.abort()


@asynccontextmanager
async def served(handler: Callable[[web.Request], Any], path: str = "/relay") -> AsyncIterator[str]:
    """Serve one WebSocket handler on loopback; yields its ws:// address."""
    application = web.Application()
    application.router.add_get(path, handler)
    runner = web.AppRunner(application, shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"ws://127.0.0.1:{port}{path}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def running_app() -> AsyncIterator[App]:
    app = App()
    async with served(app.handle) as app.url:
        yield app
