"""The SIP sockets: read datagrams and streams, run transactions over them, and send each answer back on the path of its
request.

This module handles everything that needs no call: keep-alives, OPTIONS, unknown methods and extensions, the answer to a
CANCEL, floods, and the refusal of new calls when the server is full or draining. The ``User`` handles calls.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gateway.listener.acceptor import Acceptor
from gateway.listener.handshakes import Handshakes
from gateway.listener.no_room import BACKLOG, is_reserved, open_files
from gateway.listener.source_limit import SourceLimit, source
from gateway.listener.turns import InTurns, LoopTurns
from gateway.seams.supervision import SUPERVISOR, Need, SupervisedTask
from sip_bridge.dialog.transaction import (
    Act,
    Deliver,
    Effect,
    Key,
    Send,
    Timing,
    TransactionFailed,
    Transactions,
    TransactionState,
    key_of,
    server_key,
)
from sip_bridge.errors import SipProtocolError
from sip_bridge.io.shared_address import SharedAddress
from sip_bridge.io.tls import names_of
from sip_bridge.local import EXTENSIONS, METHODS, SUPPORTED, Peer
from sip_bridge.message.sip import (
    PING,
    PONG,
    Headers,
    MalformedRequest,
    Message,
    MessageStream,
    Request,
    Response,
    Via,
    note_source,
    parse,
    response_to,
)
from sip_bridge.message_limit import MessageLimit
from sip_bridge.trunks import SourceStanding

log = logging.getLogger(__name__)

_ACCEPT = ("Accept", "application/sdp, application/dtmf-relay, application/dtmf")
_SCHEMES = ("sip", "sips", "tel")
"""The URI schemes by which we can be called."""

_OPTIONAL_HEADERS = ("Allow", "Accept", "Supported", "Retry-After")
"""Headers that may be left out of an answer."""


class User(Protocol):
    """The owner of the calls. Its methods are called on the event loop and must not block or raise."""

    def standing(self, peer: Peer) -> SourceStanding:
        """Return the standing of a peer. From strangers, only INVITEs and requests in dialogs reach the user."""
        ...

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        """Handle a new request other than CANCEL. The user must answer it with ``Endpoint.respond``."""
        ...

    def on_ack(self, request: Request) -> None:
        """Handle the ACK of a 2xx."""
        ...

    def on_cancel(self, invite: Key, cancel: Request) -> None:
        """Handle a CANCEL. The CANCEL itself is answered; the user still sends 487 for the INVITE."""
        ...

    def on_response(self, key: Key | None, response: Response) -> None:
        """Handle a response to our request. ``key`` is None if the request's transaction has ended."""
        ...

    def on_failed(self, key: Key, reason: Act) -> None:
        """Handle a request that had no answer (``TIMEOUT``) or could not be sent (``BROKEN``)."""
        ...

    def needs_connection(self, peer: Peer) -> bool:
        """Return True if calls or registrations use the connection with this peer, so that it must stay open."""
        ...

    def on_disconnected(self, peer: Peer) -> None:
        """Handle the loss of the connection with a peer."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that strangers may use."""

    requests_per_s: float = 50.0
    """Requests that one source address may send per second, on average. More are dropped without an answer."""
    burst: int = 200
    """Requests that one source may send at once."""
    sources: int = 10_000
    """Number of source addresses that are remembered. The one silent for longest is forgotten first."""
    connections: int = 1000
    transactions: int = 20_000
    idle_s: float = 600.0
    """A connection that is silent for this long is closed, unless calls or registrations use it."""
    write_bytes: int = 256 * 1024
    """A connection is closed when more unsent bytes than this wait for its peer."""


_END_OF_TLS_S = 1.0
"""Longest wait for the peer's end of TLS after ours. It takes one round trip, and the descriptor stays meanwhile."""
_STRANGERS_PER_SOURCE = 64
"""Connections of one source (an IPv6 /64) from which on its oldest makes room, unless it is a trunk's or a call's."""
_LOOK_S = 1.0  # pause between two checks of the sockets
_MAX_WAITING = 256
"""Most datagrams that wait to be read; more are dropped."""
_SHARE = 0.25
"""Share of the loop's time that messages may use. Beside 200 calls on a full machine, a turn takes 40 ms and a new call
1 to 2 ms; with ``TURN_S`` alone, answers were late by seconds, and the retransmissions filled the queue."""

