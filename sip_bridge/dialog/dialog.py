"""Dialogs: the addresses of both ends, the route of requests and their sequence numbers (RFC 3261 section 12). Pure.

A dialog also checks requests inside it: for an old CSeq and for crossing INVITEs (section 14). This module reads and
writes the session timer headers (RFC 4028); the dialog's owner runs the timers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import BRANCH_MAGIC, Address, Headers, Message, Request, Response, Uri, Via

MIN_SESSION_S = 90
"""The shortest session interval that a peer may ask for (RFC 4028 section 4)."""

DialogId: TypeAlias = tuple[str, str, str]
"""Call-ID, our tag, their tag."""


def dialog_id(message: Message, *, received: bool) -> DialogId:
    """Return the dialog that a message names.

    Args:
        received: True if the peer sent the message. A response counts as sent by the side that answered.
    """
    from_is_ours = received == isinstance(message, Response)
    ours, theirs = (message.from_, message.to) if from_is_ours else (message.to, message.from_)
    return message.call_id, ours.tag, theirs.tag


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that refuses a request."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()


def _readable(routes: tuple[str, ...]) -> tuple[str, ...]:
    for route in routes:
        Address.parse(route)
    return routes


class Dialog:
    """One side's view of a dialog. ``as_server`` and ``as_client`` make dialogs.

    The route set is fixed when the dialog is made. The target is updated by every INVITE and UPDATE, and their 2xx.

    Attributes:
        target: the peer's Contact, which is the Request-URI of our requests.
        routes: Route values in the order in which our requests visit them.
    """

    def __init__(
        self, *, call_id: str, local: Address, remote: Address, target: Uri, routes: tuple[str, ...], owns_call_id: bool
    ) -> None:
        self.call_id = call_id
        self.local = local
        self.remote = remote
        self.target = target
        self.routes = _readable(routes)
        self.owns_call_id = owns_call_id
        self.local_cseq = 0
        self.remote_cseq = -1
        self.inviting = False
        """True while our INVITE or offer waits for its final answer."""
        self.invited = False
        """True while an INVITE or offer of the peer waits for its final answer."""

    @classmethod
    def as_server(cls, invite: Request, tag: str) -> Dialog:
        """Make the dialog that our answer with this tag creates (section 12.1.1).

        Raises:
            SipProtocolError: the request has no Contact, or an unreadable Record-Route.
        """
        contact = invite.contact
        if contact is None and not invite.via.branch.startswith(BRANCH_MAGIC):
            contact = invite.from_  # RFC 2543 sends requests there, and requires no Contact
        if contact is None:
            raise SipProtocolError(f"{invite.method} without Contact, expected one (RFC 3261 section 8.1.1.8)")
        dialog = cls(
            call_id=invite.call_id,
            local=invite.to.with_tag(tag),
            remote=invite.from_,
            target=contact.uri,
            routes=invite.headers.all("Record-Route"),
            owns_call_id=False,
        )
        dialog.remote_cseq = invite.cseq.number
        return dialog

    @classmethod
    def as_client(cls, invite: Request, response: Response) -> Dialog:
        """Make the dialog that a 101 to 299 creates (section 12.1.2). Each fork creates its own. A 2xx without a tag
        comes from a peer of RFC 2543 and has an empty one.

        Raises:
            SipProtocolError: a provisional response has no tag, or a Record-Route is unreadable.
        """
        if not response.to.tag and response.status < 200:
            raise SipProtocolError(f"{response.status} without a To tag, expected one (RFC 3261 section 12.1.2)")
        dialog = cls(
            call_id=invite.call_id,
            local=invite.from_,
            remote=response.to,
            # Without Contact, the Request-URI of the INVITE is the best guess. A 2xx must be acknowledged in any case.
            target=response.contact.uri if response.contact else Uri.parse(invite.uri),
            routes=response.headers.all("Record-Route")[::-1],
            owns_call_id=True,
        )
        dialog.local_cseq = invite.cseq.number
        return dialog

    @property
    def id(self) -> DialogId:
        """The dialog's id, as ``dialog_id`` returns it."""
        return self.call_id, self.local.tag, self.remote.tag

    @property
    def next_hop(self) -> Uri:
        """The URI to which our requests are sent (section 12.2.1.1)."""
        return Address.parse(self.routes[0]).uri if self.routes else self.target

    def refresh(self, message: Message) -> None:
        """Take the target from the Contact of the peer's INVITE or UPDATE, or of its 2xx."""
        if message.contact is not None:
            self.target = message.contact.uri

    def request(
        self,
        method: str,
        via: Via,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        cseq: int | None = None,
    ) -> Request:
        """Make a request in this dialog (section 12.2.1.1).

        Args:
            via: our Via, with a new branch.
            cseq: the number of the INVITE, for its ACK. Without it, the request takes the next number.
        """
        if cseq is None:
            self.local_cseq += 1
            cseq = self.local_cseq
        uri, routes = self.target, self.routes
        if routes and "lr" not in self.next_hop.params:
            # A strict router (RFC 2543) takes its own address as Request-URI and finds ours at the end.
            uri, routes = replace(self.next_hop, headers=""), (*routes[1:], f"<{self.target}>")
        items = [("Via", str(via)), *(("Route", route) for route in routes)]
        items += [
            ("Max-Forwards", "70"),
            ("From", str(self.local)),
            ("To", str(self.remote)),
            ("Call-ID", self.call_id),
            ("CSeq", f"{cseq} {method}"),
            *headers,
        ]
        return Request(method, str(uri), Headers(items), body)

    def check(self, request: Request, *, offers: bool = False, retry_after_s: int = 5) -> Refusal | None:
        """Check a request of the peer, and count its CSeq. A refusal: answer with it. None: the request may be
        processed.

        Args:
            offers: True for an UPDATE (or PRACK) with a session description, which crosses other offers as an INVITE
                does (RFC 3311 section 5.2).
            retry_after_s: a random number from 0 to 10 seconds, drawn by the caller.
        """
        if request.method in ("ACK", "CANCEL"):
            return None  # both carry the number of their INVITE
        if request.cseq.number < self.remote_cseq:
            return Refusal(500)  # section 12.2.2; a retransmission has an equal number and never comes here
        self.remote_cseq = request.cseq.number
        if request.method == "INVITE" or offers:
            if self.inviting:
                return Refusal(491)
            if self.invited:
                return Refusal(500, (("Retry-After", str(retry_after_s)),))
        return None

    def glare_wait_s(self, share: float) -> float:
        """Return the seconds to wait after a 491 before trying again (section 14.1).

        Args:
            share: a random number from 0 to 1.
        """
        low, high = (2.1, 4.0) if self.owns_call_id else (0.0, 2.0)
        return round(low + share * (high - low), 2)


