"""Crowds of one source: the connections that another process hands over, and an IPv6 /64, have the limits of one."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from gateway.call.expected import ExpectedCall, ExpectedCalls
from gateway.config import AudioSocketConfig, LimitsConfig
from gateway.listener.audiosocket import AudioSocketLeg, AudioSocketServer
from gateway.listener.handshakes import Handshakes
from sip_bridge.io.endpoint import _STRANGERS_PER_SOURCE, _Connection
from sip_bridge.io.tls import server_context
from sip_bridge.local import Peer
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.listener.test_handshakes import answers, over_tls
from tests.sip_bridge.io.test_tls import Authority, tls_server
from tests.sip_bridge.phone import bridge
from tests.waiting import PATIENCE_S, until

CROWD, MOST, QUEUED = 60, 20, 400
STRANGER, HONEST = "127.0.0.9", "127.0.0.1"
LIMITS = LimitsConfig(connections=1000, connections_per_address=MOST, setup_timeout_s=PATIENCE_S, idle_s=PATIENCE_S)

Adopt = Callable[[socket.socket], Any]


@contextlib.asynccontextmanager
async def handing_over(adopt: Adopt) -> AsyncIterator[int]:
    """The port of a listener that hands each connection over, as the supervisor of workers does."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Future[Any]]()
    with socket.create_server(("127.0.0.1", 0), backlog=CROWD) as listener:
        listener.setblocking(False)

        def accept() -> None:
            connection, _ = listener.accept()
            connection.setblocking(False)
            if asyncio.iscoroutine(adopted := adopt(connection)):
                tasks.add(asyncio.ensure_future(adopted))

        loop.add_reader(listener.fileno(), accept)
        yield listener.getsockname()[1]
        loop.remove_reader(listener.fileno())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def crowd(port: int, first: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """Silent connections of one stranger."""
    opened = await asyncio.gather(
        *(asyncio.open_connection("127.0.0.1", port, local_addr=(STRANGER, 0)) for _ in range(CROWD))
    )
    for _, writer in opened:
        writer.write(first)
    yield [reader for reader, _ in opened]
    for _, writer in opened:
        writer.close()


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
async def test_a_crowd_that_is_handed_over_keeps_to_the_limit_of_one_address(tmp_path: Path, first: bytes) -> None:
    async with (
        api_gateway(tmp_path, limits=LIMITS) as (made, _, _),
        handing_over(made.server.adopt) as port,
        crowd(port, first) as strangers,
        asyncio.timeout(PATIENCE_S),
    ):
        await until(lambda: sum(each.at_eof() for each in strangers) == CROWD - MOST, "the end of the oldest")
        assert len(made.server.sockets) == MOST
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HONEST, 0))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_crowd_that_is_handed_over_before_tls_keeps_to_the_limit_of_one_source(tmp_path: Path) -> None:
    async with over_tls(tmp_path) as (made, _, trusted), handing_over(made.server.adopt) as port:
        made.server.handshakes = Handshakes(most=40, per_source=10)
        async with crowd(port) as strangers:
            await until(lambda: sum(each.at_eof() for each in strangers) >= CROWD - 10, "the end of the oldest")
            assert len(made.server.handshakes) <= 10
            assert await answers(f"https://127.0.0.1:{port}", trusted)


async def test_sip_connections_that_are_handed_over_keep_to_the_limit_of_one_source() -> None:
    async with bridge(trunk={"addresses": ["192.0.2.1"]}) as made:
        endpoint = made.bridge.endpoint
        async with handing_over(lambda connection: endpoint.adopt(connection, None)) as port:
            async with crowd(port) as first, crowd(port) as second:
                await until(lambda: len(endpoint._connections) == _STRANGERS_PER_SOURCE, "the limit")
                await until(
                    lambda: sum(each.at_eof() for each in first + second) == 2 * CROWD - _STRANGERS_PER_SOURCE,
                    "the end of the oldest",
                )


def audiosocket(begun: list[AudioSocketLeg], **config: Any) -> AudioSocketServer:
    """A listener whose calls are only noted."""

    def begin(leg: AudioSocketLeg, call: Any) -> Any:
        begun.append(leg)
        metered = asyncio.get_running_loop().create_future()
        ignore = lambda *given: None  # noqa: E731
        return SimpleNamespace(call_id="VX", metered=metered, listening=False, on_leg_closed=ignore, on_audio=ignore)

    settings = AudioSocketConfig(port=0, route="default", **config)
    return AudioSocketServer(settings, LIMITS, ExpectedCalls(limit=2, expiry_s=60), begin)


@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_crowd_at_the_port_of_asterisk_keeps_no_call_out(handed_over: bool) -> None:
    begun: list[AudioSocketLeg] = []
    server = audiosocket(begun, connections=MOST)
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(handing_over(server.adopt)) if handed_over else server.port
        strangers = await stack.enter_async_context(crowd(port))
        await until(lambda: sum(each.at_eof() for each in strangers) == CROWD - MOST, "the end of the oldest")
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HONEST, 0))
        writer.write(b"\x01\x00\x10" + bytes(16) + b"\x10\x01\x40" + bytes(320))
        await until(lambda: len(begun) == 1, "the call")
        assert server.opening == MOST - 1, "the call took the place of a silent one"
        writer.close()
    await server.aclose()


