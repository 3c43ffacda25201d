"""One WebRTC connection, from answer to close: ICE, DTLS, SRTP, SCTP. Media leaves synchronously, from a tick.

aiortc's own sender is a task per call that waits for its track and encodes; its receiver is a thread per call that
decodes. Neither is used: packets are made by ``gateway.media.rtp``, protected by aiortc's SRTP session and handed to
the socket (``talkspurt bench gateway --transport webrtc`` measures both ways); what comes in is passed on encoded, for
the uplink's one thread. RTCP is kept: sender reports, receiver reports, BYE.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import pylibsrtp
from aiortc import RTCCertificate, RTCDtlsTransport, RTCIceCandidate, RTCIceParameters, RTCIceTransport
from aiortc import clock as ntp
from aiortc.rtp import (
    AnyRtcpPacket,
    RtcpByePacket,
    RtcpPacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    RtcpSdesPacket,
    RtcpSenderInfo,
    RtcpSourceInfo,
    RtcpSrPacket,
)

from gateway.errors import ProtocolError, Rejected
from gateway.media.dtmf import TelephoneEvents
from gateway.media.jitter_buffer import JitterBuffer
from gateway.media.rtp import IncomingStream, OutgoingStream, RtpPacket, parse
from gateway.webrtc.channel import Channel, ChannelTransport
from gateway.webrtc.ice import IceConnection, IceSettings
from gateway.webrtc.sdp import Codec, Offer, write_answer

log = logging.getLogger(__name__)

_REPORT_EVERY_S = 1.0
_CLOSE_TIMEOUT_S = 2.0
_LONGEST_TRIP_S = 60


class PeerEvents(Protocol):
    """What a connection tells its call."""

    @property
    def listening(self) -> bool: ...
    def on_digit(self, digit: str) -> None: ...
    def on_audio(self, payload: bytes) -> None: ...

    def on_connected(self, peer: Peer) -> None:
        """Media can flow."""
        ...

    def on_channel(self, peer: Peer, channel: Channel) -> None:
        """The peer opened the data channel."""
        ...

    def on_over(self, peer: Peer, reason: str, *, on_purpose: bool) -> None:
        """The connection is gone; ``on_purpose``: the peer closed it. Called once, unless we closed."""
        ...


@dataclass(frozen=True, slots=True)
class PeerStats:
    """What a connection has seen, by our own counters and the peer's reports."""

    packets_sent: int
    packets_received: int
    lost: int
    """Packets of the peer that never came."""
    jitter_s: float
    remote_lost: int
    """Packets of ours that the peer misses."""
    remote_jitter_s: float
    round_trip_s: float | None


class _IcePath:
    """What ``RTCDtlsTransport`` and ``RTCSctpTransport`` use of an ``RTCIceTransport``."""

    def __init__(self, ice: IceConnection) -> None:
        self._recv = ice.recv
        self._send = ice.send
        self._ice = ice

    @property
    def role(self) -> str:
        return "controlling" if self._ice.ice_controlling else "controlled"