_MAX_DATAGRAM_BYTES = 1300
"""Longest request that goes in a datagram where the MTU is unknown (RFC 3261 section 18.1.1)."""

_TRY_TCP_S = 1.0
"""Longest wait for the connection for a long request. Firewalls that drop the attempt must not delay a call more."""

_ANSWER_S = 1.0
"""Longest wait for a response to a long request on a new connection, before it is sent as a datagram too."""

_REMEMBERED_REQUESTS = 100
"""Most requests of a connection that are sent again if it is lost."""

_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""Options of each connection, in seconds, and milliseconds for the last. Calls and registrations keep a connection open
for hours, so a peer that vanished must be noticed, and address translators must not forget it. The kernel's probes need
no support by the peer, unlike the pings of RFC 5626."""

_WITHOUT_TCP_S = 600.0
_MAX_WITHOUT_TCP = 1000

_PORT_TRIES = 8
"""Number of TCP ports that are tried when any port will do."""


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, receive: Callable[[bytes, Peer], object]) -> None:
        self._receive = receive
        self.transport: asyncio.DatagramTransport | SharedAddress | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if data.strip(b"\r\n\0"):  # anything else is a keep-alive, which needs no answer in a datagram
            self._receive(data, Peer("UDP", addr[0], addr[1]))


class _DatagramsInTurns(asyncio.DatagramProtocol):
    """Reads one waiting datagram in each turn of ``LoopTurns``.

    Args:
        counts: counts the datagrams that find no room, as ``limited``.
    """

    def __init__(self, protocol: asyncio.DatagramProtocol, turns: LoopTurns, counts: Counter[str]) -> None:
        self._protocol = protocol
        self._turns = turns
        self._counts = counts
        self._waiting: deque[tuple[bytes, tuple[str, int]]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._counts["limited"] += 1
            return
        self._waiting.append((data, addr))
        self._turns.join(self._step)
        self._turns.deal()

    def _step(self) -> None:
        self._protocol.datagram_received(*self._waiting.popleft())


class SipFlow(Protocol):
    """A connection with a peer, which must stay usable for requests of either side (RFC 5626)."""

    heard_at: float
    """Time of the last received bytes, on the loop's clock."""

    def ping(self) -> bool:
        """Send a keep-alive (section 3.5.1). False: the connection is closed."""
        ...

    def fail(self) -> None:
        """Close the connection and tell the user at once, since the peer may never acknowledge the end."""
        ...


class _Connection(asyncio.Protocol):
    """One stream.

    Args:
        peer: the peer of an outgoing connection. For an incoming one, only its transport is known at first.
    """

    def __init__(self, endpoint: Endpoint, peer: Peer) -> None:
        self._endpoint = endpoint
        self._stream = MessageStream()
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.peer = peer
        self.heard_at = 0.0
        self.sent: deque[Key] = deque(maxlen=_REMEMBERED_REQUESTS)
        """Our last requests on this connection."""
        self.names: frozenset[str] = frozenset()
        self.serves_other_workers = False
        """True: messages of other workers' calls have come on it."""
        self.is_known = False
        """True: its source has a trunk's address or certificate, or a trunk's password has come on it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        connection = transport.get_extra_info("socket")
        if connection is not None:
            for level, option, value in _KEEP_ALIVE:
                connection.setsockopt(level, option, value)
        if not self.peer.host:
            host, port = (transport.get_extra_info("peername") or ("", 0))[:2]  # None: the peer has closed already
            self.peer = replace(self.peer, host=host, port=port)
        self.names = names_of(transport.get_extra_info("peercert") or {})
        if not self._endpoint._connections.add(self):
            self.abort()
        self._touch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle:
            self._idle.cancel()
        self._endpoint._connections.remove(self)
        self._endpoint._lost_connection(self)

    def data_received(self, data: bytes) -> None:
        self._touch()
        self.heard_at = asyncio.get_running_loop().time()
        pings = 0
        try:
            for message in self._stream.feed(data):
                if message == PING:
                    pings += 1
                elif not self._endpoint._receive(message, self.peer):
                    self.close()  # over a stream, the peer does not retransmit a message that is dropped
                    break
        except SipProtocolError as error:
            self._endpoint.counts["unreadable"] += 1
            log.info("SIP stream closed", extra={"why": str(error)})
            self.close()
        if pings:
            self.send(PONG * pings)  # one write for all, because one for each would cost more than the reading

    def send(self, data: bytes, key: Key | None = None) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > self._endpoint._limits.write_bytes:
            transport.abort()
            return False
        transport.write(data)
        if key is not None and key.client:
            self.sent.append(key)
        return True

    def ping(self) -> bool:
        return self.send(PING)

    def fail(self) -> None:
        self._endpoint._connections.remove(self)
        self.close()

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close now: a peer that takes nothing more must not keep the descriptor."""
        if self._transport:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_scarce(self) -> bool:
        """True if the connection has a descriptor that is kept for other work."""
        return self._transport is not None and is_reserved(self._transport)

    def _touch(self) -> None:
        if self._idle:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._endpoint._limits.idle_s, self._silent)

    def _silent(self) -> None:
        if self._endpoint._connections.needs(self):
            self._touch()
        else:
            self.close()


