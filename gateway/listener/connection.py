"""One media WebSocket: passes frames between the dialect and the session. Only this module knows picows.

``send_frame`` is called from a tick and writes to the socket synchronously. If a peer reads too slowly, the transport's
buffer fills, and further frames are dropped and counted; nothing waits for the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest

from gateway.carriers.caller import incoming_call
from gateway.carriers.dialect import Dialect
from gateway.carriers.oddities import Oddity
from gateway.errors import GatewayError, ProtocolError, Rejected
from gateway.listener.receive_batching import ReceiveBatching
from gateway.listener.turns import LoopTurns
from gateway.media.arrival import MessageArrival
from gateway.seams.call_api import CallApi, OpenCallApi
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import CallEvents, Reception, TransferStart
from gateway.seams.media_messages import (
    DtmfReceived,
    FlowControl,
    MarkReached,
    MediaReceived,
    Message,
    MetadataReceived,
    PeerError,
    PlaybackCompleted,
    PlaybackStarted,
    Reply,
    StreamStarted,
    StreamStopped,
)
from gateway.tokens import StreamToken
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)
picows_log = logging.getLogger(f"{__name__}.picows")
"""The logger of picows. At INFO it would log peers' addresses, at DEBUG whole requests with their tokens."""
picows_log.setLevel(logging.WARNING)

_CLOSE_S = 5.0  # longest time until a peer that was told to hang up closes the socket
# In Python 3.11, looking up an enum member costs more than the comparison, and every frame would pay for it.
_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION
_MAX_FRAGMENTS = 1024  # in one message: fragments may be empty, so a limit of bytes alone does not end a message
_PONG_S = 1.0  # a peer that pings more often gets one answer for several pings (RFC 6455 section 5.5.3)
_PING = struct.Struct("!d")
_PING_S = 5.0  # pause between two pings, if the session wants the round-trip time
_WRITE_BUFFER_BYTES = 64 * 1024  # about four seconds of base64 mu-law; a peer this far behind is treated as gone
# The kernel's whole receive buffer is handled in one go. By default that may be megabytes of small messages, which
# would
# block everything else. This is half a second of the widest audio that a carrier sends (16 kHz, two bytes).
_READ_BUFFER_BYTES = 16 * 1024
# Even this buffer holds thousands of small messages. After this many frames in a row, the next ones wait in a queue,
# and the socket is not read meanwhile. Audio that is 160 ms late has 8 frames. Frames that arrive together for many
# calls, for example after a network stall, wait in a queue of their own.
_FRAMES_IN_A_ROW = 8
_MAX_COMPLAINTS = 10  # most errors reported by one peer that are logged
_METADATA_S = 0.5  # time for metadata that audio has overtaken; then the call begins without


Accept = Callable[["MediaConnection", IncomingCall], CallEvents]
"""Makes a session of a call whose stream has started. Raises ``Rejected``."""


