"""Silent TCP and TLS connections of strangers make room; those of trunks stay."""

import asyncio

import pytest

from gateway.listener import no_room
from sip_bridge.io.endpoint import _STRANGERS_PER_SOURCE
from sip_bridge.local import Peer
from sip_bridge.trunks import SourceStanding
from tests.sip_bridge.phone import bridge
from tests.waiting import until


@pytest.mark.parametrize(("address", "kept"), [("192.0.2.1", _STRANGERS_PER_SOURCE), ("127.0.0.1", 100)])
async def test_the_oldest_connections_of_a_stranger_are_closed_and_a_trunks_are_not(address: str, kept: int) -> None:
    async with bridge(trunk={"addresses": [address]}) as made:
        endpoint = made.bridge.endpoint
        opened = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(100)]
        newest = opened[-1][1].get_extra_info("sockname")[1]
        await until(lambda: newest in {peer.port for peer in endpoint._connections}, "the last one")
        assert len(endpoint._connections) == kept
        for reader, _ in opened[: 100 - kept]:
            assert await reader.read() == b""
        for _, writer in opened:
            writer.close()


async def test_with_few_descriptors_left_strangers_take_each_others_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bridge(trunk={"addresses": ["192.0.2.1"]}) as made:
        endpoint = made.bridge.endpoint
        first = await asyncio.open_connection("127.0.0.1", endpoint.port)
        await until(lambda: len(endpoint._connections) == 1)
        monkeypatch.setattr(no_room, "RESERVED_SHARE", 1)  # all descriptors
        second = await asyncio.open_connection("127.0.0.1", endpoint.port)
        assert await first[0].read() == b""
        await until(lambda: len(endpoint._connections) == 1)
        for _, writer in (first, second):
            writer.close()


async def test_silent_ones_that_may_be_trunks_make_room_and_one_that_gave_its_password_stays() -> None:
    trunk = {"addresses": [], "username": "desk", "password": "a-password"}
    async with bridge(trunk=trunk, limits={"connections": 4}) as made:
        endpoint = made.bridge.endpoint
        opened = [await asyncio.open_connection("127.0.0.1", endpoint.port)]
        await until(lambda: len(endpoint._connections) == 1, "the first one")
        endpoint.keep(next(iter(endpoint._connections)))
        opened += [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(6)]
        for reader, _ in opened[1:4]:
            assert await reader.read() == b""
        await until(lambda: len(endpoint._connections) == 4, "the last one")
        assert not opened[0][0].at_eof()
        for _, writer in opened:
            writer.close()


async def test_each_connection_of_a_crowd_at_a_full_port_is_judged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trunk = {"addresses": [], "username": "desk", "password": "a-password"}
    async with bridge(trunk=trunk, limits={"connections": 20}) as made:
        endpoint, looks = made.bridge.endpoint, 0
        standing = made.bridge.standing

        def counted(peer: Peer) -> SourceStanding:
            nonlocal looks
            looks += 1
            return standing(peer)

        monkeypatch.setattr(made.bridge, "standing", counted)
        opened = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(60)]
        await until(lambda: endpoint.counts["refused"] == 40, "forty that made room")
        assert looks == 60
        for _, writer in opened:
            writer.close()
