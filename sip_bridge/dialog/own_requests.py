"""Our requests in one dialog: their next hops and their outcomes (RFC 3261 sections 12.2.1, 13.2.2.4 and 22.2). Pure:
requests go out as effects."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sip_bridge.dialog.dialog import Dialog
from sip_bridge.dialog.effects import Acknowledge, Ask, Effect
from sip_bridge.dialog.transaction import Key
from sip_bridge.local import HeaderItems, LocalAddress, Peer
from sip_bridge.message.digest import ClientAuth, authorization
from sip_bridge.message.sip import Request, Response

Done: TypeAlias = Callable[[Response | None, float], None]
"""Takes the final response and the time. None: no response came, or the request could not be sent."""


@dataclass(slots=True)
class _Asked:
    """A request that waits for its final response."""

    dialog: Dialog
    request: Request
    headers: HeaderItems
    done: Done
    with_credentials: bool


def key_of(request: Request) -> Key:
    """Return the transaction of a request that we send."""
    return Key(request.via.branch, request.method, "")


class OwnRequests:
    """Sends requests in a dialog and reports their outcomes. A challenge is answered once, and each 2xx to an INVITE
    gets its ACK.

    Args:
        peer: the address to which the INVITE was sent, or from which it came.
        local: the address at which peers reach us.
        auth: our credentials at the peer. None: there are none.
        effects: receives the requests.
    """

    def __init__(self, peer: Peer, local: LocalAddress, auth: ClientAuth | None, effects: deque[Effect]) -> None:
        self.translated = False
        """True: the peer is behind a NAT. Its Contact is not the address that its messages come from, and there is no
        proxy between us."""
        self.acked: Acknowledge | None = None
        """The ACK of the last 2xx to our INVITE."""
        self._peer = peer
        self._local = local
        self._auth = auth
        self._effects = effects
        self._asked: dict[Key, _Asked] = {}

    @property
    def open_invites(self) -> list[Key]:
        """The keys of our re-INVITEs without a final response."""
        return [key for key in self._asked if key.method == "INVITE"]

    def ask(
        self,
        dialog: Dialog,
        method: str,
        headers: HeaderItems,
        body: bytes,
        done: Done = lambda response, now: None,
        *,
        credentials: HeaderItems = (),
    ) -> None:
        """Send a request in the dialog, and report the outcome to ``done``."""
        peer = self.hop(dialog)
        request = dialog.request(method, self._local.via(peer.transport), headers=[*headers, *credentials], body=body)
        self._asked[key_of(request)] = _Asked(dialog, request, headers, done, bool(credentials))
        self._effects.append(Ask(request, peer))

    def hop(self, dialog: Dialog) -> Peer:
        """Return the address of a dialog's next hop, without a DNS look-up."""
        uri = dialog.next_hop
        secure = uri.scheme == "sips" or (uri.params.get("transport") or "").lower() == "tls"
        named = (uri.params.get("transport") or "").upper()
        transport = "TLS" if secure else named or "UDP"
        host = uri.host.strip("[]")
        literal = re.fullmatch(r"[0-9.]+|[0-9a-f:.]+", host) is not None
        streamed = self._peer.transport != "UDP" and host == self._peer.host
        # A host name stands for the known peer. If the peer is behind a NAT, only its own address is reachable. An
        # existing
        # connection to the host is reused.
        if not literal or self.translated or (streamed and named in ("", self._peer.transport)):
            return self._peer
        return Peer(transport, host, uri.port or (5061 if secure else 5060))

    def on_response(self, key: Key | None, response: Response, *, now: float) -> None:
        """Handle a response, including repetitions."""
        asked = self._asked.get(key) if key else None
        if asked is None:
            acked = self.acked
            if acked and response.cseq.method == "INVITE" and response.cseq.number == acked.ack.cseq.number:
                self._effects.append(acked)  # section 13.2.2.4: our ACK was lost
            return
        if response.status < 200:
            return
        assert key
        del self._asked[key]
        if asked.request.method == "INVITE" and response.status < 300:
            peer = self.hop(asked.dialog)
            number = asked.request.cseq.number
            self.acked = Acknowledge(asked.dialog.request("ACK", self._local.via(peer.transport), cseq=number), peer)
            self._effects.append(self.acked)
        if not asked.with_credentials and self._answer_challenge(asked, response):
            return
        asked.done(response, now)

    def on_failed(self, key: Key, *, now: float) -> None:
        """Handle a request that got no response or could not be sent."""
        asked = self._asked.pop(key, None)
        if asked is not None:
            asked.done(None, now)

    def _answer_challenge(self, asked: _Asked, response: Response) -> bool:
        request = asked.request
        answer = authorization(response, request, self._auth) if self._auth else None
        if answer is None:
            return False
        self.ask(asked.dialog, request.method, asked.headers, request.body, asked.done, credentials=[answer])
        return True
