"""Connectivity checks of a call under a flood of STUN, on the virtual clock: two ICE agents on a wire in memory."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aioice import Candidate, Connection, stun

from gateway.webrtc.ice import _QUEUED, IceConnection, IceSettings, _Socket

pytestmark = pytest.mark.virtual_time

STRANGER = ("10.0.0.66", 6666)
FLOOD_PER_S = 400
"""Twice as many as are answered."""
FLOOD_S = 45
"""Consent ends after six unanswered checks in a row, five seconds apart (RFC 7675 asks for 30 s)."""


class Network:
    """Delivers datagrams between sockets, in order and at once."""

    def __init__(self) -> None:
        self.sockets: dict[tuple[str, int], _Socket] = {}
        self.sent: list[tuple[bytes, tuple[str, int], tuple[str, int]]] = []
        """Each datagram with its source and its destination."""

    def send(self, data: bytes, source: tuple[str, int], target: tuple[str, int]) -> None:
        self.sent.append((data, source, target))
        if target in self.sockets:
            asyncio.get_running_loop().call_soon(self.sockets[target].datagram_received, data, source)


class Wire(asyncio.DatagramTransport):
    """The transport of one socket of the network."""

    def __init__(self, network: Network, address: tuple[str, int], protocol: _Socket) -> None:
        super().__init__({"sockname": address})
        self._network, self._address, self._protocol = network, address, protocol

    def sendto(self, data: Any, addr: Any = None) -> None:
        self._network.send(bytes(data), self._address, addr)

    def close(self) -> None:
        if self._network.sockets.pop(self._address, None):
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class Agent(IceConnection):
    """An agent with its socket on the network."""

    def __init__(self, network: Network, address: str) -> None:
        super().__init__(IceSettings(addresses=(address,)), on_media=lambda data: True)
        self._network = network
        self.address = (address, 5000)

    async def _bind(self, address: str) -> _Socket:
        made = _Socket(self, cast(socket.socket, None))  # media is not sent here
        self._network.sockets[self.address] = made
        made.connection_made(Wire(self._network, self.address, made))
        return made


@asynccontextmanager
async def call() -> AsyncIterator[tuple[Network, Agent, Agent]]:
    """A connected pair: our side (controlled) and a browser (controlling)."""
    network = Network()
    ours, browser = Agent(network, "10.0.0.1"), Agent(network, "10.0.0.2")
    browser.ice_controlling = True
    for agent in (ours, browser):
        await agent.gather_candidates()
    for agent, other in ((ours, browser), (browser, ours)):
        agent.remote_username, agent.remote_password = other.local_username, other.local_password
        await agent.add_remote_candidate(
            Candidate("1", 1, "udp", 2130706431, other.address[0], other.address[1], "host")
        )
    try:
        await asyncio.gather(Connection.connect(ours), Connection.connect(browser))
        yield network, ours, browser
    finally:
        await asyncio.gather(ours.close(), browser.close())


def request(ours: Agent, *, username: str = "", key: str = "", number: int = 0, nominates: bool = False) -> bytes:
    made = stun.Message(stun.Method.BINDING, stun.Class.REQUEST, transaction_id=number.to_bytes(12, "big"))
    made.attributes["USERNAME"] = username or f"{ours.local_username}:{ours.remote_username}"
    made.attributes["PRIORITY"] = 1
    if nominates:
        made.attributes["USE-CANDIDATE"] = None
    if key:
        made.add_message_integrity(key.encode())
    return bytes(made)


def signed_by(ours: Agent, attributes: bytes) -> bytes:
    """Return an unsigned request with more attributes behind its own."""
    made = request(ours) + attributes
    return made[:2] + (len(made) - 20).to_bytes(2, "big") + made[4:]


def answer() -> bytes:
    made = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE)
    made.attributes["XOR-MAPPED-ADDRESS"] = STRANGER
    return bytes(made)


FLOODS: dict[str, Callable[[Agent], bytes]] = {
    "a bare request": lambda ours: bytes.fromhex("000100002112a442") + bytes(12),
    "an unsigned request": request,
    "a request for somebody else": lambda ours: request(ours, username="abcd:efgh", key="x" * 22),
    "a wrongly signed request": lambda ours: request(ours, key="x" * 22),
    "a cut request": lambda ours: request(ours, key=ours.local_password)[:-3],
    "a request without end": lambda ours: request(ours, key=ours.local_password) + b"\x00",
    "an indication": lambda ours: b"\x00\x11" + request(ours)[2:],
    "an answer that nothing asked for": lambda ours: answer(),
    "one byte": lambda ours: b"\x00",
    "a success and an error at once": lambda ours: b"\x01\x11" + request(ours)[2:],
    "another method": lambda ours: b"\x00\x03" + request(ours)[2:],
    "no magic cookie": lambda ours: request(ours)[:4] + bytes(4) + request(ours)[8:],
    "a length of nothing": lambda ours: request(ours)[:2] + b"\0\0" + request(ours)[4:],
    "the longest length": lambda ours: request(ours)[:2] + b"\xff\xfc" + request(ours)[4:],
    "a signature of zeros": lambda ours: request(ours, key=ours.local_password)[:-20] + bytes(20),
    "a signature that is too short": lambda ours: signed_by(ours, b"\x00\x08\x00\x04abcd"),
    "our name in another attribute": lambda ours: signed_by(
        ours,
        b"\x80\x22" + len(f"{ours.local_username}:").to_bytes(2, "big") + f"{ours.local_username}:".encode() + bytes(3),
    ),
    "many attributes": lambda ours: signed_by(ours, b"\x00\x24\x00\x04\0\0\0\1" * 30),
    "a signature with the other side's key": lambda ours: request(ours, key=ours.remote_password or ""),
    "a captured answer": lambda ours: request(ours, key=ours.local_password)[:1].replace(b"\0", b"\1") + answer()[1:],
}


@pytest.mark.parametrize("source", [STRANGER, ("10.0.0.2", 5000)], ids=["stranger", "the peer's address"])
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_unsigned_stun_costs_the_peer_nothing(flood: Callable[[Agent], bytes], source: tuple[str, int]) -> None:
    async with call() as (network, ours, browser):
        network.sent.clear()
        datagram = flood(ours)
        for _ in range(FLOOD_S):
            ours.refill()
            browser.refill()
            for _ in range(FLOOD_PER_S):
                network.sockets[ours.address].datagram_received(datagram, source)
            await asyncio.sleep(1)
        assert not ours.gave_up and not browser.gave_up
        assert ours.queued == 0  # nothing of it waits for DTLS
        assert not [target for _, _, target in network.sent if target == STRANGER]
        both = [source for _, source, _ in network.sent]
        assert both.count(ours.address) == both.count(browser.address) >= 2 * FLOOD_S / 6


async def test_unsigned_stun_is_no_sign_of_life() -> None:
    async with call() as (network, ours, _):
        ours.heard = False
        for flood in FLOODS.values():
            network.sockets[ours.address].datagram_received(flood(ours), ours.address)
        assert not ours.heard


async def test_signed_requests_of_other_addresses_cost_the_peer_nothing_and_have_a_limit() -> None:
    async with call() as (network, ours, browser):
        network.sent.clear()
        for second in range(FLOOD_S):
            ours.refill()
            browser.refill()
            for number in range(250):
                datagram = request(ours, key=ours.local_password, number=250 * second + number)
                network.sockets[ours.address].datagram_received(datagram, STRANGER)
            await asyncio.sleep(1)
        assert not ours.gave_up and not browser.gave_up
        answers = [data for data, _, target in network.sent if target == STRANGER and data[:2] == b"\x01\x01"]
        assert len(answers) == 200 * FLOOD_S


@pytest.mark.parametrize("source", [STRANGER, ("10.0.0.2", 5000)], ids=["stranger", "the peer's address"])
async def test_a_copied_request_of_the_peer_is_answered_as_often_as_a_repeated_one(source: tuple[str, int]) -> None:
    async with call() as (network, ours, browser):
        copied = next(data for data, sender, _ in network.sent if sender == browser.address and data[:2] == b"\0\1")
        network.sent.clear()
        for _ in range(FLOOD_S):
            ours.refill()
            browser.refill()
            for _ in range(FLOOD_PER_S):
                network.sockets[ours.address].datagram_received(copied, source)
            await asyncio.sleep(1)
        assert not ours.gave_up and not browser.gave_up
        transaction = copied[8:20]
        answers = [data for data, _, _ in network.sent if data[:2] == b"\x01\x01" and data[8:20] == transaction]
        assert len(answers) <= 8
        assert ours.selected is not None and ours.selected.remote_addr == browser.address


async def test_dtls_of_strangers_takes_no_place_of_the_peers() -> None:
    async with call() as (network, ours, browser):
        for number in range(2 * _QUEUED):
            network.send(bytes((22, 254, 253)) + bytes(10), ("10.0.0.66", 1000 + number), ours.address)
        network.send(bytes((23, 254, 253)), browser.address, ours.address)
        await asyncio.sleep(0.1)
        assert ours.queued == 1


async def test_the_peer_may_change_to_a_pair_whose_check_was_cancelled() -> None:
    async with call() as (network, ours, browser):
        second = ("10.0.0.3", 5000)
        made = _Socket(browser, cast(socket.socket, None))
        network.sockets[second] = made
        made.connection_made(Wire(network, second, made))
        await ours.add_remote_candidate(Candidate("2", 1, "udp", 2130706430, *second, "host"))
        pair = ours._check_list[-1]
        pair.task = asyncio.create_task(asyncio.sleep(0))
        pair.state = pair.State.IN_PROGRESS
        ours.stop_checks()
        check = request(ours, key=ours.local_password, nominates=True)
        network.sockets[ours.address].datagram_received(check, second)
        for _ in range(20):
            await asyncio.sleep(0.1)
        assert ours.selected is pair
        browser._protocols.append(made)


async def test_the_oldest_discovered_address_makes_room_once_a_second() -> None:
    async with call() as (_, ours, _browser):
        socket_ = ours._protocols[0]

        def ask(number: int) -> bool:
            source = ("10.0.1.1", 2000 + number)
            ours.request_received(
                stun.parse_message(request(ours, key=ours.local_password, number=number)), source, socket_
            )
            return any(c.port == source[1] for c in ours.remote_candidates)

        assert [ask(number) for number in range(70)].count(True) == 63  # and the browser's own
        await asyncio.sleep(80)  # their checks fail
        ours.refill()
        assert ask(100) and not ask(101)
        ours.refill()
        assert ask(102) and len(ours.remote_candidates) == 64
