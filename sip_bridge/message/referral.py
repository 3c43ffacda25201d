"""Reads a REFER: the call that the peer asks for (RFC 3515, RFC 3892, RFC 4488). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import unquote

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.replaces import Replaces
from sip_bridge.message.sip import Address, Request, Uri

NO_REPORTS = "norefersub"
"""The option tag of REFERs whose outcome is not reported (RFC 4488)."""

_SCHEMES = ("sip", "sips", "tel")


@dataclass(frozen=True, slots=True)
class Referral:
    """The call that a peer asks for."""

    target: Uri
    """Without headers."""
    replaces: Replaces | None = None
    """The dialog at the target that the call replaces, for an attended transfer."""
    headers: tuple[tuple[str, str], ...] = ()
    """The other headers that Refer-To asks for. They are not checked."""
    referred_by: str = ""
    """Referred-By, or the peer's own address if it has not named one."""
    wants_reports: bool = True
    """True if the peer takes NOTIFYs on the outcome."""
    event: str = ""
    """Event of those NOTIFYs, which tells the REFERs of one dialog apart."""


def read_referral(refer: Request, *, by: Uri) -> Referral:
    """Read a REFER.

    Args:
        by: the peer's address in the dialog.

    Raises:
        SipProtocolError: with the status of the answer. 400: Refer-To is missing, is there twice, or cannot be read.
            416: the target can be called neither by SIP nor by telephone. 403: another method than INVITE is wanted, or
            the target names a second address.
    """
    wanted = refer.headers.all("Refer-To")
    if len(wanted) != 1:
        raise SipProtocolError(f"REFER with {len(wanted)} Refer-To, expected one (RFC 3515 section 2.4.2)")
    uri = Address.parse(wanted[0]).uri
    if uri.scheme not in _SCHEMES:
        raise SipProtocolError(f"Refer-To is a {uri.scheme[:20]} URI, expected sip, sips or tel", status=416)
    if (uri.params.get("method") or "INVITE").upper() != "INVITE" or "maddr" in uri.params:
        raise SipProtocolError("Refer-To has a method other than INVITE, or a second address", status=403)
    headers = list(_headers(uri))
    replaced = [value for name, value in headers if name.lower() == "replaces"]
    params = {name: value for name, value in uri.params.items() if name != "method"}
    named = refer.headers.get("Referred-By")
    return Referral(
        replace(uri, params=params, headers=""),
        replaces=Replaces.parse(replaced[0]) if replaced else None,
        headers=tuple((name, value) for name, value in headers if name.lower() != "replaces"),
        referred_by=f"<{Address.parse(named).uri if named else by}>",
        wants_reports=(refer.headers.get("Refer-Sub") or "").partition(";")[0].strip().lower() != "false",
    )


def _headers(uri: Uri) -> Iterator[tuple[str, str]]:
    """Yield the headers of a URI (RFC 3261 section 19.1.1)."""
    for part in uri.headers.split("&") if uri.headers else ():
        name, _, value = (unquote(text) for text in part.partition("="))
        if not re.fullmatch(r"[A-Za-z0-9.!%*_+`'~-]{1,100}", name) or re.search(r"[\x00-\x1f\x7f]", value):
            raise SipProtocolError("Refer-To has a header that cannot be sent (RFC 3261 section 19.1.5)")
        yield name, value