class _Connections(Mapping[Peer, _Connection]):
    """The connections of an endpoint, by peer, and the limits of their number.

    Args:
        most: most connections at a time. A trunk's or a call's takes the place of a stranger's.
        counts: counts the connections that are refused or closed for want of room, as ``refused``.
    """

    def __init__(self, user: User, *, most: int, counts: Counter[str]) -> None:
        self._user = user
        self._most = most
        self._counts = counts
        self._all: dict[Peer, _Connection] = {}
        self._of_source: dict[str, dict[_Connection, None]] = {}
        """Connections of each source, the oldest first."""

    def __getitem__(self, peer: Peer) -> _Connection:
        return self._all[peer]

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: _Connection) -> bool:
        """Add a connection. False: there is no room for it."""
        address = source(connection.peer.host)
        own = self._of_source.get(address, {})
        if len(own) >= _STRANGERS_PER_SOURCE:
            self._make_room(own)
        if (before := self._all.get(connection.peer)) is not None:
            self._drop(before)
        self._all[connection.peer] = connection
        self._of_source.setdefault(address, {})[connection] = None
        # Once, because a full port looks at a thousand connections for each new one. The user asks for its certificate.
        connection.is_known = self._user.standing(connection.peer) is SourceStanding.KNOWN
        is_full = len(self._all) > self._most or (not connection.is_known and connection.is_scarce)
        if is_full and not self._make_room(self._all.values()):
            self._counts["refused"] += 1
            self._drop(connection)
        return self._all.get(connection.peer) is connection

    def remove(self, connection: _Connection) -> None:
        """Remove a connection and tell the user. Nothing happens if it is not there any more."""
        if self._all.get(connection.peer) is connection:
            self._drop(connection)
            self._user.on_disconnected(connection.peer)

    def _drop(self, connection: _Connection) -> None:
        del self._all[connection.peer]
        address = source(connection.peer.host)
        del self._of_source[address][connection]
        if not self._of_source[address]:
            del self._of_source[address]

    def needs(self, connection: _Connection) -> bool:
        """Return True if the connection must stay open though it is silent."""
        return connection.serves_other_workers or self._user.needs_connection(connection.peer)

    def _make_room(self, among: Iterable[_Connection]) -> bool:
        """Close the oldest connection that no trunk and no call has. Return False if there is none."""
        for each in among:
            if not each.is_known and not self.needs(each):
                self._counts["refused"] += 1
                self.remove(each)
                each.abort()
                return True
        return False


