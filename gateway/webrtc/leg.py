"""A WebRTC call as a media leg. The leg outlives its connections: a browser that lost its network may return with a new
offer for the same call, and the new connection takes over when it is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.carriers.caller import without_fields
from gateway.errors import Rejected
from gateway.media.arrival import Arrival
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import CallEvents, Reception, UnbufferedLeg
from gateway.webrtc.channel import Channel
from gateway.webrtc.dialogue import BrowserDialogue
from gateway.webrtc.peer import WebRtcPeer
from gateway.webrtc.sdp import Offer, WebRtcCodec

log = logging.getLogger(__name__)

MakePeer = Callable[[Offer, WebRtcCodec, "WebRtcLeg"], WebRtcPeer]
Begin = Callable[["WebRtcLeg"], CallEvents]


class WebRtcLeg(UnbufferedLeg):
    """One call's media leg. Its connections report to the leg.

    Args:
        codec: the codec of the first offer; a later offer must contain it too.
        begin: makes the call's session when media can flow; raises ``Rejected``.
        forget: called once, when the leg is over.
        token: id of the browser's token; empty: none.
        later: runs slower work (closing) in a task that it owns.
        restart_s: time to wait for a lost browser.
        lead_ms: how far ahead of real time frames are sent.
    """

    def __init__(
        self,
        call_id: str,
        route: str,
        address: str,
        codec: WebRtcCodec,
        *,
        parameters: dict[str, str],
        make_peer: MakePeer,
        begin: Begin,
        forget: Callable[[WebRtcLeg], None],
        later: Callable[[Coroutine[Any, Any, None]], None],
        browser: BrowserDialogue | None,
        token: bytes,
        restart_s: float,
        lead_ms: int,
    ) -> None:
        self.max_lead_ms = lead_ms
        self.refuses_transfers = True
        self.call_id = call_id
        self.route = route
        self.address = address
        self.codec = codec
        self.outbound = codec.outbound
        self.inbound = codec.inbound
        self.parameters = parameters
        self.joined_to = ""
        """Correlation id of the conversation that the leg joins. Empty: it is a call by itself."""
        self.browser = browser
        self.token = token
        self.arrival = Arrival()
        """Reception statistics of the caller's audio, over all connections."""
        self.peer: WebRtcPeer | None = None
        """The connection that carries media now."""
        self._next: WebRtcPeer | None = None
        self._make_peer = make_peer
        self._begin = begin
        self._forget = forget
        self._later = later
        self._restart_s = restart_s
        self._session: CallEvents | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._over = False

    def incoming(self) -> IncomingCall:
        """Return the call as the web page describes it."""
        return IncomingCall(
            route=self.route,
            transport="webrtc",
            inbound=self.inbound,
            call_id=self.call_id,
            call_type="CLIENT",
            joined_to=self.joined_to,
            greets=not self.joined_to,
            # Only carriers may name the caller, so a page's parameters under those names are left out.
            custom_parameters=without_fields(self.parameters),
        )

    # --- connections -----------------------------------------------------------------------------------------------

    async def connect(self, offer: Offer) -> str:
        """Answer an offer. It continues a connection of the call, or makes a new one; then the present connection stays
        until the new one is up.

        Raises:
            Rejected: the call is over, or the offer lacks the call's codec.
        """
        if self._over:
            raise Rejected(f"call {self.call_id} is over", status=404, code="unknown_call", param="callId")
        codec = next((codec for codec in offer.codecs if codec.encoding == self.codec.encoding), None)
        if codec is None:
            raise Rejected(
                f"the new offer lacks the call's codec {self.codec.encoding}",
                status=422, code="no_common_codec", param="sdp",
            )  # fmt: skip
        known = next((peer for peer in (self._next, self.peer) if peer is not None and peer.continues(offer)), None)
        if known is not None:
            if known is self.peer and self._next is not None:
                self._later(self._next.close())
                self._next = None
            return await known.renegotiate(offer, codec)
        if self.latest is not None and self.latest.offer.replaces(offer):
            raise Rejected("a later offer of this connection was answered", status=409, code="old_offer", param="sdp")
        peer = self._make_peer(offer, codec, self)
        if self._next is not None:
            self._later(self._next.close())
        self._next = peer
        try:
            return await peer.answer()
        except BaseException:
            self._next = None
            if self._session is None:
                self._end()
            raise

    @property
    def latest(self) -> WebRtcPeer | None:
        """The connection of the latest offer."""
        return self._next or self.peer

    def on_connected(self, peer: WebRtcPeer) -> None:
        """Let a new connection carry the media. The first connection begins the call."""
        if peer is not self._next:
            return
        self._next = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        old, self.peer = self.peer, peer
        if old is not None:
            self._later(old.close())
        if self._session is None:
            try:
                self._session = self._begin(self)
            except Rejected as exc:
                log.info(
                    "call rejected",
                    extra={"call": self.call_id, "route": self.route, "why": exc.code, "transport": "webrtc"},
                )
                self._end()

    def on_channel(self, peer: WebRtcPeer, channel: Channel) -> None:
        """Attach the browser's data channel."""
        if self.browser is not None:
            self.browser.attach(channel)

    def on_lost(self, peer: WebRtcPeer) -> None:
        """Wait for a browser that cannot be reached. It may return on the same connection or on a new one."""
        if peer is self.peer:
            self._wait("connection_lost")

    def on_back(self, peer: WebRtcPeer) -> None:
        """Continue with a browser that was found again."""
        if peer is self.peer and self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _wait(self, reason: str) -> None:
        if self._waiting is None:
            log.info(
                "webrtc call waits for its browser", extra={"call": self.call_id, "route": self.route, "why": reason}
            )
            self._waiting = asyncio.get_running_loop().call_later(self._restart_s, self.end, reason)

    def on_over(self, peer: WebRtcPeer, reason: str, *, on_purpose: bool) -> None:
        """Handle the end of a connection. The call ends, or waits for the browser to return."""
        if peer is self._next:
            self._next = None
            if self._session is None:
                self._end()
        elif peer is self.peer:
            if on_purpose and self._next is None:
                self.end("hangup")
            else:
                self._wait(reason)

    def end(self, reason: str) -> None:
        """End the call, because the caller has left. Idempotent."""
        session = self._session
        self._end()
        if session is not None:
            session.on_leg_closed(reason)

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._session = None
        if self._waiting is not None:
            self._waiting.cancel()
        for peer in (self.peer, self._next):
            if peer is not None:
                self._later(peer.close())
        self._next = None
        self._forget(self)

    # --- inbound ---------------------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """True if the session wants the caller's audio."""
        return self._session is not None and self._session.listening

    def on_digit(self, digit: str) -> None:
        """Handle a touch tone of the caller."""
        if self._session is not None:
            self._session.on_digit(digit)

    def on_round_trip(self, seconds: float) -> None:
        """Take the round-trip time in seconds from the browser's report."""
        if self._session is not None:
            self._session.on_round_trip(seconds)

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio."""
        if self._session is not None:
            self._session.on_audio(payload)

    # --- MediaLeg --------------------------------------------------------------------------------------------------

    def reception(self) -> Reception | None:
        """Return the reception statistics of the caller's audio. None: nothing came."""
        return self.arrival.reception()

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Send one frame now. False: the socket is full, or the browser is away."""
        return self.peer is not None and self.peer.send_frame(payload, now)

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call. The browser got the reason over the data channel."""
        self._end()
