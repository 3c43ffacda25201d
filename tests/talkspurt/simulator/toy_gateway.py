"""A gateway of a hundred lines on a real socket, so that the simulated peers can be tested without the real one.

Its one route is led by the manager that dials in. A turn is spoken as a tone of ``frames`` frames of 20 ms, which are
sent at once, so that a busy machine makes no gap. ``cancel`` and keys clear.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler

from voicecodecs import g711

TONE = g711.encode_ulaw((8000 * np.sin(2 * np.pi * 400 / 8000 * np.arange(160))).astype(np.int16))
SILENCE = b"\xff" * 160
SESSION = "VX" + "ab" * 16


class ToyGateway:
    def __init__(self, *, frames: int = 20, leading_silence: int = 2, hold_at: int = -1) -> None:
        self.frames, self.leading_silence, self.hold_at = frames, leading_silence, hold_at
        self.go_on = asyncio.Event()
        """The frame ``hold_at`` waits for it."""
        self.received: list[dict[str, Any]] = []
        self.extra: list[dict[str, Any]] = []
        """Sent on the media socket before each turn."""
        self.headers: dict[str, str] = {}
        self.dialogue_query: dict[str, str] = {}
        self.url = ""
        self._dialogue: web.WebSocketResponse | None = None
        self._media: web.WebSocketResponse | None = None
        self._speaking: asyncio.Task[None] | None = None
        self._turn = ""
        self._stream = ""

    async def media(self, request: web.Request) -> web.WebSocketResponse:
        self._media = socket = web.WebSocketResponse()
        self.headers = dict(request.headers)
        await socket.prepare(request)
        async for message in socket:
            body = json.loads(message.data)
            self.received.append(body)
            if body["event"] == "start":
                self._stream = body["streamSid"]
                setup = {"type": "setup", "callSid": body["start"]["callSid"], "customParameters": {}}
                await self._tell(setup)
            elif body["event"] == "mark" and self._turn and body["mark"]["name"] == self._turn:
                await self._tell({"type": "turn", "turn": self._turn, "event": "finished", "gaps": 0})
                self._turn = ""
            elif body["event"] == "dtmf":
                await self._cut("dtmf")
            elif body["event"] == "stop":
                break
        return socket

    async def dialogue(self, request: web.Request) -> web.WebSocketResponse:
        self._dialogue = socket = web.WebSocketResponse()
        self.dialogue_query = dict(request.query)
        await socket.prepare(request)
        async for message in socket:
            if message.type == WSMsgType.TEXT:
                body = json.loads(message.data)
                assert body["sessionId"] == SESSION
                self.received.append(body)
                if body["type"] == "text" and body["last"]:
                    self._turn = body["turn"]
                    self._speaking = asyncio.create_task(self._speak())
                elif body["type"] == "cancel":
                    await self._cut("cancel")
        return socket

    async def _speak(self) -> None:
        for body in self.extra:
            await self._send(**body)
        for n in range(self.frames):
            if n == self.hold_at:
                await self.go_on.wait()
            payload = SILENCE if n < self.leading_silence else TONE
            await self._send(event="media", media={"payload": base64.b64encode(payload).decode()})
        await self._send(event="mark", mark={"name": self._turn})

    async def _cut(self, reason: str) -> None:
        turn, self._turn = self._turn, ""
        if not turn or self._speaking is None:
            return
        self._speaking.cancel()
        await self._send(event="clear")
        await self._tell({"type": "interrupt", "turn": turn, "utteranceUntilInterrupt": "Hel", "reason": reason})
        await self._tell({"type": "turn", "turn": turn, "event": "interrupted", "reason": reason})

    async def _send(self, **body: Any) -> None:
        if self._media is not None and not self._media.closed:
            await self._media.send_json({"streamSid": self._stream, **body})

    async def _tell(self, body: dict[str, Any]) -> None:
        if self._dialogue is not None:
            await self._dialogue.send_json({"sessionId": SESSION, **body})


@asynccontextmanager
async def serving(gateway: ToyGateway, media: Handler | None = None) -> AsyncIterator[ToyGateway]:
    """Serve it; with ``media``, its media socket is answered by that instead."""
    app = web.Application()
    app.router.add_get("/media/twilio/call", media or gateway.media)
    app.router.add_get("/media/twilio", media or gateway.media)
    app.router.add_get("/v1/dialogue", gateway.dialogue)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    gateway.url = f"ws://{host}:{port}/media/twilio"
    try:
        yield gateway
    finally:
        await runner.cleanup()