class Endpoint:
    """One SIP address over UDP and TCP, and over TLS after ``start_tls``.

    Args:
        user: the owner of the calls.
        host: the local address of outgoing connections and datagrams. Empty: the system chooses one.
        client_tls: the context of outgoing TLS connections. None: there are none.
        methods: the methods that the user understands. Others are answered with 501.
        ready: returns True if a call would be accepted. If not, OPTIONS is answered with 503 (RFC 3261 section 11.2).
        frames_first: sends the audio frames that are due, between two messages.
    """

    def __init__(
        self,
        user: User,
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        host: str = "",
        client_tls: ssl.SSLContext | None = None,
        methods: Sequence[str] = METHODS,
        ready: Callable[[], bool] = lambda: True,
        frames_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.draining = False
        """True: new calls are answered with 503."""
        self.counts: Counter[str] = Counter()
        """Number of messages that were ``unreadable``, ``limited`` or ``refused``, or came from ``strangers``."""
        self.port = 0
        self.tls_port = 0
        """0: no TLS listener."""
        self._user = user
        self._ready = ready
        self._host = host
        self._client_tls = client_tls
        self._allow = ("Allow", ", ".join(methods))
        self._methods = frozenset(methods)
        self._limits = limits
        self._transactions = Transactions(timing, limit=limits.transactions)
        self._sources = SourceLimit(per_s=limits.requests_per_s, burst=limits.burst, sources=limits.sources)
        self._messages = MessageLimit(requests_per_s=limits.requests_per_s, burst=limits.burst, sources=limits.sources)
        self._turns = LoopTurns(frames_first=frames_first, share=_SHARE)
        self._datagrams = _Datagrams(self._receive)
        self._shared: SharedAddress | None = None
        self._servers: list[asyncio.Server] = []
        self._tls_acceptor: Acceptor | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._handshakes = Handshakes.of_files(open_files(), lambda: self.counts.update(refused=1))
        self._connections = _Connections(user, most=limits.connections, counts=self.counts)
        self._dialling: dict[Peer, asyncio.Task[None]] = {}
        self._unsent: dict[Peer, list[tuple[bytes, Key | None]]] = {}
        """Messages that wait for a connection to be made."""
        self._moved: dict[Key, tuple[Request, Peer]] = {}
        """Long requests that go by TCP and have no response yet, as they would go in a datagram."""
        self._without_tcp: dict[tuple[str, int], float] = {}
        """Host and port of peers that took no connection, and the time until which none is tried."""
        self._watching: SupervisedTask | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._loop: asyncio.AbstractEventLoop

    async def start(self, host: str, port: int) -> None:
        """Listen for UDP and TCP on the same port. Port 0 takes a free one.

        Raises:
            OSError: the address cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        for left in reversed(range(1 if port else _PORT_TRIES)):
            server = await self._loop.create_server(
                lambda: self._stream(Peer("TCP", "", 0)), host, port, backlog=BACKLOG
            )
            self._servers = [server]
            self.port = server.sockets[0].getsockname()[1]
            try:
                await self._loop.create_datagram_endpoint(
                    lambda: _DatagramsInTurns(self._datagrams, self._turns, self.counts), local_addr=(host, self.port)
                )
                self._watching = SUPERVISOR.task("SIP endpoint", self._until_lost, need=Need.PROCESS)
                return
            except OSError:  # a port that is free for TCP may be in use for UDP
                await self.close()
                if not left:
                    raise

    @property
    def _lost(self) -> bool:
        return self._datagrams.lost.is_set() or not all(server.is_serving() for server in self._servers)

    async def _until_lost(self) -> None:
        """Raise if a socket of the endpoint closes.

        Raises:
            RuntimeError: it has closed.
        """
        while not self._lost:  # noqa: ASYNC110 - no event tells of a closed server
            await asyncio.sleep(_LOOK_S)
        raise RuntimeError("a SIP socket is closed")

    def _stream(self, peer: Peer) -> InTurns:
        return InTurns(_Connection(self, peer), self._turns)

    def join(self, shared: SharedAddress) -> None:
        """Use an address that several workers share, instead of ``start``. ``adopt`` brings the connections."""
        self._loop = asyncio.get_running_loop()
        self.port, self.tls_port = shared.port, shared.tls_port
        self._shared = self._datagrams.transport = shared
        shared.start(
            lambda data, peer, may_cancel: self._received(data, peer, self._loop.time(), may_cancel=may_cancel),
            self._queue,
        )

    async def adopt(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve a connection that another process has accepted.

        Args:
            tls: the context, for a connection to the TLS port.
        """
        peer, host = Peer("TLS" if tls else "TCP", "", 0), ""
        handshake = asyncio.current_task()
        assert handshake is not None
        try:
            host = str(connection.getpeername()[0])
            if tls and self._user.standing(Peer("TLS", host, 0)) is not SourceStanding.KNOWN:
                self._handshakes.enter(source(host), handshake)
            await self._loop.connect_accepted_socket(
                lambda: self._stream(peer), connection, ssl=tls,
                ssl_handshake_timeout=self._connect_s if tls else None,
                ssl_shutdown_timeout=_END_OF_TLS_S if tls else None,
            )  # fmt: skip
        except ssl.SSLError as error:
            # The administrator of the other side sees an error, but often not which of the two certificates is wrong.
            log.info("SIP connection refused", extra={"peer": f"TLS {host}", "why": str(error)})
            connection.close()
        except OSError:  # the peer has closed, or is too slow
            connection.close()
        except asyncio.CancelledError:  # it makes room for another one
            connection.close()
            raise
        finally:
            self._handshakes.leave(handshake)

    async def start_tls(self, host: str, port: int, context: ssl.SSLContext) -> None:
        """Listen for TLS too, after ``start``.

        Raises:
            OSError: the address cannot be bound.
        """
        # Not ``create_server``, which does not report a failed handshake.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.tls_port = listener.getsockname()[1]
        self._tls_acceptor = Acceptor(listener, partial(self._take, context))

    def _take(self, context: ssl.SSLContext, connection: socket.socket) -> None:
        adopting = self._loop.create_task(self.adopt(connection, context), name="TLS handshake")
        self._adopting.add(adopting)
        adopting.add_done_callback(self._adopting.discard)

    async def close(self) -> None:
        """Close the sockets at once, and forget the transactions that are under way."""
        if self._watching is not None:
            await self._watching.aclose()  # first, else it reports the sockets that are closed here
        if self._timer:
            self._timer.cancel()
        if self._tls_acceptor is not None:
            self._tls_acceptor.close()
            await asyncio.sleep(0)  # a task that is cancelled before it begins would not close its connection
        pending = [*self._dialling.values(), *self._adopting]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for server in self._servers:
            server.close()
        for connection in list(self._connections.values()):
            connection.close()
        if self._datagrams.transport:
            self._datagrams.transport.close()
        for server in self._servers:
            await server.wait_closed()

    @property
    def transactions(self) -> int:
        """Number of transactions."""
        return len(self._transactions)

    def keep(self, peer: Peer) -> None:
        """Let the connection with a peer, which has given a trunk's password, make no room for strangers."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.is_known = True

    def certificate_names(self, peer: Peer) -> frozenset[str]:
        """Return the names in the verified certificate of this peer's connection. Empty: there is no certificate."""
        connection = self._connections.get(peer)
        return connection.names if connection else frozenset()

    def request(self, request: Request, peer: Peer) -> Key:
        """Send a request in a new transaction. The user is told its outcome.

        A request that is too long for a datagram goes by TCP, unless the peer takes no connection (RFC 3261 section
        18.1.1). A CANCEL follows its INVITE.

        Raises:
            ValueError: see ``Transactions.request``.
        """
        invite = self._transactions.sent(replace(key_of(request), method="INVITE"))
        stream = replace(peer, transport="TCP")
        if request.method == "CANCEL" and invite is not None and invite[1] == stream:
            request, peer = _by(request, "TCP"), stream
        elif peer.transport == "UDP" and self._goes_by_tcp(request, peer):
            self._moved[key_of(request)] = request, peer
            self._loop.call_later(_TRY_TCP_S + _ANSWER_S, self._send_as_datagram, key_of(request))
            request, peer = _by(request, "TCP"), stream
        key, effects = self._transactions.request(
            request, peer, reliable=peer.transport != "UDP", now=self._loop.time()
        )
        self._carry_out(effects)
        return key

    def _goes_by_tcp(self, request: Request, peer: Peer) -> bool:
        refused_until = self._without_tcp.get((peer.host, peer.port), 0.0)
        return len(request.serialise()) > _MAX_DATAGRAM_BYTES and self._loop.time() >= refused_until

    def flow(self, peer: Peer) -> SipFlow | None:
        """Return the connection with a peer. None: there is none."""
        return self._connections.get(peer)

    def send(self, message: Message, peer: Peer) -> None:
        """Send a message outside any transaction, such as the ACK of a 2xx. A long ACK takes the connection of its
        INVITE if that is there, because the loss of an ACK is not reported."""
        if isinstance(message, Request) and peer.transport == "UDP" and self._goes_by_tcp(message, peer):
            by_tcp, stream = _by(message, "TCP"), replace(peer, transport="TCP")
            if self._write(by_tcp.serialise(), stream):
                return
        self._send(message, peer, None)

    def respond(self, key: Key, response: Response) -> None:
        """Answer a request. Sending the 2xx to an INVITE again repeats it."""
        self._carry_out(self._transactions.respond(key, response, now=self._loop.time()))

    def forget(self, key: Key) -> None:
        """End a transaction without reporting it, if it still exists."""
        self._moved.pop(key, None)
        self._transactions.forget(key)

    def dismiss(self, key: Key, request: Request, response: Response | None, peer: Peer) -> None:
        """Answer a request and keep no state: a retransmission is a new request, and an ACK is ignored.

        This is for strangers, who must not cost memory (RFC 3261 section 8.2.7: the stateless server).

        Args:
            response: the answer. None: no answer.
        """
        self._transactions.forget(key)
        if response:
            self._answer(request, response, peer)

    # --- in --------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes, peer: Peer) -> bool:
        """Receive one message. False: its source is over the limit, and the message was not read."""
        now = self._loop.time()
        if not self._messages.take(peer.host, data, now=now):
            self.counts["limited"] += 1
            return False
        if self._shared is None or not self._shared.pass_on(data, peer):
            self._received(data, peer, now)
        elif peer in self._connections and self._user.standing(peer) is not SourceStanding.STRANGER:
            self._connections[peer].serves_other_workers = True
        return True

    def _received(self, data: bytes, peer: Peer, now: float, *, may_cancel: bool = False) -> None:
        """Handle one message.

        Args:
            may_cancel: True for a CANCEL from another worker, which has found that its source is no stranger.
        """
        try:
            message = parse(data)
        except SipProtocolError as error:
            self.counts["unreadable"] += 1
            log.debug("SIP message refused", extra={"why": str(error)})
            # A malformed request counts as a request against the limit of its source.
            if isinstance(error, MalformedRequest) and error.reply and self._sources.take(peer.host, now=now):
                if self._user.standing(peer) is not SourceStanding.STRANGER:
                    self._answer(error.request, error.reply, peer)
            return
        if isinstance(message, Request):
            message = note_source(message, peer.host, peer.port)
            peer = _answered_at(message, peer)
            known = server_key(message)
            if message.method != "ACK" and self._transactions.state(known) is TransactionState.TERMINATED:
                if not self._sources.take(peer.host, now=now):
                    self.counts["limited"] += 1
                    return
                refusal: Response | None = None
                is_cancel = message.method == "CANCEL"
                # A To tag proves nothing in a CANCEL: the INVITE is found by its branch.
                in_dialog = bool(message.to.tag) and not is_cancel
                if in_dialog or may_cancel or self._user.standing(peer) is not SourceStanding.STRANGER:
                    stray = is_cancel and not may_cancel and not self._transactions.cancelled(message)
                    if (
                        stray and self._shared is not None and peer.transport != "UDP"
                    ):  # a datagram has already reached the right worker
                        self._shared.pass_cancel(data, peer)
                        return
                    refusal = self._refusal(message)
                elif message.method != "INVITE":
                    self.counts["strangers"] += 1
                    return
                if refusal:
                    self.counts["refused"] += 1
                    self._answer(message, refusal, peer)
                    return
        elif len(message.headers.all("Via")) > 1:
            self.counts["unreadable"] += 1
            return  # the response to another host's request (section 8.1.3.3)
        reliable = peer.transport != "UDP"
        self._carry_out(self._transactions.received(message, peer, reliable=reliable, now=now))

    def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request. It is stateless: a retransmission computes it again."""
        tag = "stateless" if not request.to.tag else ""
        begins_call = request.method == "INVITE" and not request.to.tag
        if request.method == "CANCEL" and not self._transactions.cancelled(request):
            return response_to(request, 481, to_tag=tag)
        if not self._transactions.has_room(request) or (self.draining and begins_call):
            return response_to(request, 503, to_tag=tag, headers=[("Retry-After", "5")])
        if request.method not in self._methods:
            return response_to(request, 501, to_tag=tag, headers=[self._allow])
        if not request.to.tag and request.uri.partition(":")[0].lower() not in _SCHEMES:
            return response_to(request, 416, to_tag=tag)
        unknown = [option for option in request.headers.all("Require") if option.lower() not in EXTENSIONS]
        if unknown and request.method != "CANCEL":
            return response_to(request, 420, to_tag=tag, headers=[("Unsupported", ", ".join(unknown))])
        if request.method == "OPTIONS" and not request.to.tag:
            status = 200 if self._ready() and not self.draining else 503
            return response_to(request, status, to_tag=tag, headers=[self._allow, _ACCEPT, SUPPORTED])
        return None

    def _deliver(self, key: Key | None, message: Message, peer: Peer) -> None:
        if isinstance(message, Response):
            if key:
                self._moved.pop(key, None)
            self._user.on_response(key, message)
        elif message.method == "ACK":
            self._user.on_ack(message)
        elif message.method == "CANCEL":
            assert key
            invite = self._transactions.cancelled(message)
            assert invite  # a CANCEL without its INVITE was refused before
            self.respond(key, response_to(message, 200, to_tag="cancelled"))
            self._user.on_cancel(invite, message)
        else:
            assert key
            self._user.on_request(key, message, peer)

    # --- out -------------------------------------------------------------------------------------------------------

    def _answer(self, request: Request, response: Response, peer: Peer) -> None:
        """Answer without a transaction. The source of a datagram may be forged, so an unknown source gets no more bytes
        than it sent: the answer without its optional headers, then with only the last challenge, or no answer."""
        if peer.transport == "UDP" and self._user.standing(peer) is not SourceStanding.KNOWN:
            if len(response.serialise()) > request.size:
                kept = [(name, value) for name, value in response.headers if name not in _OPTIONAL_HEADERS]
                response = replace(response, headers=Headers(kept))
            if len(response.serialise()) > request.size:
                # The last challenge is for MD5, which every phone knows.
                last = response.headers.all("WWW-Authenticate")[-1:]
                response = replace(response, headers=response.headers.replace("WWW-Authenticate", *last))
            if len(response.serialise()) > request.size:
                return
        self._send(response, peer, None)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            try:
                self._do(effect)
            except Exception:  # a bug that one message finds must not take the timers of the other transactions
                log.exception("SIP message failed")
        self._set_timer()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(message, peer, key):
                assert isinstance(peer, Peer)
                self._send(message, peer, key)
            case Deliver(key, message, peer):
                assert isinstance(peer, Peer)
                self._deliver(key, message, peer)
            case TransactionFailed(key, reason):
                self._moved.pop(key, None)
                self._user.on_failed(key, reason)

    def _set_timer(self) -> None:
        due = self._transactions.next_due
        if self._timer and due != self._timer_due:
            self._timer.cancel()
            self._timer = None
        if due is not None and self._timer is None:
            # The due time is kept beside the handle, because uvloop's handle does not tell it if it is due at once.
            self._timer, self._timer_due = self._loop.call_at(due, self._tick), due

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._transactions.tick(self._loop.time()))

    def _send(self, message: Message, peer: Peer, key: Key | None) -> None:
        data = message.serialise()
        if peer.transport == "UDP":
            if self._datagrams.transport and not self._datagrams.transport.is_closing():
                try:
                    self._datagrams.transport.sendto(data, (peer.host, peer.port))
                except (OSError, ValueError) as error:  # an address that our socket cannot send to
                    self._unsendable(peer, error, key)
            return
        if self._write(data, peer, key) or (self._shared is not None and self._shared.write_elsewhere(data, peer)):
            return
        if isinstance(message, Response):
            # The connection is gone, so the response goes to the address in the Via, where the peer listens (section
            # 18.2.2).
            try:
                named = message.via.port
            except SipProtocolError:
                return  # the answer to a request whose Via we could not read
            peer = replace(peer, port=named or (5061 if peer.transport == "TLS" else 5060), listens_at=None)
        self._queue(data, peer, key)

    def _unsendable(self, peer: Peer, error: Exception, key: Key | None) -> None:
        self.counts["unsendable"] += 1
        log.info("SIP message not sent", extra={"peer": f"{peer.transport} {peer.host}", "why": repr(error)})
        if key:
            self._loop.call_soon(self._failed, key)

    def _queue(self, data: bytes, peer: Peer, key: Key | None = None) -> None:
        """Write a message to the connection with a peer, or queue it for the one that is to be made."""
        if self._write(data, peer, key):
            return
        if peer.listens_at is not None:
            host, port = peer.listens_at
            name = peer.name if host == peer.host else host
            peer = Peer(peer.transport, host, port, name if peer.transport == "TLS" else "")
            if self._write(data, peer, key):
                return
        unsent = self._unsent.setdefault(peer, [])
        if len(unsent) >= self._MAX_UNSENT:
            if key:
                self._loop.call_soon(self._failed, key)
            return
        unsent.append((data, key))
        if peer not in self._dialling:
            self._dialling[peer] = self._loop.create_task(self._dial(peer))

    def _write(self, data: bytes, peer: Peer, key: Key | None = None) -> bool:
        """Write to the connection with a peer. False: there is none that works."""
        connection = self._connections.get(peer)
        return connection is not None and connection.send(data, key)

    async def _dial(self, peer: Peer) -> None:
        connection: _Connection | None = None
        is_moved = any(key in self._moved for _, key in self._unsent[peer])
        try:
            async with asyncio.timeout(_TRY_TCP_S if is_moved else self._connect_s):
                connection = await self._connect(peer)
        except (OSError, ValueError, TimeoutError) as error:
            # ssl.SSLError, for a certificate that fails verification, is an OSError; ValueError is a name or port that
            # cannot be one.
            log.info("SIP connection failed", extra={"peer": f"{peer.transport} {peer.host}", "why": repr(error)})
        finally:
            del self._dialling[peer]
            unsent = self._unsent.pop(peer)
        for data, key in unsent:
            if not (connection and connection.send(data, key)) and key:
                self._failed(key)

    async def _connect(self, peer: Peer) -> _Connection:
        tls = self._client_tls if peer.transport == "TLS" else None
        if peer.transport == "TLS" and tls is None:
            raise OSError("TLS is not configured")
        address = await self._address(peer)
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        connection = _Connection(self, address)
        await self._loop.create_connection(
            lambda: InTurns(connection, self._turns),
            address.host,
            peer.port,
            ssl=tls,
            server_hostname=(peer.name or peer.host) if tls else None,
            local_addr=(self._host, 0) if self._host else None,
        )
        return connection

    async def _address(self, peer: Peer) -> Peer:
        """Return a peer with its host name looked up. Connections are known by addresses."""
        try:
            ipaddress.ip_address(peer.host)
        except ValueError:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET if self._host else socket.AF_UNSPEC
            found = await self._loop.getaddrinfo(peer.host, peer.port, family=family, type=socket.SOCK_STREAM)
            return replace(peer, host=str(found[0][4][0]))
        return peer

    _MAX_UNSENT = 100
    """Most messages that may wait for one connection. More fail at once."""

    _connect_s = 4.0
    """Longest time to make a connection, well below the 32 s after which a transaction gives up."""

    def _failed(self, key: Key) -> None:
        """Handle a request that no connection takes. A long one is sent as a datagram after all."""
        now = self._loop.time()
        if key not in self._moved:
            self._carry_out(self._transactions.transport_failed(key, now=now))
            return
        _, peer = self._moved[key]
        self._without_tcp[peer.host, peer.port] = now + _WITHOUT_TCP_S
        while len(self._without_tcp) > _MAX_WITHOUT_TCP:
            self._without_tcp.pop(next(iter(self._without_tcp)))
        self._send_as_datagram(key)

    def _lost_connection(self, connection: _Connection) -> None:
        """Send the requests again that have got no response on a connection which is lost: the long ones as datagrams,
        the others on a new connection."""
        if self._datagrams.transport is None or self._datagrams.transport.is_closing():
            return
        unsent = {key for waiting in self._unsent.values() for _, key in waiting}
        for key, (_, datagram_peer) in list(self._moved.items()):
            if replace(datagram_peer, transport="TCP") == connection.peer and key not in unsent:
                self._failed(key)
        self._carry_out([effect for key in connection.sent for effect in self._transactions.send_again(key)])

    def _send_as_datagram(self, key: Key) -> None:
        """Send a long request as a datagram if its connection has brought no response. A firewall may take a connection
        that its server does not, and the branch tells a slow server that it has the request already."""
        moved = self._moved.pop(key, None)
        if moved is not None and self._transactions.sent(key) is not None:
            request, peer = moved
            self._transactions.forget(key)
            self._carry_out(self._transactions.request(request, peer, reliable=False, now=self._loop.time())[1])


def _answered_at(request: Request, peer: Peer) -> Peer:
    """Return the address for the answers to a datagram: its source, or the port in the Via if the sender does not ask
    for the source port (``rport``) and no translator changed its address (RFC 3261 section 18.2.2). Some phones and
    gateways send from any port and listen at 5060."""
    via = request.via
    if peer.transport != "UDP" or "rport" in via.params or via.host.strip("[]") != peer.host or via.port == 0:
        return peer
    return replace(peer, port=via.port or 5060)


def _by(request: Request, transport: str) -> Request:
    """Return a request with another transport in its topmost Via."""
    top, *below = request.headers.all("Via")
    top = str(replace(Via.parse(top), transport=transport))
    return replace(request, headers=request.headers.replace("Via", top, *below))
