"""The protocol of one call: INVITE, dialog, offers and answers, requests in the dialog, and the end (RFC 3261 sections
12 to 15, RFC 3264, RFC 4028). Pure: messages and the time go in, effects come out.

``InviteDialog`` is common to both directions. ``InviteServer`` (``invite_server.py``) is an inbound call,
``InviteClient`` (``invite_client.py``) an outbound one. The owner of a dialog

* calls one method for each event, with ``now`` in seconds of a monotonic clock,
* carries out ``effects`` in order, including those that are added meanwhile,
* and calls ``tick`` at ``deadline``, which is the dialog's only timer.

The parts: repeating our 2xx until its ACK (``awaited_ack.py``), changing and refreshing a session
(``session_modification.py``), the times of refreshes (``session_refresh.py``), our own requests (``own_requests.py``),
and transfers (``transfer.py``).

A dialog acts only through its effects. It knows no sockets, session or media.
"""

from __future__ import annotations

import enum
import secrets
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from typing import TypeAlias

from gateway.seams.end_cause import UNKNOWN, EndCause
from sip_bridge.config import SipTimeouts, TrunkConfig
from sip_bridge.dialog.awaited_ack import AwaitedAck
from sip_bridge.dialog.dialog import Dialog, Refusal
from sip_bridge.dialog.effects import (
    Digit,
    Effect,
    Left,
    MediaAgreed,
    ReferOutcome,
    Respond,
    Silence,
    Transferred,
    Trouble,
)
from sip_bridge.dialog.own_requests import OwnRequests
from sip_bridge.dialog.reliable_provisional import ReliableProvisional
from sip_bridge.dialog.session_modification import SessionModification
from sip_bridge.dialog.session_refresh import Due, SessionRefresh
from sip_bridge.dialog.transaction import Key
from sip_bridge.dialog.transfer import SipTransfers
from sip_bridge.errors import NotAcceptable, SipError, SipProtocolError
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, LocalAddress, Peer
from sip_bridge.message.body import DIGIT_TYPES, description_of, digit_of
from sip_bridge.message.digest import ClientAuth
from sip_bridge.message.reason import cause_of_request, read_reasons
from sip_bridge.message.referral import Referral
from sip_bridge.message.sdp import Agreed, Negotiation
from sip_bridge.message.sip import Request, Response, response_to

USER = "talkspurt"
"""The user part of our contacts. It is the same for all calls, since requests are matched by dialog."""

_MIN_SE_S = 90
"""Shortest session interval that a peer may ask for, seconds (RFC 4028 section 4); a shorter one is answered with
422."""

Invitation: TypeAlias = tuple[str, str, int]
"""Call-ID, From tag and CSeq of an INVITE outside dialogs. Copies of an INVITE that come by two paths share them (RFC
3261 section 8.2.2.2)."""


class InviteState(enum.Enum):
    """The state of a call."""

    EARLY = "early"  # no final response yet
    UNCONFIRMED = "unconfirmed"  # our 2xx waits for its ACK
    UP = "up"
    LEAVING = "leaving"  # the session is over, but BYE must wait for the ACK
    OVER = "over"


class InviteTimer(enum.Enum):
    """The timers of a dialog, named by the awaited event."""

    READY = "the session can speak"
    GREETED = "the speech before the answer ends"
    ANSWER = "the callee answers"


def invitation_of(invite: Request) -> Invitation:
    """Return the values that identify an INVITE."""
    return invite.call_id, invite.from_.tag, invite.cseq.number


