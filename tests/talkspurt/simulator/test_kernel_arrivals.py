"""Arrivals by the kernel's clock, on real sockets of the loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from talkspurt.simulator import kernel_arrivals
from talkspurt.simulator.kernel_arrivals import KernelArrivals, stamping


def block() -> None:
    """Keep the loop from reading, as other work does."""
    time.sleep(0.05)


class Receiver(asyncio.BufferedProtocol):
    """Notes what came, and when ``arrivals`` says that it did."""

    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.came: list[tuple[bytes, float | None]] = []
        self.arrivals: KernelArrivals | None = None
        self.closed = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        at = self.arrivals.at if self.arrivals is not None else None
        self.came.append((bytes(self.buffer[:nbytes]), at))
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.arrivals is not None:
            self.arrivals.close()
        self.closed.set_result(exc)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[socket.socket, asyncio.Transport, Receiver]]:
    """The other side's plain socket; our side."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, receiver = await asyncio.get_running_loop().create_connection(Receiver, *listener.getsockname())
        peer, _ = listener.accept()
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield peer, transport, receiver
        transport.close()
        await receiver.closed


async def test_the_time_is_that_of_the_sending_and_not_that_of_the_reading() -> None:
    async with stamping(), connected() as (peer, transport, receiver):
        receiver.arrivals = KernelArrivals(transport)
        sent_at = time.monotonic()
        peer.send(b"one")
        block()
        blocked_until = time.monotonic()
        await receiver.news.wait()
    [(came, at)] = receiver.came
    assert came == b"one"
    assert at is not None and sent_at - 0.001 < at < blocked_until  # two clocks are compared: a little slack below


async def test_segments_that_are_read_together_count_as_the_last_of_them() -> None:
    async with stamping(), connected() as (peer, transport, receiver):
        receiver.arrivals = KernelArrivals(transport)
        peer.send(b"one")
        block()
        second_at = time.monotonic()
        peer.send(b"two")
        await receiver.news.wait()
    [(came, at)] = receiver.came
    assert came == b"onetwo"
    assert at is not None and at > second_at - 0.001


async def test_the_end_of_the_stream_reaches_the_protocol_behind_all_data() -> None:
    async with connected() as (peer, transport, receiver):
        receiver.arrivals = KernelArrivals(transport)
        peer.send(b"last words")
        peer.shutdown(socket.SHUT_WR)
        assert await receiver.closed is None
    assert [came for came, _ in receiver.came] == [b"last words"]


async def test_our_own_close_ends_the_connection_for_the_peer() -> None:
    async with connected() as (peer, transport, receiver):
        receiver.arrivals = KernelArrivals(transport)
        transport.close()
        await receiver.closed
        assert peer.recv(1) == b""


async def test_where_the_system_gives_no_times_the_transport_goes_on_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_arrivals, "_SO_TIMESTAMPNS", 9999)
    async with connected() as (peer, transport, receiver):
        with pytest.raises(OSError, match="Protocol not available"):
            KernelArrivals(transport)
        peer.send(b"one")
        await receiver.news.wait()
    assert receiver.came == [(b"one", None)]
