"""The shared state over a Unix socket: the supervisor serves it, and its workers use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from gateway.errors import Rejected
from gateway.seams.shared_state import Handoff, SharedState

_TIMEOUT_S = 2.0
_BYTES = "latin-1"
"""Encoding of bytes as text, since JSON has no bytes."""


def routes(state: SharedState) -> list[web.RouteDef]:
    """Return the routes that answer ``SocketState``: one for each method, with arguments and result in JSON."""

    async def first(key: str, value: str, keep_s: float) -> str | None:
        return _text(await state.first(key, value.encode(_BYTES), keep_s=keep_s))

    async def put(key: str, value: str, keep_s: float) -> None:
        await state.put(key, value.encode(_BYTES), keep_s=keep_s)

    async def find(key: str) -> str | None:
        return _text(await state.find(key))

    async def leave(dialect: str, call_sid: str, handoff: dict[str, Any]) -> None:
        await state.leave(dialect, call_sid, Handoff(**handoff))

    async def left(call_sid: str) -> list[tuple[str, dict[str, Any]]]:
        return [(dialect, asdict(handoff)) for dialect, handoff in await state.left(call_sid)]

    async def take(dialect: str, call_sid: str) -> dict[str, Any] | None:
        handoff = await state.take(dialect, call_sid)
        return None if handoff is None else asdict(handoff)

    def answering(method: Any) -> Any:
        async def answer(request: web.Request) -> web.Response:
            result = await method(*orjson.loads(await request.read()))
            return web.Response(body=orjson.dumps(result), content_type="application/json")

        return answer

    methods = (first, put, find, leave, left, take)
    return [web.post(f"/state/{method.__name__}", answering(method)) for method in methods]


class SocketState:
    """A ``SharedState`` in another process. Use it on one event loop.

    Args:
        socket: the socket of that process.
    """

    def __init__(self, socket: Path) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
        )

    async def first(self, key: str, value: bytes, *, keep_s: float) -> bytes | None:
        return _bytes(await self._ask("first", key, _text(value), keep_s))

    async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
        await self._ask("put", key, _text(value), keep_s)

    async def find(self, key: str) -> bytes | None:
        return _bytes(await self._ask("find", key))

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        await self._ask("leave", dialect, call_sid, asdict(handoff))

    async def left(self, call_sid: str) -> Sequence[tuple[str, Handoff]]:
        return [(dialect, Handoff(**handoff)) for dialect, handoff in await self._ask("left", call_sid)]

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        handoff = await self._ask("take", dialect, call_sid)
        return None if handoff is None else Handoff(**handoff)

    async def aclose(self) -> None:
        await self._http.close()

    async def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            async with self._http.post(f"http://state/state/{method}", data=orjson.dumps(arguments)) as answer:
                answer.raise_for_status()
                return orjson.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Rejected(
                f"the workers' shared state is not available: {type(exc).__name__}",
                status=503, code="directory_unavailable", retry_after_s=1.0,
            ) from None  # fmt: skip


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(_BYTES)


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode(_BYTES)
