"""The sockets and connectivity checks of one call: aioice with our ports, addresses and limits.

The first byte of a datagram gives its kind (RFC 7983). Media goes directly to the peer object, without a queue or task.
STUN and DTLS go through the library, within limits. STUN that is not signed for this call is dropped without an answer
and costs no budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import random
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aioice import Candidate, Connection, stun
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import (
    CONSENT_FAILURES,
    CONSENT_INTERVAL,
    CandidatePair,
    StunProtocol,
    get_host_addresses,
    server_reflexive_candidate,
)
from aioice.utils import random_string
from aiortc import RTCIceCandidate, RTCIceParameters
from aiortc.rtcicetransport import candidate_from_aioice, candidate_to_aioice

from gateway.errors import Rejected

log = logging.getLogger(__name__)

_STUN_PER_S = 200
"""Most signed STUN requests per second that are answered: so many of the selected peer, and so many of all other
addresses. A browser sends about ten while it connects. The peer's answers to our own requests cost nothing."""

_REPEATS, _REQUESTS = 8, 256
"""A request is answered so often at most: a sender repeats it seven times (RFC 8489 section 6.2.1). Further ones are
copies, and cost nothing. So many requests are remembered, which a browser sends in minutes."""

_REMOTE_CANDIDATES = 64
"""Most remote addresses of one call, announced or discovered. Each costs checks."""

_QUEUED = 256
"""Most DTLS datagrams that wait for the handshake or SCTP. Further ones are dropped, as a network would do."""

_MOVED_AFTER = 3
"""Media packets in a row from another source until it is checked. Late packets of the former path are fewer."""

_RECEIVE_BUFFER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IceSettings:
    """The addresses at which our side of a call is reached."""

    addresses: Sequence[str] = ()
    """Local addresses to bind. Empty: all of the machine except loopback, or loopback if there is no other."""
    ports: tuple[int, int] | None = None
    """Lowest and highest UDP port. None: the system chooses."""
    public_address: str = ""
    """The address announced to peers instead of the local ones, for a machine behind a one-to-one NAT."""
    stun_server: tuple[str, int] | None = None
    turn: dict[str, Any] | None = None
    """aioice's ``turn_*`` arguments."""


class _Socket(StunProtocol):
    """One UDP socket of a call."""

    def __init__(self, owner: IceConnection, sock: socket.socket) -> None:
        super().__init__(owner)
        self._owner = owner
        self.sock = sock

    def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
        """Dispatch a datagram by its first byte."""
        assert isinstance(data, bytes)
        if not data:
            return
        kind = data[0]
        if 127 < kind < 192:
            self._owner.media_received(data, (addr[0], addr[1]), self)
        elif kind < 4:
            if self._solicited(data):
                with contextlib.suppress(struct.error):  # aioice does not expect an attribute shorter than its type
                    super().datagram_received(data, addr)
        elif 19 < kind < 64 and self._owner.knows((addr[0], addr[1])):
            self._owner.data_received(data, 1)

    def _solicited(self, data: bytes) -> bool:
        """Return True for a request that names our user fragment, and for an answer to a request of our own.

        This drops most of a flood before it is parsed. The class is in two bits of the type (RFC 8489 section 5).
        """
        if len(data) < stun.HEADER_LENGTH:
            return False
        if data[0] & 0x01:
            return data[8:20] in self.transactions
        return not data[1] & 0x10 and self._owner.user_prefix in data


