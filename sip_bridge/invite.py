"""The protocol of one call: an INVITE, its dialog, offers and answers, the requests in the dialog, and the end (RFC
3261 sections 12 to 15, RFC 3264, RFC 4028). Pure: messages and the time come in, effects go out.

``InviteDialog`` is what both directions share; ``InviteServer`` (``invite_server.py``) is a call that somebody makes to
us and ``InviteClient`` (``invite_client.py``) one of ours. Whoever owns a dialog

* calls one method for each event, with ``now`` in seconds of a monotonic clock,
* carries out ``effects`` in order, including those that are added meanwhile,
* and calls ``tick`` at ``deadline``, which is the dialog's one timer.

Three parts have a question each: when the session is to be refreshed (``session_refresh.py``), what became of our own
requests (``own_requests.py``), and who is to be called in whose place (``transfer.py``).

The effects are all that a dialog does. It knows neither sockets nor the session nor the media.
"""

from __future__ import annotations

import enum
import re
import secrets
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from sip_bridge.config import SipTimeouts, TrunkConfig
from sip_bridge.dialog import Dialog, Refusal
from sip_bridge.effects import (
    Digit,
    Effect,
    Left,
    MediaAgreed,
    Respond,
    Silence,
    Transferred,
    Trouble,
)
from sip_bridge.errors import NotAcceptable, ProtocolError, SipError
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, LocalAddress, Peer
from sip_bridge.message.digest import ClientAuth
from sip_bridge.message.sdp import Agreed, Negotiation, SessionDescription
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Message, Request, Response, Uri, response_to
from sip_bridge.own_requests import OwnRequests
from sip_bridge.session_refresh import Due, Next, SessionRefresh
from sip_bridge.transaction import Key
from sip_bridge.transfer import Transfers

USER = "talkspurt"
"""The user part of our contacts. It may be the same for all, since a request in a dialog is matched by the dialog."""

SDP = ("Content-Type", "application/sdp")

Invitation: TypeAlias = tuple[str, str, int]
"""Call-ID, From tag and CSeq of an INVITE outside dialogs. An INVITE that comes by two ways has the same values on both
(RFC 3261 section 8.2.2.2)."""


class State(enum.Enum):
    """The state of a call."""

    EARLY = "early"  # there is no final response yet
    UNCONFIRMED = "unconfirmed"  # our 2xx waits for its ACK
    UP = "up"
    LEAVING = "leaving"  # the session is over, but a BYE may not be sent yet
    OVER = "over"


class Timer(enum.Enum):
    """What a dialog waits for."""

    REPEAT = "repeat our 2xx"
    ACK = "the ACK of our 2xx"
    READY = "the session can speak"
    GREETED = "the speech before the answer ends"
    ANSWER = "the callee answers"


@dataclass(slots=True)
class _Unacked:
    """A 2xx of ours that waits for its ACK (RFC 3261 section 13.3.1.4)."""

    key: Key
    response: Response
    pause_s: float
    offers: bool
    """True: the 2xx carries our offer, so the answer is in the ACK."""


def invitation_of(invite: Request) -> Invitation:
    """Return what tells an INVITE from all others."""
    return invite.call_id, invite.from_.tag, invite.cseq.number


