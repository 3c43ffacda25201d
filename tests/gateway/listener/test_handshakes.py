"""TLS connections are counted before their handshake, and silent ones make room."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import trustme

from gateway.listener.handshakes import Handshakes
from gateway.listener.server import _HANDSHAKES_PER_SOURCE
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.listener.test_certificates import write
from tests.waiting import PATIENCE_S, until


class Waiting:
    def __init__(self) -> None:
        self.aborted = False

    def cancel(self) -> None:
        self.aborted = True


def test_a_source_at_its_limit_loses_its_own_oldest() -> None:
    handshakes = Handshakes(most=10, per_source=2)
    other, *own = (Waiting() for _ in range(4))
    handshakes.enter("b", other)
    for each in own:
        handshakes.enter("a", each)
    assert [each.aborted for each in (other, *own)] == [False, True, False, False]
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


async def test_silent_connections_to_the_tls_port_keep_no_client_waiting(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = write(authority, tmp_path, "voice.example")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    server = {"tls": {"certificate": certificate, "key": key}}
    async with api_gateway(tmp_path, server=server) as (made, _, url):
        silent = [
            await asyncio.open_connection("127.0.0.1", made.server.port) for _ in range(3 * _HANDSHAKES_PER_SOURCE)
        ]
        await until(lambda: len(made.server.handshakes) == _HANDSHAKES_PER_SOURCE, "the limit")
        connector = aiohttp.TCPConnector(ssl=trusted)
        async with aiohttp.ClientSession(url.replace("http", "https"), connector=connector) as http:
            async with asyncio.timeout(PATIENCE_S), http.get("/healthz") as answer:
                assert answer.status == 200
        closed = [await reader.read() for reader, _ in silent]  # each ends at the limit or at its time limit
        assert closed == [b""] * len(silent)
        await until(lambda: not len(made.server.handshakes), "the end of all handshakes")
        for _, writer in silent:
            writer.close()
