"""One SIP call as the leg of a session: what its ``InviteDialog`` decides is carried out here, on the event loop.

``SipCall`` is what both directions share; ``IncomingCall`` is a call that somebody makes to us. The bridge brings the
messages, the session leads the talk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from gateway.errors import Rejected
from gateway.media.latch import Latch
from gateway.media.timer import DeadlineTimer
from gateway.seams.leg import CallEvents, TransferStart
from sip_bridge.config import SipConfig, TrunkConfig
from sip_bridge.dialog import Dialog, Refusal
from sip_bridge.effects import (
    Acknowledge,
    Ask,
    Begin,
    Digit,
    Effect,
    Follow,
    Joined,
    Left,
    MediaAgreed,
    Post,
    Respond,
    Silence,
    Transferred,
    Trouble,
    Waits,
)
from sip_bridge.errors import SipError
from sip_bridge.invite import InviteDialog, State, invitation_of
from sip_bridge.invite_server import InviteServer
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.ports import PortPair
from sip_bridge.io.rtp_leg import RtpLeg
from sip_bridge.local import HeaderItems, LocalAddress, Peer
from sip_bridge.message.parameters import Caller, caller_of, route_of, user_to_user
from sip_bridge.message.sdp import Agreed
from sip_bridge.message.sip import Request, Response, Uri
from sip_bridge.transaction import Act, Key
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

_INBOUND_OPUS_HZ = 16_000
"""A decoder gives any rate for the same price; 16 kHz is all that those who listen use."""


class CallSession(CallEvents, Protocol):
    """The session, as its leg sees it."""

    ready: asyncio.Future[None]
    greeted: asyncio.Future[None]

    @property
    def call_id(self) -> str: ...

    def on_hold(self, on_hold: bool) -> None: ...

    def on_transferred(self, problem: str) -> None: ...


class Host(Protocol):
    """What the bridge is for its calls."""

    config: SipConfig
    endpoint: Endpoint
    local: LocalAddress

    def begin(self, call: SipCall) -> CallSession:
        """Make the call's session. Raises ``Rejected``."""
        ...

    def reachable(self, trunk: str) -> bool:
        """Whether a trunk's proxy is alive, as far as that is known."""
        ...

    def joined(self, call: SipCall) -> None:
        """The call has a dialog: what comes in it is the call's."""
        ...

    def asked(self, key: Key, call: SipCall) -> None:
        """The call has sent a request: its responses are the call's."""
        ...

    def left(self, call: SipCall) -> None:
        """The call is over; nothing but the answers to its last requests comes to it any more."""
        ...

    def reserve(self, name: str, trunk: TrunkConfig) -> PortPair:
        """Ports for one more call of a trunk. Raises ``Rejected`` where there is no room for it."""
        ...

    def transfer_target(self, call: SipCall, target: str) -> tuple[Uri, Dialog | None]:
        """Where a transfer leads, and the dialog that it replaces. Raises ``SipError``."""
        ...

    def refer(self, call: SipCall, target: Uri) -> None:
        """Place the call that a peer asks for, and tell it the outcome."""
        ...

    def on_report(self, lost: int, jitter_s: float) -> None:
        """RTP packets that were lost since the last report, and the jitter."""
        ...


def _format(agreed: Agreed | None, *, inbound: bool) -> AudioFormat:
    assert agreed
    fmt = agreed.sent_format
    return replace(fmt, sample_rate=_INBOUND_OPUS_HZ) if inbound and fmt.encoding == "OPUS" else fmt


