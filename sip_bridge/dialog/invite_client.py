"""An outbound call from its INVITE on (RFC 3261 sections 9, 13.2 and 8.1.3): early media, answers of one or several
forks, challenges, refusals, and our CANCEL, which may cross the answer. Pure, as ``invite.py`` is."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

from gateway.seams.end_cause import UNKNOWN, EndCause
from sip_bridge.config import SipTimeouts, TrunkConfig
from sip_bridge.dialog.dialog import Dialog, DialogId, Refusal, SessionTimer, session_agreed
from sip_bridge.dialog.effects import (
    Acknowledge,
    Begin,
    Invite,
    Joined,
    Outcome,
    Post,
    Progress,
    Respond,
    Settled,
    Silence,
    Trouble,
    Waits,
)
from sip_bridge.dialog.invite import InviteDialog, InviteState, InviteTimer
from sip_bridge.dialog.reliable_provisional import TAG, Acknowledged
from sip_bridge.dialog.transaction import Key, cancel_of, key_of
from sip_bridge.errors import NotAcceptable, SipError, SipProtocolError
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, LocalAddress, Peer
from sip_bridge.message.body import SDP, description_of
from sip_bridge.message.digest import authorization, wants_fresh_nonce
from sip_bridge.message.reason import cause_of_answer
from sip_bridge.message.sdp import Agreed, Negotiation, SessionDescription
from sip_bridge.message.sip import Address, Headers, Request, Response, Uri, response_to, unquote

_MAX_TRIES = 4
"""Most tries of one INVITE: bare, with credentials for the target, with credentials for a proxy, and once more for a
stale nonce or a 422."""

_MAX_EARLY = 10
"""Most early session descriptions that are kept, one for each fork."""

_REASONS = {
    401: "not_authorised", 403: "declined", 404: "not_found", 407: "not_authorised", 408: "no_answer",
    410: "not_found", 415: "no_common_codec", 480: "no_answer", 484: "not_found", 486: "busy", 487: "cancelled",
    488: "no_common_codec", 503: "unavailable", 600: "busy", 603: "declined", 604: "not_found", 606: "no_common_codec",
    607: "declined", 608: "declined",
}  # fmt: skip
"""The name of an outcome by its status. Others are ``redirected`` (3xx), ``unavailable`` (5xx) or ``refused``."""


def reason_of(status: int) -> str:
    """Return the name of a final status."""
    return _REASONS.get(status, {3: "redirected", 5: "unavailable"}.get(status // 100, "refused"))


class InviteClient(InviteDialog):
    """An outbound call.

    Args:
        uri: the Request-URI, which is also To.
        from_: our address, for From.
        headers: further headers of the INVITE.
    """

    def __init__(
        self,
        trunk: TrunkConfig,
        peer: Peer,
        local: LocalAddress,
        media_port: int,
        timeouts: SipTimeouts,
        *,
        uri: Uri,
        from_: Address,
        headers: HeaderItems,
    ) -> None:
        super().__init__(trunk, peer, local, media_port, timeouts)
        self.call_id = secrets.token_hex(16)
        self._uri = uri
        self._from = from_.with_tag(local.tag())
        self._headers = tuple(headers)
        self._cseq = 0
        self._credentials: dict[str, str] = {}
        self._offer = b""
        self._invite: Request | None = None
        self._provisional = False
        self._settled = False
        """True: the last INVITE has a final answer or is cancelled."""
        self._begun = False
        self.answer: Response | None = None
        """The response with which the session begins."""
        self._early: dict[str, SessionDescription] = {}
        """The descriptions in provisional responses, by the fork's tag."""
        self._heard = ""
        """The tag of the fork whose early media is heard. Empty: there is none."""
        self._agreements: dict[str, Negotiation] = {}
        """The negotiations with forks that have answered our offer in a reliable response, by the fork's tag."""
        self._changed: set[str] = set()
        """The tags of the forks that have changed the session since."""
        self._acknowledged = Acknowledged()
        self._early_dialogs: dict[str, Dialog] = {}
        """The dialogs that provisional responses have created, by the fork's tag."""
        self._winner: str | None = None
        """The tag of the fork whose answer counts."""
        self._declined: dict[str, Acknowledge] = {}
        """The ACKs of unwanted answers, by the fork's tag."""

    def start(self, *, now: float) -> None:
        """Send the INVITE."""
        self._now = now
        self._offer = self.negotiation.offer()
        self._wait(InviteTimer.ANSWER, self._timeouts.answer_s)
        self._send_invite()

    def _send_invite(self) -> None:
        self._cseq += 1
        items = [
            ("Via", str(self._local.via(self._peer.transport))),
            ("Max-Forwards", "70"),
            ("From", str(self._from)),
            ("To", f"<{self._uri}>"),
            ("Call-ID", self.call_id),
            ("CSeq", f"{self._cseq} INVITE"),
            self._contact,
            ALLOW,
            SUPPORTED,
            *self.refresh.offer(),
            *self._headers,
            *self._credentials.items(),
            SDP,
        ]
        self._invite = Request("INVITE", str(self._uri), Headers(items), self._offer)
        self._provisional = self._settled = False
        self._acknowledged = Acknowledged()
        self._early_dialogs.clear()
        self._agreements.clear()
        self._changed.clear()
        self.effects.append(Invite(self._invite, self._peer))

    def _expired(self, timer: InviteTimer) -> None:
        if timer is InviteTimer.ANSWER:
            self._stop_calling("no_answer")

    # --- responses -------------------------------------------------------------------------------------------------

    def _is_invite(self, key: Key | None) -> bool:
        return self._invite is not None and key == key_of(self._invite)

    def on_response(self, key: Key | None, response: Response, *, now: float) -> None:
        """Handle a response to the INVITE, from any fork, or to a later request."""
        self._now = now
        if response.cseq.method != "INVITE" or not self._is_invite(key):
            super().on_response(key, response, now=now)
        elif response.status < 200:
            self._progress(response)
        elif response.status >= 300:
            self._settle(more=False)
            self._refused(response)
        else:
            self._settle(more=True)
            if self.state is InviteState.EARLY:
                self._answered(response)
            elif response.to.tag == self._winner:
                super().on_response(key, response, now=now)  # our ACK was lost
            else:
                self._decline(response)

    def on_failed(self, key: Key, status: int, *, now: float) -> None:
        """Handle a request that got no response (408) or could not be sent (503; RFC 3261 section 8.1.3.1)."""
        if not self._is_invite(key):
            super().on_failed(key, status, now=now)
            return
        self._now = now
        self._settle(more=False)
        if self.state is InviteState.EARLY:
            self._fail(status, "unreachable")

    def _settle(self, *, more: bool) -> None:
        assert self._invite
        if not (more and self._settled):
            self._settled = True
            self.effects.append(Settled(key_of(self._invite), more))

    def _progress(self, response: Response) -> None:
        self._provisional = True
        if self.state is not InviteState.EARLY:
            self._cancel()  # the call was given up before any response; CANCEL is allowed only now
            return
        if response.status == 100:
            return
        dialog = self._early_dialog(response)
        if not self._acknowledge_reliable(dialog, response):
            return
        early = False
        try:
            description = description_of(response)
            if description is not None:
                early = not self._early
                self._early_media(response.to.tag, description)
                if (
                    dialog is not None
                    and dialog.inviting
                    and _is_reliable(response)
                    and len(self._agreements) < _MAX_EARLY
                ):
                    self._agree_early(dialog, description)
        except SipError as error:
            self.effects.append(Trouble("SIP early media refused", str(error)))
            early = False
        self.effects.append(Progress("early_media" if self._early else "ringing", response.status))
        if early and self._trunk.early_media:
            self.answer = response
            self.effects.append(Begin())  # the session hears the early media and exists at the answer

    def _early_media(self, tag: str, description: SessionDescription) -> None:
        """Take the description of a provisional response. The fork whose description is the latest is heard, because a
        call that moves on, for example to a mailbox, leaves the others. Nothing is settled yet, because any fork may
        answer."""
        if tag not in self._early and len(self._early) >= _MAX_EARLY:
            return
        if description != self._early.get(tag) and tag not in self._agreements:
            self._hear(self.negotiation.fork().accept(description))
            self._heard = tag
        self._early[tag] = description

    def _hear(self, agreed: Agreed | None) -> None:
        self.negotiation.agreed = agreed
        self._apply(agreed)
        if self._begun:
            self.effects.append(Waits())

    def _agree_early(self, dialog: Dialog, answer: SessionDescription) -> None:
        """Note that a fork has answered our offer for good, so that it may change the session (RFC 3262 section 5)."""
        fork = self.negotiation.fork()
        fork.accept(answer)
        dialog.inviting = False
        self._agreements[dialog.remote.tag] = fork

    # --- requests of a callee that has not answered ----------------------------------------------------------------

    def on_request(self, key: Key, request: Request, *, now: float) -> None:
        """Handle a request in the dialog, also before its answer."""
        if self.state is not InviteState.EARLY:
            super().on_request(key, request, now=now)
            return
        self._now = now
        dialog = self._early_dialogs[request.from_.tag]
        try:
            refusal = self._on_early_request(dialog, key, request)
        except (SipProtocolError, NotAcceptable) as error:
            self.effects.append(Trouble("SIP request refused", f"{request.method}: {error}"))
            refusal = Refusal(error.status)
        if refusal is not None:
            self.effects.append(Respond(key, response_to(request, refusal.status, headers=refusal.headers)))

    def _on_early_request(self, dialog: Dialog, key: Key, request: Request) -> Refusal | None:
        """Answer an UPDATE, or return the refusal of a request. The callee may change the session once it has answered
        our offer in a reliable response (RFC 3311 section 5.2)."""
        offer = description_of(request) if request.method == "UPDATE" else None
        refusal = dialog.check(request, offers=offer is not None, retry_after_s=secrets.randbelow(11))
        if refusal is not None:
            return refusal
        if request.method not in ("UPDATE", "OPTIONS"):
            return Refusal(481)
        headers, body, tag = [self._contact, ALLOW, SUPPORTED], b"", dialog.remote.tag
        if offer is not None:
            fork = self._agreements[tag]
            body = fork.answer(offer)
            headers.append(SDP)
            self._changed.add(tag)
            if tag == self._heard:
                self._hear(fork.agreed)
        dialog.refresh(request)
        self.effects.append(Respond(key, response_to(request, 200, headers=headers, body=body)))
        return None

    def is_early(self, dialog: DialogId) -> bool:
        """Return True if this call has created the dialog and has no answer yet."""
        call_id, ours, theirs = dialog
        is_ours = (call_id, ours) == (self.call_id, self._from.tag)
        return self.state is InviteState.EARLY and is_ours and theirs in self._early_dialogs

    def _early_dialog(self, response: Response) -> Dialog | None:
        """Return the dialog of a provisional response. None: the response creates none (RFC 3261 section 12.1)."""
        assert self._invite
        dialog = self._early_dialogs.get(response.to.tag)
        if dialog is None and response.to.tag:
            try:
                dialog = Dialog.as_client(self._invite, response)
            except SipProtocolError as error:
                self.effects.append(Trouble("SIP response refused", str(error)))
                return None
            dialog.inviting = True  # our offer is not answered yet
            if len(self._early_dialogs) < _MAX_EARLY:
                self._early_dialogs[response.to.tag] = dialog
        return dialog

    def _acknowledge_reliable(self, dialog: Dialog | None, response: Response) -> bool:
        """Send PRACK for a reliable response. False: it is a repetition or came too early, so it is ignored."""
        if not _is_reliable(response):
            return True
        rack = self._acknowledged.rack(response) if dialog is not None else None
        if dialog is None or rack is None:
            return False
        self.requests.ask(dialog, "PRACK", [("RAck", rack)], b"")
        return True

    def _dialog_of(self, response: Response) -> Dialog:
        """Return the dialog of a 2xx. Its requests are numbered after those in the early dialog.

        Raises:
            SipProtocolError: see ``Dialog.as_client``.
        """
        assert self._invite
        dialog = Dialog.as_client(self._invite, response)
        early = self._early_dialogs.get(response.to.tag)
        if early is not None:
            dialog.local_cseq, dialog.remote_cseq = early.local_cseq, early.remote_cseq
        return dialog

    def begun(self, *, now: float) -> None:
        """Handle the start of the session."""
        self._now = now
        self._begun = True
        self._session_began()
        if self.state is InviteState.EARLY:
            self.effects.append(Waits())
        elif self.state is InviteState.UP:
            self._apply(self.negotiation.agreed)
            self.effects.append(Outcome(200))

    def not_begun(self, *, now: float) -> None:
        """Handle the refusal of a session for lack of room."""
        self._now = now
        if self.state is InviteState.EARLY:
            self._stop_calling("unavailable")
        else:
            self.effects.append(Outcome(503, "unavailable"))
            self._end("rejected")

    def _answered(self, response: Response) -> None:
        assert self._invite
        self.answer = response
        try:
            self.dialog = self._dialog_of(response)
        except SipProtocolError as error:
            self.effects.append(Trouble("SIP answer refused", str(error)))
            # Without the proxies that cannot be read, the ACK may still reach the peer.
            self._decline(replace(response, headers=response.headers.replace("Record-Route")))
            self._fail(502, "refused")
            return
        if not self.requests.can_reach(self.dialog):
            self.effects.append(
                Trouble("SIP answer refused", f"we can send nothing to {self.dialog.next_hop.host[:80]}")
            )
            self._decline(response)
            self._fail(502, "unreachable")
            return
        self._winner = response.to.tag
        self._stop(InviteTimer.ANSWER)
        self.refresh.peer_allows = response.headers.tokens("Allow")
        self.requests.acked = self._ack(self.dialog)
        self.state = InviteState.UP
        self.effects.append(Joined())
        try:
            self._settle_media(response)
        except SipError as error:
            self.effects.append(Trouble("SIP answer refused", str(error)))
            self.effects.append(Outcome(488, "no_common_codec"))
            self._end("no common codec", [("Reason", 'SIP;cause=488;text="Not Acceptable Here"')])
            return
        self.refresh.agree(self._agreed_timer(response), now=self._now)
        if self._begun:
            self.begun(now=self._now)
        else:
            self.effects.append(Begin())

    def _settle_media(self, response: Response) -> None:
        """Take the answer in a 2xx, or what was agreed with this fork before.

        Raises:
            SipProtocolError: there is no answer, or it cannot be read.
            NotAcceptable: the answer is not usable.
        """
        tag = response.to.tag
        described = description_of(response)
        if tag in self._agreements and (described is None or tag in self._changed):
            self.negotiation.adopt(self._agreements[tag])
            return
        answer = described or self._early_answer(tag)
        if answer is None:
            raise SipProtocolError("2xx without the answer to our offer (RFC 3261 section 13.2.1)")
        self.negotiation.accept(answer)

    def _early_answer(self, tag: str) -> SessionDescription | None:
        """Return the description of a fork's early media, which also is its answer if the 2xx has none. Some switches
        change the To tag in between, so the only description counts for any tag."""
        if len(self._early) == 1:
            return next(iter(self._early.values()))
        return self._early.get(tag)

    def _agreed_timer(self, response: Response) -> SessionTimer | None:
        try:
            return session_agreed(response)
        except SipProtocolError as error:
            self.effects.append(Trouble("SIP session timer refused", str(error)))
            return None

    def _refused(self, response: Response) -> None:
        """Handle a final refusal. The transaction sends its ACK."""
        if self.state is not InviteState.EARLY:
            return
        if self._cseq < _MAX_TRIES and self._may_try_again(response):
            self._send_invite()
            return
        elsewhere = _contacts(response) if response.status < 400 else ()
        retry_after_s = response.headers.seconds("Retry-After") if response.status == 503 else 0
        self._fail(response.status, reason_of(response.status), elsewhere, retry_after_s, cause_of_answer(response))

    def _may_try_again(self, response: Response) -> bool:
        assert self._invite
        if response.status == 422:
            try:
                self.refresh.lengthen(response)
            except SipProtocolError:
                return False
            return True
        answer = authorization(response, self._invite, self._auth) if self._auth else None
        if answer is None or (answer[0] in self._credentials and not wants_fresh_nonce(response)):
            return False
        self._credentials[answer[0]] = answer[1]
        return True

    # --- giving up -------------------------------------------------------------------------------------------------

    def _stop_calling(self, reason: str) -> None:
        self.effects.append(Outcome(487, reason))
        self._end(reason)

    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        by_manager = reason in ("end", "transferred", "hangup_by_api")
        self.effects.append(Outcome(487, "cancelled", cause=EndCause(by="manager") if by_manager else UNKNOWN))
        if self._provisional:
            self._cancel()  # else ``_progress`` cancels: before the first response, the peer may not know the INVITE

    def _answered_late(self) -> None:
        """Do nothing: an outbound call has begun before an ACK can bring an answer."""

    def _cancel(self) -> None:
        # CANCEL is sent once. If no answer to the INVITE comes, it counts as cancelled after 64*T1 (section 9.1).
        if self._invite is not None and not self._settled:
            self._settle(more=True)
            self.effects.append(Post(cancel_of(self._invite), self._peer))

    def _fail(
        self,
        status: int,
        reason: str,
        elsewhere: tuple[Uri, ...] = (),
        retry_after_s: float = 0,
        cause: EndCause = UNKNOWN,
    ) -> None:
        self.effects += [Silence(reason, cause), Outcome(status, reason, elsewhere, retry_after_s, cause)]
        self._release()

    def _decline(self, response: Response) -> None:
        """Acknowledge an unwanted answer and hang up: another fork was first, or the answer crossed our CANCEL."""
        assert self._invite
        known = self._declined.get(response.to.tag)
        if known:
            self.effects.append(known)
            return
        try:
            dialog = self._dialog_of(response)
        except SipProtocolError as error:
            self.effects.append(Trouble("SIP answer refused", str(error)))
            return
        ack = self._declined[response.to.tag] = self._ack(dialog)
        self.effects.append(Post(dialog.request("BYE", self._local.via(ack.peer.transport)), ack.peer))

    def _ack(self, dialog: Dialog) -> Acknowledge:
        hop = self.requests.hop(dialog)
        # An ACK cannot be challenged, so it carries the credentials of the INVITE (section 22.1).
        credentials = list(self._credentials.items())
        ack = dialog.request("ACK", self._local.via(hop.transport), cseq=self._cseq, headers=credentials)
        self.effects.append(acknowledge := Acknowledge(ack, hop))
        return acknowledge


def _is_reliable(response: Response) -> bool:
    """Return True if a provisional response asks for a PRACK. Without a number, no PRACK can be sent."""
    return TAG in response.headers.tokens("Require") and "RSeq" in response.headers


def _contacts(response: Response) -> tuple[Uri, ...]:
    """Return the Contacts of a 3xx, highest q first (section 8.1.3.4)."""
    found: list[tuple[float, Uri]] = []
    for text in response.headers.all("Contact"):
        try:
            address = Address.parse(text)
        except SipProtocolError:
            continue
        wish = unquote(address.params.get("q") or "")
        found.append((-float(wish) if re.fullmatch(r"[01](?:\.[0-9]*)?", wish) else -1.0, address.uri))
    return tuple(uri for _, uri in sorted(found, key=lambda each: each[0]))
