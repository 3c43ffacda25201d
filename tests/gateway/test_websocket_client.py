"""Outgoing WebSockets: proxies of the environment, errors without the address, peers that fall silent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.websocket_client import CannotOpen, ConnectionClosed, OutgoingWebSocket, open_websocket
from tests.gateway.dialogue.dialogue_fakes import App, running_app
from tests.waiting import until

ADDRESS = "ws://manager.test/relay?api_key=SECRET"
"""A name that only the proxies of these tests know."""


async def opened(url: str) -> OutgoingWebSocket:
    return await open_websocket(url, headers={"X-Mine": "1"}, message_bytes=1000, close_s=1.0)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            writer.write(data)
    writer.close()


class Proxy:
    """A proxy that leads every host to one application."""

    def __init__(self, app: App) -> None:
        self.port = int(app.url.split(":")[2].split("/")[0])
        self.asked: list[str] = []
        self.refuses = False

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """CONNECT (RFC 9110, 9.3.6)."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        if self.refuses:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self._pass(reader, writer)

    async def socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """SOCKS5 without a password, host by name (RFC 1928)."""
        _version, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(b"\x05\x00")
        head = await reader.readexactly(5)
        assert head[:4] == b"\x05\x01\x00\x03"
        host, port = await reader.readexactly(head[4]), await reader.readexactly(2)
        self.asked.append(f"{host.decode()}:{int.from_bytes(port)}")
        writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
        await self._pass(reader, writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        app_reader, app_writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(_copy(reader, app_writer), _copy(app_reader, writer))


@asynccontextmanager
async def proxied(monkeypatch: pytest.MonkeyPatch, kind: str) -> AsyncIterator[tuple[App, Proxy]]:
    """An application behind a proxy of this kind (``http``, ``socks``) that the environment names."""
    for name in ("no_proxy", "all_proxy", "http_proxy", "https_proxy", "ws_proxy", "wss_proxy", "socks_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with running_app() as app:
        proxy = Proxy(app)
        server = await asyncio.start_server(proxy.http if kind == "http" else proxy.socks, "127.0.0.1", 0)
        scheme = {"http": "http", "socks": "socks5h"}[kind]
        monkeypatch.setenv(f"{kind}_proxy", f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            yield app, proxy
        finally:
            server.close()


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


async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Do the server's part of the handshake by hand (RFC 6455, 4.2.2)."""
    head = await reader.readuntil(b"\r\n\r\n")
    key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


@asynccontextmanager
async def serving(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


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