class MediaConnection(WSListener):
    """A carrier's media socket, as a ``MediaLeg``.

    Args:
        dialect: the serializer of this stream.
        accept: called once, when the stream has started.
        setup_timeout_s: longest wait for the start message.
        max_message_bytes: larger messages, also in fragments, close the socket with 1009.
        max_errors: unreadable messages in a row that close the socket with 1007.
        open_api: opens the carrier's API for the call, if the carrier has one.
        turns: limits the work for all connections together in one turn of the loop.
        floods: the same for frames that come too fast for audio.
        on_rejected: called with the code of the reason when a started stream is refused.
        on_oddity: called with the dialect and the kind of each oddity that was tolerated.
    """

    def __init__(
        self,
        dialect: Dialect,
        route: str,
        accept: Accept,
        *,
        setup_timeout_s: float,
        max_message_bytes: int,
        max_errors: int,
        turns: LoopTurns,
        floods: LoopTurns,
        max_lead_ms: int | None = None,
        open_api: OpenCallApi | None = None,
        on_rejected: Callable[[str], None] = lambda code: None,
        on_oddity: Callable[[str, str], None] = lambda dialect, kind: None,
    ) -> None:
        self.dialect = dialect
        self.route = route
        self.outbound = AudioFormat()
        self.max_lead_ms = dialect.max_lead_ms if max_lead_ms is None else max_lead_ms
        self.has_marks = dialect.has_marks
        self.can_clear = dialect.has_clear or open_api is not None
        self.in_real_time = False
        self.refuses_transfers = open_api is None and not dialect.call_outlives_stream
        self.request: WSUpgradeRequest | None = None
        self.token: StreamToken | None = None
        """Our token that opened the socket, if any; the call spends it."""
        self._accept = accept
        self._setup_timeout_s = setup_timeout_s
        self._max_message_bytes = max_message_bytes
        self._max_errors = max_errors
        self._open_api = open_api
        self._on_rejected = on_rejected
        self._on_oddity = on_oddity
        self._odd: set[Oddity] = set()
        """Kinds of oddities of this call that were logged."""
        self._turns = turns
        self._floods = floods
        self._api: CallApi | None = None
        self._transferred = False
        self._transport: WSTransport | None = None
        self._receiving: ReceiveBatching | None = None
        self._session: CallEvents | None = None
        self._told_closed = False
        self._errors = 0
        self._complaints = 0
        self._arrival: MessageArrival | None = None
        self._in_a_row = 0
        """Number of frames of this read that were handled."""
        self._postponed: deque[tuple[WSMsgType, bool, bytes]] = deque()
        """Frames of this read that wait for their turn: kind, final fragment or not, payload."""
        self._full = False
        self._stopped = False
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._pong_at = 0.0
        """Earliest time of the next pong, in seconds on the loop's clock."""
        self._pinged: bytes | None = None
        """Payload of the latest ping that has no pong yet."""
        self._connected_at = 0.0
        self._parts_type = WSMsgType.TEXT
        self._media_type = WSMsgType.TEXT if dialect.media_is_text else WSMsgType.BINARY
        self._setup_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._pong_timer: asyncio.TimerHandle | None = None
        self._start_timer: asyncio.TimerHandle | None = None
        self._resume_timer: asyncio.TimerHandle | None = None

    # --- picows ----------------------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Prepare the socket after the upgrade, and wait ``setup_timeout_s`` for the start message."""
        self._transport = transport
        transport.underlying_transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        # By default the kernel buffers megabytes, minutes of speech, before our own buffer begins to fill.
        own = transport.underlying_transport.get_extra_info("socket")
        kernel = socket.socket(fileno=os.dup(own.fileno()))  # socket.dup() would make the shared socket blocking
        with contextlib.suppress(OSError):
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WRITE_BUFFER_BYTES)
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _READ_BUFFER_BYTES)
        if transport.underlying_transport.get_extra_info("ssl_object") is None:
            self._receiving = ReceiveBatching(kernel)
        else:  # TLS records do not match our frames
            kernel.close()
        loop = asyncio.get_running_loop()
        self._connected_at = loop.time()
        self._setup_timer = loop.call_later(self._setup_timeout_s, self._not_started)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Handle a frame, or queue it if there are too many in a row or at once."""
        turns = self._turns
        turns.frames_first()
        payload = frame.get_payload_as_bytes()
        is_flood = self._in_a_row == _FRAMES_IN_A_ROW
        if self._postponed:
            self._postponed.append((frame.msg_type, frame.fin, payload))
        elif is_flood or not turns.has_time:
            self._postponed.append((frame.msg_type, frame.fin, payload))
            transport.underlying_transport.pause_reading()
            (self._floods if is_flood else turns).join(self._take_postponed)
        else:
            self._in_a_row = 0 if frame.last_in_buffer else self._in_a_row + 1
            begun = turns.clock()
            self._take(frame.msg_type, frame.fin, payload)
            turns.spent(begun)

    def _take_postponed(self) -> None:
        """Handle the next queued frames."""
        for _ in range(_FRAMES_IN_A_ROW):
            if not self._postponed:
                break
            self._take(*self._postponed.popleft())
        if self._postponed:
            self._floods.join(self._take_postponed)
        elif self._transport is not None and not self._transport.underlying_transport.is_closing():
            self._in_a_row = 0
            self._transport.underlying_transport.resume_reading()

    def _take(self, kind: WSMsgType, fin: bool, payload: bytes) -> None:
        """Handle a frame. Audio without a listener is not even parsed."""
        if kind is _TEXT or kind is _BINARY or kind is _CONTINUATION:
            if fin and kind is not _CONTINUATION:
                session = self._session
                receiving = self._receiving
                if session is not None and not session.listening:
                    if self.dialect.is_media(payload, binary=kind is _BINARY):
                        if receiving is not None:
                            receiving.skipped(len(payload))
                        if self._arrival is not None:
                            self._arrival.skip()
                        return
                if receiving is not None:
                    receiving.wake()
            else:
                whole = self._defragment(kind, fin, payload)
                if whole is None:
                    return
                kind, payload = whole
            self._received(kind, payload)
        elif kind is WSMsgType.PING:
            self._answer_ping(payload)
        elif kind is WSMsgType.PONG:
            self._pong_received(payload)
        elif kind is WSMsgType.CLOSE and self._transport is not None:
            self._transport.send_close(cast(WSCloseCode, int.from_bytes(payload[:2])))  # peers may send any code
            self._transport.disconnect()

    def _defragment(self, kind: WSMsgType, fin: bool, payload: bytes) -> tuple[WSMsgType, bytes] | None:
        if kind is not WSMsgType.CONTINUATION:
            self._parts_type = kind
            self._forget_parts()
        self._parts.append(payload)
        self._parts_bytes += len(payload)
        if self._parts_bytes > self._max_message_bytes or len(self._parts) > _MAX_FRAGMENTS:
            self._forget_parts()
            limits = f"{self._max_message_bytes} bytes or {_MAX_FRAGMENTS} fragments"
            self.close(WSCloseCode.MESSAGE_TOO_BIG, f"message is over {limits}")
            return None
        if not fin:
            return None
        whole = b"".join(self._parts)
        self._forget_parts()
        return self._parts_type, whole

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._parts_bytes = 0

    def _answer_ping(self, payload: bytes) -> None:
        """Answer the latest ping, now or when the next pong is due (RFC 6455 section 5.5.3). Pongs pile up for a peer
        that does not read, so their rate and the buffer limit them."""
        self._pinged = payload
        self._pong()

    def _pong(self) -> None:
        """Answer the latest ping if a pong is due, else later."""
        if self._transport is None or self._pinged is None or self._full:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._pong_at:
            self._pong_at = now + _PONG_S
            self._transport.send_pong(self._pinged)
            self._pinged = None
        elif self._pong_timer is None:
            self._pong_timer = loop.call_at(self._pong_at, self._pong_due)

    def _pong_due(self) -> None:
        self._pong_timer = None
        self._pong()

    def _ping(self) -> None:
        """Send a ping that measures the round trip, and schedule the next one."""
        if self._transport is None:
            return
        if self._receiving is not None:
            self._receiving.wake()  # else the answer would wait for audio without a listener
        loop = asyncio.get_running_loop()
        self._transport.send_ping(_PING.pack(time.monotonic()))
        self._ping_timer = loop.call_later(_PING_S, self._ping)

    def _pong_received(self, payload: bytes) -> None:
        if self._session is not None and len(payload) == _PING.size:
            seconds = time.monotonic() - _PING.unpack(payload)[0]
            if 0 <= seconds < _PING_S:  # else the pong is not the answer to our ping
                self._session.on_round_trip(seconds)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Release everything after the socket has closed."""
        if self._setup_timer is not None:
            self._setup_timer.cancel()
        for timer in (self._close_timer, self._ping_timer, self._pong_timer, self._start_timer, self._resume_timer):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._postponed.clear()
        if self._receiving is not None:
            self._receiving.close()
            self._receiving = None
        self._leg_closed("")
        self._session = None
        if self._api is not None:
            self._api.close()

    def _leg_closed(self, reason: str) -> None:
        """Tell the session once that the caller is gone."""
        if self._session is not None and not self._told_closed:
            self._told_closed = True
            self._session.on_leg_closed(reason or "hangup")

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self._full = True

    def resume_writing(self) -> None:
        """Note that the write buffer has room again."""
        self._full = False
        self._pong()

    # --- inbound ---------------------------------------------------------------------------------------------------

    def _received(self, kind: WSMsgType, payload: bytes) -> None:
        self._handle(lambda: self.dialect.decode(payload.decode() if kind is WSMsgType.TEXT else payload))

    def _handle(self, decode: Callable[[], list[Message]]) -> None:
        try:
            for message in decode():
                self._on_message(message)
            self._errors = 0
        except UnicodeDecodeError:
            self._bad(ProtocolError(f"{self.dialect.name}: text message is not UTF-8"))
        except ProtocolError as exc:
            self._bad(exc)
        except Rejected as exc:
            log.info("call rejected", extra={"why": exc.code, "transport": self.dialect.name})
            self._on_rejected(exc.code)
            self.close(WSCloseCode.TRY_AGAIN_LATER if exc.status == 503 else WSCloseCode.POLICY_VIOLATION, str(exc))
        if odd := self.dialect.oddities.take():
            self._tolerated(odd)

    def _tolerated(self, odd: Mapping[Oddity, int]) -> None:
        """Count oddities, and log each kind once a call."""
        for kind, times in odd.items():
            for _ in range(times):
                self._on_oddity(self.dialect.name, kind)
            if kind not in self._odd:
                self._odd.add(kind)
                log.warning(
                    "odd message tolerated",
                    extra={"call": self._call_id, "route": self.route, "dialect": self.dialect.name, "kind": kind},
                )

    @property
    def _call_id(self) -> str:
        """The call's id; empty before a session begins."""
        return "" if self._session is None else self._session.call_id

    def _bad(self, exc: GatewayError) -> None:
        self._errors += 1
        log.warning(
            "unreadable media message",
            extra={"call": self._call_id, "route": self.route, "why": str(exc), "row": self._errors},
        )
        if self._session is None and isinstance(exc, ProtocolError) and exc.code == "unsupported_encoding":
            self._on_rejected(exc.code)
            self.close(WSCloseCode.PROTOCOL_ERROR, str(exc))
        elif self._session is None and self._errors >= self._max_errors:
            self.close(WSCloseCode.PROTOCOL_ERROR, str(exc))
        elif self._errors >= self._max_errors:
            self.close(WSCloseCode.INVALID_TEXT, f"{self._errors} unreadable messages in a row")
        elif self._session is None:
            self._tolerated({"unreadable": 1})

    def _on_message(self, message: Message) -> None:
        session = self._session
        if isinstance(message, StreamStarted):
            if session is not None:
                raise ProtocolError(f"{self.dialect.name}: a second start on one stream")
            self.outbound = message.outbound
            self._arrival = MessageArrival(message.inbound)
            if self._setup_timer is not None:
                self._setup_timer.cancel()
            self._session = session = self._accept(
                self, incoming_call(message, route=self.route, transport=self.dialect.name)
            )
            if session.wants_round_trip:
                self._ping()
            if self._open_api is not None:
                self._api = self._open_api(message, session)
        elif isinstance(message, MetadataReceived):
            self._describe(message.started)
        elif isinstance(message, Reply):
            self._send_text(message.data)
        elif isinstance(message, FlowControl):
            self._flow(message)
        elif isinstance(message, StreamStopped):
            self._leg_closed(message.reason)
            loop = asyncio.get_running_loop()
            if message.peer_closes:
                self._close_timer = loop.call_later(_CLOSE_S, lambda: self.close(WSCloseCode.OK, "stopped"))
            else:
                self.close(WSCloseCode.OK, "stopped")
        elif isinstance(message, PeerError):
            self._complaints += 1
            if self._complaints <= _MAX_COMPLAINTS:
                log.warning(
                    "peer complains",
                    extra={
                        "call": self._call_id,
                        "route": self.route,
                        "why": message.description,
                        "transport": self.dialect.name,
                    },
                )
        elif session is None:
            self._before_start(message)
        elif isinstance(message, MediaReceived):
            if session.listening:
                if self._arrival is not None:
                    self._arrival.add(message.payload, now=time.monotonic())
                session.on_audio(message.payload)
        elif isinstance(message, DtmfReceived):
            session.on_digit(message.digit)
        elif isinstance(message, MarkReached):
            session.on_mark(message.name)
        elif isinstance(message, PlaybackStarted | PlaybackCompleted):
            session.on_playback(started=isinstance(message, PlaybackStarted))

    def _before_start(self, message: Message) -> None:
        """Drop audio, keys and marks that come before the start. If the peer may announce nothing, the call begins soon
        after the first audio."""
        if isinstance(message, MediaReceived):
            self._tolerated({"early_audio": 1})
            if self._start_timer is None:
                self._start_timer = asyncio.get_running_loop().call_later(_METADATA_S, self._start_without_metadata)
        elif isinstance(message, DtmfReceived | MarkReached):
            self._tolerated({"early_event": 1})

    def _start_without_metadata(self) -> None:
        if self._session is None and self._transport is not None:
            self._handle(self.dialect.without_metadata)

    def _describe(self, started: StreamStarted) -> None:
        """Fill in what late metadata says of a call that has begun without it."""
        session = self._session
        if session is None or asyncio.get_running_loop().time() > self._connected_at + self._setup_timeout_s:
            return
        call = incoming_call(started, route=self.route, transport=self.dialect.name)
        session.on_described(
            call_sid=call.call_sid, from_=call.from_, to=call.to, parameters=call.custom_parameters,
        )  # fmt: skip
        if self._open_api is not None and self._api is None:
            self._api = self._open_api(started, session)

    def _flow(self, message: FlowControl) -> None:
        """Stop or resume sending, as the peer asks."""
        self._stopped = message.stopped
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        if message.resume_after_s is not None:
            room = FlowControl(stopped=not message.stopped)
            self._resume_timer = asyncio.get_running_loop().call_later(message.resume_after_s, self._flow, room)

    def _not_started(self) -> None:
        if self._session is None:
            self._on_rejected("not_started")
            self.close(WSCloseCode.POLICY_VIOLATION, f"no start message within {self._setup_timeout_s:g} s")

    @property
    def transport(self) -> asyncio.Transport | None:
        """The underlying TCP connection. None: it is not open yet."""
        return None if self._transport is None else self._transport.underlying_transport

    # --- MediaLeg --------------------------------------------------------------------------------------------------

    def reception(self) -> Reception | None:
        """Return the reception statistics of the caller's audio. None: nothing came."""
        return None if self._arrival is None else self._arrival.reception()

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Write one frame now. False: the peer's buffer is full."""
        if self._transport is None or self._full or self._stopped:
            return False
        if self._receiving is not None and self._receiving.gathering:
            self._receiving.wake()
        self._transport.send(self._media_type, self.dialect.media(payload))
        return True

    def _send_text(self, message: bytes | None) -> bool:
        if message is None or self._transport is None:
            return False
        self._transport.send(WSMsgType.TEXT, message)
        return True

    def send_mark(self, name: str) -> None:
        """Ask the peer to report when everything before this mark was played."""
        self._send_text(self.dialect.mark(name))

    def send_clear(self) -> None:
        """Empty the peer's buffer."""
        if not self._send_text(self.dialect.clear()) and self._api is not None:
            self._api.clear()

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if the peer or the call's API can send tones."""
        return self.dialect.dtmf(digits) is not None or (self._api is not None and self._api.carries_dtmf(digits))

    def send_dtmf(self, digits: str) -> bool:
        """Let the peer or the call's API send tones. False: neither can."""
        return self._send_text(self.dialect.dtmf(digits)) or (self._api is not None and self._api.send_dtmf(digits))

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the stream. If the carrier's call continues after it, the webhook ``…/after`` gives the next action."""
        if self._api is not None and not self._transferred:
            self._api.hang_up(reason, handoff_data)
        if self._send_text(self.dialect.hangup(handoff_data)):
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(_CLOSE_S, lambda: self.close(WSCloseCode.OK, reason))
        else:
            self.close(WSCloseCode.OK, reason)

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """Transfer by the call's API. Without one, end the stream, and the next action dials ``target``. Refused if
        neither is possible."""
        self._transferred = self._api is not None and self._api.transfer(target, handoff_data, reason)
        goes_on = self._transferred or self.dialect.call_outlives_stream
        return TransferStart.HANDED_OVER if goes_on else TransferStart.REFUSED

    @property
    def asks_webhook(self) -> bool:
        """True if the carrier asks our webhook what to do with the call after the stream."""
        return self._api is None and self.dialect.call_outlives_stream

    def close(self, code: WSCloseCode, why: str) -> None:
        """Close the socket with a reason, which is cut to 120 bytes."""
        self._postponed.clear()
        if self._transport is not None:
            self._transport.send_close(code, why.encode()[:120])
            self._transport.disconnect()