class SipCall:
    """A call with a dialog, as a ``MediaLeg`` and the ``CallEvents`` of its RTP.

    Args:
        name, trunk: whose call it is.
        peer: whom we exchange messages with: where the INVITE came from, or went to.
        ports: given back at the end.
    """

    max_lead_ms = 0  # a phone's jitter buffer would take a lead for jitter, and grow
    has_marks = False
    recalls = False
    direction = "inbound"
    """As ``setup`` says it."""
    session_id = ""
    """Of the session, where it was told before there was one; empty: any."""
    caller: Caller
    """Who calls whom."""
    route: str
    protocol: InviteDialog
    """What the call says and when."""

    def __init__(self, host: Host, name: str, trunk: TrunkConfig, peer: Peer, ports: PortPair) -> None:
        self.trunk_name = name
        self.trunk = trunk
        self.session: CallSession | None = None
        self._host = host
        self._loop = asyncio.get_running_loop()
        latch = Latch(trunk.media, signalling_host=peer.host)
        self.rtp = RtpLeg(self, latch, silence_s=host.config.timeouts.media, on_report=host.on_report)
        self.rtp.open(ports)
        self._on_hold = True
        self._digits_by = ""
        self._timer = DeadlineTimer(self, clock=self._loop.time)
        self._carrying_out = False

    @property
    def state(self) -> State:
        """Where the call is."""
        return self.protocol.state

    @property
    def dialog(self) -> Dialog:
        """The call's dialog; of a call of ours there is none before its answer."""
        return self.protocol.dialog

    @property
    def call_sid(self) -> str:
        """The call's id at the peer."""
        return self.dialog.call_id

    # --- the protocol ----------------------------------------------------------------------------------------------

    def _tell(self, event: Callable[..., None], *what: object) -> None:
        """Tell the protocol of an event, and do what it wants done."""
        event(*what, now=self._loop.time())
        self._carry_out()

    def _carry_out(self) -> None:
        """Effects are carried out one after the other, also where one of them leads to the next event."""
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self.protocol.effects:
                self._do(self.protocol.effects.popleft())
        finally:
            self._carrying_out = False
            self._timer.arm()

    def _do(self, effect: Effect) -> None:
        endpoint, session = self._host.endpoint, self.session
        match effect:
            case Respond(key, response):
                endpoint.respond(key, response)
            case Ask(request, peer):
                self._host.asked(endpoint.request(request, peer), self)
            case Post(request, peer):
                endpoint.request(request, peer)
            case Acknowledge(ack, peer):
                endpoint.send(ack, peer)
            case Joined():
                self._host.joined(self)
            case Begin():
                try:
                    self._begin()
                except Rejected as exc:
                    log.info("call rejected", extra={"why": exc.code, "transport": "sip"})
                    self._tell(self.protocol.not_begun)
            case MediaAgreed(agreed):
                self.rtp.negotiated(agreed)
                self._on_hold = agreed.on_hold
                if session is not None:
                    session.on_hold(agreed.on_hold)
            case Waits():
                if session is not None:
                    session.on_hold(True)
            case Digit(digit):
                self._digit(digit, "INFO")
            case Follow(target):
                self._host.refer(self, target)
            case Transferred(problem):
                if problem:
                    log.info("transfer failed", extra={"trunk": self.trunk_name, "why": problem})
                if session is not None:
                    session.on_transferred(problem)
            case Silence(reason):
                self.rtp.close()
                self.session = None
                if session is not None:
                    session.on_leg_closed(reason)
            case Left():
                self._timer.close()
                self._host.left(self)
            case Trouble(what, why):
                log.info(what, extra={"trunk": self.trunk_name, "why": why})

    def _begin(self) -> None:
        self.session = self._host.begin(self)
        self._tell(self.protocol.begun)

    def deadline(self) -> float | None:
        """When ``on_timer`` is to be called."""
        return self.protocol.deadline()

    def on_timer(self, now: float) -> None:
        """Something was waited for long enough."""
        self.protocol.tick(now=now)
        self._carry_out()

    def on_request(self, key: Key, request: Request) -> None:
        """A request in the dialog."""
        self._tell(self.protocol.on_request, key, request)

    def on_ack(self, ack: Request) -> None:
        """The ACK of a 2xx of ours."""
        self._tell(self.protocol.on_ack, ack)

    def on_response(self, key: Key | None, response: Response) -> None:
        """A response to a request of ours, first or repeated."""
        self._tell(self.protocol.on_response, key, response)

    def on_failed(self, key: Key, reason: Act) -> None:
        """No response, or the request could not be sent."""
        self._tell(self.protocol.on_failed, key, 408 if reason is Act.TIMEOUT else 503)

    def tell_referred(self, status: int, reason: str) -> None:
        """Tell the peer what became of the call that it asked for."""
        self._tell(self.protocol.tell_referred, status, reason)

    def end(self, reason: str, headers: HeaderItems = ()) -> None:
        """We end the call. Idempotent."""
        self._tell(self.protocol.end, reason, headers)

    def abandon(self) -> None:
        """Let go of a call whose INVITE somebody else answers."""
        self._tell(self.protocol.abandon)

    # --- MediaLeg --------------------------------------------------------------------------------------------------

    @property
    def outbound(self) -> AudioFormat:
        """What we send; known when offer and answer are."""
        return _format(self.protocol.negotiation.agreed, inbound=False)

    @property
    def inbound(self) -> AudioFormat:
        """What the caller's audio is decoded to."""
        return _format(self.protocol.negotiation.agreed, inbound=True)

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Send one frame now. False: the socket is full, or nobody listens."""
        return self.rtp.send_frame(payload, now)

    def send_mark(self, name: str) -> None:
        """No marks: the played position is the timetable's."""

    def send_clear(self) -> None:
        """Nothing is buffered beyond the phone's own few frames, which cannot be recalled."""

    def carries_dtmf(self, digits: str) -> bool:
        """Whether the peer takes touch tones as events."""
        return self.rtp.carries_dtmf

    def send_dtmf(self, digits: str) -> bool:
        """Send touch tones as events (RFC 4733). False: the peer takes none, tones go in the audio."""
        return self.rtp.send_dtmf(digits)

    def transfer(self, target: str, handoff_data: str | None = None) -> TransferStart:
        """Ask the peer to call somebody else in our place (REFER): a SIP URI or number among ``sip.allowed_targets``,
        or the id of another call of ours, for an attended transfer. Refused: there is nobody to ask now."""
        if not self.protocol.may_transfer():
            return TransferStart.REFUSED
        try:
            uri, replaced = self._host.transfer_target(self, target)
        except SipError as error:
            self._loop.call_soon(self._do, Transferred(str(error)))
            return TransferStart.UNDER_WAY
        if not self._host.config.user_to_user:
            handoff_data = None
        self._tell(self.protocol.transfer, uri, replaced, handoff_data)
        return TransferStart.UNDER_WAY

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call, in whatever state it is; ``handoff_data`` goes along in User-to-User."""
        self.session = None
        handed: HeaderItems = ()
        if handoff_data and self._host.config.user_to_user:
            handed = user_to_user(handoff_data)
            if not handed:
                log.warning("handoff data too long for a header", extra={"bytes": len(handoff_data)})
        self._tell(self.protocol.hang_up, reason, handed)

    # --- CallEvents of the RTP -------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether anybody wants the caller's audio now. Not on hold: what comes then is music."""
        return self.session is not None and self.session.listening and not self._on_hold

    def on_digit(self, digit: str) -> None:
        """A key as RTP event."""
        self._digit(digit, "RTP")

    def on_round_trip(self, seconds: float) -> None:
        """The peer's report shows how far it is."""
        if self.session is not None:
            self.session.on_round_trip(seconds)

    def on_audio(self, payload: bytes) -> None:
        """The caller's audio."""
        if self.session is not None:
            self.session.on_audio(payload)

    def on_mark(self, name: str) -> None:
        """RTP has none."""

    def on_leg_closed(self, reason: str) -> None:
        """The media is lost while the signalling is not."""
        self.end(reason, [("Reason", f'SIP;cause=408;text="{reason}"')])

    def _digit(self, digit: str, by: str) -> None:
        # A peer that tells a key in both ways means one key: the way of the first one counts.
        self._digits_by = self._digits_by or by
        if self.session is not None and self._digits_by == by:
            self.session.on_digit(digit)


