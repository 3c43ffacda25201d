"""Connections that are of no use: how many may be open, for how long, and who makes room."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from gateway.config import LimitsConfig
from gateway.listener.sockets import Sockets
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import PATIENCE_S


class Socket:
    def __init__(self) -> None:
        self.aborted = self.closed = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.aborted or self.closed

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


def sockets(**more: float) -> Sockets:
    settings = {"most": 4, "per_address": 100, "idle_s": 10.0, "body_s": 5.0} | more
    return Sockets(**settings)  # type: ignore[arg-type]


def test_the_one_that_is_idle_for_longest_makes_room() -> None:
    held, opened = sockets(), [Socket() for _ in range(6)]
    for at, socket in enumerate(opened[:4]):
        assert held.admit("a", socket, now=at)
    held.begin(opened[0], now=4.0)  # is worked on
    held.begin(opened[1], now=4.0)
    held.end(opened[1], now=5.0)  # has been, and waits for its next request
    assert held.admit("b", opened[4], now=6.0)
    assert [socket.aborted for socket in opened] == [False, False, True, False, False, False]
    assert held.admit("b", opened[5], now=7.0)
    assert [socket.aborted for socket in opened] == [False, False, True, True, False, False]


def test_a_body_that_comes_slowly_makes_room_when_nobody_is_idle() -> None:
    held, opened = sockets(most=2), [Socket() for _ in range(3)]
    for socket in opened[:2]:
        held.admit("a", socket, now=0.0)
    held.begin(opened[0], now=1.0)
    held.begin(opened[1], now=1.0, whole=lambda: False)
    assert held.admit("b", opened[2], now=2.0)
    assert [socket.aborted for socket in opened] == [False, True, False]


def test_where_all_are_of_use_one_more_may_not_stay() -> None:
    held, opened = sockets(most=2), [Socket() for _ in range(3)]
    for socket in opened[:2]:
        held.admit("a", socket, now=0.0)
        held.begin(socket, now=0.0)
    assert not held.admit("b", opened[2], now=1.0)
    opened[0].close()  # its peer has gone
    assert held.admit("b", opened[2], now=2.0)


def test_an_address_has_a_bound_of_its_own() -> None:
    held, opened = sockets(most=10, per_address=2), [Socket() for _ in range(5)]
    assert [held.admit("a", socket, now=0.0) for socket in opened[:3]] == [True, True, True]
    assert [socket.aborted for socket in opened[:3]] == [True, False, False]
    for socket in opened[1:3]:
        held.begin(socket, now=1.0)
    assert not held.admit("a", opened[3], now=2.0)
    assert held.admit("b", opened[4], now=2.0)


def test_an_address_with_a_large_share_makes_room_for_itself_and_not_at_the_cost_of_others() -> None:
    held, opened = sockets(most=20), [Socket() for _ in range(26)]
    held.admit("b", opened[0], now=0.0)
    for at, socket in enumerate(opened[1:22]):
        assert held.admit("a", socket, now=1.0 + at)
    assert [socket.aborted for socket in opened[:4]] == [False, True, True, False]
    for at, socket in enumerate(opened[22:]):
        assert held.admit("c", socket, now=30.0 + at)
        assert opened[0].aborted == (at == 3), "a has made room until it had as few as others"
    assert [socket.aborted for socket in opened[:8]] == [True, *[True] * 5, False, False]


def test_a_crowd_of_many_sources_does_not_end_one_that_waits() -> None:
    held, waits = sockets(most=100), Socket()
    crowd = [Socket() for _ in range(1000)]
    held.admit("honest", waits, now=0.0)
    for at, socket in enumerate(crowd):
        assert held.admit(f"stranger {at % 5}", socket, now=1.0 + at / 1000)
    assert not waits.aborted and not held.refuses("honest", now=2.0)
    assert held.refuses("stranger 4", now=2.0) and not held.refuses("stranger 4", now=2.1)
    assert sum(socket.aborted for socket in crowd) == 901


def test_with_few_descriptors_left_a_connection_stays_only_in_place_of_another() -> None:
    held, opened = sockets(), [Socket() for _ in range(4)]
    assert not held.admit("a", opened[0], now=0.0, scarce=True)
    assert held.admit("a", opened[1], now=1.0)
    assert held.admit("b", opened[2], now=2.0, scarce=True) and opened[1].aborted
    held.begin(opened[2], now=3.0)
    assert not held.admit("c", opened[3], now=4.0, scarce=True)


def test_many_that_are_refused_do_not_make_us_look_at_all_others_each_time() -> None:
    looks = 0

    class Watched(Socket):
        def is_closing(self) -> bool:
            nonlocal looks
            looks += 1
            return super().is_closing()

    held, opened = sockets(most=10, per_address=2), [Watched() for _ in range(102)]
    for socket in opened[:2]:
        held.admit("a", socket, now=0.0)
        held.begin(socket, now=0.0)
    assert not any(held.admit("a", socket, now=number / 1000) for number, socket in enumerate(opened[2:]))
    assert looks <= 2 * 3
    opened[0].close()
    assert held.admit("a", Watched(), now=0.2)


def test_idle_connections_and_slow_bodies_have_a_deadline() -> None:
    held, (idle, drips, whole, used) = sockets(), [Socket() for _ in range(4)]
    come = False
    for socket in (idle, drips, whole, used):
        held.admit("a", socket, now=0.0)
    held.begin(drips, now=1.0, whole=lambda: False)
    held.begin(whole, now=1.0, whole=lambda: come)
    held.begin(used, now=1.0)
    assert held.sweep(now=5.9) == 0
    come = True
    assert held.sweep(now=6.1) == 1 and drips.aborted
    assert held.sweep(now=10.1) == 1 and idle.aborted
    assert held.sweep(now=1000.0) == 0  # a handler, or a call, takes as long as it takes
    held.end(used, now=1000.0)
    assert held.sweep(now=1009.0) == 0
    assert held.sweep(now=1011.0) == 1 and used.aborted


def test_one_that_closes_and_is_not_taken_makes_room_first_and_has_a_deadline() -> None:
    held, (deaf, slow, done, idle, new, newer) = sockets(), [Socket() for _ in range(6)]
    for socket in (deaf, slow, done, idle):
        held.admit("a", socket, now=0.0)
    for socket in (deaf, slow, done):
        held.begin(socket, now=0.0)
        socket.close()
    held.sweep(now=1.0)
    held.remove(done)  # its descriptor is free
    assert held.admit("b", new, now=2.0, scarce=True)
    assert [socket.aborted for socket in (deaf, slow, idle)] == [True, False, False]
    held.sweep(now=10.9)
    assert not slow.aborted
    held.sweep(now=11.1)
    assert slow.aborted and not done.aborted
    assert held.admit("b", newer, now=12.0, scarce=True) and new.aborted


def test_a_long_answer_that_a_slow_peer_takes_is_not_cut() -> None:
    held, (idle, closes, stuck) = sockets(most=3), [Socket() for _ in range(3)]
    for socket in (idle, closes, stuck):
        held.admit("a", socket, now=0.0)
        held.begin(socket, now=0.0)
        held.end(socket, now=0.0)
        socket.unsent = 1000
    closes.close()
    stuck.close()
    for now in range(0, 100, 11):
        held.sweep(now=float(now))
        closes.unsent -= 10
        assert not (idle.aborted or closes.aborted)
    assert stuck.aborted
    held.admit("b", Socket(), now=99.0)
    held.admit("b", Socket(), now=99.0)
    held.admit("b", Socket(), now=99.0)
    assert idle.aborted, "it makes room as before"
    idle.unsent = closes.unsent = 0
    held.sweep(now=111.0)
    assert closes.aborted


def test_the_bound_of_one_address_is_not_a_trusted_proxys() -> None:
    held, opened = sockets(most=10, per_address=1), [Socket() for _ in range(4)]
    for socket in opened:
        assert held.admit("proxy", socket, now=0.0, for_others=True)
    assert not any(socket.aborted for socket in opened)


LIMITS = LimitsConfig(connections=20, setup_timeout_s=PATIENCE_S, idle_s=PATIENCE_S)


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: h",
        b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /v1/tts HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{",
    ],
)
async def test_sockets_that_are_left_open_lock_nobody_out(tmp_path: Path, beginning: bytes) -> None:
    """Silent, in mid-head, behind an answer, in mid-body: more than there may be, and all requests are answered."""
    async with api_gateway(tmp_path, limits=LIMITS) as (made, _, url), asyncio.timeout(PATIENCE_S):
        strangers = []
        for _ in range(50):
            strangers.append(await asyncio.open_connection("127.0.0.1", made.server.port))
            strangers[-1][1].write(beginning)
        for _ in range(30):
            async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz") as answer:
                assert answer.status == 200
        assert len(made.server.sockets) <= 20
        for _, writer in strangers:
            writer.close()


async def test_an_idle_connection_is_ended_and_a_stream_of_events_is_not(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, limits=LIMITS) as (made, _, url), asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/events") as events:
            made.server.sockets._idle_s = 0.0  # only now: before, the connection of the events waits for its request
            assert await reader.read() == b""  # closed by the server
            made.server.sockets.sweep(now=made.server.now() + 1000)
            assert not events.content.at_eof()
            assert made.server.sockets.sweep(now=made.server.now() + 1000) == 0
        writer.close()
