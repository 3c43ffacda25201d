"""One SIP call as a leg of a session. On the event loop, it carries out the decisions of the call's ``InviteDialog``.

``SipCall`` is common to both directions; ``SipIncomingCall`` is an inbound call. The bridge passes messages in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from gateway.errors import Rejected
from gateway.media.dtmf import KeysByTwoWays
from gateway.media.latch import Latch
from gateway.media.timer import DeadlineTimer
from gateway.seams.leg import CallEvents, Reception, RtpReport, TransferStart, UnbufferedLeg
from sip_bridge.config import SipConfig, TrunkConfig
from sip_bridge.dialog.dialog import Dialog, Refusal
from sip_bridge.dialog.effects import (
    Acknowledge,
    Ask,
    Begin,
    Digit,
    Effect,
    Follow,
    Joined,
    Left,
    MediaAgreed,
    PartyNamed,
    Post,
    ReferOutcome,
    Respond,
    Silence,
    Transferred,
    Trouble,
    Waits,
)
from sip_bridge.dialog.invite import InviteDialog, InviteState, invitation_of
from sip_bridge.dialog.invite_server import InviteServer
from sip_bridge.dialog.transaction import Act, Key
from sip_bridge.errors import SipProtocolError
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.ports import PortPair
from sip_bridge.io.rtp_leg import RtpLeg
from sip_bridge.local import HeaderItems, LocalAddress, Peer
from sip_bridge.message.parameters import SipCaller, caller_of, reasons, route_of, user_to_user
from sip_bridge.message.referral import Referral
from sip_bridge.message.sdp import Agreed
from sip_bridge.message.sip import Request, Response, Uri
from sip_bridge.next_hops import NextHops
from sip_bridge.targets import domain_of
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

_INBOUND_OPUS_HZ = 16_000
"""The rate to which Opus is decoded. Decoding costs the same at every rate, and no consumer uses more than 16 kHz."""


class Host(Protocol):
    """The bridge, as seen by its calls."""

    config: SipConfig
    trunks: dict[str, TrunkConfig]
    """The trunks by name, with the accounts with which they call."""
    endpoint: Endpoint
    local: LocalAddress

    def begin(self, call: SipCall) -> CallEvents:
        """Make the call's session. Raises ``Rejected``."""
        ...

    hops: NextHops
    """The next hops of the trunks' calls."""

    def joined(self, call: SipCall) -> None:
        """Register the call's dialog, so that messages in the dialog reach the call."""
        ...

    def asked(self, key: Key, call: SipCall) -> None:
        """Register a request of the call, so that its responses reach the call."""
        ...

    def left(self, call: SipCall) -> None:
        """Forget the call. From now on, only answers to its last requests reach it."""
        ...

    def reserve(self, name: str, trunk: TrunkConfig) -> PortPair:
        """Reserve ports for one more call of a trunk. Raises ``Rejected`` if there is no room."""
        ...

    def transfer_target(self, call: SipCall, target: str) -> tuple[Uri, Dialog | None]:
        """Return the target of a transfer, and the dialog that it replaces. Raises ``SipProtocolError``, or
        ``Rejected`` if the calling policy refuses."""
        ...

    def transfer_elsewhere(self, call: SipCall, target: str) -> Awaitable[tuple[Uri, Dialog | None]] | None:
        """Return the same for a call of another worker. None: the target is none."""
        ...

    def refer(self, call: SipCall, referral: Referral) -> None:
        """Place the call that a peer requested by REFER, and report its outcome to the peer."""
        ...

    @property
    def on_refer(self) -> Callable[[str, str], None]:
        """Counts a REFER, by direction and outcome."""
        ...

    def may_follow(self, call: SipCall, referral: Referral) -> bool:
        """Return True if the calling policy allows the target of a peer's REFER."""
        ...

    def on_report(self, report: RtpReport) -> None:
        """Take figures of received RTP since the last report."""
        ...