class IncomingCall(SipCall):
    """A call to us, from its INVITE on.

    Args:
        key: the INVITE's transaction.

    Raises:
        ProtocolError: an INVITE that cannot be answered with a call; says with which status.
        NotAcceptable: no common codec.
    """

    protocol: InviteServer

    def __init__(
        self, host: Host, name: str, trunk: TrunkConfig, peer: Peer, ports: PortPair, key: Key, invite: Request
    ) -> None:
        super().__init__(host, name, trunk, peer, ports)
        self.key = key
        self.invitation = invitation_of(invite)
        try:
            self.protocol = InviteServer(
                trunk, peer, host.local, ports.port, host.config.timeouts, key=key, invite=invite
            )
            self.caller = caller_of(invite, trunk.headers)
            self.route = route_of(invite.uri, trunk.numbers, trunk.route)
        except BaseException:
            self.rtp.close()
            raise

    def start(self) -> Refusal | None:
        """Begin the session, or answer first where there is no offer. A refusal: the INVITE wants this instead.

        Raises:
            Rejected: there is no room for a session.
        """
        refusal = self.protocol.start(now=self._loop.time())
        if refusal is None and not self.protocol.late:
            self._begin()
        self._carry_out()
        return refusal

    def _begin(self) -> None:
        super()._begin()
        assert self.session
        self.session.ready.add_done_callback(lambda _: self._tell(self.protocol.on_ready))
        self.session.greeted.add_done_callback(lambda _: self._tell(self.protocol.on_greeted))

    def on_cancel(self) -> None:
        """The caller gives up."""
        self._tell(self.protocol.on_cancel)
