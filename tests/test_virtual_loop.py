"""The loop that other tests measure with."""

import asyncio
import socket
import time

import pytest

pytestmark = pytest.mark.virtual_time


async def test_hours_pass_at_once_and_timers_fire_in_order() -> None:
    loop, fired = asyncio.get_running_loop(), []
    begun = loop.time()
    for delay_s in (7200.0, 60.0, 3600.0):
        loop.call_later(delay_s, fired.append, delay_s)
    await asyncio.sleep(4000)
    assert fired == [60.0, 3600.0]
    assert loop.time() - begun == pytest.approx(4000)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10_000):
            await asyncio.Event().wait()
    assert fired == [60.0, 3600.0, 7200.0]


async def test_the_clock_stands_still_while_a_thread_works() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(0.001):
        await asyncio.to_thread(time.sleep, 0.02)
    assert loop.time() == begun


async def test_what_a_unix_socket_brings_comes_before_the_next_timer() -> None:
    fired: list[str] = []
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    _, peer = await asyncio.open_connection(sock=far)
    asyncio.get_running_loop().call_later(0.001, fired.append, "timer")
    for _ in range(10):
        peer.write(b"question\n")
        fired.append((await reader.readline()).decode())
    await asyncio.sleep(1)
    assert fired == ["question\n"] * 10 + ["timer"]
    writer.close()
    peer.close()
