"""Passes an HTTP request or a WebSocket on to another process unchanged, and returns its answer as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from gateway.errors import Rejected
from gateway.listener.passed_on import PART_HEADER, PEER_HEADER

_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol",
    PEER_HEADER.lower(), PART_HEADER.lower(),
}  # fmt: skip
"""Hop-by-hop headers (RFC 9110 section 7.6.1, RFC 6455 section 11.3), and our own."""

_CONNECT_S = 2.0


def session(socket: Path | None = None) -> aiohttp.ClientSession:
    """Return a client. Each request has its own connection.

    Args:
        socket: the Unix socket to connect to. None: the host of each address.
    """
    connector = (
        aiohttp.UnixConnector(str(socket), force_close=True) if socket else aiohttp.TCPConnector(force_close=True)
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def headers(given: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of a request that are passed on."""
    return CIMultiDict((name, value) for name, value in given.items() if name.lower() not in _HOP_BY_HOP)


def headers_of(answer: aiohttp.ClientResponse) -> CIMultiDict[str]:
    """Return the headers of an answer that are passed on. Length, date and server are set anew."""
    kept = headers(answer.headers)
    for name in ("Content-Length", "Date", "Server"):
        kept.popall(name, None)
    return kept


async def named_call(request: web.Request) -> str:
    """Return the id of the call that a request names; empty: none."""
    resource = request.match_info.route.resource
    if request.method == "POST" and resource is not None and resource.canonical == "/v1/tokens":
        return await _field(request, "call")
    if resource is not None and resource.canonical.startswith("/v1/rooms/"):
        return request.match_info.get("leg") or await _field(request, "call")
    if request.path.startswith("/webhooks/"):
        return request.query.get("placed", "")
    return request.match_info.get("id", "")


async def _field(request: web.Request, name: str) -> str:
    """Return a field of a request's JSON; empty: it has none, or it is no text."""
    try:
        value = orjson.loads(await request.read()).get(name)
    except (orjson.JSONDecodeError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""


async def answered_by(
    http: aiohttp.ClientSession, request: web.Request, url: URL, kept: CIMultiDict[str], *, message_bytes: int,
    gone: Rejected,
) -> web.StreamResponse:  # fmt: skip
    """Let another process answer a request.

    Args:
        kept: the headers for it.
        message_bytes: longest WebSocket message.
        gone: raised if it cannot be reached.
    """
    if request.headers.get("Upgrade", "").lower() == "websocket":
        return await _socket_by(http, request, url, kept, message_bytes=message_bytes, gone=gone)
    body = await request.read()
    kept.popall("Content-Length", None)
    try:
        answer = await http.request(
            request.method, url, data=body or None, headers=kept, allow_redirects=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        )  # fmt: skip
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        raise gone from exc
    async with answer:
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers_of(answer))
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
        except (aiohttp.ClientError, OSError):  # half an answer must not look like a whole one
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response


async def dial(
    http: aiohttp.ClientSession, url: URL, kept: CIMultiDict[str], *, message_bytes: int, gone: Rejected
) -> aiohttp.ClientWebSocketResponse:
    """Open a WebSocket at another process.

    Raises:
        Rejected: it refuses (code ``refused``), or cannot be reached (``gone``).
    """
    try:
        return await http.ws_connect(url, headers=kept, max_msg_size=message_bytes, compress=0, autoclose=False)
    except aiohttp.WSServerHandshakeError as exc:
        raise Rejected(f"refused with {exc.status}", status=exc.status, code="refused") from exc
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        raise gone from exc


async def _socket_by(
    http: aiohttp.ClientSession, request: web.Request, url: URL, kept: CIMultiDict[str], *, message_bytes: int,
    gone: Rejected,
) -> web.StreamResponse:  # fmt: skip
    theirs = await dial(http, url, kept, message_bytes=message_bytes, gone=gone)
    ours = web.WebSocketResponse(compress=False, max_msg_size=message_bytes)
    await ours.prepare(request)
    up, down = asyncio.create_task(_pump(ours, theirs)), asyncio.create_task(_pump(theirs, ours))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        await theirs.close()
        await ours.close()
    return ours


async def _pump(
    source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
) -> None:
    """Copy messages until one side closes, and close the other side with the same code."""
    async for message in source:
        if message.type is aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await sink.send_bytes(message.data)
    await sink.close(code=close_code(source.close_code))


def close_code(code: int | None) -> int:
    """Return the close code to send for a received one (RFC 6455 section 7.4.1)."""
    return code if code is not None and code not in (1004, 1005, 1006, 1015) and 1000 <= code < 5000 else 1011
