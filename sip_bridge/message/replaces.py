"""Reads and writes the dialog that a new call replaces (RFC 3891). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Request, parse_params

TAG = "replaces"
"""The option tag in Supported and Require."""


@dataclass(frozen=True, slots=True)
class Replaces:
    """The value of a Replaces header. The tags are those of the receiver's view: ``to_tag`` is its own."""

    call_id: str
    to_tag: str
    from_tag: str
    early_only: bool = False
    """True: the dialog may be replaced only before its answer."""

    @classmethod
    def parse(cls, text: str) -> Replaces:
        """Read a header value.

        Raises:
            SipProtocolError: the Call-ID or a tag is missing.
        """
        call_id, _, rest = text.partition(";")
        params = parse_params(rest)
        to_tag, from_tag = params.get("to-tag"), params.get("from-tag")
        if not call_id.strip() or not to_tag or not from_tag:
            raise SipProtocolError(f"Replaces is {text[:80]!r}, expected Call-ID, to-tag and from-tag (RFC 3891)")
        return cls(call_id.strip(), to_tag, from_tag, "early-only" in params)

    def __str__(self) -> str:
        early = ";early-only" if self.early_only else ""
        return f"{self.call_id};to-tag={self.to_tag};from-tag={self.from_tag}{early}"


def read_replaces(request: Request) -> Replaces | None:
    """Return the dialog that an INVITE replaces. None: it replaces none.

    Raises:
        SipProtocolError: the header cannot be read, is there twice, is in another request than INVITE, or stands beside
            Join (RFC 3891 section 3, RFC 3911 section 4).
    """
    values = request.headers.all("Replaces")
    if not values:
        return None
    if len(values) > 1 or request.method != "INVITE" or "Join" in request.headers:
        raise SipProtocolError(f"{request.method} with {len(values)} Replaces, expected one, in an INVITE without Join")
    return Replaces.parse(values[0])
