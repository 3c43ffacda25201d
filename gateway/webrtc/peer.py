"""One WebRTC connection, from answer to close: ICE, DTLS, SRTP, SCTP. Media is sent synchronously, from a tick.

aiortc's own sender is a task per call that waits for its track and encodes. Its receiver is a thread per call that
decodes. Neither is used (``talkspurt bench gateway --transport webrtc`` measures both ways). Here
``gateway.media.rtp_session`` makes media and reports; they are protected with the keys of aiortc's DTLS and passed to
the socket. Received media is passed on encoded, for the uplink's one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, cast

from aiortc import RTCCertificate, RTCDtlsTransport, RTCIceParameters, RTCIceTransport

from gateway.errors import Rejected
from gateway.media.arrival import Arrival
from gateway.media.rtp_session import RtpEvents, RtpSession, RtpStats, RtpTerms
from gateway.media.srtp import Srtp
from gateway.media.timer import DeadlineTimer
from gateway.seams.leg import RtpReport
from gateway.webrtc.channel import Channel, ChannelTransport
from gateway.webrtc.ice import IceConnection, IceSettings
from gateway.webrtc.sdp import Fragment, Offer, WebRtcCodec, write_answer, write_fragment

log = logging.getLogger(__name__)

_REPORT_EVERY_S = 1.0
"""Mean pause between reports, in seconds; browsers use the same."""

_LOOK_EVERY_S = 1.0
"""Pause between checks that the peer is still there, in seconds."""

_CLOSE_TIMEOUT_S = 2.0


class PeerEvents(RtpEvents, Protocol):
    """The events of a connection, for its call."""

    def on_connected(self, peer: WebRtcPeer) -> None:
        """Handle the start of media."""
        ...

    def on_channel(self, peer: WebRtcPeer, channel: Channel) -> None:
        """Handle the peer's data channel."""
        ...

    def on_lost(self, peer: WebRtcPeer) -> None:
        """Handle that the peer cannot be reached any more. It may come back on this connection."""
        ...

    def on_back(self, peer: WebRtcPeer) -> None:
        """Handle that a lost peer was found again."""
        ...

    def on_over(self, peer: WebRtcPeer, reason: str, *, on_purpose: bool) -> None:
        """Handle the end of the connection; ``on_purpose``: the peer closed it. Called once, but not after our own
        close."""
        ...


class _IcePath:
    """The part of an ``RTCIceTransport`` that ``RTCDtlsTransport`` and ``RTCSctpTransport`` use.

    An ICE restart replaces the session below it (RFC 8445 section 9).
    """

    def __init__(self, ice: IceConnection) -> None:
        self.ice = ice
        self.inbox = ice.inbox

    @property
    def role(self) -> str:
        return "controlling" if self.ice.ice_controlling else "controlled"

    async def _recv(self) -> bytes:
        received = await self.inbox.get()
        if received is None:
            raise ConnectionError("ICE has ended")
        return received[0]

    async def _send(self, data: bytes) -> None:
        self.ice.send_now(data)  # without a path it is lost, as in a network


