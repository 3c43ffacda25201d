"""Reads the caller's identity and parameters from an INVITE, and makes and reads User-to-User (RFC 7433). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from gateway.seams.plain_text import plain
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Address, Headers, Request, Uri

USER_TO_USER = "User-to-User"

MAX_HANDOFF_BYTES = 2048
"""Most bytes of data in one header. In hex these are twice as many characters, which still fit in a datagram."""

_OWN = frozenset(
    "via from to call-id cseq contact max-forwards route record-route content-type content-length content-encoding "
    "content-disposition authorization proxy-authorization www-authenticate proxy-authenticate proxy-require require "
    "supported unsupported allow accept session-expires min-se rack rseq refer-to referred-by replaces expires "
    "user-to-user".split()
)
"""Headers that SIP itself uses. They are never custom headers, even if a pattern matches them."""


@dataclass(frozen=True, slots=True)
class SipCaller:
    """The caller and the called party."""

    from_: str
    """The caller's number, or the whole URI if it has no user part."""
    to: str
    forwarded_from: str = ""
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Custom headers by name, and User-to-User."""


def number_of(uri: Uri) -> str:
    """Return the number in a URI: its user part without parameters and password. For a scheme other than sip, return
    the text after the scheme; for a URI without a user part, the whole URI."""
    if uri.host and not uri.user:
        return plain(str(uri))
    return plain(unquote(re.split("[;:]", uri.user, maxsplit=1)[0]))


def caller_of(invite: Request, patterns: Sequence[str]) -> SipCaller:
    """Read the caller and the called party from a trunk's INVITE. Trunks are trusted, so P-Asserted-Identity goes
    before From (RFC 3325 section 9.1).

    Args:
        patterns: names of headers that become parameters; a trailing ``*`` matches any rest.

    Raises:
        SipProtocolError: the Request-URI cannot be read.
    """
    caller = _address(invite.headers.get("P-Asserted-Identity")) or invite.from_
    diverted = _address(invite.headers.get("Diversion"))
    parameters = custom_headers(invite.headers, patterns)
    handed = invite.headers.get(USER_TO_USER)
    if handed:
        parameters[USER_TO_USER] = read_user_to_user(handed)
    return SipCaller(
        from_=number_of(caller.uri),
        to=number_of(Uri.parse(invite.uri)),
        forwarded_from=number_of(diverted.uri) if diverted else "",
        name=plain(caller.display_name or invite.from_.display_name),
        parameters=parameters,
    )


def _address(value: str | None) -> Address | None:
    try:
        return Address.parse(value) if value else None
    except SipProtocolError:
        return None  # an unreadable hint is ignored


def is_own(name: str) -> bool:
    """Return True if SIP itself uses this header, so that no one else may set it."""
    return name.lower() in _OWN


def custom_headers(headers: Headers, patterns: Sequence[str]) -> dict[str, str]:
    """Return the custom headers that match a pattern. Several headers of one name are joined by commas."""
    names = {name.lower(): name for name, _ in reversed(list(headers))}
    return {
        name: plain(", ".join(headers.all(name)))
        for lower, name in names.items()
        if lower not in _OWN and any(_matches(lower, pattern) for pattern in patterns)
    }


def headers_of(parameters: Mapping[str, str], patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the custom headers of an outgoing call. Line breaks become spaces; invalid header names are left out."""
    return [
        (name, re.sub(r"[\r\n\0]+", " ", value))
        for name, value in parameters.items()
        if name.lower() not in _OWN
        and re.fullmatch(r"[A-Za-z0-9.!%*_+`'~-]+", name)
        and any(_matches(name.lower(), pattern) for pattern in patterns)
    ]


def _matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower()
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def route_of(uri: str, numbers: Mapping[str, str], default: str) -> str:
    """Return the route of a called number: that of the longest matching key, else the default."""
    try:
        number = number_of(Uri.parse(uri))
    except SipProtocolError:
        return default
    found = [key for key in numbers if (number.startswith(key[:-1]) if key.endswith("*") else number == key)]
    return numbers[max(found, key=len)] if found else default


def user_to_user(data: str) -> list[tuple[str, str]]:
    """Return the User-to-User header for ``data``. Empty: there is no data, or it is too long."""
    raw = data.encode("utf-8", "replace")
    return [(USER_TO_USER, f"{raw.hex()};encoding=hex")] if 0 < len(raw) <= MAX_HANDOFF_BYTES else []


def reasons(reason: str) -> list[tuple[str, str]]:
    """Return the Reason headers (RFC 3326) for a call without a dialogue manager; none for any other reason. PBXs
    derive their hang-up cause from Q.850 cause 41, temporary failure."""
    if reason != "dialogue_failed":
        return []
    return [("Reason", f'SIP;cause=503;text="{reason}"'), ("Reason", f'Q.850;cause=41;text="{reason}"')]


def read_user_to_user(value: str) -> str:
    """Return the data of a User-to-User header. A value that does not decode to text is returned unchanged."""
    content, _, params = value.partition(";")
    content = content.strip()
    # Not pairs of digits: ``re`` keeps a backtracking state for each repetition of a group.
    is_hex = len(content) % 2 == 0 and re.fullmatch("[0-9A-Fa-f]+", content) is not None
    if is_hex and ("encoding" not in params or "encoding=hex" in params.lower()):
        try:
            return plain(bytes.fromhex(content).decode())
        except UnicodeDecodeError:
            return content
    return plain(content.strip('"'))