class IceConnection(Connection):
    """ICE of one call, as the controlled side.

    aioice never gets end-of-candidates, because a peer may be discovered from its own checks at any time. The call's
    timeout ends a wait without result.

    Args:
        on_media: takes each RTP or RTCP datagram, still encrypted, from any sender. Returns True if it was authentic.
        inbox: takes DTLS datagrams, if the session continues another one of the same connection.
    """

    def __init__(
        self,
        settings: IceSettings,
        *,
        on_media: Callable[[bytes], bool],
        inbox: asyncio.Queue[tuple[bytes, int] | None] | None = None,
    ) -> None:
        super().__init__(
            ice_controlling=False, stun_server=settings.stun_server, **(settings.turn or {"turn_server": None})
        )
        self._settings = settings
        self._queue = inbox or self._queue
        self.on_media = on_media
        self.heard = False
        """True if anything has come from the peer since this was last set to False."""
        self._moved = 0
        """Media packets since the last one from the selected address."""
        self._may_forget = True
        self.user_prefix = f"{self.local_username}:".encode()
        """Start of USERNAME in each request to us (RFC 8445 section 7.2.2)."""
        self._selected_budget = self._other_budget = _STUN_PER_S
        self._answered: OrderedDict[bytes, int] = OrderedDict()
        """Number of answers by transaction, of the latest requests."""

    @property
    def queued(self) -> int:
        """Number of waiting DTLS datagrams."""
        return self._queue.qsize()

    @property
    def selected(self) -> CandidatePair | None:
        """The pair that carries media and data. None: there is none yet, or consent has expired."""
        return self._nominated.get(1)

    @property
    def inbox(self) -> asyncio.Queue[tuple[bytes, int] | None]:
        """The received DTLS datagrams; None after the end."""
        return self._queue

    @property
    def gave_up(self) -> bool:
        """True if the peer has not answered consent checks for 30 s (RFC 7675), or the connection was closed here."""
        return self._closing or (self._check_list_done and self.selected is None)

    # --- gathering -------------------------------------------------------------------------------------------------

    async def get_component_candidates(self, component: int, addresses: list[str], timeout: int = 5) -> list[Candidate]:
        """Bind our sockets and ask the servers. ``gather_candidates`` calls this."""
        sockets = []
        for address in self._settings.addresses or addresses or ["127.0.0.1"]:
            try:
                protocol = await self._bind(address)
            except OSError as exc:  # the interface has just disappeared
                log.warning("cannot bind for webrtc", extra={"address": address, "why": str(exc)})
                continue
            self._protocols.append(protocol)
            sockets.append(protocol)
            host, port = protocol.transport.get_extra_info("sockname")[:2]
            protocol.local_candidate = Candidate(
                foundation=candidate_foundation("host", "udp", host), component=component, transport="udp",
                priority=candidate_priority(component, "host"), host=host, port=port, type="host",
            )  # fmt: skip
        if not sockets:
            raise Rejected("no local address can be bound for media", status=503, code="no_address", retry_after_s=5)
        candidates = [protocol.local_candidate for protocol in sockets]
        if self.stun_server is not None:
            asked = [
                server_reflexive_candidate(s, self.stun_server) for s in sockets if ":" not in s.local_candidate.host
            ]
            for answer in await asyncio.gather(*(asyncio.wait_for(a, timeout) for a in asked), return_exceptions=True):
                if isinstance(answer, tuple):
                    candidates.append(answer[0])
        # Without addresses, aioice asks only the relay.
        return candidates + await super().get_component_candidates(component, [], timeout)

    async def _bind(self, address: str) -> _Socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            self._bind_port(sock, address)
            _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Socket(self, sock), sock=sock
            )
        except BaseException:
            sock.close()
            raise
        return protocol

    def _bind_port(self, sock: socket.socket, address: str) -> None:
        ports = self._settings.ports
        if ports is None:
            sock.bind((address, 0))
            return
        low, high = ports
        count = high - low + 1
        first = random.randrange(count)
        for step in range(count):
            try:
                sock.bind((address, low + (first + step) % count))
                return
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise
        raise Rejected(f"all {count} UDP ports of webrtc.ports are taken", status=503, code="full", retry_after_s=5)

    def told_candidates(self) -> list[RTCIceCandidate]:
        """Return our candidates for the answer."""
        told = [candidate_from_aioice(candidate) for candidate in self.local_candidates]
        public = self._settings.public_address
        if public:
            version = ipaddress.ip_address(public).version
            hosts = [c for c in told if c.type == "host" and ipaddress.ip_address(c.ip).version == version]
            for candidate in hosts:
                candidate.ip = public
            told = hosts + [c for c in told if c.type != "host"]
        return told

    # --- connecting ------------------------------------------------------------------------------------------------

    async def add(self, candidate: RTCIceCandidate) -> None:
        """Add a candidate of the peer.

        Names (mDNS) are ignored: they belong to the browser's own network, and its checks show its address anyway.
        Candidates other than UDP are ignored too.
        """
        try:
            ipaddress.ip_address(candidate.ip)
        except ValueError:
            return
        if candidate.protocol.lower() == "udp" and candidate.component == 1 and 0 < candidate.port < 65536:
            if len(self._remote_candidates) < _REMOTE_CANDIDATES:
                await self.add_remote_candidate(candidate_to_aioice(candidate))

    async def join(self, remote: RTCIceParameters) -> None:
        """Check pairs until one is nominated.

        Raises:
            ConnectionError: no pair works.
        """
        self.remote_is_lite = remote.iceLite
        self.ice_controlling = remote.iceLite
        self.remote_username = remote.usernameFragment
        self.remote_password = remote.password
        await self.connect()
        self.stop_checks()

    def stop_checks(self) -> None:
        """Mark the checks that the library has cancelled as failed.

        It would never check such a pair again, but the peer may change to it when its network changes.
        """
        for pair in self._check_list:
            if pair.state is CandidatePair.State.IN_PROGRESS:
                self.check_state(pair, CandidatePair.State.FAILED)
                pair.task = None

    async def retire(self) -> None:
        """Close, because another session of the same connection continues. Waiting datagrams remain for that one."""
        self._queue = asyncio.Queue()
        await self.close()

    async def query_consent(self) -> None:
        """Check consent to send (RFC 7675). If it expires, nothing is sent until a check finds the peer again."""
        failures = 0
        while True:
            await asyncio.sleep(CONSENT_INTERVAL * random.uniform(0.8, 1.2))
            pair = self.selected
            if pair is None:
                continue
            assert self.remote_password is not None  # ``join`` has set it
            try:
                await pair.protocol.request(
                    self.build_request(pair, nominate=False), pair.remote_addr,
                    integrity_key=self.remote_password.encode(), retransmissions=0,
                )  # fmt: skip
                failures = 0
            except stun.TransactionError:
                failures = failures + 1 if self.selected is pair else 0
            if failures >= CONSENT_FAILURES:
                log.info("no consent to send", extra={"silent_s": CONSENT_FAILURES * CONSENT_INTERVAL})
                self._nominated.clear()
                failures = 0

    def protocol_lost(self, protocol: StunProtocol) -> None:
        """Handle the loss of a socket, for example of the one to a relay. Another path may be found."""
        pair = self.selected
        if pair is not None and pair.protocol is protocol:
            self._nominated.clear()

    def request_received(self, message: stun.Message, addr: tuple[str, int], protocol: StunProtocol) -> None:
        """Answer a signed check. At the limit, further addresses are not added."""
        if not message.check_message_integrity(self.local_password.encode()):
            return
        answers = self._answered.get(message.transaction_id, 0)
        if answers >= _REPEATS:
            return
        pair = self.selected
        if pair is not None and pair.protocol is protocol and pair.remote_addr == addr:
            self._selected_budget -= 1
            left = self._selected_budget
        else:
            self._other_budget -= 1
            left = self._other_budget
        if left < 0:
            return
        self._answered[message.transaction_id] = answers + 1
        if len(self._answered) > _REQUESTS:
            self._answered.popitem(last=False)
        self.heard = True
        if self._candidate_at(addr) is not None or self._has_room():
            super().request_received(message, addr, protocol)

    def media_received(self, data: bytes, addr: tuple[str, int], protocol: StunProtocol) -> None:
        """Pass on media. If it is authentic and its source stays another one than the selected, check that source.

        A browser whose address has changed sends media from the new one at once. Its own next check may be seconds
        away.
        """
        authentic = self.on_media(data)
        self.heard |= authentic
        pair = self.selected
        if pair is not None and pair.protocol is protocol and pair.remote_addr == addr:
            self._moved = 0
        elif authentic and self._check_list_done:
            self._moved += 1
            if self._moved >= _MOVED_AFTER:
                self._moved = 0
                self._check_source(addr, protocol)

    def _check_source(self, addr: tuple[str, int], protocol: StunProtocol) -> None:
        """Check an address. If the peer answers there, it is the selected address (compare RFC 8445 section 7.3.1)."""
        if self._closing or self.ice_controlling:
            return
        candidate = self._candidate_at(addr)
        if candidate is None:
            if not self._has_room():
                return
            candidate = Candidate(
                foundation=random_string(10), component=1, transport="udp", priority=candidate_priority(1, "prflx"),
                host=addr[0], port=addr[1], type="prflx",
            )  # fmt: skip
            self._remote_candidates.append(candidate)
        pair = self._find_pair(protocol, candidate)
        if pair is None:
            pair = CandidatePair(protocol, candidate)
            self._check_list.append(pair)
        pair.remote_nominated = True
        self.check_start_task(pair)

    def knows(self, addr: tuple[str, int]) -> bool:
        """Return True if the peer has announced this address or sent a signed check from it. It does so before DTLS,
        so datagrams of strangers need not take the places of its own in the queue."""
        return self._candidate_at(addr) is not None

    def _candidate_at(self, addr: tuple[str, int]) -> Candidate | None:
        return next((c for c in self._remote_candidates if (c._network_host, c.port) == addr), None)

    def _has_room(self) -> bool:
        """Return True if one more remote address may be known. At the limit, once a second, the oldest discovered
        address that is not in use is forgotten, since address translators give a long call many."""
        if len(self._remote_candidates) < _REMOTE_CANDIDATES:
            return True
        used = {id(pair.remote_candidate) for pair in self._check_list if pair.task or pair in self._nominated.values()}
        oldest = next((c for c in self._remote_candidates if c.type == "prflx" and id(c) not in used), None)
        if oldest is None or not self._may_forget:
            return False
        self._may_forget = False
        self._remote_candidates.remove(oldest)
        self._check_list = [pair for pair in self._check_list if pair.remote_candidate is not oldest]
        return True

    def data_received(self, data: bytes, component: int) -> None:
        """Take what the library has received: from our relay media and DTLS, else DTLS and STUN that it cannot
        parse. DTLS is queued, unless the queue is full."""
        kind = data[0] if data else 0
        if 127 < kind < 192:
            self.heard |= self.on_media(data)
        elif kind > 19 and self.queued < _QUEUED:
            super().data_received(data, component)

    def refill(self) -> None:
        """Let STUN requests be answered again. Called once a second."""
        self._selected_budget = self._other_budget = _STUN_PER_S
        self._may_forget = True

    # --- sending ---------------------------------------------------------------------------------------------------

    def send_now(self, data: bytes) -> bool:
        """Pass a datagram to the socket immediately. Return False if its buffer is full or there is no path."""
        pair = self.selected
        if pair is None:
            return False
        protocol = pair.protocol
        try:
            if isinstance(protocol, _Socket):
                protocol.sock.sendto(data, pair.remote_addr)
            else:
                protocol.transport.sendto(data, pair.remote_addr)  # through the relay
        except OSError:  # the buffer is full, or the network reports no receiver, which consent checks decide
            return False
        return True


def host_addresses() -> list[str]:
    """Return the addresses of this machine that calls use if none are configured."""
    return get_host_addresses(use_ipv4=True, use_ipv6=True) or ["127.0.0.1"]
