"""An application behind a proxy that the environment names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.gateway.dialogue.dialogue_fakes import App, running_app

ADDRESS = "ws://manager.test/relay?api_key=SECRET"
"""A name that only the proxies of these tests know."""


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
