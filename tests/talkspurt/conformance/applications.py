"""Dialogue applications over real sockets: a right one, and others that do one thing wrong each."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

Json = dict[str, Any]


class Application:
    """The right one: it greets a new session, streams its answers, stops on ``interrupt``, passes over what it does not
    know. A wrong one overrides one method."""

    autoclose = True

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        """The headers of the last request."""
        self.received: list[Json] = []

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        self.headers = dict(request.headers)
        socket = web.WebSocketResponse(autoclose=self.autoclose)
        await socket.prepare(request)
        answer: asyncio.Task[None] | None = None
        try:
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    message = json.loads(frame.data)
                    self.received.append(message)
                    if self.stops(message) and answer is not None:
                        answer.cancel()
                    if self.answers(message):
                        answer = asyncio.create_task(self.stream(socket, message))
                    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                        await self.on_message(socket, message)
            await self.on_close(request)
        finally:
            if answer is not None:
                answer.cancel()
        return socket

    def stops(self, message: Json) -> bool:
        return bool(message["type"] == "interrupt")

    def answers(self, message: Json) -> bool:
        return bool(message["type"] == "prompt" and message["last"])

    async def on_message(self, socket: web.WebSocketResponse, message: Json) -> None:
        if message["type"] == "setup" and not message.get("resumed"):
            await self.greet(socket)

    async def greet(self, socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "text", "token": "Hi there.", "last": True})

    async def stream(self, socket: web.WebSocketResponse, message: Json) -> None:
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await self.answer(socket, long="story" in message["voicePrompt"])
            await self.close_turn(socket)

    async def answer(self, socket: web.WebSocketResponse, *, long: bool) -> None:
        """Speak three tokens, or without an end."""
        spoken = 0
        while long or spoken < 3:
            await socket.send_json({"type": "text", "token": "word ", "last": False})
            await asyncio.sleep(0.02)
            spoken += 1

    async def close_turn(self, socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "text", "token": "", "last": True})

    async def on_close(self, request: web.Request) -> None:
        pass


class SlowToAnswer(Application):
    async def answer(self, socket: web.WebSocketResponse, *, long: bool) -> None:
        await asyncio.sleep(0.6)
        await super().answer(socket, long=long)


class StreamsOn(Application):
    def stops(self, message: Json) -> bool:
        return False


class NeverClosesTurns(Application):
    async def close_turn(self, socket: web.WebSocketResponse) -> None:
        pass


class Deaf(Application):
    def answers(self, message: Json) -> bool:
        return False


class AnswersEveryPrompt(Application):
    def answers(self, message: Json) -> bool:
        return bool(message["type"] == "prompt")


class ClosesOnUnknown(Application):
    async def on_message(self, socket: web.WebSocketResponse, message: Json) -> None:
        await super().on_message(socket, message)
        if message["type"] not in ("setup", "prompt", "dtmf", "interrupt"):
            await socket.close(code=1003)


class ClosesOnKeys(Application):
    async def on_message(self, socket: web.WebSocketResponse, message: Json) -> None:
        await super().on_message(socket, message)
        if message["type"] == "dtmf":
            await socket.close(code=1011)


class GreetsAgain(Application):
    async def on_message(self, socket: web.WebSocketResponse, message: Json) -> None:
        await super().on_message(socket, {**message, "resumed": False})


class LeavesTheGreetingOpen(Application):
    async def greet(self, socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "text", "token": "Hi there."})


class SendsWhatCannotBeRead(Application):
    async def close_turn(self, socket: web.WebSocketResponse) -> None:
        await super().close_turn(socket)
        await socket.send_json({"type": "play", "source": ""})
        await socket.send_bytes(b"audio")


class HangsUp(Application):
    async def greet(self, socket: web.WebSocketResponse) -> None:
        await socket.close()


class EndsTheCall(Application):
    async def greet(self, socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "end"})


class KeepsSocketsOpen(Application):
    autoclose = False

    async def on_close(self, request: web.Request) -> None:
        await asyncio.Event().wait()


class CutsTheConnection(Application):
    autoclose = False

    async def on_close(self, request: web.Request) -> None:
        if request.transport is not None:  # it is not gone already, as after a cut
            request.transport.abort()


class AnswersWhole(Application):
    """Right, but without a greeting, and without a stream that could be interrupted."""

    async def greet(self, socket: web.WebSocketResponse) -> None:
        pass

    async def answer(self, socket: web.WebSocketResponse, *, long: bool) -> None:
        await socket.send_json({"type": "text", "token": "All of it.", "last": True})

    async def close_turn(self, socket: web.WebSocketResponse) -> None:
        pass


@asynccontextmanager
async def serving(application: Application, path: Path | None = None) -> AsyncIterator[str]:
    """Serve an application on a port of its own, or at the path of a UNIX socket; the address of its WebSocket."""
    app = web.Application()
    app.router.add_get("/relay", application.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    try:
        if path is None:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"ws://127.0.0.1:{runner.addresses[0][1]}/relay"
        else:
            await web.UnixSite(runner, path).start()
            yield "ws://application/relay"
    finally:
        await runner.cleanup()