class InviteDialog(ABC):
    """A call's dialog, from its first message to its last.

    Args:
        trunk: the trunk of the call.
        peer: the address to which the INVITE was sent, or from which it came.
        local: the address at which peers reach us.
        media_port: our RTP port.
        timeouts: the timers of RFC 3261 and our own, in seconds.
    """

    dialog: Dialog

    def __init__(
        self, trunk: TrunkConfig, peer: Peer, local: LocalAddress, media_port: int, timeouts: SipTimeouts
    ) -> None:
        self.state = InviteState.EARLY
        self.negotiation = Negotiation(
            host=local.host, port=media_port, peer_host=peer.host, codecs=trunk.codecs, srtp=trunk.srtp
        )
        """Our side of offers and answers."""
        self.effects: deque[Effect] = deque()
        """The effects to carry out, from the left."""
        self.refresh = SessionRefresh(wanted_s=timeouts.session_s, shortest_s=_MIN_SE_S)
        self._trunk = trunk
        self._peer = peer
        self._local = local
        self._timeouts = timeouts
        self._now = 0.0
        self._due: dict[InviteTimer, float] = {}
        self._awaited_ack = AwaitedAck(self.effects, t1_s=timeouts.t1_s, t2_s=timeouts.t2_s)
        self.reliable = ReliableProvisional(self.effects, t1_s=timeouts.t1_s)
        self._goodbye: HeaderItems = ()
        self._ending: tuple[str, HeaderItems] | None = None
        """The arguments of a ``hang_up`` that waits for the end of a transfer."""
        password = trunk.password.get_secret_value() if trunk.password else ""
        self._auth = ClientAuth(trunk.username, password) if trunk.username else None
        self.requests = OwnRequests(peer, local, self._auth, self.effects)
        self._contact = ("Contact", f"<{local.contact(peer.transport, USER)}>")
        self.transfers = SipTransfers(
            self.requests,
            self.effects,
            self._contact,
            follows=trunk.transfers == "follow",
            wait_s=timeouts.transfer_s,
            on_over=self._transfer_over,
        )
        self._modification = SessionModification(
            self.negotiation,
            self.refresh,
            self._awaited_ack,
            self.requests,
            self.effects,
            self._contact,
            on_gone=lambda: self._end("peer is gone", [("Reason", 'SIP;cause=408;text="Session refresh failed"')]),
        )

    # --- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return the time of the next ``tick``. None: no timer runs."""
        parts = (part.deadline() for part in (self._awaited_ack, self.reliable, self.refresh, self.transfers))
        return min((at for at in (*self._due.values(), *parts) if at is not None), default=None)

    def tick(self, *, now: float) -> None:
        """Handle all deadlines that have passed."""
        self._now = now
        for timer in sorted(self._due, key=self._due.__getitem__):
            if self._due.get(timer, now + 1) <= now:
                del self._due[timer]
                self._expired(timer)
        if self._awaited_ack.tick(now=now):
            self.effects.append(Trouble("SIP call without ACK"))
            self._confirmed()
            self._end("no ACK")
        if self.reliable.tick(now=now):
            self.effects.append(Trouble("SIP call without PRACK"))
            self._end("no PRACK")
        self.transfers.tick(now=now)
        match self.refresh.tick(now=now):
            case Due.REFRESH:
                self._modification.send_refresh(self.dialog, now=now)
            case Due.END:
                self._end("session expired", [("Reason", 'SIP;cause=408;text="Session expired"')])

    def _wait(self, timer: InviteTimer, seconds: float) -> None:
        self._due[timer] = self._now + max(0.0, seconds)

    def _stop(self, *timers: InviteTimer) -> None:
        for timer in timers:
            self._due.pop(timer, None)

    @abstractmethod
    def _expired(self, timer: InviteTimer) -> None:
        """Handle a timer that has expired."""

    # --- the end ---------------------------------------------------------------------------------------------------

    def hang_up(self, reason: str, headers: HeaderItems = (), *, now: float) -> None:
        """End the call because the session has ended it. A transfer under way is finished first."""
        if self.transfers.under_way:
            self._ending = (reason, headers)  # a BYE now could take the peer's new call with it (RFC 5589 section 6.1)
        else:
            self.end(reason, headers, now=now)

    def end(self, reason: str, headers: HeaderItems = (), *, now: float) -> None:
        """End the call from our side with BYE, or with CANCEL or a final response before BYE is possible.
        Idempotent."""
        self._now = now
        self._end(reason, headers)

    def abandon(self, *, now: float) -> None:
        """Drop a call whose INVITE the owner answers itself."""
        self._now = now
        self._peer_left("refused")

    def _end(self, reason: str, headers: HeaderItems = ()) -> None:
        if self.state in (InviteState.LEAVING, InviteState.OVER):
            return
        said = read_reasons(value for name, value in headers if name == "Reason")
        self.effects.append(Silence(reason, EndCause(by="gateway", sip_status=said.sip_status)))
        self._goodbye = headers
        if self.state is InviteState.EARLY:
            self._give_up(reason, headers)
            self._release()
        elif self.state is InviteState.UNCONFIRMED:
            self.state = InviteState.LEAVING  # section 15: no BYE before the ACK, or before the wait for it ends
        else:
            self._say_goodbye()

    @abstractmethod
    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        """End a call that has no final response yet."""

    def _say_goodbye(self) -> None:
        self.requests.ask(self.dialog, "BYE", self._goodbye, b"")
        self._release()

    def _peer_left(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        """Handle the end of the call by the peer."""
        if self.state is InviteState.OVER:
            return
        # Many peers send BYE without a NOTIFY as soon as their new call is up.
        if self.transfers.under_way:
            reason, cause = "transferred", replace(cause, by=None)
        self.effects.append(Silence(reason, cause))
        self._release()

    def _release(self) -> None:
        self.state = InviteState.OVER
        self._awaited_ack.stop()
        self.reliable.stop()
        self._due.clear()
        self._modification.stop()
        self.transfers.stop()
        self.effects.append(Left())

    # --- responses to our requests ---------------------------------------------------------------------------------

    def on_response(self, key: Key | None, response: Response, *, now: float) -> None:
        """Handle a response to our request, including repetitions."""
        self._now = now
        self.requests.on_response(key, response, now=now)

    def on_failed(self, key: Key, status: int, *, now: float) -> None:
        """Handle a request that got no response (408) or could not be sent (503; RFC 3261 section 8.1.3.1)."""
        self._now = now
        self.requests.on_failed(key, now=now)

    # --- the peer's requests in the dialog -------------------------------------------------------------------------

    def on_request(self, key: Key, request: Request, *, now: float) -> None:
        """Handle a request in the dialog."""
        self._now = now
        try:
            offers = request.method == "UPDATE" and description_of(request) is not None
            refusal = self.dialog.check(request, offers=offers, retry_after_s=secrets.randbelow(11))
            if refusal is None:
                refusal = self._deal_with(key, request)
        except (SipProtocolError, NotAcceptable) as error:
            self.effects.append(Trouble("SIP request refused", f"{request.method}: {error}"))
            refusal = Refusal(error.status)
        if refusal is not None:
            self._respond(key, request, refusal.status, refusal.headers)

    def _respond(
        self, key: Key, request: Request, status: int, headers: HeaderItems = (), body: bytes = b""
    ) -> Response:
        response = response_to(request, status, to_tag=self.dialog.local.tag, headers=headers, body=body)
        self.effects.append(Respond(key, response))
        return response

    def _deal_with(self, key: Key, request: Request) -> Refusal | None:
        """Answer a request, or return its refusal."""
        match request.method:
            case "BYE":
                self._on_bye(key, request)
            case "INVITE" | "UPDATE":
                return self._modification.on_offer(self.dialog, key, request, now=self._now)
            case "PRACK":
                return self._on_prack(key, request)
            case "INFO":
                try:
                    digit = digit_of(request)
                except SipProtocolError as error:
                    return Refusal(error.status, (("Accept", ", ".join(DIGIT_TYPES)),) if error.status == 415 else ())
                self._respond(key, request, 200)
                if digit is not None:
                    self.effects.append(Digit(digit))
            case "OPTIONS":
                self._respond(key, request, 200, [ALLOW, SUPPORTED])
            case "NOTIFY":
                return self.transfers.on_notify(key, request)
            case "REFER":
                early = self.state is InviteState.EARLY
                refusal = Refusal(603) if early else self.transfers.on_refer(self.dialog, key, request)
                self.effects.append(ReferOutcome("received", "refused" if refusal else "accepted"))
                return refusal
            case _:
                return Refusal(405, (ALLOW,))
        return None

    def _on_prack(self, key: Key, request: Request) -> Refusal | None:
        """Answer a PRACK, and an offer in it (RFC 3262 section 5)."""
        if description_of(request) is not None:
            return self._modification.on_offer(self.dialog, key, request, now=self._now)
        self._respond(key, request, 200)
        return None

    def _on_bye(self, key: Key, request: Request) -> None:
        self._respond(key, request, 200)
        self._peer_left("hangup", cause_of_request(request))

    # --- transfers -------------------------------------------------------------------------------------------------

    def may_transfer(self) -> bool:
        """Return True if the call is answered and no transfer is under way."""
        return self.state in (InviteState.UNCONFIRMED, InviteState.UP) and not self.transfers.under_way

    @property
    def refuses_transfers(self) -> bool:
        """True if the peer lists its methods (Allow), and REFER is not one of them."""
        allows = self.refresh.peer_allows
        return bool(allows) and "refer" not in allows

    def tell_referred(self, referral: Referral, status: int, reason: str, *, now: float) -> None:
        """Tell the peer the outcome of a call that it requested by REFER."""
        if self.state in (InviteState.UNCONFIRMED, InviteState.UP):
            self.transfers.tell_referred(self.dialog, referral, status, reason)

    def _transfer_over(self, problem: str, status: int) -> None:
        if self._ending is not None:
            self._end(*self._ending)  # the session has already ended the call
        else:
            self.effects.append(Transferred(problem, status))

    # --- offers and answers ----------------------------------------------------------------------------------------

    @abstractmethod
    def begun(self, *, now: float) -> None:
        """Handle the start of the session."""

    @abstractmethod
    def not_begun(self, *, now: float) -> None:
        """Handle the refusal of a session for lack of room."""

    def _session_began(self) -> None:
        """Prefer the codec of the session from now on."""
        if self.negotiation.preferred is None and self.negotiation.agreed is not None:
            self.negotiation.preferred = self.negotiation.agreed.codec

    def _apply(self, agreed: Agreed | None) -> None:
        assert agreed
        self.effects.append(MediaAgreed(agreed))

    # --- the ACK of our 2xx ----------------------------------------------------------------------------------------

    def on_ack(self, ack: Request, *, now: float) -> None:
        """Handle the ACK of our 2xx."""
        self._now = now
        waiting = self._awaited_ack.take(ack)
        if waiting is None:
            return
        self._confirmed()
        if self.state is InviteState.OVER:
            return
        self.transfers.release()
        if waiting.offers:
            try:
                answer = description_of(ack)
                if answer is None:
                    raise SipProtocolError("ACK without the answer to our offer (RFC 3264 section 4)")
                self._apply(self.negotiation.accept(answer))
                self._answered_late()
            except SipError as error:
                self.effects.append(Trouble("SIP answer refused", str(error)))
                self.negotiation.withdraw()
                if self.negotiation.agreed is not None:
                    return  # a re-INVITE that failed leaves the session as it was (RFC 3261 section 14.1)
                self._end("no common codec", [("Reason", 'SIP;cause=488;text="Not Acceptable Here"')])

    @abstractmethod
    def _answered_late(self) -> None:
        """Continue after an ACK that carried the answer to our offer."""

    def _confirmed(self) -> None:
        if self.state is InviteState.UNCONFIRMED:
            self.state = InviteState.UP
        elif self.state is InviteState.LEAVING:
            self._say_goodbye()
