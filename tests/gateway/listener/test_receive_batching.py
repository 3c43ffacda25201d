"""The kernel gathers idle frames at the right times only, in virtual time."""

import asyncio
import socket

import pytest

from gateway.listener.receive_batching import _IDLE_FRAMES, ReceiveBatching


@pytest.mark.virtual_time
async def test_each_byte_counts_again_when_media_has_stopped() -> None:
    ours, theirs = socket.socketpair()
    receiving = ReceiveBatching(ours)
    for _ in range(_IDLE_FRAMES + 50):
        receiving.skipped(200)
        await asyncio.sleep(0.02)
    assert receiving.gathering
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 6 * 200
    await asyncio.sleep(1.0)
    assert not receiving.gathering
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    receiving.close()
    theirs.close()
