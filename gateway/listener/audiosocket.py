"""Calls from Asterisk over AudioSocket: a TCP listener, with one connection per call as a media leg.

Asterisk writes every received frame to its channel immediately and buffers nothing, so frames are not sent ahead and
there is nothing to clear. Frames that are up to 80 ms late get the RTP timestamps of punctual ones from Asterisk, so a
phone's jitter buffer hides the delay as it does for our own RTP (``playout.LATE_S``). If the connection is too slow,
frames are dropped and counted, since late frames would only delay all later speech.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Protocol, cast
from uuid import UUID

from gateway.call.expected import ExpectedCall, ExpectedCalls
from gateway.carriers.asterisk.audiosocket import END, AudioSocketWire
from gateway.carriers.caller import incoming_call
from gateway.config import AudioSocketConfig, LimitsConfig
from gateway.errors import ProtocolError, Rejected
from gateway.listener.acceptor import Acceptor, close_all
from gateway.listener.no_room import is_reserved
from gateway.listener.sockets import Sockets
from gateway.listener.source_limit import source
from gateway.media.arrival import MessageArrival
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import CallEvents, Reception, TransferStart, UnbufferedLeg
from gateway.seams.media_messages import (
    DtmfReceived,
    Ignored,
    MediaReceived,
    Message,
    PeerError,
    StreamStarted,
    StreamStopped,
)
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

FIRST_AUDIO_S = 0.8
"""Longest wait for the first audio frame, which tells the sample rate, seconds; then the call has 8 kHz. Asterisk's
`Answer` lets audio through half a second late."""

_KEEPALIVE_S = 1.0
"""Time without a sent frame after which a frame of silence is sent, seconds. Asterisk ends a call that gets nothing
for 2 s."""

_DEFAULT_RATE = 8000
_KERNEL_BYTES = 8 * 1024  # the kernel keeps about a quarter of a second at 8 kHz; by default it would keep minutes
_OWN_FRAMES = 5
_TELL_S = 1.0  # shortest time between two log lines about refused connections
_CLOSE_S = 5.0  # time for the peer to read our end of session


class AudioSocketLeg(UnbufferedLeg, asyncio.Protocol):
    """One connection, as a ``MediaLeg``."""

    in_real_time = False

    def __init__(self, server: AudioSocketServer) -> None:
        self.expected = ExpectedCall("")
        """The announced call; set when the call's UUID is known."""
        self.outbound = AudioFormat("L16", _DEFAULT_RATE)
        self._server = server
        self._wire = AudioSocketWire()
        self._transport: asyncio.Transport | None = None
        self._session: CallEvents | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keepalive: asyncio.TimerHandle | None = None
        self._silence = b""
        self._errors = 0
        self._full = False
        self._frame_sent = False
        self._arrival: MessageArrival | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def is_call(self) -> bool:
        """True when a session has begun."""
        return self._session is not None

    @property
    def uuid(self) -> UUID | None:
        """The call's UUID; None until Asterisk has sent it."""
        return self._wire.uuid

    # --- the connection --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the server whether this connection may stay."""
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport has the methods, but is of another class
        if not self._server.admit(self, self._transport):
            self._transport.abort()
            return
        own = transport.get_extra_info("socket")
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(own.fileno())) as kernel:
            kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        self._limit_buffer()
        self._later(self._server.setup_timeout_s, self._no_uuid)

    def _limit_buffer(self) -> None:
        assert self._transport is not None and self.outbound.frame_bytes is not None
        self._transport.set_write_buffer_limits(high=_OWN_FRAMES * self.outbound.frame_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the session and timers after the socket has closed."""
        assert self._transport is not None
        self._server.forget(self, self._transport)
        self._transport = None
        for timer in (self._timer, self._keepalive):
            if timer is not None:
                timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        if self._session is not None:
            self._session.on_leg_closed("hangup")
            self._session = None

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self._full = True

    def resume_writing(self) -> None:
        """Note that the write buffer has room again."""
        self._full = False

    def data_received(self, data: bytes) -> None:
        """Handle received bytes: pieces of frames, of any size."""
        self._wire.push(data)
        while self._transport is not None and not self._transport.is_closing():
            try:
                for message in self._wire.messages():
                    self._on_message(message)
                    self._errors = 0
                    if self._asking is not None:
                        return
                return
            except ProtocolError as exc:
                self._bad(exc)
            except Rejected as exc:
                self._refused(exc)

    @property
    def _call_id(self) -> str:
        """The call's id; empty before a session begins."""
        return "" if self._session is None else self._session.call_id

    def _bad(self, exc: ProtocolError) -> None:
        self._errors += 1
        log.warning(
            "unreadable frame",
            extra={"call": self._call_id, "route": self.expected.route, "why": str(exc), "row": self._errors},
        )
        if self.uuid is None or self._errors >= self._server.max_errors:
            self._close()

    def _on_message(self, message: Message) -> None:
        session = self._session
        if isinstance(message, MediaReceived):
            if self._arrival is not None:
                self._arrival.add(message.payload, now=time.monotonic())
            if session is not None and session.listening:
                session.on_audio(message.payload)
        elif isinstance(message, StreamStarted):
            self._begin(message)
        elif isinstance(message, DtmfReceived):
            if session is None:  # a key came before any audio
                self._begin(self._wire.start(_DEFAULT_RATE))
            if self._session is not None:
                self._session.on_digit(message.digit)
        elif isinstance(message, StreamStopped):
            self._close()
        elif isinstance(message, PeerError):
            log.warning(
                "peer complains",
                extra={
                    "call": self._call_id,
                    "route": self.expected.route,
                    "why": message.description,
                    "transport": "audiosocket",
                },
            )
        elif isinstance(message, Ignored):  # the message with the UUID
            assert self.uuid is not None
            self._server.check_new(self)
            if self._server.others is None:
                self._known(self._server.expected.take(self.uuid))
            else:
                assert self._transport is not None
                self._transport.pause_reading()
                self._asking = asyncio.create_task(self._ask(self._server.others), name="ask what a call is")

    def _known(self, call: ExpectedCall | None) -> None:
        assert self.uuid is not None
        self.expected = self._server.expected_or_default(call, self.uuid)
        if call is not None and self._transport is not None:
            self._server.used(self._transport)  # a crowd must not take its place before the first audio
        self._later(FIRST_AUDIO_S, self._no_audio)

    async def _ask(self, others: OtherWorkers) -> None:
        """Ask the other workers for the announced call; reading pauses meanwhile."""
        assert self.uuid is not None
        try:
            if await others.live(self.uuid) is not None:
                raise _live(self.uuid)
            self._known(await others.take(self.uuid))
        except Rejected as exc:
            self._refused(exc)
        self._asking = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.data_received(b"")

    def _begin(self, started: StreamStarted) -> None:
        assert self._timer is not None and self._transport is not None
        self._timer.cancel()
        self.outbound = started.outbound
        self._arrival = MessageArrival(started.inbound)
        self._silence = self._wire.audio(self.outbound.silence_frame())
        self._limit_buffer()
        started = replace(started, custom_parameters=self.expected.custom_parameters)
        self._session = self._server.begin(
            self, incoming_call(started, route=self.expected.route, transport="audiosocket")
        )
        self._server.used(self._transport)
        self._session.metered.add_done_callback(lambda _: self._keep_alive())

    def _no_uuid(self) -> None:
        log.info("connection closed: no call began on it", extra={"transport": "audiosocket"})
        self._server.on_rejected("not_started")
        self._close()

    def _no_audio(self) -> None:
        try:
            self._begin(self._wire.start(_DEFAULT_RATE))
        except Rejected as exc:
            self._refused(exc)

    def _refused(self, exc: Rejected) -> None:
        log.info("call rejected", extra={"why": exc.code, "transport": "audiosocket"})
        self._server.on_rejected(exc.code)
        self._close()

    def _keep_alive(self) -> None:
        """Send one frame of silence if no speech was sent since the last run."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._frame_sent and not self._full:
            self._transport.write(self._silence)
        self._frame_sent = False
        self._keepalive = asyncio.get_running_loop().call_later(_KEEPALIVE_S, self._keep_alive)

    def _later(self, delay_s: float, what: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, what)

    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(END)
            self._transport.close()
            self._later(_CLOSE_S, self._transport.abort)

    def abort(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()

    # --- MediaLeg --------------------------------------------------------------------------------------------------

    def reception(self) -> Reception | None:
        """Return the reception statistics of the caller's audio. None: nothing came."""
        return None if self._arrival is None else self._arrival.reception()

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Write one frame now, header and payload together. False: the peer's buffer is full."""
        if self._transport is None or self._full or self._transport.is_closing():
            return False
        self._frame_sent = True
        self._transport.write(self._wire.audio(payload))
        return True

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the session. The dialplan continues, and may ask for the hand-off data."""
        self._close()

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """End the session. The dialplan continues, and asks for the target and the reason."""
        return TransferStart.HANDED_OVER


Begin = Callable[[AudioSocketLeg, IncomingCall], CallEvents]
"""Makes a call's session; raises ``Rejected``."""


class OtherWorkers(Protocol):
    """The other workers of a server. One of them keeps the announced calls."""

    async def take(self, uuid: UUID) -> ExpectedCall | None:
        """Return an announced call, and forget it. None: it was not announced."""
        ...

    async def live(self, uuid: UUID) -> ExpectedCall | None:
        """Return the announced data of another worker's live call. None: no worker has this call."""
        ...


def _live(uuid: UUID) -> Rejected:
    return Rejected(f"a call {uuid} is already live", status=409, code="live")


class AudioSocketServer:
    """The listener. Its connections ask it for admission and for the announced calls.

    Args:
        expected: the announced calls.
        begin: makes a call's session.
        on_rejected: called with the code of the reason when a call is refused.
        others: the server's other workers. None: there are none.
    """

    def __init__(
        self,
        config: AudioSocketConfig,
        limits: LimitsConfig,
        expected: ExpectedCalls,
        begin: Begin,
        on_rejected: Callable[[str], None] = lambda code: None,
        others: OtherWorkers | None = None,
    ) -> None:
        self.config = config
        self.others = others
        self.setup_timeout_s = limits.setup_timeout_s
        self.max_errors = limits.errors_in_a_row
        self.port = 0
        self._sockets = Sockets(
            most=config.connections,
            per_address=limits.connections_per_address,
            idle_s=inf,
            body_s=inf,
            on_room=lambda: self.on_rejected("too_many_connections"),
        )
        self._allowed = [ipaddress.ip_network(network, strict=False) for network in config.allowed]
        self.expected = expected
        self.begin = begin
        self.on_rejected = on_rejected
        self._tell_at = -inf
        self._legs: dict[AudioSocketLeg, None] = {}
        self._acceptors: list[Acceptor] = []
        self._adopting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to listen. ``port`` then has the bound port."""
        server = await asyncio.get_running_loop().create_server(
            lambda: AudioSocketLeg(self), self.config.host, self.config.port, start_serving=False
        )
        self.port = server.sockets[0].getsockname()[1]
        self._acceptors = Acceptor.of(server, self._take, self._refuses)

    def _take(self, connection: socket.socket) -> None:
        task = asyncio.create_task(self.adopt(connection), name="adopt a connection")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def _refuses(self, address: str) -> bool:
        refused = self._sockets.refuses(source(address), now=asyncio.get_running_loop().time())
        if refused:
            self.on_rejected("too_many_connections")
        return refused

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: AudioSocketLeg(self), connection)
        except OSError:  # Asterisk has closed
            connection.close()

    @property
    def opening(self) -> int:
        """Number of connections that may become calls."""
        return sum(not leg.is_call for leg in self._legs)

    async def aclose(self) -> None:
        """Stop listening, and close the remaining connections."""
        close_all(self._acceptors)
        await asyncio.gather(*self._adopting, return_exceptions=True)
        for leg in list(self._legs):
            leg.abort()

    def admit(self, leg: AudioSocketLeg, transport: asyncio.Transport) -> bool:
        """Return True if this peer may connect and there is room. At the limit, the oldest connection without a call
        makes room."""
        peer = transport.get_extra_info("peername")
        if peer is None:
            return False  # it has closed already
        address = str(peer[0])
        ip = ipaddress.ip_address(address)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        now, code = asyncio.get_running_loop().time(), ""
        if not any(ip in network for network in self._allowed):
            code = "address_not_allowed"
        elif not self._sockets.admit(source(address), transport, now=now, scarce=is_reserved(transport)):
            code = "too_many_connections"
        if code:
            self.on_rejected(code)
            if now >= self._tell_at:  # strangers must not fill the log
                self._tell_at = now + _TELL_S
                log.warning("audiosocket refused", extra={"why": code})
            return False
        self._legs[leg] = None
        return True

    def used(self, transport: asyncio.Transport) -> None:
        """Note that a connection has a call, or an announced one."""
        self._sockets.begin(transport, now=asyncio.get_running_loop().time())

    def forget(self, leg: AudioSocketLeg, transport: asyncio.Transport) -> None:
        """Forget a closed connection."""
        self._legs.pop(leg, None)
        self._sockets.remove(transport)

    def live(self, uuid: UUID) -> ExpectedCall | None:
        """Return the announced data of a live call in this worker. None: there is no such call."""
        return next((leg.expected for leg in self._legs if leg.uuid == uuid), None)

    async def live_anywhere(self, uuid: UUID) -> ExpectedCall | None:
        """Return the same for all workers."""
        here = self.live(uuid)
        return here if here is not None or self.others is None else await self.others.live(uuid)

    def check_new(self, leg: AudioSocketLeg) -> None:
        """Check that no other connection has this connection's call.

        Raises:
            Rejected: the call is already live.
        """
        assert leg.uuid is not None
        if any(other.uuid == leg.uuid for other in self._legs if other is not leg):
            raise _live(leg.uuid)

    def expected_or_default(self, call: ExpectedCall | None, uuid: UUID) -> ExpectedCall:
        """Return the announced call, or one on the default route.

        Args:
            call: the announced call. None: there is none.

        Raises:
            Rejected: the call was not announced, and there is no default route.
        """
        if call is None and not self.config.route:
            raise Rejected(f"no call {uuid} is expected", status=404, code="unknown_call")
        return call or ExpectedCall(self.config.route)
