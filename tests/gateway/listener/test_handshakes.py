"""TLS connections are counted before their handshake, and silent ones make room."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import trustme

from gateway.listener.handshakes import Handshakes
from talkspurt.build import Gateway
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.listener.test_certificates import write
from tests.waiting import PATIENCE_S, until


class Waiting:
    def __init__(self) -> None:
        self.aborted = False

    def cancel(self) -> None:
        self.aborted = True


def test_a_source_at_its_limit_loses_its_own_oldest() -> None:
    made_room: list[bool] = []
    handshakes = Handshakes(most=10, per_source=2, on_room=lambda: made_room.append(True))
    other, *own = (Waiting() for _ in range(4))
    handshakes.enter("b", other)
    for each in own:
        handshakes.enter("a", each)
    assert [each.aborted for each in (other, *own)] == [False, True, False, False]
    assert len(made_room) == 1
    for each in (other, *own, *own):
        handshakes.leave(each)
    assert len(handshakes) == 0 and not handshakes._waiting


def test_at_the_limit_of_all_the_source_with_the_most_loses_one() -> None:
    handshakes = Handshakes(most=4, per_source=3)
    flood, other, new = [Waiting() for _ in range(3)], Waiting(), Waiting()
    for each in flood:
        handshakes.enter("a", each)
    handshakes.enter("b", other)
    handshakes.enter("c", new)
    assert [each.aborted for each in (*flood, other, new)] == [True, False, False, False, False]


@contextlib.asynccontextmanager
async def over_tls(folder: Path, **server: Any) -> AsyncIterator[tuple[Gateway, str, ssl.SSLContext]]:
    """A gateway that listens for TLS, its address, and the context of its clients."""
    authority = trustme.CA()
    certificate, key = write(authority, folder, "voice.example")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    async with api_gateway(folder, server={"tls": {"certificate": certificate, "key": key}, **server}) as made:
        yield made[0], made[2].replace("http", "https"), trusted


async def answers(url: str, trusted: ssl.SSLContext) -> bool:
    """Return True if a new client gets an answer."""
    connector = aiohttp.TCPConnector(ssl=trusted)
    async with aiohttp.ClientSession(url, connector=connector) as http:
        async with asyncio.timeout(PATIENCE_S), http.get("/healthz") as answer:
            return answer.status == 200


async def test_silent_connections_to_the_tls_port_keep_no_client_waiting(tmp_path: Path) -> None:
    async with over_tls(tmp_path) as (made, url, trusted):
        handshakes = made.server.handshakes = Handshakes(most=256, per_source=64)
        silent = [await asyncio.open_connection("127.0.0.1", made.server.port) for _ in range(150)]
        await until(lambda: len(handshakes) == 64, "the limit")
        assert await answers(url, trusted)
        closed = [await reader.read() for reader, _ in silent]  # each ends at the limit or at its time limit
        assert closed == [b""] * len(silent)
        await until(lambda: not len(handshakes), "the end of all handshakes")
        for _, writer in silent:
            writer.close()


async def test_a_trusted_proxy_makes_no_room_among_handshakes_and_has_no_limit_of_one_address(tmp_path: Path) -> None:
    async with over_tls(tmp_path, trusted_proxies=["127.0.0.1"]) as (made, url, trusted):
        made.server.handshakes = Handshakes(most=1, per_source=1)
        made.server.sockets._per_address = 1
        held = [await asyncio.open_connection("127.0.0.1", made.server.port, ssl=trusted,
                                              server_hostname="voice.example") for _ in range(3)]  # fmt: skip
        assert await answers(url, trusted) and not any(reader.at_eof() for reader, _ in held)
        for _, writer in held:
            writer.close()


async def test_clients_that_do_not_end_tls_do_not_keep_their_descriptors(tmp_path: Path) -> None:
    """The sockets of ended connections stay open at the client, and no byte of them is read there."""
    request = b"GET /healthz HTTP/1.1\r\nHost: voice.example\r\nConnection: close\r\n\r\n"
    async with over_tls(tmp_path) as (made, url, trusted):
        files = len(os.listdir("/proc/self/fd"))
        deaf_ones = []
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", made.server.port))
            wrapped = trusted.wrap_socket(client, server_hostname="voice.example", do_handshake_on_connect=False)
            await asyncio.to_thread(wrapped.do_handshake)
            wrapped.sendall(request)
            deaf_ones.append(wrapped)
        await until(lambda: not len(made.server.sockets), "the end of the connections")
        await until(lambda: len(os.listdir("/proc/self/fd")) <= files + 30, "the server's descriptors")
        assert await answers(url, trusted)
        for client in deaf_ones:
            client.close()