async def test_a_crowd_of_many_sources_takes_no_announced_call_before_its_first_audio() -> None:
    begun: list[AudioSocketLeg] = []
    server = audiosocket(begun, connections=MOST)
    uuid = UUID(bytes=b"announced call 1")
    server.expected.put(uuid, ExpectedCall("default"))
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(HONEST, 0))
        writer.write(b"\x01\x00\x10" + uuid.bytes)
        await until(lambda: any(leg.uuid == uuid for leg in server._legs), "its UUID")
        for number in range(3):
            for source in range(CROWD // 3):
                address = (f"127.0.{1 + number}.{1 + source}", 0)
                _, stranger = await asyncio.open_connection("127.0.0.1", server.port, local_addr=address)
                stack.callback(stranger.close)
                stranger.write(b"\x01\x00\x10half")
        await until(lambda: len(server._sockets) == MOST, "a full listener")
        writer.write(b"\x10\x01\x40" + bytes(320))
        await until(lambda: len(begun) == 1, "the call")
        assert not reader.at_eof()
        writer.close()
    await server.aclose()


@pytest.mark.parametrize(
    ("config", "refusals"),
    [({"allowed": ["192.0.2.1"]}, ["address_not_allowed"] * 5), ({"connections": 2}, ["too_many_connections"] * 3)],
)
async def test_what_the_port_of_asterisk_refuses_is_counted_and_does_not_fill_the_log(
    config: dict[str, Any], refusals: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []
    server = audiosocket([], **config)
    server.on_rejected = refused.append
    await server.start()
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
    await until(lambda: refused == refusals, "the refusals")
    assert caplog.text.count("audiosocket refused") <= 1
    for _, writer in opened:
        writer.close()
    await server.aclose()


class Transport(asyncio.Transport):
    """A socket of any address."""

    def __init__(self, address: str) -> None:
        self.own = socket.socket()
        super().__init__({"peername": (address, 5060, 0, 0), "socket": self.own})
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    close = abort

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def arrive(network: str, count: int, protocol: Callable[[], Any]) -> list[Transport]:
    """Let one connection of each of so many addresses of a network arrive. Return those that stay."""
    opened = [Transport(f"{network}{number:x}") for number in range(1, count + 1)]
    for each in opened:
        protocol().connection_made(each)
        each.own.close()
    return [each for each in opened if not each.aborted]


ONE, OTHER, MAPPED = "2001:db8:1:2::", "2001:db8:1:3::", "::ffff:192.0.2."
"""Two IPv6 networks of 64 bits, and IPv4 addresses as a socket for both shows them."""


async def test_an_ipv6_network_of_64_bits_has_the_limit_of_one_address(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, limits=LIMITS) as (made, _, _):
        ones = arrive(ONE, CROWD, made.server._connection)
        assert len(ones) == MOST
        assert len(arrive(OTHER, 5, made.server._connection)) == 5
        assert len(arrive(MAPPED, 9, made.server._connection)) == 9
        assert not any(each.aborted for each in ones)
        waits_s = [made.server.rate.wait_s(f"{ONE}{number:x}", {}, "/v1/calls", now=0.0) for number in range(2000)]
        assert any(waits_s) and not made.server.rate.wait_s(f"{OTHER}1", {}, "/v1/calls", now=0.0)


async def test_the_same_for_the_port_of_asterisk_and_for_sip() -> None:
    server = audiosocket([], connections=1000, allowed=["::/0", "0.0.0.0/0"])
    assert len(arrive(ONE, CROWD, lambda: AudioSocketLeg(server))) == MOST
    assert len(arrive(OTHER, 5, lambda: AudioSocketLeg(server))) == 5
    assert len(arrive(MAPPED, 9, lambda: AudioSocketLeg(server))) == 9
    async with bridge(trunk={"addresses": ["192.0.2.1"]}) as made:
        endpoint = made.bridge.endpoint
        protocol = lambda: _Connection(endpoint, Peer("TCP", "", 0))  # noqa: E731
        assert len(arrive(ONE, 2 * CROWD, protocol)) == _STRANGERS_PER_SOURCE
        assert len(arrive(OTHER, 5, protocol)) == 5
        assert len(endpoint._connections) == _STRANGERS_PER_SOURCE + 5
    await server.aclose()


@pytest.mark.parametrize("port_of", ["http", "https", "audiosocket", "sip", "sips"])
async def test_a_crowd_fills_no_queue_of_a_listener_while_the_loop_works(tmp_path: Path, port_of: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if port_of == "http":
            made, _, _ = await stack.enter_async_context(api_gateway(tmp_path, limits=LIMITS))
            port = made.server.port
        elif port_of == "https":
            made, _, _ = await stack.enter_async_context(over_tls(tmp_path))
            port = made.server.port
        elif port_of == "audiosocket":
            server = audiosocket([])
            await server.start()
            stack.push_async_callback(server.aclose)
            port = server.port
        else:
            context = server_context(*Authority(tmp_path).issue("pbx.example"))
            user = await stack.enter_async_context(tls_server(context))
            port = user.endpoint.port if port_of == "sip" else user.endpoint.tls_port
        for number in range(QUEUED):  # nothing is accepted meanwhile: the loop does not run
            stranger = stack.enter_context(socket.socket())
            stranger.settimeout(0.5)
            try:
                stranger.connect(("127.0.0.1", port))
            except TimeoutError:
                pytest.fail(f"the queue was full after {number} connections")
