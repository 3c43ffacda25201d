"""Our requests in one dialog: their next hops and their outcomes (RFC 3261 sections 12.2.1, 13.2.2.4 and 22.2). Pure:
requests go out as effects."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from sip_bridge.dialog.dialog import Dialog
from sip_bridge.dialog.effects import Acknowledge, Ask, Effect
from sip_bridge.dialog.transaction import Key, key_of
from sip_bridge.local import HeaderItems, LocalAddress, Peer, is_hidden
from sip_bridge.message.digest import ClientAuth, authorization
from sip_bridge.message.sip import Request, Response, Uri

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
        """Return the address of a dialog's next hop, without a DNS look-up.

        It is the known peer if the dialog names a host by name, if a translator hides the Contact, if a peer without
        TLS names TLS and we have none either, or if we can send nothing to the named address. An existing connection to
        the named host is reused; if it is gone, the endpoint connects to the named port (RFC 3261 section 18.1.1).
        """
        uri, peer = dialog.next_hop, self._peer
        host = self._host_of(uri)
        if self._is_hidden(dialog) or self._names_tls_in_vain(uri):
            return peer
        named = (uri.params.get("transport") or "").upper()
        streamed = peer.transport != "UDP" and named in ("", peer.transport)
        literal = _is_address(host)
        if streamed and host and (host == peer.host or not literal):
            return replace(peer, listens_at=(host, _port(uri, peer.transport)))
        return self._named(uri) if literal and self.can_reach(dialog) else peer

    def can_reach(self, dialog: Dialog) -> bool:
        """Return False if the dialog's next hop is an address to which we can send nothing: one of another family, with
        port 0, or with a transport that we do not have."""
        uri = dialog.next_hop
        usable = not _is_address(self._host_of(uri)) or self._named(uri).can_be_reached_from(self._local.host)
        return usable and uri.port != 0

    def _is_hidden(self, dialog: Dialog) -> bool:
        contact = self._host_of(dialog.target)
        return self.translated or (not dialog.routes and is_hidden(contact, seen_at=self._peer.host))

    def seen_at(self, peer: Peer) -> None:
        """Note the source of a request in the dialog. If a translator or a new connection gives the peer another port
        of its host, our next requests go there. The host stays, because the source of a datagram may be forged."""
        known = self._peer
        if (peer.transport, peer.host) == (known.transport, known.host):
            self._peer = replace(known, port=peer.port)

    def _names_tls_in_vain(self, uri: Uri) -> bool:
        named = uri.scheme == "sips" or (uri.params.get("transport") or "").upper() == "TLS"
        return named and self._peer.transport != "TLS" and not self._local.tls_port

    def _host_of(self, uri: Uri) -> str:
        """Return the host of a URI. An IPv4 address that is written as an IPv6 one (RFC 4291 section 2.5.5.2) is one of
        our family if ours is IPv4: peers with one socket for both families write it."""
        host = uri.host.strip("[]")
        return host if ":" in self._local.host else host.removeprefix("::ffff:")

    def _named(self, uri: Uri) -> Peer:
        named = (uri.params.get("transport") or "UDP").upper()
        transport = "TLS" if uri.scheme == "sips" else named
        return Peer(transport, self._host_of(uri), _port(uri, transport))

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


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _port(uri: Uri, transport: str) -> int:
    return (5061 if transport == "TLS" else 5060) if uri.port is None else uri.port