@dataclass(frozen=True, slots=True)
class SessionTimer:
    """A session that ends unless it is refreshed (RFC 4028)."""

    interval_s: int
    we_refresh: bool

    def refresh_at(self, refreshed_at: float) -> float:
        """Return the time of our refresh, if we are the refresher: half of the interval (section 10)."""
        return refreshed_at + self.interval_s / 2

    def end_at(self, refreshed_at: float) -> float:
        """Return the time at which to send BYE if no refresh came (section 10)."""
        return refreshed_at + self.interval_s - min(32.0, self.interval_s / 3)


def _session_expires(message: Message) -> tuple[int, str] | None:
    text = message.headers.get("Session-Expires")
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:;(.*))?", text)
    if not match:
        raise SipProtocolError(f"Session-Expires is {text[:40]!r}, expected seconds (RFC 4028 section 4)")
    refresher = re.search(r"(?:^|;)\s*refresher\s*=\s*(uac|uas)\b", match.group(2) or "", re.IGNORECASE)
    return int(match.group(1)), refresher.group(1).lower() if refresher else ""


def min_session_s(message: Message) -> int:
    """Return the Min-SE of a request or of a 422, seconds.

    Raises:
        SipProtocolError: the value is not a number.
    """
    text = (message.headers.get("Min-SE") or str(MIN_SESSION_S)).partition(";")[0].strip()
    if not re.fullmatch("[0-9]{1,9}", text):
        raise SipProtocolError(f"Min-SE is {text[:40]!r}, expected seconds (RFC 4028 section 5)")
    return max(MIN_SESSION_S, int(text))


def session_offer(interval_s: int, min_s: int = MIN_SESSION_S) -> list[tuple[str, str]]:
    """Return the headers of our INVITE (section 7.1). After a 422, ``min_s`` is its ``min_session_s`` (section 7.4)."""
    return [("Session-Expires", str(max(interval_s, min_s))), ("Min-SE", str(min_s))]


def session_answer(
    request: Request, *, wanted_s: int, min_s: int = MIN_SESSION_S
) -> tuple[SessionTimer | None, list[tuple[str, str]]] | Refusal:
    """Answer an INVITE or UPDATE of the peer (section 9). Return the timer and the headers of the 2xx, or a 422. A
    value that cannot be read counts as absent, because the call does not depend on it.

    Args:
        wanted_s: the interval if the peer asks for none. 0: no timer in that case.
    """
    asked, peers_shortest_s = None, MIN_SESSION_S
    with contextlib.suppress(SipProtocolError):
        asked = _session_expires(request)
    with contextlib.suppress(SipProtocolError):
        peers_shortest_s = min_session_s(request)
    supported = "timer" in request.headers.tokens("Supported")
    if asked and asked[0] < min_s and supported:
        return Refusal(422, (("Min-SE", str(min_s)),))
    if asked is None and not wanted_s:
        return None, []
    # We may shorten the peer's interval, but not below its Min-SE. A peer without session timers cannot refresh, and
    # its too short interval must not be refused (section 8.1). So we raise the interval and refresh ourselves.
    interval_s = asked[0] if asked else max(wanted_s, peers_shortest_s)
    interval_s = max(interval_s, min_s)
    refresher = (asked[1] if asked else "uas") or "uac" if supported else "uas"
    headers = [("Session-Expires", f"{interval_s};refresher={refresher}")]
    if supported:
        headers.append(("Require", "timer"))
    return SessionTimer(interval_s, refresher == "uas"), headers


def session_agreed(response: Response) -> SessionTimer | None:
    """Return the timer of the 2xx to our INVITE or UPDATE (section 7.2). None: the peer wants no timer.

    Raises:
        SipProtocolError: Session-Expires cannot be read.
    """
    told = _session_expires(response)
    return SessionTimer(max(told[0], MIN_SESSION_S), told[1] != "uas") if told else None
