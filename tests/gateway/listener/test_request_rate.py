"""The rate of requests: counted for each client, before anything else reads them."""

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from gateway.listener.forwarded import Proxies
from gateway.listener.request_rate import RequestRate
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import PATIENCE_S

FROM_PROXY = {"X-Forwarded-For": "192.0.2.7"}


def rate(per_s: float = 2.0) -> RequestRate:
    return RequestRate(per_s, Proxies(["10.0.0.0/8"]))


def test_a_client_may_send_a_burst_and_then_the_rate() -> None:
    limit = rate()
    assert [limit.wait_s("192.0.2.1", {}, "/v1/calls", now=0.0) for _ in range(11)] == [0.0] * 10 + [0.5]
    assert limit.wait_s("192.0.2.1", {}, "/v1/calls", now=0.5) == 0
    assert limit.wait_s("192.0.2.2", {}, "/v1/calls", now=0.5) == 0


@pytest.mark.parametrize(
    ("peer", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("2001:db8::1", "2001:db8:0:0:9::"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::2"),
    ],
)
def test_addresses_of_one_host_share_its_requests(peer: str, same: str) -> None:
    limit = rate()
    for _ in range(10):
        assert limit.wait_s(peer, {}, "/v1/calls", now=0.0) == 0
    assert limit.wait_s(same, {}, "/v1/calls", now=0.0) > 0
    assert limit.is_spent(same, "/v1/calls", now=0.0)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_are_answered_beside_a_flood_and_a_flood_of_probes_is_limited(path: str) -> None:
    limit = rate()
    while not limit.wait_s("192.0.2.1", {}, "/v1/calls", now=0.0):
        pass
    assert limit.wait_s("192.0.2.1", {}, path, now=0.0) == 0
    assert not limit.is_spent("192.0.2.1", path, now=0.0)
    while not limit.wait_s("192.0.2.1", {}, path, now=0.0):
        pass
    assert limit.is_spent("192.0.2.1", path, now=0.0)


def test_clients_behind_a_trusted_proxy_are_counted_apart_and_a_named_client_counts_only_from_there() -> None:
    limit = rate()
    while not limit.wait_s("10.0.0.1", FROM_PROXY, "/v1/calls", now=0.0):
        pass
    assert limit.wait_s("10.0.0.1", {"X-Forwarded-For": "192.0.2.8"}, "/v1/calls", now=0.0) == 0
    assert limit.wait_s("192.0.2.9", FROM_PROXY, "/v1/calls", now=0.0) == 0  # a client that names another one
    for _ in range(9):
        limit.wait_s("10.0.0.1", {}, "/v1/calls", now=0.0)
    assert not limit.is_spent("10.0.0.1", "/v1/calls", now=0.0)


async def sent(port: int, data: bytes) -> bytes:
    """Return everything that the server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            writer.write(data)
            while piece := await reader.read(65536):
                answer += piece
    writer.close()
    return answer


async def test_pipelined_requests_beyond_the_rate_end_with_one_refusal_and_probes_are_still_answered(
    tmp_path: Path,
) -> None:
    async with api_gateway(tmp_path, limits={"requests_per_s": 0.01}) as (made, _, url):
        one = b"GET /v1/calls HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answer = await sent(made.server.port, one * 120)
        assert answer.count(b"HTTP/1.1 ") == 2 and answer.count(b"HTTP/1.1 429 ") == 1
        assert b'"too_many_requests"' in answer and b"Retry-After: " in answer
        # A new connection is refused too, with one answer, before the application sees it.
        again = await sent(made.server.port, one * 120)
        assert again.startswith(b"HTTP/1.1 429 ") and again.count(b"HTTP/1.1 ") == 1
        async with aiohttp.ClientSession(url) as http, http.get("/healthz") as probe:
            assert probe.status == 200
        assert 'reason="too_many_requests"} 2.0' in made.metrics.exposition().decode()