def description_of(message: Message) -> SessionDescription | None:
    """Return the session description that a message carries, alone or as one part of several. None: it carries none.

    Raises:
        ProtocolError: 415 for another kind of content; 400 for a description that cannot be read.
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


class InviteDialog(ABC):
    """A call's dialog, from its first message to its last.

    Args:
        trunk: the trunk of the call.
        peer: whom we exchange messages with: where the INVITE came from or went to.
        local: where peers reach us.
        media_port: our RTP port.
        timeouts: the times of RFC 3261 and our own, seconds.
    """

    dialog: Dialog

    def __init__(
        self, trunk: TrunkConfig, peer: Peer, local: LocalAddress, media_port: int, timeouts: SipTimeouts
    ) -> None:
        self.state = State.EARLY
        self.negotiation = Negotiation(
            host=local.host, port=media_port, peer_host=peer.host, codecs=trunk.codecs, srtp=trunk.srtp
        )
        """Our side of offers and answers."""
        self.effects: deque[Effect] = deque()
        """The effects to carry out, from the left."""
        self.refresh = SessionRefresh(wanted_s=timeouts.session, shortest_s=timeouts.session_min)
        self._trunk = trunk
        self._peer = peer
        self._local = local
        self._timeouts = timeouts
        self._now = 0.0
        self._due: dict[Timer, float] = {}
        self._unacked: _Unacked | None = None
        self._goodbye: HeaderItems = ()
        self._ending: tuple[str, HeaderItems] | None = None
        """The arguments of a ``hang_up`` that waits for the end of a transfer."""
        password = trunk.password.get_secret_value() if trunk.password else ""
        self._auth = ClientAuth(trunk.username, password) if trunk.username else None
        self.requests = OwnRequests(peer, local, self._auth, self.effects)
        self._contact = ("Contact", f"<{local.contact(peer.transport, USER)}>")
        self.transfers = Transfers(
            self.requests,
            self.effects,
            self._contact,
            follows=trunk.transfers == "follow",
            wait_s=timeouts.transfer,
            on_over=self._transfer_over,
        )

    # --- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when to call ``tick``. None: nothing is waited for."""
        parts = (self.refresh.deadline(), self.transfers.deadline())
        return min((at for at in (*self._due.values(), *parts) if at is not None), default=None)

    def tick(self, *, now: float) -> None:
        """Deal with everything that was waited for long enough."""
        self._now = now
        for timer in sorted(self._due, key=self._due.__getitem__):
            if self._due.get(timer, now + 1) <= now:
                del self._due[timer]
                self._expired(timer)
        self.transfers.tick(now=now)
        match self.refresh.tick(now=now):
            case Due.REFRESH:
                self._send_refresh()
            case Due.END:
                self._end("session expired", [("Reason", 'SIP;cause=408;text="Session expired"')])

    def _wait(self, timer: Timer, seconds: float) -> None:
        self._due[timer] = self._now + max(0.0, seconds)

    def _stop(self, *timers: Timer) -> None:
        for timer in timers:
            self._due.pop(timer, None)

    def _expired(self, timer: Timer) -> None:
        match timer:
            case Timer.REPEAT:
                self._repeat()
            case Timer.ACK:
                self._no_ack()

    # --- the end ---------------------------------------------------------------------------------------------------

    def hang_up(self, reason: str, headers: HeaderItems = (), *, now: float) -> None:
        """End the call, because the session has left. A transfer that is under way is awaited first."""
        if self.transfers.under_way:
            self._ending = (reason, headers)  # a BYE now could take the peer's new call with it (RFC 5589 section 6.1)
        else:
            self.end(reason, headers, now=now)

    def end(self, reason: str, headers: HeaderItems = (), *, now: float) -> None:
        """End the call from our side: with BYE, or with what ends a call before BYE is possible. Idempotent."""
        self._now = now
        self._end(reason, headers)

    def abandon(self, *, now: float) -> None:
        """Let go of a call whose INVITE somebody else answers."""
        self._now = now
        self._peer_left("refused")

    def _end(self, reason: str, headers: HeaderItems = ()) -> None:
        if self.state in (State.LEAVING, State.OVER):
            return
        self.effects.append(Silence(reason))
        self._goodbye = headers
        if self.state is State.EARLY:
            self._give_up(reason, headers)
            self._release()
        elif self.state is State.UNCONFIRMED:
            self.state = State.LEAVING  # section 15: no BYE before the ACK, or before we give up waiting for the ACK
        else:
            self._say_goodbye()

    @abstractmethod
    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        """End a call that has no final response yet."""

    def _say_goodbye(self) -> None:
        self.requests.ask(self.dialog, "BYE", self._goodbye, b"")
        self._release()

    def _peer_left(self, reason: str) -> None:
        """Note that the peer has ended the call."""
        if self.state is State.OVER:
            return
        # Many peers send BYE without a NOTIFY as soon as their new call stands.
        self.effects.append(Silence("transferred" if self.transfers.under_way else reason))
        self._release()

    def _release(self) -> None:
        self.state = State.OVER
        self._unacked = None
        self._due.clear()
        self.refresh.stop()
        self.transfers.stop()
        self.effects.append(Left())

    # --- responses to requests of ours -----------------------------------------------------------------------------

    def on_response(self, key: Key | None, response: Response, *, now: float) -> None:
        """Take a response to a request of ours, the first or a repeated one."""
        self._now = now
        self.requests.on_response(key, response)

    def on_failed(self, key: Key, status: int, *, now: float) -> None:
        """Note that no response came (408), or that the request could not be sent (503; RFC 3261 section 8.1.3.1)."""
        self._now = now
        self.requests.on_failed(key)

    # --- the peer's requests in the dialog -------------------------------------------------------------------------

    def on_request(self, key: Key, request: Request, *, now: float) -> None:
        """Take a request in the dialog."""
        self._now = now
        try:
            offers = request.method == "UPDATE" and description_of(request) is not None
            refusal = self.dialog.check(request, offers=offers, retry_after_s=secrets.randbelow(11))
            if refusal is None:
                refusal = self._deal_with(key, request)
        except (ProtocolError, NotAcceptable) as error:
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
        """Answer a request, or return how it is to be refused."""
        match request.method:
            case "BYE":
                self._on_bye(key, request)
            case "INVITE" | "UPDATE":
                return self._on_offer(key, request)
            case "INFO":
                return self._on_info(key, request)
            case "OPTIONS":
                self._respond(key, request, 200, [ALLOW, SUPPORTED])
            case "NOTIFY":
                return self.transfers.on_notify(key, request)
            case "REFER":
                return self.transfers.on_refer(key, request)
            case _:
                return Refusal(405, (ALLOW,))
        return None

    def _on_bye(self, key: Key, request: Request) -> None:
        self._respond(key, request, 200)
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
            found = None  # with an empty INFO, the peer asks whether we are alive
        if text and not found:
            return Refusal(400)
        self._respond(key, request, 200)
        if found:
            self.effects.append(Digit(found.group(1).upper()))
        return None

    # --- transfers -------------------------------------------------------------------------------------------------

    def may_transfer(self) -> bool:
        """Return whether there is somebody to ask now."""
        return self.state is State.UP and not self.transfers.under_way

    def transfer(self, target: Uri, replaced: Dialog | None, handoff_data: str | None, *, now: float) -> None:
        """Ask the peer to call somebody else in our place, as ``Transfers.start`` does. ``Transferred`` tells the
        outcome."""
        self.transfers.start(self.dialog, target, replaced, handoff_data, now=now)

    def tell_referred(self, status: int, reason: str, *, now: float) -> None:
        """Tell the peer what became of the call that it asked for."""
        if self.state is State.UP:
            self.transfers.tell_referred(self.dialog, status, reason)

    def _transfer_over(self, problem: str) -> None:
        if self._ending is not None:
            self._end(*self._ending)  # the session has left already
        else:
            self.effects.append(Transferred(problem))

    # --- offers and answers ----------------------------------------------------------------------------------------

    @abstractmethod
    def begun(self, *, now: float) -> None:
        """Note that the session exists."""

    @abstractmethod
    def not_begun(self, *, now: float) -> None:
        """Note that there is no room for a session."""

    def _apply(self, agreed: Agreed | None) -> None:
        assert agreed
        self.effects.append(MediaAgreed(agreed))

    def _on_offer(self, key: Key, request: Request) -> Refusal | None:
        """Answer a re-INVITE or UPDATE: a new description, hold, resume, a new Contact, or only a refresh of the
        session."""
        timed = self.refresh.answer(request)
        if isinstance(timed, Refusal):
            return timed
        timer, headers = timed
        offer = description_of(request)
        body = b""
        if offer is not None:
            body = self.negotiation.answer(offer)
            self._apply(self.negotiation.agreed)
        elif request.method == "INVITE":
            body = self.negotiation.offer()
        self.dialog.refresh(request)
        self.refresh.peer_allows = request.headers.tokens("Allow") or self.refresh.peer_allows
        self.refresh.agree(timer, now=self._now)
        described = [SDP] if body else []
        response = self._respond(key, request, 200, [self._contact, ALLOW, SUPPORTED, *headers, *described], body)
        if request.method == "INVITE":
            self._await_ack(key, response, offers=offer is None)
        return None

    # --- our 2xx and its ACK ---------------------------------------------------------------------------------------

    def _await_ack(self, key: Key, response: Response, *, offers: bool) -> None:
        """Repeat a 2xx until its ACK comes. Without an ACK, the call is ended (RFC 3261 section 13.3.1.4)."""
        self._unacked = _Unacked(key, response, self._timeouts.t1, offers)
        self.dialog.invited = True
        self.dialog.inviting = offers
        self._wait(Timer.REPEAT, self._timeouts.t1)
        self._wait(Timer.ACK, 64 * self._timeouts.t1)

    def _repeat(self) -> None:
        waiting = self._unacked
        if waiting is not None:
            self.effects.append(Respond(waiting.key, waiting.response))
            waiting.pause_s = min(2 * waiting.pause_s, self._timeouts.t2)
            self._wait(Timer.REPEAT, waiting.pause_s)

    def _confirmed(self) -> None:
        self._unacked = None
        self._stop(Timer.REPEAT, Timer.ACK)
        self.dialog.invited = self.dialog.inviting = False
        if self.state is State.UNCONFIRMED:
            self.state = State.UP

    def _no_ack(self) -> None:
        self.effects.append(Trouble("SIP call without ACK"))
        self._confirmed()
        if self.state is State.LEAVING:
            self._say_goodbye()
        else:
            self._end("no ACK")

    def on_ack(self, ack: Request, *, now: float) -> None:
        """Take the ACK of a 2xx of ours."""
        self._now = now
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
                self._apply(self.negotiation.accept(answer))
                self._answered_late()
            except SipError as error:
                self.effects.append(Trouble("SIP answer refused", str(error)))
                self.negotiation.withdraw()
                self._end("no common codec", [("Reason", 'SIP;cause=488;text="Not Acceptable Here"')])

    @abstractmethod
    def _answered_late(self) -> None:
        """Go on after an ACK that carried the answer to our offer."""

    # --- the refresh of the session ----------------------------------------------------------------------------------

    def _send_refresh(self) -> None:
        """Show that the call is alive: by UPDATE if the peer knows it, else by the same offer again."""
        if self.state is not State.UP or self.dialog.inviting or self.dialog.invited:
            self.refresh.later(1.0, now=self._now)
            return
        headers = [self._contact, ALLOW, SUPPORTED, *self.refresh.headers()]
        if self.refresh.by_update:
            self.requests.ask(self.dialog, "UPDATE", headers, b"", self._refresh_done)
            return
        agreed = self.negotiation.agreed
        assert agreed
        self.dialog.inviting = True
        self.requests.ask(
            self.dialog, "INVITE", [*headers, SDP], self.negotiation.offer(wish=agreed.direction), self._reinvite_done
        )

    def _reinvite_done(self, response: Response | None) -> None:
        self.dialog.inviting = False
        if response is not None and response.status < 300:
            try:
                answer = description_of(response)
                if answer is not None:
                    self._apply(self.negotiation.accept(answer))
            except SipError as error:
                self.effects.append(Trouble("SIP answer refused", str(error)))
        self.negotiation.withdraw()
        self._refresh_done(response)

    def _refresh_done(self, response: Response | None) -> None:
        if self.state is not State.UP:
            return
        if response is not None and response.status < 300:
            self.dialog.refresh(response)
        try:
            # After a crossing offer of the peer (491), as after any other refusal, we wait as section 14.1 says.
            wait_s = self.dialog.glare_wait_s(secrets.randbelow(1000) / 999)
            follows = self.refresh.on_response(response, now=self._now, wait_s=wait_s)
        except ProtocolError as error:
            self.effects.append(Trouble("SIP session timer refused", str(error)))
            return
        if follows is Next.END:
            self._end("peer is gone", [("Reason", 'SIP;cause=408;text="Session refresh failed"')])
        elif follows is Next.AGAIN:
            self._send_refresh()
