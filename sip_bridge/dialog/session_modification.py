"""Changes of an established session: the peer's re-INVITE or UPDATE (new description, hold, resume, new Contact,
refresh), and our refresh by either (RFC 3261 section 14, RFC 3311, RFC 4028). Pure.

``session_refresh.py`` decides when to refresh and what a response means; ``message/sdp.py`` negotiates descriptions.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial

from sip_bridge.dialog.awaited_ack import AwaitedAck
from sip_bridge.dialog.dialog import Dialog, Refusal
from sip_bridge.dialog.effects import Effect, MediaAgreed, PartyNamed, Respond, Trouble
from sip_bridge.dialog.own_requests import OwnRequests
from sip_bridge.dialog.session_refresh import RefreshStep, SessionRefresh
from sip_bridge.dialog.transaction import Key
from sip_bridge.errors import SipError, SipProtocolError
from sip_bridge.local import ALLOW, SUPPORTED
from sip_bridge.message.body import SDP, description_of
from sip_bridge.message.parameters import connected_party
from sip_bridge.message.sdp import Negotiation
from sip_bridge.message.sip import Message, Request, Response, response_to


class SessionModification:
    """Answers the peer's changes and sends our refreshes in one dialog.

    Args:
        negotiation: our side of offers and answers.
        refresh: the session timer.
        awaited_ack: repeats our 2xx to a re-INVITE.
        requests: sends our refreshes.
        effects: receives everything else.
        contact: our Contact header.
        on_gone: called when no refresh reached the peer.
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
        self._own_headers = (contact, ALLOW, SUPPORTED)
        self._on_gone = on_gone
        self._stopped = False

    # --- changes by the peer ---------------------------------------------------------------------------------------

    def on_offer(self, dialog: Dialog, key: Key, request: Request, *, now: float) -> Refusal | None:
        """Answer a re-INVITE or UPDATE, or return its refusal.

        Raises:
            SipProtocolError: a header or the body cannot be read.
            NotAcceptable: nothing in the offer is usable. The session stays as it was.
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
        self._party(request)
        self._refresh.peer_allows = request.headers.tokens("Allow") or self._refresh.peer_allows
        self._refresh.agree(timer, now=now)
        described = [SDP] if body else []
        response = response_to(request, 200, headers=[*self._own_headers, *headers, *described], body=body)
        self._effects.append(Respond(key, response))
        if request.method == "INVITE":
            self._awaited_ack.begin(dialog, key, response, offers=offer is None, now=now)
        return None

    # --- our refreshes ---------------------------------------------------------------------------------------------

    def send_refresh(self, dialog: Dialog, *, now: float) -> None:
        """Refresh the session: by UPDATE if the peer supports it, else by re-INVITE with the same offer."""
        if dialog.inviting or dialog.invited:
            self._refresh.later(1.0, now=now)
            return
        headers = [*self._own_headers, *self._refresh.headers()]
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
            self._negotiation.offer(wish=agreed.direction, refresh=True),
            partial(self._on_reinvite_response, dialog),
        )

    def stop(self) -> None:
        """Stop refreshing, since the call is over."""
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
            self._party(response)
        try:
            # After a 491 or any other refusal, wait as section 14.1 says.
            wait_s = dialog.glare_wait_s(secrets.randbelow(1000) / 999)
            follows = self._refresh.on_response(response, now=now, wait_s=wait_s)
        except SipProtocolError as error:
            self._effects.append(Trouble("SIP session timer refused", str(error)))
            return
        if follows is RefreshStep.END:
            self._on_gone()
        elif follows is RefreshStep.AGAIN:
            self.send_refresh(dialog, now=now)

    def _party(self, message: Message) -> None:
        party = connected_party(message)
        if party is not None:
            self._effects.append(PartyNamed(*party))

    def _agreed(self) -> None:
        assert self._negotiation.agreed
        self._effects.append(MediaAgreed(self._negotiation.agreed))
