"""One port for everything. A small protocol reads the head of the first request. It passes ``/media/*`` to the media
path and everything else to the HTTP application, which returns the connection if a later request is for ``/media/*``.
The server also accepts connections, drains, and limits connections per address.

By measurement, a frame on picows costs half of a frame on aiohttp in both directions. A stack of our own for REST and
pages would gain nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

from aiohttp import web, web_response
from aiohttp.http import RawRequestMessage
from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its stubs; the version is pinned

from gateway.carriers.carrier import ConfiguredCarrier, placed_in
from gateway.config import LimitsConfig, ServerConfig
from gateway.errors import Rejected, did_you_mean
from gateway.listener.acceptor import Acceptor, close_all
from gateway.listener.certificates import Certificates
from gateway.listener.connection import Accept, MediaConnection, picows_log
from gateway.listener.forwarded import Proxies
from gateway.listener.handshakes import Handshakes
from gateway.listener.no_room import BACKLOG, MAX_OPEN_FILES, is_reserved, open_files
from gateway.listener.outgoing import open_socket
from gateway.listener.passed_on import PassedOn
from gateway.listener.passed_streams import PassedStreams
from gateway.listener.request_rate import RequestRate
from gateway.listener.sites import Sites, check_one_host
from gateway.listener.sockets import Sockets
from gateway.listener.source_limit import source
from gateway.listener.turns import InTurns, LoopTurns
from gateway.seams.call_api import OpenCallApi
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import CallEvents
from gateway.seams.plain_text import is_plain, plain
from gateway.tokens import StreamToken
from tts_engine.supervision import SUPERVISOR, Need, SupervisedTask

log = logging.getLogger(__name__)

_MEDIA = "/media/"
_LINGER_S = 2.0
"""Time for which the rest of a refused body is still read, so that its sender sees the answer before the connection
closes. Each arriving piece costs a wake-up."""
_BODY_S = 60.0
"""Longest upload of a request's body, seconds. The largest, 12 MB of reference audio, takes 2 Mbit/s."""
_MEDIA_TURN_S = 0.004
"""Longest time for caller audio in one turn of the loop, enough for 50 calls. The rest is handled in the next turns."""
_HEAD_BYTES = 16 * 1024
_HANDSHAKE_S = 5.0
"""Longest TLS handshake, seconds. It takes two round trips."""
_END_OF_TLS_S = 1.0
"""Longest wait for the peer's end of TLS after ours. It takes one round trip, and the descriptor stays meanwhile."""
_UNREAD_MS = 60_000
"""Longest time in which a peer takes nothing of what waits for it, milliseconds. The kernel then ends the connection:
else a reader that stops would keep a file, an utterance or a place for ever."""
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_SWEEP_S = _LOOK_S = 1.0


def raise_open_files() -> None:
    """Raise the limit of open files to the hard limit. The soft limit, often 1024, is meant for programs with
    ``select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Switch(asyncio.Protocol):
    """Reads the head of the first request, then passes the connection and the read data on.

    It reads the whole head, not only the first line, because neither stack limits the time for a head.
    """

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._head = bytearray()
        self._connection: InTurns | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection = connection = cast(InTurns, transport)
        peer = None
        if not isinstance(connection, PassedOn):
            self._server.opening.add(connection)
            peer = connection.get_extra_info("peername")
            if (own := connection.get_extra_info("socket")) is not None:
                with contextlib.suppress(OSError):  # the peer has closed already
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        if peer is not None and not self._server.sockets.admit(
            source(str(peer[0])),
            connection,
            now=self._server.now(),
            scarce=is_reserved(connection),
            for_others=self._server.proxies.trusts(str(peer[0])),
        ):
            self._server.on_rejected("too_many_connections")
            connection.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._server.limits.setup_timeout_s, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._server.opening.discard(self._connection)

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None and self._timer is not None
        if self._connection.is_closing():
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _HEAD_BYTES:
                self._server.on_rejected("head_too_long")
                self._connection.abort()
            return
        self._timer.cancel()
        path = bytes(self._head[:end]).partition(b"\r\n")[0].split(b" ")[1:2]
        if path and path[0].startswith(_MEDIA.encode()):
            self._server.begin_media(self._connection, bytes(self._head))
        elif self._is_over_rate(path[0] if path else b""):
            self._server.on_rejected("too_many_requests")
            self._connection.transport.write(_TOO_MANY)
            self._connection.transport.close()
        else:
            self._server.begin_http(self._connection, bytes(self._head))

    def _late(self) -> None:
        assert self._connection is not None
        if self._head:  # browsers open connections ahead of their requests
            self._server.on_rejected("head_too_slow")
        self._connection.abort()

    def _is_over_rate(self, path: bytes) -> bool:
        """Return True if the client has used up its requests; then the connection need not reach the application."""
        assert self._connection is not None
        peer = self._connection.get_extra_info("peername")
        if peer is None or isinstance(self._connection, PassedOn):
            return False
        called = path.partition(b"?")[0].decode("latin-1")
        return self._server.rate.is_spent(str(peer[0]), called, now=self._server.now())


def _with_plain_headers(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Return a factory of requests whose headers are plain text. aiohttp keeps bytes that are not UTF-8 as surrogates,
    which its own answers cannot carry."""

    def make_plain(message: RawRequestMessage, *more: Any) -> web.BaseRequest:
        if not all(is_plain(name) and is_plain(value) for name, value in message.headers.items()):
            cleaned = message.headers.copy()
            cleaned.clear()
            for name, value in message.headers.items():
                cleaned.add(plain(name), plain(value))
            message = message._replace(headers=type(message.headers)(cleaned))
        return make(message, *more)

    return make_plain


