"""Outgoing WebSockets: proxies of the environment, errors without the address, peers that fall silent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.websocket_client import CannotOpen, ConnectionClosed, OutgoingWebSocket, open_websocket
from tests.gateway.dialogue.dialogue_fakes import running_app
from tests.gateway.proxies import ADDRESS, proxied
from tests.waiting import until


async def opened(url: str) -> OutgoingWebSocket:
    return await open_websocket(url, headers={"X-Mine": "1"}, message_bytes=1000, close_s=1.0)


@pytest.mark.parametrize("kind", ["http", "socks"])
async def test_a_server_is_reached_through_the_proxy_of_the_environment(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(monkeypatch, kind) as (app, proxy):
        websocket = await opened(ADDRESS)
        await websocket.send('{"type":"setup"}')
        await until(lambda: app.received and app.received[0])
        await websocket.close()
        assert proxy.asked == ["manager.test:80"]
        assert (app.headers[0]["Host"], app.headers[0]["X-Mine"]) == ("manager.test", "1")
        assert not {"User-Agent", "Sec-WebSocket-Extensions", "Origin"} & app.headers[0].keys()

        await (await opened(app.url)).close()  # an address of this machine needs no proxy
        assert len(proxy.asked) == 1 and len(app.headers) == 2
        await until(lambda: len(app.closed) == 2)


async def test_a_proxy_that_refuses_is_named_without_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch, "http") as (_, proxy):
        proxy.refuses = True
        with pytest.raises(CannotOpen, match="^cannot connect: the proxy answered with HTTP 407$"):
            await opened(ADDRESS)
    monkeypatch.setenv("http_proxy", "gopher://user:SECRET@127.0.0.1")
    with pytest.raises(CannotOpen) as caught:
        await opened(ADDRESS)
    assert "the proxy of the environment" in str(caught.value) and "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:9/?api_key=SECRET", "ws://127.0.0.1/?api_key=SECRET#x", "ws://[SECRET", "http://SECRET/"]
)
async def test_an_error_does_not_repeat_the_address(url: str) -> None:
    with pytest.raises(CannotOpen) as caught:
        await opened(url)
    assert str(caught.value).startswith("cannot connect") and "SECRET" not in repr(caught.value)


async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Do the server's part of the handshake by hand (RFC 6455, 4.2.2). Return the request."""
    head = await reader.readuntil(b"\r\n\r\n")
    key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    return head


@asynccontextmanager
async def serving(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_a_server_that_is_gone_before_the_request_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def as_on_a_busy_machine(*args: Any, **settings: Any) -> tuple[asyncio.BaseTransport, Any]:
        transport, protocol = await connect(*args, **settings)
        await until(transport.is_closing)
        return transport, protocol

    async with serving(resets) as url:
        monkeypatch.setattr(loop, "create_connection", as_on_a_busy_machine)
        with pytest.raises(CannotOpen, match="Server disconnected"):
            await opened(url)


async def test_a_given_host_replaces_that_of_the_address() -> None:
    requests: list[bytes] = []

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await upgrade(reader, writer))
        writer.close()

    async with serving(closes) as url:
        websocket = await open_websocket(url, headers={"host": "bot.internal"}, message_bytes=1000, close_s=1.0)
        await websocket.wait_closed()
    hosts = [line for line in requests[0].lower().split(b"\r\n") if line.startswith(b"host:")]
    assert hosts == [b"host: bot.internal"]


async def test_the_peers_close_is_the_end_although_it_keeps_tcp_open() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upgrade(reader, writer)
        writer.write(b"\x88\x02\x03\xe9")  # 1001
        await reader.read()
        writer.close()

    async with serving(closes) as url:
        websocket = await opened(url)
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1001


@pytest.mark.virtual_time
async def test_a_peer_that_sends_and_answers_no_ping_is_alive_and_a_silent_one_is_not(tmp_path: Path) -> None:
    async def answers_no_ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upgrade(reader, writer)
        for _ in range(10):
            await asyncio.sleep(20)
            writer.write(b"\x81\x02hi")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    path, loop = str(tmp_path / "peer"), asyncio.get_running_loop()
    async with await asyncio.start_unix_server(answers_no_ping, path):
        websocket = await open_websocket(
            "ws://peer/", headers={}, message_bytes=1000, close_s=1.0, ping_s=20, unix_path=path
        )
        for _ in range(10):
            assert await websocket.recv() == "hi"
        heard_at = loop.time()
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd is None and loop.time() - heard_at == pytest.approx(30)


async def test_the_latency_of_keepalive_pings_is_reported() -> None:
    trips_s: list[float] = []
    async with running_app() as app:
        websocket = await open_websocket(
            app.url, headers={}, message_bytes=1000, close_s=1.0, ping_s=1.0, on_round_trip=trips_s.append
        )
        await until(lambda: trips_s)
        await websocket.close()
    assert 0 < trips_s[0] < 10
