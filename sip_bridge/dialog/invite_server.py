"""An inbound call from its INVITE on (RFC 3261 sections 9.2, 13.3 and 15.1.2): it rings, begins a session, and is
answered when the session can speak. Pure, as ``invite.py`` is."""

from __future__ import annotations

from dataclasses import replace

from gateway.seams.end_cause import EndCause
from sip_bridge.config import SipTimeouts, TrunkConfig
from sip_bridge.dialog.dialog import Dialog, Refusal, SessionTimer
from sip_bridge.dialog.effects import Begin, Waits
from sip_bridge.dialog.invite import InviteDialog, InviteState, InviteTimer
from sip_bridge.dialog.reliable_provisional import TAG
from sip_bridge.dialog.transaction import Key
from sip_bridge.errors import SipProtocolError
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, LocalAddress, Peer
from sip_bridge.message.body import SDP, description_of
from sip_bridge.message.reason import cause_of_request
from sip_bridge.message.sip import Request, Response

EARLY_MEDIA_S = 30.0
"""Longest speech before the answer, seconds. Carriers end calls that ring for longer than one to three minutes."""


class InviteServer(InviteDialog):
    """An inbound call, from its INVITE on.

    Args:
        key: the INVITE's transaction.

    Raises:
        SipProtocolError: the INVITE cannot be answered with a call. The exception carries the status of the answer.
        NotAcceptable: there is no common codec.
    """

    def __init__(
        self,
        trunk: TrunkConfig,
        peer: Peer,
        local: LocalAddress,
        media_port: int,
        timeouts: SipTimeouts,
        *,
        key: Key,
        invite: Request,
    ) -> None:
        super().__init__(trunk, peer, local, media_port, timeouts)
        self.answers_at_once = False
        """True: the call continues a session that speaks already, so it does not ring."""
        self._key = key
        self._invite = invite
        self._begun = False
        self._refresh_headers: HeaderItems = ()
        self._first_timer: SessionTimer | None = None
        _check_accept(invite)
        self.dialog = Dialog.as_server(invite, local.tag())
        self.dialog.invited = True
        self.refresh.peer_allows = invite.headers.tokens("Allow")
        contact = self.dialog.target
        self.requests.translated = (
            not self.dialog.routes and contact.host.strip("[]") != peer.host and ("received" in invite.via.params)
        )
        offer = description_of(invite)
        self.late = offer is None
        """True: the INVITE has no offer, so we make it. The codec is known from the ACK on, and there is no session
        before."""
        self._answer_body = self.negotiation.answer(offer) if offer is not None else b""
        self._answer_waits = False
        """True: the answer waits for the PRACK of our description."""
        self._described = False
        """True: a reliable response has carried our description, so the answer carries none (RFC 3262 section 5)."""

    def start(self, *, now: float) -> Refusal | None:
        """Check the session timer, and answer an INVITE without an offer. A refusal: the answer to the INVITE."""
        self._now = now
        timed = self.refresh.answer(self._invite)
        if isinstance(timed, Refusal):
            return timed
        self._first_timer, self._refresh_headers = timed
        if self.late:
            self._answer_body = self.negotiation.offer()
            self._answer()
        return None

    def begun(self, *, now: float) -> None:
        """Ring, since the session exists. The answer follows when it can speak."""
        self._now = now
        self._begun = True
        self._session_began()
        if self.answers_at_once and not self.late:
            self._answer()
            return
        self.effects.append(Waits())
        if self.late:
            self._apply(self.negotiation.agreed)
            return
        if self._trunk.early_media:
            self._provisional(183, [SDP], self._answer_body)
            self._apply(self.negotiation.agreed)
            self._wait(InviteTimer.GREETED, EARLY_MEDIA_S)
        else:
            self._provisional(180)
        self._wait(InviteTimer.READY, self._timeouts.ready_s)

    def not_begun(self, *, now: float) -> None:
        """Handle the refusal of a session for lack of room."""
        self.end("rejected", now=now)

    def on_ready(self, *, now: float) -> None:
        """Answer the call: the session can speak, or the trunk does not require that."""
        self._now = now
        self._stop(InviteTimer.READY)
        if not self._trunk.early_media:
            self._answer()

    def on_greeted(self, *, now: float) -> None:
        """Answer the call, since everything to be spoken before the answer was spoken."""
        self._now = now
        if self._trunk.early_media:
            self._answer()

    def _expired(self, timer: InviteTimer) -> None:
        match timer:
            case InviteTimer.READY:
                self._end("dialogue manager is not there")
            case InviteTimer.GREETED:
                self._answer()

    def _provisional(self, status: int, headers: HeaderItems = (), body: bytes = b"") -> None:
        """Send a provisional response, reliably if the caller requires it, or supports it and early media would be lost
        with the response (RFC 3262)."""
        asked = self._invite.headers
        if TAG not in asked.tokens("Require") and not (body and TAG in asked.tokens("Supported")):
            self._answer_invite(status, headers, body)
            return
        response = self._answer_invite(status, [*self.reliable.headers(), *headers], body)
        self.reliable.begin(self._key, response, now=self._now)
        self._described = bool(body)

    def _on_prack(self, key: Key, request: Request) -> Refusal | None:
        if not self.reliable.take(request):
            return Refusal(481)
        offers = description_of(request) is not None
        refusal = Refusal(488) if offers and not self._described else super()._on_prack(key, request)
        self.dialog.invited = self.dialog.invited and not self._described  # an UPDATE may now change the session
        if self._answer_waits:
            self._answer()
        return refusal

    def _answer_invite(self, status: int, headers: HeaderItems = (), body: bytes = b"") -> Response:
        return self._respond(self._key, self._invite, status, [self._contact, ALLOW, SUPPORTED, *headers], body)

    def _answer(self) -> None:
        if self.state is not InviteState.EARLY:
            return
        self._stop(InviteTimer.GREETED)
        self._answer_waits = self.reliable.describes
        if self._answer_waits:
            return
        self.reliable.stop()
        described = [] if self._described else [SDP]
        body = b"" if self._described else self._answer_body
        response = self._answer_invite(200, [*self._refresh_headers, *described], body)
        self.state = InviteState.UNCONFIRMED
        self.refresh.agree(self._first_timer, now=self._now)
        self._awaited_ack.begin(self.dialog, self._key, response, offers=self.late, now=self._now)
        if not self.late:
            self._apply(self.negotiation.agreed)

    def _answered_late(self) -> None:
        if not self._begun:
            self.effects.append(Begin())

    def on_cancel(self, cancel: Request | None = None, *, now: float) -> None:
        """Handle a CANCEL. If the call is answered already, it is too late, and a BYE follows."""
        self._now = now
        if self.state is InviteState.EARLY:
            self._respond(self._key, self._invite, 487)
            cause = EndCause(by="caller") if cancel is None else cause_of_request(cancel)
            self._peer_left("cancelled", replace(cause, sip_status=cause.sip_status or 487))

    def _on_bye(self, key: Key, request: Request) -> None:
        if self.state is InviteState.EARLY:
            self._respond(self._key, self._invite, 487)
        super()._on_bye(key, request)

    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        status = 480 if reason in ("end", "hangup_by_api") else 503
        retry = [("Retry-After", "5")] if status == 503 else []
        self._respond(self._key, self._invite, status, [*retry, *headers])


def _check_accept(invite: Request) -> None:
    """Check that our session description is acceptable in the answer (RFC 3261 section 20.1).

    Raises:
        SipProtocolError: 406.
    """
    kinds = [value.partition(";")[0].strip().lower() for value in invite.headers.all("Accept")]
    if "Accept" in invite.headers and not {"application/sdp", "application/*", "*/*"}.intersection(kinds):
        raise SipProtocolError(f"caller accepts {', '.join(kinds)[:60]!r}, expected application/sdp", status=406)