class _Upgraded:
    """Collects the data that aiohttp received after the head of an upgrade request."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None: ...


class GatewayServer:
    """The listener.

    Args:
        app: the HTTP application, for everything except ``/media/*``.
        carriers: the configured carriers, by dialect name.
        accept: makes a session of a started media stream.
        authorise: checks a media upgrade (dialect, route, request, peer's address) and returns our token, if the stream
            has one; raises ``Rejected``.
        sites: refuses pages of other sites.
        call_apis: by dialect, the API that controls calls besides their streams.
        on_rejected: called with the code when a media stream or a connection is refused.
        on_oddity: called with the dialect and the kind of each oddity of a media stream that was tolerated.
        frames_first: sends the audio frames that are due; see ``gateway.listener.turns``.
        passed: the streams of calls that other workers have placed.
    """

    def __init__(
        self,
        server: ServerConfig,
        limits: LimitsConfig,
        app: web.Application,
        carriers: Mapping[str, ConfiguredCarrier],
        *,
        accept: Accept,
        authorise: Callable[[str, str, WSUpgradeRequest, str], StreamToken | None],
        sites: Sites,
        call_apis: Mapping[str, OpenCallApi] | None = None,
        on_rejected: Callable[[str], None] = lambda code: None,
        on_oddity: Callable[[str, str], None] = lambda dialect, kind: None,
        frames_first: Callable[[], None] = lambda: None,
        passed: PassedStreams | None = None,
    ) -> None:
        self.config = server
        self.passed = passed or PassedStreams()
        self.limits = limits
        self._carriers = carriers
        self._accept = accept
        self.opening: set[InTurns | asyncio.Transport] = set()
        """Connections without a complete request head, and media streams that have not started: each may become a
        call."""
        self._authorise = authorise
        self._sites = sites
        self._call_apis = call_apis or {}
        self.on_rejected = on_rejected
        self._on_oddity = on_oddity
        # Hide the software from strangers. aiohttp's own answers to malformed requests cannot be changed otherwise.
        web_response.SERVER_SOFTWARE = "talkspurt"  # type: ignore[attr-defined]  # not in its documented API
        # Decompression would run on the loop before authentication, and a few kB may expand to gigabytes. The
        # application refuses
        # compressed bodies.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, auto_decompress=False, lingering_time=_LINGER_S
        )
        self._turns, self._media_floods = LoopTurns(frames_first=frames_first), LoopTurns(frames_first=frames_first)
        self._media_turns = LoopTurns(frames_first=frames_first, turn_s=_MEDIA_TURN_S)
        self._listener: asyncio.Server | None = None
        self._tls_acceptors: list[Acceptor] = []
        self.sockets = Sockets(
            most=limits.connections or open_files() * 3 // 4,
            per_address=limits.connections_per_address,
            idle_s=limits.idle_s,
            body_s=_BODY_S,
            on_room=self._made_room,
        )
        self.proxies = Proxies(server.trusted_proxies)
        self.rate = RequestRate(limits.requests_per_s, self.proxies)
        self._watching: SupervisedTask | None = None
        self.handshakes = Handshakes.of_files(open_files(), self._made_room)
        self._sweeper: asyncio.TimerHandle | None = None
        self._certificates: Certificates | None = None
        self._tls: ssl.SSLContext | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        app.middlewares.insert(0, self._watched())
        self.port = 0

    async def start(self, *, siblings: Path | None = None) -> None:
        """Start to listen. ``port`` then has the bound port.

        Args:
            siblings: the path of the socket for the other workers, if another process accepts this worker's
                connections.
        """
        await self._runner.setup()
        assert self._runner.server is not None
        self._runner.server.request_factory = _with_plain_headers(self._runner.server.request_factory)
        if self.config.tls is not None:
            self._tls = tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(self.config.tls.certificate, self.config.tls.key)
            self._certificates = Certificates([tls], self.config.tls.certificate, self.config.tls.key)
            self._certificates.start()
        loop = asyncio.get_running_loop()
        if siblings is not None:
            self._listener = await loop.create_unix_server(lambda: PassedOn(_Switch(self), self._turns), str(siblings))
        else:
            self._listener = await loop.create_server(
                self._connection, self.config.host, self.config.port, backlog=BACKLOG,
                start_serving=self._tls is None,
            )  # fmt: skip
            self.port = self._listener.sockets[0].getsockname()[1]
            if self._tls is not None:
                # ``create_server`` would begin a handshake for each connection, before anything counts them.
                self._tls_acceptors = Acceptor.of(self._listener, self.adopt)
        self._watching = SUPERVISOR.task("listener", self._until_closed, need=Need.PROCESS)
        self._sweep()

    @property
    def _is_listening(self) -> bool:
        if self._tls_acceptors:
            return all(acceptor.is_listening for acceptor in self._tls_acceptors)
        return self._listener is not None and self._listener.is_serving()

    def _made_room(self) -> None:
        self.on_rejected("too_many_connections")

    async def _until_closed(self) -> None:
        """Raise if the listening socket closes.

        Raises:
            RuntimeError: it has closed.
        """
        while self._is_listening:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(_LOOK_S)
        raise RuntimeError("the listening socket is closed")

    def _connection(self) -> InTurns:
        return InTurns(_Switch(self), self._turns, self.sockets.remove)

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        task = asyncio.create_task(self._adopt(connection), name="adopt a connection")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)
        if self._tls is not None:
            with contextlib.suppress(OSError, IndexError):  # the client may have closed
                peer = str(connection.getpeername()[0])
                if not self.proxies.trusts(peer):
                    self.handshakes.enter(source(peer), task)
            task.add_done_callback(self.handshakes.leave)

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, connection, ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_S if self._tls is not None else None,
                ssl_shutdown_timeout=_END_OF_TLS_S if self._tls is not None else None,
            )  # fmt: skip
        except (OSError, asyncio.CancelledError):  # the client has closed, or the TLS handshake failed or took too long
            connection.close()

    async def stop_accepting(self) -> None:
        """Stop accepting connections. Open ones stay."""
        if self._watching is not None:
            self._watching.cancel()
        close_all(self._tls_acceptors)
        if self._listener is not None:
            self._listener.close()

    async def aclose(self) -> None:
        """Close everything."""
        await self.stop_accepting()
        await self.passed.aclose()
        if self._certificates is not None:
            await self._certificates.aclose()
        await self._runner.cleanup()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.handshakes.close()
        self.sockets.close()  # browsers open some in advance without a request; neither stack knows these

    @staticmethod
    def now() -> float:
        """Return the time on the clock of all deadlines here."""
        return asyncio.get_running_loop().time()

    def _sweep(self) -> None:
        self.opening = {transport for transport in self.opening if not transport.is_closing()}
        if ended := self.sockets.sweep(now=self.now()):
            log.info("idle connections closed", extra={"count": ended})
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _watched(self) -> Any:
        """Return a middleware that tracks the connections in use and takes over those that become media streams."""

        @web.middleware
        async def watch(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self._turns.frames_first()
            if request.transport is None:
                return await handler(request)
            connection = cast(InTurns, request.transport)
            if request.raw_path.startswith(_MEDIA):
                self._take_over(request, connection)
                raise asyncio.CancelledError  # to aiohttp, the connection is lost
            self.sockets.begin(connection, now=self.now(), whole=request.content.is_eof)
            try:
                return await handler(request)
            finally:
                self.sockets.end(connection, now=self.now())

        return watch

    def _take_over(self, request: web.Request, connection: InTurns) -> None:
        """Turn a connection that has carried other requests into a media stream: proxies reuse connections."""
        http, upgraded = request.protocol, _Upgraded()
        http.set_parser(cast(Any, upgraded))
        http.transport = None  # else aiohttp would close the connection
        http.connection_lost(None)
        version = request.version
        lines = [
            f"{request.method} {request.raw_path} HTTP/{version.major}.{version.minor}".encode(errors="surrogateescape")
        ]
        lines += [name + b": " + value for name, value in request.raw_headers]
        self.begin_media(connection, b"\r\n".join([*lines, b"", upgraded.data]))

    def begin_media(self, connection: InTurns, data: bytes) -> None:
        """Pass a connection to the media path, of this worker or of the one that has placed the call. ``data`` is
        everything received: the request's head and what follows it."""
        self.sockets.begin(connection, now=self.now())
        self.opening.discard(connection)
        data += connection.release()
        owner = None
        if isinstance(connection, PassedOn):
            connection.read_head(data)
        else:
            target = data.partition(b"\r\n")[0].split(b" ")[1].decode("ascii", "replace")
            owner = self.passed.owner(placed_in(target))
        peername = connection.get_extra_info("peername")
        peer = str(peername[0]) if peername is not None else ""
        through = cast(asyncio.Transport, connection) if isinstance(connection, PassedOn) else connection.transport
        serve = partial(self._serve_media, connection.transport, through, data, peer)
        if owner is None:
            serve()
        else:
            self.passed.pass_on(connection.transport, data, owner, peer, serve)

    def _serve_media(self, own: asyncio.Transport, through: asyncio.Transport, data: bytes, peer: str) -> None:
        """Serve a media stream.

        Args:
            own: the connection's transport.
            through: the transport that the media path uses.
        """
        self.opening.add(through)
        media = self.media_protocol(peer)
        own.set_protocol(media)
        media.connection_made(through)
        rest = memoryview(data)
        while len(rest):
            room = media.get_buffer(len(rest))
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            media.buffer_updated(taken)
            rest = rest[taken:]

    def begin_http(self, connection: InTurns, data: bytes) -> None:
        """Pass a connection to the HTTP application. ``data`` is everything received."""
        assert self._runner.server is not None
        self.opening.discard(connection)
        if isinstance(connection, PassedOn):
            connection.read_head(data)
        connection.inner = self._runner.server()
        connection.inner.connection_made(connection)
        connection.inner.data_received(data)

    def media_protocol(self, peer: str) -> Any:
        """Return a media protocol for one connection from the address ``peer``."""
        return WSProtocol(
            host_port=None,
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=lambda request: self._route(request, peer),
            logger=picows_log,
            disconnect_on_exception=True,
            websocket_handshake_timeout=self.limits.setup_timeout_s,
            enable_auto_ping=False,
            auto_ping_idle_timeout=20.0,
            auto_ping_reply_timeout=20.0,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=False,  # the connection answers pings, at a limited rate
            max_frame_size=self.limits.message_bytes,
            extra_headers=None,
            read_buffer_init_size=4096,
        )

    def connection(self, dialect: str, route: str, parameters: Mapping[str, str]) -> MediaConnection:
        """Make a connection, accepted or outgoing; ``parameters`` are those of the stream's address."""
        return MediaConnection(
            self._carriers[dialect].dialect(parameters), route, self._begin,
            setup_timeout_s=self.limits.setup_timeout_s,
            max_message_bytes=self.limits.message_bytes,
            max_errors=self.limits.errors_in_a_row,
            turns=self._media_turns,
            floods=self._media_floods,
            open_api=self._call_apis.get(dialect),
            on_rejected=self.on_rejected,
            on_oddity=self._on_oddity,
        )  # fmt: skip

    def _begin(self, connection: MediaConnection, call: IncomingCall) -> CallEvents:
        session = self._accept(connection, call)
        if connection.transport is not None:
            self.opening.discard(connection.transport)
        return session

    async def open_stream(
        self, dialect: str, url: str, route: str, parameters: Mapping[str, str], timeout_s: float
    ) -> None:
        """Open a stream to a switch that waits for one.

        Raises:
            StreamNotOpened: the switch refused, or nothing listens there.
        """
        connection = self.connection(dialect, route, parameters)
        await open_socket(connection, url, timeout_s=timeout_s, max_message_bytes=self.limits.message_bytes)

    def _route(self, request: WSUpgradeRequest, peer: str) -> WSUpgradeResponseWithListener:
        try:
            path, _, query = request.path.decode("ascii", "replace").partition("?")
            parts = [part for part in path.split("/") if part][1:]
            check_one_host(request.headers.getall("Host", ()), request.path.decode("ascii", "replace"))
            self._sites.check(peer, request.headers, changes=True)
            if not parts or parts[0] not in self._carriers:
                named = parts[0] if parts else ""
                raise Rejected(
                    f"no carrier {named[:40]!r} is configured{did_you_mean(named, self._carriers)}",
                    status=404, code="not_found",
                )  # fmt: skip
            route = parts[1] if len(parts) > 1 else "default"
            token = self._authorise(parts[0], route, request, peer)
            given = {name: value for name, value in parse_qsl(query) if name != "token"}
            connection = self.connection(parts[0], route, given)
        except Rejected as exc:
            self.on_rejected(exc.code)
            return WSUpgradeResponseWithListener(
                WSUpgradeResponse.create_error_response(exc.status, str(exc).encode()), None
            )
        connection.request = request
        connection.token = token
        offered = [name.strip() for name in (request.headers.get("Sec-WebSocket-Protocol") or "").split(",")]
        chosen = [name for name in offered if name in connection.dialect.subprotocols]
        headers = {"Sec-WebSocket-Protocol": chosen[0]} if chosen else {}
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(headers), connection)
