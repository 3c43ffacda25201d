"""Changes of a session that stands: the peer's re-INVITE or UPDATE (a new description, hold, resume, a new Contact, a
refresh), and our refresh by either (RFC 3261 section 14, RFC 3311, RFC 4028). Pure.

When our refresh is due and what its response means is decided in ``session_refresh.py``, what the descriptions agree on
in ``message/sdp.py``. The module does not know how a call begins or ends.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial

from sip_bridge.dialog.awaited_ack import AwaitedAck
from sip_bridge.dialog.dialog import Dialog, Refusal
from sip_bridge.dialog.effects import Effect, MediaAgreed, Respond, Trouble
from sip_bridge.dialog.own_requests import OwnRequests
from sip_bridge.dialog.session_refresh import Next, SessionRefresh
from sip_bridge.dialog.transaction import Key
from sip_bridge.errors import ProtocolError, SipError
from sip_bridge.local import ALLOW, SUPPORTED
from sip_bridge.message.body import SDP, description_of
from sip_bridge.message.sdp import Negotiation
from sip_bridge.message.sip import Request, Response, response_to


class SessionModification:
    """Answers the peer's changes and sends our refreshes, in one dialog.

    Args:
        negotiation: our side of offers and answers.
        refresh: when the session is to be refreshed.
        awaited_ack: repeats our 2xx to a re-INVITE.
        requests: sends our refreshes.
        effects: where everything else goes.
        contact: our Contact header.
        on_gone: is told that no refresh reached the peer.
    """

    def __init__(
        self,
        negotiation: Negotiation,
        refresh: SessionRefresh,
        awaited_ack: AwaitedAck,
        requests: OwnRequests,
        effects: deque[Effect],
        contact: tuple[str, str],
        *,
        on_gone: Callable[[], None],
    ) -> None:
        self._negotiation = negotiation
        self._refresh = refresh
        self._awaited_ack = awaited_ack
        self._requests = requests
        self._effects = effects
        self._ours = (contact, ALLOW, SUPPORTED)
        self._on_gone = on_gone
        self._stopped = False

    # --- the peer's ------------------------------------------------------------------------------------------------

    def on_offer(self, dialog: Dialog, key: Key, request: Request, *, now: float) -> Refusal | None:
        """Answer a re-INVITE or UPDATE, or return how it is to be refused.

        Raises:
            ProtocolError: a header or the body cannot be read.
            NotAcceptable: the offer has nothing in it that we can use. The session stays as it was.
        """
        timed = self._refresh.answer(request)
        if isinstance(timed, Refusal):
            return timed
        timer, headers = timed
        offer = description_of(request)
        body = b""
        if offer is not None:
            body = self._negotiation.answer(offer)
            self._agreed()
        elif request.method == "INVITE":
            body = self._negotiation.offer()
        dialog.refresh(request)
        self._refresh.peer_allows = request.headers.tokens("Allow") or self._refresh.peer_allows
        self._refresh.agree(timer, now=now)
        described = [SDP] if body else []
        response = response_to(request, 200, headers=[*self._ours, *headers, *described], body=body)
        self._effects.append(Respond(key, response))
        if request.method == "INVITE":
            self._awaited_ack.begin(dialog, key, response, offers=offer is None, now=now)
        return None

    # --- ours ------------------------------------------------------------------------------------------------------

    def send_refresh(self, dialog: Dialog, *, now: float) -> None:
        """Show that the call is alive: by UPDATE if the peer knows it, else by the same offer again."""
        if dialog.inviting or dialog.invited:
            self._refresh.later(1.0, now=now)
            return
        headers = [*self._ours, *self._refresh.headers()]
        if self._refresh.by_update:
            self._requests.ask(dialog, "UPDATE", headers, b"", partial(self._on_response, dialog))
            return
        agreed = self._negotiation.agreed
        assert agreed
        dialog.inviting = True
        self._requests.ask(
            dialog,
            "INVITE",
            [*headers, SDP],
            self._negotiation.offer(wish=agreed.direction),
            partial(self._on_reinvite_response, dialog),
        )

    def stop(self) -> None:
        """Refresh nothing more, since the call is over."""
        self._stopped = True
        self._refresh.stop()

    def _on_reinvite_response(self, dialog: Dialog, response: Response | None, now: float) -> None:
        dialog.inviting = False
        if response is not None and response.status < 300:
            try:
                answer = description_of(response)
                if answer is not None:
                    self._negotiation.accept(answer)
                    self._agreed()
            except SipError as error:
                self._effects.append(Trouble("SIP answer refused", str(error)))
        self._negotiation.withdraw()
        self._on_response(dialog, response, now)

    def _on_response(self, dialog: Dialog, response: Response | None, now: float) -> None:
        if self._stopped:
            return
        if response is not None and response.status < 300:
            dialog.refresh(response)
        try:
            # After a crossing offer of the peer (491), as after any other refusal, we wait as section 14.1 says.
            wait_s = dialog.glare_wait_s(secrets.randbelow(1000) / 999)
            follows = self._refresh.on_response(response, now=now, wait_s=wait_s)
        except ProtocolError as error:
            self._effects.append(Trouble("SIP session timer refused", str(error)))
            return
        if follows is Next.END:
            self._on_gone()
        elif follows is Next.AGAIN:
            self.send_refresh(dialog, now=now)

    def _agreed(self) -> None:
        assert self._negotiation.agreed
        self._effects.append(MediaAgreed(self._negotiation.agreed))