def _format(agreed: Agreed | None, *, inbound: bool) -> AudioFormat:
    assert agreed
    fmt = agreed.sent_format
    return replace(fmt, sample_rate=_INBOUND_OPUS_HZ) if inbound and fmt.encoding == "OPUS" else fmt


class SipCall(UnbufferedLeg):
    """A call with a dialog. It is a ``MediaLeg`` and handles the ``RtpLegEvents`` of its RTP.

    Args:
        name, trunk: the trunk of the call.
        peer: the address to which the INVITE was sent, or from which it came.
        ports: the media ports, which the call gives back at its end.
    """

    max_lead_ms = 0  # a phone would take a lead for jitter and lengthen its jitter buffer
    direction = "inbound"
    """The direction in the message ``setup``."""
    joined_to = ""
    """Id of the call for whose caller this one was placed. Empty: this is no second leg."""
    session_id = ""
    """The session's id. It may be set before the session exists. Empty: not set yet."""
    parent_call_sid = ""
    """Call-ID of the call whose peer asked for this one, or with which it is to be joined. Empty: neither."""
    caller: SipCaller
    """The caller and the called party."""
    route: str
    protocol: InviteDialog
    """The call's protocol, which decides on messages and times."""

    def __init__(self, host: Host, name: str, trunk: TrunkConfig, peer: Peer, ports: PortPair) -> None:
        self.trunk_name = name
        self.trunk = trunk
        self.peer = peer
        """The address that the call's messages go to and come from."""
        self.session: CallEvents | None = None
        self._host = host
        self._loop = asyncio.get_running_loop()
        latch = Latch(trunk.media, signalling_host=peer.host)
        self.rtp = RtpLeg(
            self,
            latch,
            silence_s=host.config.timeouts.media_s,
            on_report=host.on_report,
            answered=lambda: self.state is not InviteState.EARLY,
        )
        self.rtp.open(ports)
        self._formats: tuple[AudioFormat, AudioFormat] | None = None
        """Formats of the session, outbound and inbound. None: it has not begun."""
        self._party = "", ""
        """Number and name of the connected party."""
        self._on_hold = True
        self._keys = KeysByTwoWays()
        self._timer = DeadlineTimer(self, clock=self._loop.time)
        self._carrying_out = False
        self._asking: asyncio.Task[None] | None = None
        """Fetches the call to be joined with this one from another worker."""

    @property
    def state(self) -> InviteState:
        """The state of the call."""
        return self.protocol.state

    @property
    def dialog(self) -> Dialog:
        """The call's dialog. An outgoing call has none before its answer."""
        return self.protocol.dialog

    def uses(self, peer: Peer) -> bool:
        """Return True if the call's messages go to, or came from, this peer."""
        hop = self.protocol.requests.hop(self.dialog)
        again = hop.listens_at is not None and replace(hop, host=hop.listens_at[0], port=hop.listens_at[1])
        return peer in (self.peer, hop, again)

    @property
    def call_sid(self) -> str:
        """The id that the peer uses for the call."""
        return self.dialog.call_id

    @property
    def domain(self) -> str:
        """The domain of numbers that this call is transferred to: the trunk's proxy, else the peer."""
        return domain_of(Uri.parse(self.trunk.proxies[0]) if self.trunk.proxies else self.dialog.remote.uri)

    @property
    def begun(self) -> bool:
        """True once the call has had a session."""
        return self._formats is not None

    # --- the protocol ----------------------------------------------------------------------------------------------

    def _tell(self, event: Callable[..., None], *what: object) -> None:
        """Pass an event to the protocol, and carry out the effects."""
        event(*what, now=self._loop.time())
        self._carry_out()

    def _carry_out(self) -> None:
        """Carry out the effects in order, including those added meanwhile."""
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
                self._keys.clear()
                self._on_hold = agreed.on_hold
                if session is not None:
                    session.on_hold(agreed.on_hold)
            case Waits():
                if session is not None:
                    session.on_hold(True)
            case Digit(digit):
                self._digit(digit, "INFO")
            case PartyNamed(number, name):
                self._party_named(number, name)
            case Follow(referral):
                self._host.refer(self, referral)
            case Transferred(problem, status):
                if problem:
                    log.info(
                        "transfer failed",
                        extra={"call": self.session_id, "route": self.route, "trunk": self.trunk_name, "why": problem},
                    )
                if session is not None:
                    session.on_transferred(problem, status)
            case ReferOutcome(direction, outcome):
                self._host.on_refer(direction, outcome)
            case Silence(reason, cause):
                self.rtp.close()
                self.session = None
                if session is not None:
                    session.on_leg_closed(reason, cause)
            case Left():
                self._timer.close()
                if self._asking is not None:
                    self._asking.cancel()
                self._host.left(self)
            case Trouble(what, why):
                log.info(
                    what, extra={"call": self.session_id, "route": self.route, "trunk": self.trunk_name, "why": why}
                )

    def _party_named(self, number: str, name: str) -> None:
        """Tell the session if another party than before is connected. A message may leave out a known name."""
        if (number, name or self._party[1]) != self._party:
            self._party = number, name
            if self.session is not None:
                self.session.on_caller_changed(number, name)

    def _begin(self) -> None:
        self._party = self.caller.to, ""
        if self.direction == "inbound":
            self._party = self.caller.from_, self.caller.name
        self._formats = self.outbound, self.inbound
        self.rtp.keep_formats(*self._formats)
        self.session = self._host.begin(self)
        self.session_id = self.session_id or self.session.call_id
        self._tell(self.protocol.begun)

    def deadline(self) -> float | None:
        """Return the time at which ``on_timer`` must be called."""
        return self.protocol.deadline()

    def on_timer(self, now: float) -> None:
        """Handle the deadlines that have passed."""
        self.protocol.tick(now=now)
        self._carry_out()

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        """Handle a request in the dialog, which came from ``peer``."""
        self.protocol.requests.seen_at(peer)
        self._tell(self.protocol.on_request, key, request)

    def on_ack(self, ack: Request) -> None:
        """Handle the ACK of our 2xx."""
        self._tell_or_end(self.protocol.on_ack, ack)

    def on_response(self, key: Key | None, response: Response) -> None:
        """Handle a response to our request, including repetitions."""
        self._tell_or_end(self.protocol.on_response, key, response)

    def on_failed(self, key: Key, reason: Act) -> None:
        """Handle a request that got no response or could not be sent."""
        self._tell_or_end(self.protocol.on_failed, key, 408 if reason is Act.TIMEOUT else 503)

    def _tell_or_end(self, event: Callable[..., None], *what: object) -> None:
        """Pass an event to the protocol. A bug that it finds ends only this call."""
        try:
            self._tell(event, *what)
        except Exception:  # an internal error ends this call, not the endpoint of the others
            log.exception("SIP message failed", extra={"call": self.session_id})
            self.end("internal error")

    def tell_referred(self, referral: Referral, status: int, reason: str) -> None:
        """Tell the peer the outcome of a call that it requested by REFER."""
        self._tell(self.protocol.tell_referred, referral, status, reason)

    def hand_over(self) -> None:
        """End the call without its session, which another call continues."""
        session, self.session = self.session, None
        if session is not None and (self.protocol.transfers.under_way or self._asking is not None):
            session.on_transferred("the call was replaced by another one")
        self.end("replaced")

    def end(self, reason: str, headers: HeaderItems = ()) -> None:
        """End the call from our side. Idempotent."""
        self._tell(self.protocol.end, reason, headers)

    def abandon(self) -> None:
        """Drop a call whose INVITE the bridge answers itself."""
        self._tell(self.protocol.abandon)

    # --- MediaLeg --------------------------------------------------------------------------------------------------

    @property
    def outbound(self) -> AudioFormat:
        """The format of the session's audio. It is known after offer and answer, and does not change from the start of
        the session on. If another codec is agreed later, the RTP session converts."""
        return self._formats[0] if self._formats else _format(self.protocol.negotiation.agreed, inbound=False)

    @property
    def inbound(self) -> AudioFormat:
        """The format from which the session decodes the caller's audio, fixed like ``outbound``."""
        return self._formats[1] if self._formats else _format(self.protocol.negotiation.agreed, inbound=True)

    def reception(self) -> Reception | None:
        """Return the reception statistics of the caller's audio. None: nothing came."""
        return self.rtp.reception()

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Send one frame now. False: the socket is full, or the call is on hold."""
        return self.rtp.send_frame(payload, now)

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if the peer takes touch tones as RTP events."""
        return self.rtp.carries_dtmf

    def send_dtmf(self, digits: str) -> bool:
        """Send touch tones as events (RFC 4733). False: the peer takes no events, so the tones go into the audio."""
        return self.rtp.send_dtmf(digits)

    @property
    def refuses_transfers(self) -> bool:  # type: ignore[override]  # of the class above, a constant
        """True if the peer lists its methods, and REFER is not one of them."""
        return self.protocol.refuses_transfers

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """Ask the peer by REFER to call a target in our place: a SIP URI or number that the calling policy allows,
        or the id of another live call, for an attended transfer. Before the ACK of our 2xx the request waits for it,
        since a manager may ask as soon as it knows of the call. REFUSED: the call is not answered, or a transfer is
        under way."""
        if not self.protocol.may_transfer() or self._asking is not None:
            return TransferStart.REFUSED
        if not self._host.config.user_to_user:
            handoff_data = None
        asked = self._host.transfer_elsewhere(self, target)
        if asked is not None:
            self._asking = self._loop.create_task(self._refer_when_found(asked, handoff_data, reason))
            return TransferStart.UNDER_WAY
        try:
            uri, replaced = self._host.transfer_target(self, target)
        except SipProtocolError as error:
            self._loop.call_soon(self._do, Transferred(str(error)))
            return TransferStart.UNDER_WAY
        self._refer(uri, replaced, handoff_data, reason)
        return TransferStart.UNDER_WAY

    def _refer(self, uri: Uri, replaced: Dialog | None, handoff_data: str | None, reason: str) -> None:
        waits = self.state is InviteState.UNCONFIRMED
        self._tell(self.protocol.transfers.start, self.dialog, uri, replaced, handoff_data, reasons(reason), waits)

    async def _refer_when_found(
        self, asked: Awaitable[tuple[Uri, Dialog | None]], handoff_data: str | None, reason: str
    ) -> None:
        try:
            uri, replaced = await asked
        except (SipProtocolError, Rejected) as error:
            self._do(Transferred(str(error)))
            return
        finally:
            self._asking = None
        if self.protocol.may_transfer():
            self._refer(uri, replaced, handoff_data, reason)

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call in any state. ``handoff_data`` goes to the peer in User-to-User."""
        self.session = None
        handed: HeaderItems = ()
        if handoff_data and self._host.config.user_to_user:
            handed = user_to_user(handoff_data)
            if not handed:
                log.warning(
                    "handoff data too long for a header",
                    extra={"call": self.session_id, "route": self.route, "bytes": len(handoff_data)},
                )
        self._tell(self.protocol.hang_up, reason, [*handed, *reasons(reason)])

    # --- RtpLegEvents ----------------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """True if the session wants the caller's audio. On hold it does not, because the peer then sends music."""
        return self.session is not None and self.session.listening and not self._on_hold

    def on_digit(self, digit: str) -> None:
        """Take a touch tone that came as an RTP event."""
        self._digit(digit, "RTP")

    def on_round_trip(self, seconds: float) -> None:
        """Take the round-trip time that the peer's report shows."""
        if self.session is not None:
            self.session.on_round_trip(seconds)

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio."""
        if self.session is not None:
            self.session.on_audio(payload)

    def on_leg_closed(self, reason: str) -> None:
        """Note that the media is lost while the signalling still works."""
        self.end(reason, [("Reason", f'SIP;cause=408;text="{reason}"')])

    def _digit(self, digit: str, by: str) -> None:
        if self._keys.is_new(digit, by, now=self._loop.time()) and self.session is not None:
            self.session.on_digit(digit)


class SipIncomingCall(SipCall):
    """An inbound call, from its INVITE on.

    Args:
        key: the INVITE's transaction.
        replaced: the call whose session this one continues (RFC 3891). None: it replaces no call.

    Raises:
        SipProtocolError: the INVITE cannot be answered with a call. The exception carries the status of the answer.
        NotAcceptable: there is no common codec.
    """

    protocol: InviteServer

    def __init__(
        self,
        host: Host,
        name: str,
        trunk: TrunkConfig,
        peer: Peer,
        ports: PortPair,
        key: Key,
        invite: Request,
        replaced: SipCall | None = None,
    ) -> None:
        super().__init__(host, name, trunk, peer, ports)
        self.key = key
        self._replaced = replaced
        self.invitation = invitation_of(invite)
        try:
            self.protocol = InviteServer(
                trunk, peer, host.local, ports.port, host.config.timeouts, key=key, invite=invite
            )
            self.protocol.transfers.allows = partial(host.may_follow, self)
            self.protocol.answers_at_once = replaced is not None
            accounts = {each.username for each in host.config.registrations}
            self.caller = caller_of(invite, trunk.headers, did_from=trunk.did_from, accounts=accounts)
            self.route = route_of(self.caller.to, trunk.numbers, trunk.route)
        except BaseException:
            self.rtp.close()
            raise

    def start(self) -> Refusal | None:
        """Begin the session; for an INVITE without an offer, answer first. A refusal: the answer to the INVITE.

        Raises:
            Rejected: there is no room for a session.
        """
        refusal = self.protocol.start(now=self._loop.time())
        if refusal is None and not self.protocol.late:
            self._begin()
        self._carry_out()
        return refusal

    def _begin(self) -> None:
        if self._replaced is not None:
            self._take_over(self._replaced)
            return
        super()._begin()
        assert self.session
        needs_no_manager = self.trunk.answer_at_once and not self.trunk.early_media
        may_answer = self.session.metered if needs_no_manager else self.session.ready
        may_answer.add_done_callback(lambda _: self._tell(self.protocol.on_ready))
        self.session.greeted.add_done_callback(lambda _: self._tell(self.protocol.on_greeted))

    def _take_over(self, replaced: SipCall) -> None:
        """Continue the session of another call, and end that call. If it was never answered, it has no session."""
        party = self.caller.from_, self.caller.name
        is_early = replaced.state is InviteState.EARLY
        if replaced.session is None and not is_early:  # it has ended since our offer went out
            self.end("replaced call is over")
            return
        self.caller, self.route, self.direction = replaced.caller, replaced.route, replaced.direction
        self.session_id, self.parent_call_sid = replaced.session_id, replaced.parent_call_sid
        if replaced.session is None:
            super()._begin()
        else:
            self._formats, self._party = (replaced.outbound, replaced.inbound), replaced._party
            self.rtp.keep_formats(*self._formats)
            self.session = replaced.session
            self.session.on_leg_replaced(self, self.call_sid)
            self._tell(self.protocol.begun)
        replaced.hand_over()  # after our answer: some callers take a BYE before it for the end of the transfer
        log.info("call replaced", extra={"call": self.session_id, "route": self.route, "trunk": self.trunk_name})
        self._party_named(*party)

    def on_cancel(self, cancel: Request) -> None:
        """Handle the caller's CANCEL."""
        self._tell(self.protocol.on_cancel, cancel)