class Peer:
    """The connection of one offer.

    Args:
        codec: the one of the offer's that the call speaks.
        events: the call.
        connect_timeout_s: longest wait from answer to media.
        lost_after_s: a peer silent for that long (no media, no report, no check) is lost.
        channel: take the data channel, where one is offered.
        max_message_bytes: largest message on it.
        on_report: told once a second while the peer sends: packets lost since the last time, jitter in seconds.
    """

    def __init__(
        self,
        offer: Offer,
        codec: Codec,
        events: PeerEvents,
        settings: IceSettings,
        *,
        connect_timeout_s: float,
        lost_after_s: float,
        channel: bool,
        max_message_bytes: int,
        on_report: Callable[[int, float], None] = lambda lost, jitter_s: None,
    ) -> None:
        self.offer = offer
        self.codec = codec
        self.connected = False
        self._events = events
        self._connect_timeout_s = connect_timeout_s
        self._lost_after_s = lost_after_s
        self._channel = channel and offer.channel is not None
        self._max_message_bytes = max_message_bytes
        self._on_report = on_report
        self._ice = IceConnection(settings, on_media=self._received)
        self._dtls = RTCDtlsTransport(
            cast(RTCIceTransport, _IcePath(self._ice)), [RTCCertificate.generateCertificate()]
        )
        self._dtls._set_role(offer.dtls_role)
        self._sctp: ChannelTransport | None = None
        fmt = codec.outbound
        self._out = OutgoingStream(
            ssrc=secrets.randbits(32), payload_type=codec.payload_type, clock_hz=fmt.rtp_clock_hz,
            frame_s=fmt.ptime_ms / 1000, sequence=secrets.randbits(15), timestamp=secrets.randbits(32),
        )  # fmt: skip
        self._in: IncomingStream | None = None
        self._order = JitterBuffer(codec.inbound.rtp_clock_hz)
        self._keys = TelephoneEvents()
        self._label = secrets.token_hex(8)
        self._protect: Callable[[bytes], bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._sends = "send" in offer.direction
        self._sender_report: tuple[int, float] | None = None  # the middle of its NTP time, and when it came
        self._receiver_report: RtcpReceiverInfo | None = None
        self._round_trip_s: float | None = None
        self._lost_told = 0

    # --- life ------------------------------------------------------------------------------------------------------

    async def answer(self) -> str:
        """Gather, and begin to connect; returns the answer's SDP.

        Raises:
            Rejected: no port is free, or no address can be bound.
        """
        try:
            await self._ice.gather_candidates()
            for candidate in self.offer.candidates:
                await self._ice.add(candidate)
        except BaseException:
            await self._ice.close()
            raise
        self._task = asyncio.create_task(self._run(), name="webrtc peer")
        return write_answer(
            self.offer,
            self.codec,
            candidates=self._ice.told_candidates(),
            ice=RTCIceParameters(usernameFragment=self._ice.local_username, password=self._ice.local_password),
            fingerprints=self._dtls.getLocalParameters().fingerprints,
            ssrc=self._out.ssrc,
            label=self._label,
            max_message_bytes=self._max_message_bytes,
            channel=self._channel,
        )

    @property
    def etag(self) -> str:
        """Names this ICE session (RFC 9725 section 4.3)."""
        return f'"{self._ice.local_username}{self._label}"'

    async def trickle(self, fragment: str, candidates: Sequence[RTCIceCandidate]) -> None:
        """More candidates of the peer.

        Raises:
            Rejected: they belong to another ICE session (422).
        """
        if fragment and fragment != self.offer.ice.usernameFragment:
            raise Rejected(
                "ice-ufrag is another than the offer's: an ICE restart takes a new offer with this callId",
                status=422, code="ice_restart", param="ice-ufrag",
            )  # fmt: skip
        for candidate in candidates:
            await self._ice.add(candidate)

    async def close(self) -> None:
        """Say BYE, end everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self._protect is not None:
            self._send_rtcp([RtcpByePacket(sources=[self._out.ssrc])])
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_TIMEOUT_S)
        else:
            await self._tear_down()

    async def _tear_down(self) -> None:
        self.connected = False
        self._protect = None
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                if self._sctp is not None:
                    await self._sctp.drain()
                    await self._sctp.stop()
                await self._dtls.stop()
        await self._ice.close()

    async def _run(self) -> None:
        reason, on_purpose = "webrtc_failed", False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._ice.join(self.offer.ice)
                await self._dtls.start(self.offer.dtls)
            if self._dtls.state != "connected":
                raise ConnectionError("DTLS handshake failed")
            await self._up()
            reason, on_purpose = await self._watch()
        except (ConnectionError, TimeoutError) as exc:
            log.info("webrtc connection failed", extra={"why": str(exc) or type(exc).__name__})
        except asyncio.CancelledError:
            pass
        except Exception:  # a bug of ours, or of a library fed by this peer: its call ends, others do not
            log.exception("webrtc peer")
        finally:
            told = self._closing
            self._closing = True
            await self._tear_down()
            if not told:
                self._events.on_over(self, reason, on_purpose=on_purpose)

    async def _up(self) -> None:
        self._protect = self._dtls._tx_srtp.protect
        self.connected = True
        if self._channel:
            assert self.offer.channel is not None
            section = self.offer.media[self.offer.channel]
            self._sctp = ChannelTransport(
                self._dtls,
                max_message_bytes=self._max_message_bytes,
                on_channel=lambda channel: self._events.on_channel(self, channel),
            )
            await self._sctp.start(section.sctpCapabilities, section.sctp_port or 5000)
        self._events.on_connected(self)

    async def _watch(self) -> tuple[str, bool]:
        """Report once a second until the peer is gone; returns why, and whether it closed on purpose."""
        silent_since = time.monotonic()
        gone = asyncio.Event()
        self._dtls.on("statechange", gone.set)
        while True:
            with contextlib.suppress(TimeoutError):
                # Varied as RFC 3550 section 6.2 has it, so that the reports of many calls do not meet.
                await asyncio.wait_for(gone.wait(), _REPORT_EVERY_S * (0.5 + secrets.randbelow(1000) / 1000))
            if self._dtls.state != "connected":
                return ("connection_lost", False) if self._ice.gave_up else ("hangup", True)
            now = time.monotonic()
            if self._ice.heard:
                self._ice.heard = False
                silent_since = now
            elif now - silent_since > self._lost_after_s:
                return "connection_lost", False
            self._ice.refill()
            self._report(now)

    # --- media out -------------------------------------------------------------------------------------------------

    def send(self, payload: bytes, now: float) -> bool:
        """Number, protect and send one frame now. False: not connected, or the socket is full."""
        protect = self._protect
        if protect is None:
            return False
        if not self._sends:
            return True  # the peer did not ask for our sound
        return self._ice.send_now(protect(self._out.packet(payload, now=now)))

    def _send_rtcp(self, packets: list[Any]) -> None:
        session = self._dtls._tx_srtp
        if session is not None:
            self._ice.send_now(session.protect_rtcp(b"".join(bytes(packet) for packet in packets)))

    def _report(self, now: float) -> None:
        """Sender report (or, with nothing sent, receiver report) and our name."""
        reports = []
        if self._in is not None:
            lsr, delay = 0, 0
            if self._sender_report is not None:
                lsr, delay = self._sender_report[0], min(int((now - self._sender_report[1]) * 65536), 0xFFFFFFFF)
            reports.append(
                RtcpReceiverInfo(
                    ssrc=self._in.ssrc, fraction_lost=self._in.fraction_lost(),
                    packets_lost=max(-0x800000, min(self._in.lost, 0x7FFFFF)),
                    highest_sequence=self._in.highest & 0xFFFFFFFF, jitter=int(self._in.jitter), lsr=lsr, dlsr=delay,
                )
            )  # fmt: skip
            lost = max(self._in.lost, self._lost_told)
            self._on_report(lost - self._lost_told, self._in.jitter / self.codec.inbound.rtp_clock_hz)
            self._lost_told = lost
        packet: Any
        if self._out.packets:
            info = RtcpSenderInfo(
                ntp_timestamp=ntp.current_ntp_time(), rtp_timestamp=self._out.timestamp_at(now),
                packet_count=self._out.packets & 0xFFFFFFFF, octet_count=self._out.octets & 0xFFFFFFFF,
            )  # fmt: skip
            packet = RtcpSrPacket(ssrc=self._out.ssrc, sender_info=info, reports=reports)
        else:
            packet = RtcpRrPacket(ssrc=self._out.ssrc, reports=reports)
        name = RtcpSourceInfo(ssrc=self._out.ssrc, items=[(1, self._label.encode())])
        self._send_rtcp([packet, RtcpSdesPacket(chunks=[name])])

    # --- media in --------------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        session = self._dtls._rx_srtp
        if session is None or len(data) < 12:
            return
        try:
            if 64 <= data[1] & 0x7F < 96:  # RFC 5761 section 4
                reports = RtcpPacket.parse(session.unprotect_rtcp(data))
            else:
                reports = []
                packet = parse(session.unprotect(data))
        except (pylibsrtp.Error, ProtocolError, ValueError, IndexError, struct.error) as exc:
            log.debug("webrtc datagram dropped", extra={"why": str(exc)})
            return
        if reports:
            self._received_reports(reports)
        else:
            self._received_rtp(packet)

    def _received_rtp(self, packet: RtpPacket) -> None:
        if packet.payload_type not in (self.codec.payload_type, self.codec.event_type):
            return
        if self._in is None or self._in.ssrc != packet.ssrc:
            self._in = IncomingStream(ssrc=packet.ssrc, clock_hz=self.codec.inbound.rtp_clock_hz)
            self._order = JitterBuffer(self.codec.inbound.rtp_clock_hz)
            self._lost_told = 0
        now = time.monotonic()
        self._in.add(packet.sequence, packet.timestamp, now=now)
        payload: bytes | None = packet.payload or None
        if packet.payload_type == self.codec.event_type:
            digit = self._keys.add(packet.timestamp, packet.payload)
            if digit is not None:
                self._events.on_digit(digit)
            payload = None
        for ready in self._order.add(packet.sequence, packet.timestamp, payload, now=now):
            if self._events.listening:
                self._events.on_audio(ready)

    def _received_reports(self, packets: Sequence[AnyRtcpPacket]) -> None:
        now = time.monotonic()
        for packet in packets:
            if isinstance(packet, RtcpSrPacket):
                self._sender_report = ((packet.sender_info.ntp_timestamp >> 16) & 0xFFFFFFFF, now)
            if isinstance(packet, RtcpSrPacket | RtcpRrPacket):
                for report in packet.reports:
                    if report.ssrc == self._out.ssrc:
                        self._receiver_report = report
                        trip = (((ntp.current_ntp_time() >> 16) & 0xFFFFFFFF) - report.lsr - report.dlsr) & 0xFFFFFFFF
                        if report.lsr and trip < _LONGEST_TRIP_S << 16:  # RFC 3550 section 6.4.1
                            self._round_trip_s = trip / 65536

    @property
    def stats(self) -> PeerStats:
        """Figures of now."""
        mine, theirs = self._receiver_report, self._in
        return PeerStats(
            packets_sent=self._out.packets,
            packets_received=0 if theirs is None else theirs.received,
            lost=0 if theirs is None else theirs.lost,
            jitter_s=0.0 if theirs is None else theirs.jitter / self.codec.inbound.rtp_clock_hz,
            remote_lost=0 if mine is None else mine.packets_lost,
            remote_jitter_s=0.0 if mine is None else mine.jitter / self.codec.outbound.rtp_clock_hz,
            round_trip_s=self._round_trip_s,
        )
