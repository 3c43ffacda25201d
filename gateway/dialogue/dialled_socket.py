"""A dialled WebSocket of websockets, with the methods of aiohttp's that ``Line`` uses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp

from gateway.websocket_client import ConnectionClosed, OutgoingWebSocket

NO_STATUS = 0
"""Value that stands for a close frame without a code, as aiohttp reports it; ``ws.close()`` of many clients sends
that."""

_NO_CODE = 1005  # as websockets reports it (RFC 6455, 7.4.1)


class DialledSocket:
    """One dialled WebSocket. Pings of the peer are answered by websockets; pongs come to the future of ``ping``."""

    def __init__(self, websocket: OutgoingWebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> aiohttp.WSMessage:
        try:
            data = await self._websocket.recv()
        except ConnectionClosed as exc:
            if exc.rcvd is None or (exc.sent is not None and not exc.rcvd_then_sent):
                return aiohttp.WSMessage(aiohttp.WSMsgType.CLOSED, None, None)
            code = NO_STATUS if exc.rcvd.code == _NO_CODE else exc.rcvd.code
            return aiohttp.WSMessage(aiohttp.WSMsgType.CLOSE, code, exc.rcvd.reason)
        kind = aiohttp.WSMsgType.TEXT if isinstance(data, str) else aiohttp.WSMsgType.BINARY
        return aiohttp.WSMessage(kind, data, None)

    async def send_str(self, text: str) -> None:
        await self._send(text)

    async def send_bytes(self, data: bytes) -> None:
        await self._send(data)

    async def _send(self, data: str | bytes) -> None:
        try:
            await self._websocket.send(data)
        except ConnectionClosed:
            raise ConnectionResetError from None

    async def ping(self, payload: bytes) -> asyncio.Future[float]:
        """Send a ping. The future gets the seconds until its pong, or the end of the connection as an exception."""
        try:
            return cast("asyncio.Future[float]", await self._websocket.ping(payload))
        except ConnectionClosed:
            raise ConnectionResetError from None

    async def pong(self, payload: bytes) -> None:
        await self._websocket.pong(payload)

    async def close(self, *, code: int, message: bytes) -> None:
        await self._websocket.close(code, message.decode())

    def get_extra_info(self, name: str) -> Any:
        return self._websocket.transport.get_extra_info(name)
