"""One SIP call: its dialog, offers and answers, timers and media, as the leg of a session.

``SipCall`` is what both directions share once there is a dialog. ``IncomingCall`` is a call that somebody makes to us,
from its INVITE to its ACK. The bridge brings the messages, the session leads the talk.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from gateway.errors import Rejected
from gateway.media.latch import Latch
from gateway.seams.leg import CallEvents
from sip_bridge.config import SipConfig, TrunkConfig
from sip_bridge.dialog import (
    MIN_SESSION_S,
    Dialog,
    Refusal,
    SessionTimer,
    min_session_s,
    session_agreed,
    session_answer,
)
from sip_bridge.errors import NotAcceptable, ProtocolError, SipError
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.ports import PortPair
from sip_bridge.io.rtp_leg import RtpLeg
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, LocalAddress, Peer
from sip_bridge.message.digest import ClientAuth, authorization
from sip_bridge.message.parameters import Caller, caller_of, route_of, user_to_user
from sip_bridge.message.sdp import Agreed, Negotiation, SessionDescription
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Address, Message, Request, Response, Uri, response_to
from sip_bridge.transaction import Act, Key
from sip_bridge.transfer import Transfer, refer_headers
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

Done: TypeAlias = Callable[[Response | None], None]
"""Told of the final response; None: none came, or it could not be sent."""

Invitation: TypeAlias = tuple[str, str, int]
"""Call-ID, From tag and CSeq of an INVITE outside dialogs: the same by two ways is one (RFC 3261 section 8.2.2.2)."""

_USER = "talkspurt"
"""User part of our contacts: what comes in a dialog is found by the dialog."""

_SDP = ("Content-Type", "application/sdp")
_INBOUND_OPUS_HZ = 16_000
"""A decoder gives any rate for the same price; 16 kHz is all that those who listen use."""


class CallSession(CallEvents, Protocol):
    """The session, as its leg sees it."""

    ready: asyncio.Future[None]
    greeted: asyncio.Future[None]

    @property
    def call_id(self) -> str: ...

    def on_held(self, held: bool) -> None: ...

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


class State(enum.Enum):
    """Where a call is."""

    EARLY = "early"  # no final response yet
    UNCONFIRMED = "unconfirmed"  # our 2xx waits for its ACK
    UP = "up"
    LEAVING = "leaving"  # over for the session, but a BYE may not be sent yet
    OVER = "over"


@dataclass(slots=True)
class _Asked:
    """A request of ours that waits for its final response."""

    request: Request
    peer: Peer
    headers: HeaderItems
    done: Done
    with_credentials: bool = False


@dataclass(slots=True)
class _Unacked:
    """A 2xx of ours that waits for its ACK (RFC 3261 section 13.3.1.4)."""

    key: Key
    response: Response
    pause_s: float
    offers: bool
    """The answer to our offer is in the ACK."""


def invitation_of(invite: Request) -> Invitation:
    """What tells an INVITE from all others."""
    return invite.call_id, invite.from_.tag, invite.cseq.number


def description_of(message: Message) -> SessionDescription | None:
    """The session description that a message carries, alone or as a part of several; None: it carries none.

    Raises:
        ProtocolError: 415, another kind of content; 400, a description that cannot be read.
    """
    if not message.body.strip():
        return None
    if message.headers.get("Content-Encoding") not in (None, "identity"):
        raise ProtocolError("body is compressed, expected it plain", status=415)
    if message.content_type == "application/sdp":
        return parse_sdp(message.body)
    if message.content_type.startswith("multipart/"):
        boundary = re.search(r'boundary="?([^";]+)', message.headers.get("Content-Type") or "", re.IGNORECASE)
        for part in (
            message.body.split(b"--" + boundary.group(1).encode("utf-8", "surrogateescape"))[1:] if boundary else ()
        ):
            head, _, body = part.replace(b"\r\n", b"\n").lstrip(b"\n").partition(b"\n\n")
            if re.search(rb"^content-type:\s*application/sdp", head, re.IGNORECASE | re.MULTILINE):
                return parse_sdp(body)
    raise ProtocolError(f"body is {message.content_type[:60]!r}, expected application/sdp", status=415)


def _format(agreed: Agreed, *, inbound: bool) -> AudioFormat:
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
    dialog: Dialog
    caller: Caller
    """Who calls whom."""
    route: str

    def __init__(self, host: Host, name: str, trunk: TrunkConfig, peer: Peer, ports: PortPair) -> None:
        self.trunk_name = name
        self.trunk = trunk
        self.peer = peer
        self.state = State.EARLY
        self._host = host
        self._timeouts = host.config.timeouts
        self._loop = asyncio.get_running_loop()
        self.negotiation = Negotiation(
            host=host.config.advertised, port=ports.port, codecs=trunk.codecs, srtp=trunk.srtp
        )
        latch = Latch(trunk.media, signalling_host=peer.host)
        self.rtp = RtpLeg(self, latch, silence_s=self._timeouts.media, on_report=host.on_report)
        self.rtp.open(ports)
        self.session: CallSession | None = None
        self._peer_allows: frozenset[str] = frozenset()
        self._held = True
        self._digits_by = ""
        self._unacked: _Unacked | None = None
        self._acked: tuple[int, Request, Peer] | None = None
        self._asked: dict[Key, _Asked] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._timer: SessionTimer | None = None
        self._refreshed_at = 0.0
        self._min_session_s = MIN_SESSION_S
        self._goodbye: HeaderItems = ()
        self._transfer: Transfer | None = None
        self._ending: tuple[str, HeaderItems] | None = None
        """What ``hang_up`` wanted while a transfer was under way."""
        password = trunk.password.get_secret_value() if trunk.password else ""
        self._auth = ClientAuth(trunk.username, password) if trunk.username else None

    @property
    def call_sid(self) -> str:
        """The call's id at the peer."""
        return self.dialog.call_id

    # --- MediaLeg --------------------------------------------------------------------------------------------------

    @property
    def outbound(self) -> AudioFormat:
        """What we send; known when offer and answer are."""
        assert self.negotiation.agreed
        return _format(self.negotiation.agreed, inbound=False)

    @property
    def inbound(self) -> AudioFormat:
        """What the caller's audio is decoded to."""
        assert self.negotiation.agreed
        return _format(self.negotiation.agreed, inbound=True)

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

    def transfer(self, target: str, handoff_data: str | None = None) -> bool | None:
        """Ask the peer to call somebody else in our place (REFER): a SIP URI or number among ``sip.allowed_targets``,
        or the id of another call of ours, for an attended transfer. False: there is nobody to ask now."""
        if self.state is not State.UP or self._transfer is not None:
            return False
        try:
            uri, replaced = self._host.transfer_target(self, target)
        except SipError as error:
            self._loop.call_soon(self._transfer_over, str(error))
            return None
        transfer = self._transfer = Transfer(self._transfer_over)
        if not self._host.config.user_to_user:
            handoff_data = None
        headers = refer_headers(uri, replace(self.dialog.local, params={}).uri, handoff_data, replaced)
        self.request("REFER", [self._contact, *headers], b"", transfer.on_response)
        # A peer that tells nothing for so long has done what it can.
        self._later("transfer", self._timeouts.transfer, lambda: transfer.over(""))
        return None

    def _transfer_over(self, problem: str) -> None:
        self._stop("transfer")
        self._transfer = None
        if problem:
            log.info("transfer failed", extra={"trunk": self.trunk_name, "why": problem})
        if self.session is not None:
            self.session.on_transferred(problem)
        elif self._ending is not None:
            self.end(*self._ending)  # the session has left already

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call, in whatever state it is; ``handoff_data`` goes along in User-to-User."""
        self.session = None
        handed: HeaderItems = ()
        if handoff_data and self._host.config.user_to_user:
            handed = user_to_user(handoff_data)
            if not handed:
                log.warning("handoff data too long for a header", extra={"bytes": len(handoff_data)})
        if self._transfer is not None:
            self._ending = (reason, handed)  # a BYE now could take the peer's new call with it (RFC 5589 section 6.1)
            return
        self.end(reason, handed)

    # --- CallEvents of the RTP -------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether anybody wants the caller's audio now. Not on hold: what comes then is music."""
        return self.session is not None and self.session.listening and not self._held

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

    # --- the end ---------------------------------------------------------------------------------------------------

    def end(self, reason: str, headers: HeaderItems = ()) -> None:
        """We end the call: BYE, or what comes before there can be one. Idempotent."""
        if self.state in (State.LEAVING, State.OVER):
            return
        self.rtp.close()
        session, self.session = self.session, None
        if session is not None:
            session.on_leg_closed(reason)
        self._goodbye = headers
        if self.state is State.EARLY:
            self._give_up(reason, headers)
            self._release()
        elif self.state is State.UNCONFIRMED:
            self.state = State.LEAVING  # no BYE before the ACK, or the end of waiting for it (section 15)
        else:
            self._say_goodbye()

    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        """End a call that has no final response yet."""
        raise NotImplementedError

    def _say_goodbye(self) -> None:
        self.request("BYE", self._goodbye, b"", lambda response: None)
        self._release()

    def _peer_left(self, reason: str) -> None:
        """The peer has ended the call."""
        if self.state is State.OVER:
            return
        if self._transfer is not None:
            reason = "transferred"  # many leave without a word once their new call stands
        self.rtp.close()
        session, self.session = self.session, None
        if session is not None:
            session.on_leg_closed(reason)
        self._release()

    def abandon(self) -> None:
        """Let go of a call whose INVITE somebody else answers."""
        self._peer_left("refused")

    def _release(self) -> None:
        self.state = State.OVER
        self._unacked = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._host.left(self)

    # --- timers ----------------------------------------------------------------------------------------------------

    def _later(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Run a call unless the timer is set anew, stopped, or the call over."""
        self._stop(name)

        def fire() -> None:
            self._timers.pop(name, None)
            call()

        self._timers[name] = self._loop.call_later(max(0.0, delay_s), fire)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # --- requests of ours in the dialog ----------------------------------------------------------------------------

    def request(
        self, method: str, headers: HeaderItems, body: bytes, done: Done, *, credentials: HeaderItems = ()
    ) -> None:
        """Send a request in the dialog; ``done`` is told how it ended. A challenge is answered once."""
        peer = self._hop(self.dialog)
        request = self.dialog.request(
            method, self._host.local.via(peer.transport), headers=[*headers, *credentials], body=body
        )
        key = self._host.endpoint.request(request, peer)
        self._asked[key] = _Asked(request, peer, headers, done, bool(credentials))
        self._host.asked(key, self)

    def _hop(self, dialog: Dialog) -> Peer:
        """Where a dialog's next hop is, as far as that can be known without a name service."""
        uri = dialog.next_hop
        secure = uri.scheme == "sips" or (uri.params.get("transport") or "").lower() == "tls"
        named = (uri.params.get("transport") or "").upper()
        transport = "TLS" if secure else named or "UDP"
        host = uri.host.strip("[]")
        literal = re.fullmatch(r"[0-9.]+|[0-9a-f:.]+", host) is not None
        streamed = self.peer.transport != "UDP" and host == self.peer.host
        # A name stands for whom we talk to; behind a translator only that way is open, and a connection is there.
        if not literal or self._translated or (streamed and named in ("", self.peer.transport)):
            return self.peer
        return Peer(transport, host, uri.port or (5061 if secure else 5060))

    _translated = False
    """The peer names an address that its messages do not come from, and nobody routes between us."""

    @property
    def open_invites(self) -> list[Key]:
        """Our re-INVITEs without a final response."""
        return [key for key in self._asked if key.method == "INVITE"]

    def on_response(self, key: Key | None, response: Response) -> None:
        """A response to a request of ours, first or repeated."""
        asked = self._asked.get(key) if key else None
        if asked is None:
            if self._acked and response.cseq.method == "INVITE" and response.cseq.number == self._acked[0]:
                self._host.endpoint.send(self._acked[1], self._acked[2])  # our ACK was lost
            return
        if response.status < 200:
            return
        assert key
        del self._asked[key]
        if asked.request.method == "INVITE" and response.status < 300:
            self._acknowledge(asked)
        if not asked.with_credentials and self._answer_challenge(asked, response):
            return
        asked.done(response)

    def on_failed(self, key: Key, reason: Act) -> None:
        """No response, or the request could not be sent."""
        asked = self._asked.pop(key, None)
        if asked is not None:
            asked.done(None)

    def _acknowledge(self, asked: _Asked) -> None:
        number = asked.request.cseq.number
        peer = self._hop(self.dialog)
        ack = self.dialog.request("ACK", self._host.local.via(peer.transport), cseq=number)
        self._acked = (number, ack, peer)
        self._host.endpoint.send(ack, peer)

    @property
    def _contact(self) -> tuple[str, str]:
        return "Contact", f"<{self._host.local.contact(self.peer.transport, _USER)}>"

    def _answer_challenge(self, asked: _Asked, response: Response) -> bool:
        request = asked.request
        answer = authorization(response, request, self._auth) if self._auth else None
        if answer is None:
            return False
        self.request(request.method, asked.headers, request.body, asked.done, credentials=[answer])
        return True

    # --- the peer's requests in the dialog -------------------------------------------------------------------------

    def on_request(self, key: Key, request: Request) -> None:
        """A request in the dialog."""
        try:
            offers = request.method == "UPDATE" and description_of(request) is not None
            refusal = self.dialog.check(request, offers=offers, retry_after_s=secrets.randbelow(11))
            if refusal is None:
                refusal = self._deal_with(key, request)
        except (ProtocolError, NotAcceptable) as error:
            log.info("SIP request refused", extra={"method": request.method, "why": str(error)})
            refusal = Refusal(error.status)
        if refusal is not None:
            self.respond(key, request, refusal.status, refusal.headers)

    def respond(
        self, key: Key, request: Request, status: int, headers: HeaderItems = (), body: bytes = b""
    ) -> Response:
        """Answer a request of the peer."""
        response = response_to(request, status, to_tag=self.dialog.local.tag, headers=headers, body=body)
        self._host.endpoint.respond(key, response)
        return response

    def _deal_with(self, key: Key, request: Request) -> Refusal | None:
        """Answer a request, or say how it is to be refused."""
        match request.method:
            case "BYE":
                self._on_bye(key, request)
            case "INVITE" | "UPDATE":
                return self._on_offer(key, request)
            case "INFO":
                return self._on_info(key, request)
            case "OPTIONS":
                self.respond(key, request, 200, [ALLOW, SUPPORTED])
            case "NOTIFY":
                return self._on_notify(key, request)
            case "REFER":
                return self._on_refer(key, request)
            case _:
                return Refusal(405, (ALLOW,))
        return None

    def _on_bye(self, key: Key, request: Request) -> None:
        self.respond(key, request, 200)
        self._peer_left("hangup")

    def _on_info(self, key: Key, request: Request) -> Refusal | None:
        text = request.body.decode("latin-1").strip()
        if request.content_type == "application/dtmf-relay":
            found = re.search(r"^signal\s*=\s*([0-9A-D*#])\s*$", text, re.IGNORECASE | re.MULTILINE)
        elif request.content_type == "application/dtmf":
            found = re.fullmatch(r"([0-9A-D*#])", text, re.IGNORECASE)
        elif text:
            return Refusal(415, (("Accept", "application/dtmf-relay, application/dtmf"),))
        else:
            found = None  # an empty INFO asks whether we are alive
        if text and not found:
            return Refusal(400)
        self.respond(key, request, 200)
        if found:
            self._digit(found.group(1).upper(), "INFO")
        return None

    def _on_notify(self, key: Key, request: Request) -> Refusal | None:
        """What became of a transfer."""
        if (request.headers.get("Event") or "").partition(";")[0].strip().lower() != "refer":
            return Refusal(489, (("Allow-Events", "refer"),))
        if self._transfer is None:
            return Refusal(481)
        self.respond(key, request, 200)
        self._transfer.on_notify(request)
        return None

    def _on_refer(self, key: Key, request: Request) -> Refusal | None:
        """The peer wants us to call somebody: a way to make calls at our cost, so refused unless the trunk may."""
        if self.trunk.transfers != "follow":
            return Refusal(603)
        wanted = request.headers.get("Refer-To")
        if wanted is None or len(request.headers.all("Refer-To")) != 1:
            return Refusal(400)
        target = Address.parse(wanted).uri
        self.respond(key, request, 202, [self._contact])
        self._host.refer(self, target)
        return None

    def tell_referred(self, status: int, reason: str) -> None:
        """Tell the peer what became of the call that it asked for (RFC 3515 section 2.4.4)."""
        if self.state is not State.UP:
            return
        state = "active;expires=60" if status < 200 else "terminated;reason=noresource"
        headers = [
            self._contact,
            ("Event", "refer"),
            ("Subscription-State", state),
            ("Content-Type", "message/sipfrag;version=2.0"),
        ]
        self.request("NOTIFY", headers, f"SIP/2.0 {status} {reason}\r\n".encode(), lambda response: None)

    def _on_offer(self, key: Key, request: Request) -> Refusal | None:
        """A re-INVITE or UPDATE: a new description, hold, resume, a new Contact, or only a refresh of the session."""
        timed = self._session_answer(request)
        if isinstance(timed, Refusal):
            return timed
        timer, headers = timed
        offer = description_of(request)
        body = b""
        if offer is not None:
            body = self._answer_offer(offer)
        elif request.method == "INVITE":
            body = self.negotiation.offer()
        self.dialog.refresh(request)
        self._peer_allows = request.headers.tokens("Allow") or self._peer_allows
        self.set_timer(timer)
        described = [_SDP] if body else []
        response = self.respond(key, request, 200, [self._contact, ALLOW, SUPPORTED, *headers, *described], body)
        if request.method == "INVITE":
            self._await_ack(key, response, offers=offer is None)
        return None

    def _answer_offer(self, offer: SessionDescription) -> bytes:
        body = self.negotiation.answer(offer)
        assert self.negotiation.agreed
        self.apply(self.negotiation.agreed)
        return body

    def apply(self, agreed: Agreed) -> None:
        """Offer and answer are complete: media goes where they say, and the session knows whether it is heard."""
        self.rtp.negotiated(agreed)
        self._held = agreed.held
        if self.session is not None:
            self.session.on_held(agreed.held)

    # --- our 2xx and its ACK ---------------------------------------------------------------------------------------

    def _await_ack(self, key: Key, response: Response, *, offers: bool) -> None:
        """Repeat a 2xx until its ACK comes; without one the call is ended."""
        self._unacked = _Unacked(key, response, self._timeouts.t1, offers)
        self.dialog.invited = True
        self.dialog.inviting = offers
        self._later("repeat", self._timeouts.t1, self._repeat)
        self._later("ack", 64 * self._timeouts.t1, self._no_ack)

    def _repeat(self) -> None:
        waiting = self._unacked
        if waiting is not None:
            self._host.endpoint.respond(waiting.key, waiting.response)
            waiting.pause_s = min(2 * waiting.pause_s, self._timeouts.t2)
            self._later("repeat", waiting.pause_s, self._repeat)

    def _confirmed(self) -> _Unacked | None:
        waiting, self._unacked = self._unacked, None
        self._stop("repeat")
        self._stop("ack")
        self.dialog.invited = self.dialog.inviting = False
        if self.state is State.UNCONFIRMED:
            self.state = State.UP
        return waiting

    def _no_ack(self) -> None:
        log.info("SIP call without ACK", extra={"trunk": self.trunk_name})
        leaving = self.state is State.LEAVING
        self._confirmed()
        if leaving:
            self._say_goodbye()
        else:
            self.end("no ACK")

    def on_ack(self, ack: Request) -> None:
        """The ACK of a 2xx of ours."""
        waiting = self._unacked
        if waiting is None or waiting.response.cseq.number != ack.cseq.number:
            return
        self._confirmed()
        if self.state is State.LEAVING:
            self._say_goodbye()
            return
        if waiting.offers:
            try:
                answer = description_of(ack)
                if answer is None:
                    raise ProtocolError("ACK without the answer to our offer (RFC 3264 section 4)")
                self.apply(self.negotiation.accept(answer))
                self._answered_late()
            except SipError as error:
                log.info("SIP answer refused", extra={"trunk": self.trunk_name, "why": str(error)})
                self.negotiation.withdraw()
                self.end("no common codec", [("Reason", 'SIP;cause=488;text="Not Acceptable Here"')])

    def _answered_late(self) -> None:
        """An answer to our offer came with an ACK."""

    # --- session timer (RFC 4028) ----------------------------------------------------------------------------------

    def _session_answer(self, request: Request) -> tuple[SessionTimer | None, list[tuple[str, str]]] | Refusal:
        return session_answer(request, wanted_s=self._timeouts.session, min_s=self._timeouts.session_min)

    def set_timer(self, timer: SessionTimer | None) -> None:
        """The session was refreshed now, and this is what was agreed about the next time."""
        self._timer = timer
        self._stop("refresh")
        self._stop("expiry")
        if timer is not None:
            if timer.we_refresh:
                self._later("refresh", timer.refresh_at(0.0), self._refresh)
            self._later("expiry", timer.end_at(0.0), self._expired)

    def _expired(self) -> None:
        self.end("session expired", [("Reason", 'SIP;cause=408;text="Session expired"')])

    def _refresh(self) -> None:
        """Show that the call is alive: UPDATE where the peer knows it, else the same offer again."""
        timer = self._timer
        if timer is None or self.state is not State.UP or self.dialog.inviting or self.dialog.invited:
            self._later("refresh", 1.0, self._refresh)
            return
        headers = [
            self._contact,
            ALLOW,
            SUPPORTED,
            ("Session-Expires", f"{max(timer.interval_s, self._min_session_s)};refresher=uac"),
            ("Min-SE", str(self._min_session_s)),
        ]
        if "update" in self._peer_allows:
            self.request("UPDATE", headers, b"", self._update_done)
            return
        agreed = self.negotiation.agreed
        assert agreed
        self.dialog.inviting = True
        self.request("INVITE", [*headers, _SDP], self.negotiation.offer(wish=agreed.direction), self._reinvite_done)

    def _update_done(self, response: Response | None) -> None:
        if response is not None and response.status in (405, 501):
            self._peer_allows = frozenset()  # it said so, but does not know it after all
            self._refresh()
            return
        self._refresh_done(response)

    def _reinvite_done(self, response: Response | None) -> None:
        self.dialog.inviting = False
        if response is not None and response.status < 300:
            try:
                answer = description_of(response)
                if answer is not None:
                    self.apply(self.negotiation.accept(answer))
            except SipError as error:
                log.info("SIP answer refused", extra={"trunk": self.trunk_name, "why": str(error)})
        self.negotiation.withdraw()
        self._refresh_done(response)

    def _refresh_done(self, response: Response | None) -> None:
        if self.state is not State.UP:
            return
        if response is None or response.status in (408, 481):
            self.end("peer is gone", [("Reason", 'SIP;cause=408;text="Session refresh failed"')])
        elif response.status < 300:
            self.dialog.refresh(response)
            try:
                self.set_timer(session_agreed(response))
            except ProtocolError as error:
                log.info("SIP session timer refused", extra={"why": str(error)})
        elif response.status == 422 and self._raise_interval(response):
            self._refresh()
        else:
            # Their offer crossed ours, or they will not have it now: again, until the session has expired.
            self._later("refresh", self.dialog.glare_wait_s(secrets.randbelow(1000) / 999), self._refresh)

    def _raise_interval(self, response: Response) -> bool:
        """Ask for longer sessions from now on, as a 422 wants it. False: it does not say anything new."""
        try:
            wanted_s = min_session_s(response)
        except ProtocolError:
            return False
        before, self._min_session_s = self._min_session_s, max(self._min_session_s, wanted_s)
        return self._min_session_s > before


class IncomingCall(SipCall):
    """A call to us, from its INVITE on.

    Args:
        key: the INVITE's transaction.

    Raises:
        ProtocolError: an INVITE that cannot be answered with a call; says with which status.
        NotAcceptable: no common codec.
    """

    def __init__(
        self, host: Host, name: str, trunk: TrunkConfig, peer: Peer, ports: PortPair, key: Key, invite: Request
    ) -> None:
        super().__init__(host, name, trunk, peer, ports)
        self.key = key
        self.invitation = invitation_of(invite)
        self._invite = invite
        self._answer_body = b""
        self._refresh_headers: HeaderItems = ()
        self._first_timer: SessionTimer | None = None
        try:
            self.dialog = Dialog.as_server(invite, secrets.token_hex(8))
            self.dialog.invited = True
            self.caller = caller_of(invite, trunk.headers)
            self.route = route_of(invite.uri, trunk.numbers, trunk.route)
            self._peer_allows = invite.headers.tokens("Allow")
            contact = self.dialog.target
            self._translated = (
                not self.dialog.routes and contact.host.strip("[]") != peer.host and ("received" in invite.via.params)
            )
            offer = description_of(invite)
            self._late = offer is None
            if offer is not None:
                self._answer_body = self.negotiation.answer(offer)
        except BaseException:
            self.rtp.close()
            raise

    def start(self) -> Refusal | None:
        """Ring, and answer when the dialogue manager is there. A refusal: the INVITE wants this instead.

        Raises:
            Rejected: there is no room for a session.
        """
        timed = self._session_answer(self._invite)
        if isinstance(timed, Refusal):
            return timed
        self._first_timer, self._refresh_headers = timed
        if self._late:
            # The codec is not known before the ACK, and without it there can be no session.
            self._answer_body = self.negotiation.offer()
            self._answer()
            return None
        self._begin()
        assert self.session
        if self.trunk.early_media:
            self._respond(183, [_SDP], self._answer_body)
            assert self.negotiation.agreed
            self.apply(self.negotiation.agreed)
            self.session.greeted.add_done_callback(lambda _: self._answer())
            self._later("early", self._timeouts.early_media, self._answer)
        else:
            self._respond(180)
        if self.trunk.answer_at_once and not self.trunk.early_media:
            self._answer()
        else:
            self.session.ready.add_done_callback(lambda _: self._ready())
            self._later("ready", self._timeouts.ready, self._not_ready)
        return None

    def _begin(self) -> None:
        self.session = self._host.begin(self)
        self.session.on_held(True)

    def _respond(self, status: int, headers: HeaderItems = (), body: bytes = b"") -> Response:
        return self.respond(self.key, self._invite, status, [self._contact, ALLOW, SUPPORTED, *headers], body)

    def _ready(self) -> None:
        self._stop("ready")
        if not self.trunk.early_media:
            self._answer()

    def _not_ready(self) -> None:
        self.end("dialogue manager is not there")

    def _answer(self) -> None:
        if self.state is not State.EARLY:
            return
        self._stop("early")
        response = self._respond(200, [*self._refresh_headers, _SDP], self._answer_body)
        self.state = State.UNCONFIRMED
        self.set_timer(self._first_timer)
        self._await_ack(self.key, response, offers=self._late)
        if not self._late:
            assert self.negotiation.agreed
            self.apply(self.negotiation.agreed)

    def _answered_late(self) -> None:
        if self.session is None:
            try:
                self._begin()
            except Rejected as exc:
                log.info("call rejected", extra={"why": exc.code, "transport": "sip"})
                self.end("rejected")
                return
            assert self.negotiation.agreed
            self.apply(self.negotiation.agreed)

    def on_cancel(self) -> None:
        """The caller gives up. Too late if it is answered: then a BYE follows."""
        if self.state is State.EARLY:
            self.respond(self.key, self._invite, 487)
            self._peer_left("cancelled")

    def _on_bye(self, key: Key, request: Request) -> None:
        if self.state is State.EARLY:
            self.respond(self.key, self._invite, 487)
        super()._on_bye(key, request)

    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        status = 480 if reason in ("end", "hangup_by_api") else 503
        retry = [("Retry-After", "5")] if status == 503 else []
        self.respond(self.key, self._invite, status, [*retry, *headers])
