"""Outgoing WebSockets without media: to dialogue managers, to recognisers, to applications under test.

A proxy is taken from the environment (``https_proxy``, ``http_proxy``, ``socks_proxy``, ``no_proxy``). Loopback
addresses are reached without one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.datastructures import Headers, HeadersLike
from websockets.exceptions import ConnectionClosed as ConnectionClosed
from websockets.exceptions import (
    InvalidHandshake,
    InvalidHeader,
    InvalidMessage,
    InvalidProxy,
    InvalidProxyStatus,
    InvalidStatus,
    InvalidURI,
    ProxyError,
    SecurityError,
)
from websockets.http11 import Request

_END_S = 0.1
"""Longest wait for the server to end TCP after both close frames, seconds (RFC 6455, 7.1.1)."""

_DISCONNECTED = "cannot connect: Server disconnected"

_log = logging.getLogger(f"{__name__}.websockets")
_log.setLevel(logging.WARNING)  # at DEBUG it would show requests with their keys


class CannotOpen(Exception):
    """There is no WebSocket at the address. The text never contains the address, whose query may contain a key."""

    def __init__(self, reason: str, *, status: int = 0, phrase: str = "") -> None:
        super().__init__(reason)
        self.status = status
        """HTTP status of the answer; 0 if the reason is another."""
        self.phrase = phrase
        """Reason phrase of that answer, as the server wrote it."""


class OutgoingWebSocket(ClientConnection):
    """A connection of websockets that also ends if the peer is silent, or does not end TCP after its close frame."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._heard_at = self.loop.time()
        self._on_round_trip: Callable[[float], None] = lambda seconds: None
        self._watching: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    async def handshake(
        self, additional_headers: HeadersLike | None = None, user_agent_header: str | None = None
    ) -> None:
        """Send a header of the caller instead of that of websockets, not as a second one: ``Host`` of a virtual
        server."""
        connect_request = self.protocol.connect

        def request() -> Request:
            made = connect_request()
            for name in Headers(additional_headers or {}):
                made.headers.pop(name, None)
            return made

        self.protocol.connect = request  # type: ignore[method-assign]
        await super().handshake(additional_headers, user_agent_header)

    def watch(self, on_round_trip: Callable[[float], None]) -> None:
        """Cut the connection when nothing has come for one and a half ping intervals. Until then report the latency of
        the newest pong, seconds, about once in an interval.

        A peer that sends is alive, also if its program is too busy to answer pings.
        """
        self._on_round_trip = on_round_trip
        self._look()

    def _look(self) -> None:
        assert self.ping_interval is not None
        left_s = self._heard_at + 1.5 * self.ping_interval - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
            return
        if self.latency:
            self._on_round_trip(self.latency)
        self._watching = self.loop.call_later(left_s, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self.protocol.close_expected():
            wait_s = self.close_timeout if self.protocol.close_rcvd is None else _END_S
            assert wait_s is not None
            if self._ending is None or self._ending.when() > self._heard_at + wait_s:
                self._stop(self._ending)
                self._ending = self.loop.call_later(wait_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._watching)
        self._stop(self._ending)
        super().connection_lost(exc)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


async def open_websocket(
    url: str,
    *,
    headers: Mapping[str, str],
    message_bytes: int,
    close_s: float,
    ping_s: float | None = None,
    on_round_trip: Callable[[float], None] = lambda seconds: None,
    unix_path: str = "",
) -> OutgoingWebSocket:
    """Open a WebSocket without compression. The caller bounds the time.

    Args:
        headers: further headers of the request; ``User-Agent`` is sent only if it is one of them.
        message_bytes: longest message that is received; a longer one closes the connection with 1009.
        close_s: longest wait for the answer to a close frame, seconds.
        ping_s: interval of keepalive pings, seconds; None: no pings, and a silent peer is waited for.
        on_round_trip: gets the latency of the connection, seconds (``OutgoingWebSocket.watch``).
        unix_path: UNIX socket to connect to instead of the host of the URL.

    Raises:
        CannotOpen: the server, or the proxy in front of it, cannot be reached or refuses.
    """
    settings: dict[str, Any] = {
        "compression": None,
        "additional_headers": headers,
        "user_agent_header": None,
        "open_timeout": None,
        "ping_interval": ping_s,
        "ping_timeout": None,  # `watch` ends a silent connection
        "close_timeout": close_s,
        "max_size": message_bytes,
        "logger": _log,
        "create_connection": OutgoingWebSocket,
    }
    try:
        if unix_path:
            websocket = await unix_connect(unix_path, url, **settings)
        else:
            parts = urlsplit(url)
            websocket = await connect(
                url,
                proxy=None if _is_loopback(parts.hostname or "") else True,
                ssl=_tls() if parts.scheme == "wss" else None,
                **settings,
            )
    except (OSError, ValueError, InvalidURI, InvalidProxy, InvalidHandshake, ConnectionClosed) as exc:
        raise _cannot_open(exc) from None
    assert isinstance(websocket, OutgoingWebSocket)
    if ping_s is not None:
        websocket.watch(on_round_trip)
    return websocket


@cache
def _tls() -> ssl.SSLContext:
    """Return the client's TLS context. To read the system's certificates for each connection would take 10 ms."""
    return ssl.create_default_context()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cannot_open(exc: Exception) -> CannotOpen:
    if isinstance(exc, InvalidStatus):
        answer = exc.response
        return CannotOpen(
            f"answered with HTTP {answer.status_code}", status=answer.status_code, phrase=answer.reason_phrase
        )
    if isinstance(exc, InvalidHeader):  # of an answer with 101
        wrong = "challenge response" if exc.name == "Sec-WebSocket-Accept" else f"{exc.name} header"
        return CannotOpen("answered with HTTP 101", status=101, phrase=f"Invalid {wrong}")
    if isinstance(exc, InvalidProxyStatus):
        return CannotOpen(f"cannot connect: the proxy answered with HTTP {exc.response.status_code}")
    # The texts of some of these exceptions contain the address, or the password of the proxy.
    reasons: list[tuple[type[Exception], str]] = [
        (ProxyError, "cannot connect: the proxy has no connection, or is none"),
        (InvalidProxy, "cannot connect: the proxy of the environment is not a valid address"),
        (SecurityError, "cannot connect: redirected too often, or from wss:// to ws://"),
        (InvalidHandshake, "cannot connect: the handshake failed"),
        (ConnectionRefusedError, "cannot connect: no server listens there"),
        (ConnectionClosed, _DISCONNECTED),  # before the request was written
        (OSError, f"cannot connect: {exc or type(exc).__name__}"),
    ]
    if isinstance(exc, InvalidMessage):
        gone = isinstance(exc.__cause__, EOFError)
        return CannotOpen(_DISCONNECTED if gone else "the answer is not HTTP")
    for kind, reason in reasons:
        if isinstance(exc, kind):
            return CannotOpen(reason)
    return CannotOpen("cannot connect: the URL is not a valid address")