class WebRtcPeer:
    """One connection, the answer to a browser's ``RTCPeerConnection``.

    Further offers of it change the terms or restart ICE. DTLS, SRTP and the data channel then continue
    (RFC 8842 section 4).

    Args:
        codec: the call's codec, out of the offer.
        events: the call.
        connect_timeout_s: longest wait from answer to media.
        lost_after_s: a peer that is silent for this long (no media, report or check) counts as lost.
        max_message_bytes: largest message on the data channel.
        on_report: called once a second while the peer sends.
        arrival: reception statistics over all connections of the call.
    """

    def __init__(
        self,
        offer: Offer,
        codec: WebRtcCodec,
        events: PeerEvents,
        settings: IceSettings,
        *,
        connect_timeout_s: float,
        lost_after_s: float,
        max_message_bytes: int,
        on_report: Callable[[RtpReport], None] = lambda report: None,
        arrival: Arrival | None = None,
    ) -> None:
        self.offer = offer
        self.codec = codec
        self.connected = False
        self._events = events
        self._connect_timeout_s = connect_timeout_s
        self._lost_after_s = lost_after_s
        self._max_message_bytes = max_message_bytes
        self._settings = settings
        self._path = _IcePath(IceConnection(settings, on_media=self._received))
        self._next_ice: IceConnection | None = None
        """The session of an ICE restart, until it has a path."""
        self._found = asyncio.Event()
        """Set when ICE has found its first path."""
        self._dtls = RTCDtlsTransport(cast(RTCIceTransport, self._path), [RTCCertificate.generateCertificate()])
        self._dtls._set_role(offer.dtls_role)
        self._sctp: ChannelTransport | None = None
        self._label = secrets.token_hex(8)
        self.rtp = RtpSession(
            self._terms(),
            self,
            events,
            name=self._label,
            now=time.monotonic(),
            wall=time.time(),
            report_every_s=_REPORT_EVERY_S,
            keep_alive=False,  # ICE keeps the path alive
            on_report=on_report,
            arrival=arrival,
        )
        self._timer = DeadlineTimer(self.rtp)
        self._task: asyncio.Task[None] | None = None
        self._joins: set[asyncio.Task[None]] = set()
        self._renegotiating = asyncio.Lock()
        self._answers = 0
        self._closing = False

    def _terms(self) -> RtpTerms:
        codec = self.codec
        return RtpTerms(
            audio=codec.outbound,
            send_type=codec.payload_type,
            receives={codec.payload_type: codec.outbound},
            receives_dtmf={} if codec.event_type is None else {codec.event_type: codec.event_hz},
            on_hold="send" not in self.offer.direction,
        )

    # --- life ------------------------------------------------------------------------------------------------------

    async def answer(self) -> str:
        """Gather candidates and begin to connect. Return the answer's SDP.

        Raises:
            Rejected: no port is free, or no address can be bound.
        """
        await self._gather(self._path.ice, self.offer)
        self._begin_ice(self._path.ice)
        self._task = asyncio.create_task(self._run(), name="webrtc peer")
        return self._answer()

    def continues(self, offer: Offer) -> bool:
        """Return True if an offer is a further one of this connection."""
        return not self._closing and offer.continues(self.offer)

    async def renegotiate(self, offer: Offer, codec: WebRtcCodec) -> str:
        """Take a further offer of this connection. Return the answer's SDP.

        New ICE credentials restart ICE. Media uses the present path until the new session has one.

        Raises:
            Rejected: the connection is closed, no port is free, or no address can be bound.
        """
        async with self._renegotiating:
            await self._take(offer, codec)
            return self._answer()

    async def _take(self, offer: Offer, codec: WebRtcCodec) -> None:
        if self._closing:
            raise Rejected("the connection is closed", status=409, code="closed", param="sdp")
        restarts = offer.ice != self.offer.ice
        if restarts:
            ice = IceConnection(self._settings, on_media=self._received, inbox=self._path.inbox)
            await self._gather(ice, offer)
            dropped, self._next_ice = self._next_ice, ice
            if dropped is not None:
                await dropped.retire()
        else:
            for candidate in offer.candidates:
                await self._ice.add(candidate)
        self.offer = replace(
            offer,
            dtls_role=self._dtls._role,  # kept, whatever role is offered (RFC 8842 section 5.3)
            channel=None if self.offer.channel is None else offer.channel,
        )
        self.codec = codec
        self.rtp.agree(self._terms(), now=time.monotonic())
        if restarts:
            self._begin_ice(self._ice)

    async def restart_ice(self, fragment: Fragment) -> str:
        """Restart ICE with a peer's new credentials, without an offer. Return the answer's fragment.

        A fragment that is sent again, because its answer was lost, gets the same answer.

        Raises:
            Rejected: the connection is closed, no port is free, or no address can be bound.
        """
        async with self._renegotiating:
            given = replace(self.offer.ice, usernameFragment=fragment.user, password=fragment.password)
            await self._take(replace(self.offer, ice=given, candidates=fragment.candidates), self.codec)
            ice = self._ice
            return write_fragment(self.offer, candidates=ice.told_candidates(), ice=_credentials(ice))

    async def _gather(self, ice: IceConnection, offer: Offer) -> None:
        try:
            await ice.gather_candidates()
            for candidate in offer.candidates:
                await ice.add(candidate)
        except BaseException:
            await ice.retire()
            raise

    def _answer(self) -> str:
        self._answers += 1
        ice = self._ice
        return write_answer(
            self.offer,
            self.codec,
            candidates=ice.told_candidates(),
            ice=_credentials(ice),
            fingerprints=self._dtls.getLocalParameters().fingerprints,
            ssrc=self.rtp.outgoing.ssrc,
            label=self._label,
            max_message_bytes=self._max_message_bytes,
            version=self._answers,
        )

    @property
    def _ice(self) -> IceConnection:
        """The latest ICE session."""
        return self._next_ice or self._path.ice

    @property
    def etag(self) -> str:
        """The entity tag of the latest ICE session (RFC 9725 section 4.3)."""
        return f'"{self._ice.local_username}{self._label}"'

    async def trickle(self, fragment: Fragment) -> None:
        """Add further candidates of the peer.

        Raises:
            Rejected: 422, the candidates belong to another ICE session.
        """
        if fragment.user and fragment.user != self.offer.ice.usernameFragment:
            raise Rejected(
                "a=ice-ufrag differs from the offer's, and a=ice-pwd is missing: an ICE restart needs both",
                status=422, code="ice_restart", param="ice-pwd",
            )  # fmt: skip
        for candidate in fragment.candidates:
            await self._ice.add(candidate)

    async def close(self) -> None:
        """Send BYE and end everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self.connected:
            self.rtp.close(time.monotonic())
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_TIMEOUT_S)
        else:
            await self._tear_down()

    async def _tear_down(self) -> None:
        self.connected = False
        self._timer.close()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                if self._sctp is not None:
                    await self._sctp.drain()
                    await self._sctp.stop()
                await self._dtls.stop()
        for task in self._joins:
            task.cancel()
        for ice in {self._ice, self._path.ice}:
            await ice.close()

    def _begin_ice(self, ice: IceConnection) -> None:
        task = asyncio.create_task(self._join(ice, self.offer.ice), name="webrtc ice")
        self._joins.add(task)
        task.add_done_callback(self._joins.discard)

    async def _join(self, ice: IceConnection, remote: RTCIceParameters) -> None:
        """Find a path with an ICE session, and use it."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await ice.join(remote)
        except (ConnectionError, TimeoutError):
            if ice is self._next_ice:
                self._next_ice = None
                await ice.retire()
            return
        before, self._path.ice = self._path.ice, ice
        if ice is self._next_ice:
            self._next_ice = None
        self._found.set()
        self._back()
        if before is not ice:
            if self._sctp is not None:
                self._sctp.resume()
            await before.retire()

    async def _run(self) -> None:
        reason, on_purpose = "webrtc_failed", False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._found.wait()
                await self._dtls.start(self.offer.dtls)
            if self._dtls.state != "connected":
                raise ConnectionError("DTLS handshake failed")
            await self._up()
            await self._watch()
            reason, on_purpose = "hangup", True
        except (ConnectionError, TimeoutError) as exc:
            log.info("webrtc connection failed", extra={"why": str(exc) or type(exc).__name__})
        except asyncio.CancelledError:
            pass
        except Exception:  # a bug here or in a library ends only this peer's call
            log.exception("webrtc peer")
        finally:
            told = self._closing
            self._closing = True
            await self._tear_down()
            if not told:
                self._events.on_over(self, reason, on_purpose=on_purpose)

    async def _up(self) -> None:
        self.rtp.srtp = Srtp(self._dtls._tx_srtp, self._dtls._rx_srtp)
        self.connected = True
        self._timer.arm()
        if self.offer.channel is not None:
            section = self.offer.media[self.offer.channel]
            self._sctp = ChannelTransport(
                self._dtls,
                max_message_bytes=self._max_message_bytes,
                on_channel=lambda channel: self._events.on_channel(self, channel),
            )
            await self._sctp.start(section.sctpCapabilities, section.sctp_port or 5000)
        self._events.on_connected(self)

    async def _watch(self) -> None:
        """Wait until the peer closes the connection. Until then, tell if it is lost and if it is back."""
        selected = self._path.ice.selected
        silent_since = time.monotonic()
        gone = asyncio.Event()
        self._dtls.on("statechange", gone.set)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), _LOOK_EVERY_S)
            if self._dtls.state != "connected":
                return
            now = time.monotonic()
            heard = False
            if self._path.ice.selected is not selected:
                selected = self._path.ice.selected
                if self._sctp is not None:
                    self._sctp.resume()
            for ice in {self._ice, self._path.ice}:
                heard |= ice.heard
                ice.heard = False
                ice.refill()
            if heard and not self._path.ice.gave_up:
                silent_since = now
                self._back()
            elif self.connected and (self._path.ice.gave_up or now - silent_since > self._lost_after_s):
                self.connected = False
                self._events.on_lost(self)

    def _back(self) -> None:
        """Continue after a loss."""
        if not self.connected and not self._closing and self.rtp.srtp is not None:
            self.connected = True
            self._events.on_back(self)

    # --- media -----------------------------------------------------------------------------------------------------

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Number, protect and send one frame. False: not connected, or the socket is full."""
        if not self.connected:
            return False
        return self.rtp.send_frame(payload, now) or not self.rtp.sends  # the peer may not want our audio

    def send_rtp(self, datagram: bytes) -> bool:
        """Send a packet on the path that ICE has found."""
        return self._path.ice.send_now(datagram)

    def send_rtcp(self, datagram: bytes) -> None:
        """Send a report on the same path (RFC 5761)."""
        self._path.ice.send_now(datagram)

    def _received(self, data: bytes) -> bool:
        """Take a datagram of media or of a report. Return True if it is authentic."""
        if self.rtp.srtp is None or self._closing:
            return False
        now = time.monotonic()
        self.rtp.receive(data, now)
        self._timer.arm()
        return self.rtp.heard_at == now

    @property
    def stats(self) -> RtpStats:
        """The connection's current figures."""
        return self.rtp.stats


def _credentials(ice: IceConnection) -> RTCIceParameters:
    return RTCIceParameters(usernameFragment=ice.local_username, password=ice.local_password)
