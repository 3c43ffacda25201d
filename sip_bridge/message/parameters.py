"""What an INVITE says of its caller, and data handed along with a call (User-to-User, RFC 7433). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from sip_bridge.errors import ProtocolError
from sip_bridge.message.sip import Address, Headers, Request, Uri

USER_TO_USER = "User-to-User"

MAX_HANDOFF_BYTES = 2048
"""Bytes of data in one header. In hex these are twice as many characters, which a datagram still carries."""

_OWN = frozenset(
    "via from to call-id cseq contact max-forwards route record-route content-type content-length content-encoding "
    "content-disposition authorization proxy-authorization www-authenticate proxy-authenticate proxy-require require "
    "supported unsupported allow accept session-expires min-se rack rseq refer-to referred-by replaces expires "
    "user-to-user".split()
)
"""Headers that the protocol itself reads or writes. They are never custom headers, whatever a pattern says."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls whom."""

    from_: str
    """The caller's number, or the whole URI if it has no user part."""
    to: str
    forwarded_from: str = ""
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Custom headers by name, and User-to-User."""


def text_of(value: str) -> str:
    """Return header text that every encoder takes: bytes that are not UTF-8, and NULs, at which some programs would
    end the text, become replacement characters."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "\ufffd")


def number_of(uri: Uri) -> str:
    """Return the number that a URI names: its user part without parameters and password. A URI of a scheme other than
    sip gives the text after the scheme, and a URI without a user part the whole URI."""
    if uri.host and not uri.user:
        return text_of(str(uri))
    return text_of(unquote(re.split("[;:]", uri.user, maxsplit=1)[0]))


def caller_of(invite: Request, patterns: Sequence[str]) -> Caller:
    """Read who calls whom in a trunk's INVITE. We believe trunks, so an asserted identity goes before From (RFC 3325
    section 9.1).

    Args:
        patterns: names of headers that become parameters; ``*`` at the end stands for anything.

    Raises:
        ProtocolError: the Request-URI cannot be read.
    """
    caller = _address(invite.headers.get("P-Asserted-Identity")) or invite.from_
    diverted = _address(invite.headers.get("Diversion"))
    parameters = custom_headers(invite.headers, patterns)
    handed = invite.headers.get(USER_TO_USER)
    if handed:
        parameters[USER_TO_USER] = read_user_to_user(handed)
    return Caller(
        from_=number_of(caller.uri),
        to=number_of(Uri.parse(invite.uri)),
        forwarded_from=number_of(diverted.uri) if diverted else "",
        name=text_of(caller.display_name or invite.from_.display_name),
        parameters=parameters,
    )


def _address(value: str | None) -> Address | None:
    try:
        return Address.parse(value) if value else None
    except ProtocolError:
        return None  # we ignore a hint that we cannot read


def is_own(name: str) -> bool:
    """Return whether a header is the protocol's own, which nobody else may set."""
    return name.lower() in _OWN


def custom_headers(headers: Headers, patterns: Sequence[str]) -> dict[str, str]:
    """Return the custom headers that a pattern names. Several headers of one name are joined by commas."""
    names = {name.lower(): name for name, _ in reversed(list(headers))}
    return {
        name: text_of(", ".join(headers.all(name)))
        for lower, name in names.items()
        if lower not in _OWN and any(_matches(lower, pattern) for pattern in patterns)
    }


def headers_of(parameters: Mapping[str, str], patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the custom headers for a call of ours. Line breaks become spaces; names that are no header names are left
    out."""
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
    """Return the route of a called number: that of the longest key which the number matches, else the default."""
    try:
        number = number_of(Uri.parse(uri))
    except ProtocolError:
        return default
    found = [key for key in numbers if (number.startswith(key[:-1]) if key.endswith("*") else number == key)]
    return numbers[max(found, key=len)] if found else default


def user_to_user(data: str) -> list[tuple[str, str]]:
    """Return the headers that hand data on. Empty: there is no data, or more than a header should carry."""
    raw = data.encode("utf-8", "replace")
    return [(USER_TO_USER, f"{raw.hex()};encoding=hex")] if 0 < len(raw) <= MAX_HANDOFF_BYTES else []


def reasons(reason: str) -> list[tuple[str, str]]:
    """Return the Reason headers (RFC 3326) of a call that is given back because it has no dialogue manager. PBXs make a
    hang-up cause of that of Q.850: 41, temporary failure. No other reason has headers."""
    if reason != "dialogue_failed":
        return []
    return [("Reason", f'SIP;cause=503;text="{reason}"'), ("Reason", f'Q.850;cause=41;text="{reason}"')]


def read_user_to_user(value: str) -> str:
    """Return the data of a User-to-User header. A value that is no text stays as it came."""
    content, _, params = value.partition(";")
    content = content.strip()
    # Not pairs of digits: for each repetition of a group the engine of ``re`` keeps a place to come back to.
    is_hex = len(content) % 2 == 0 and re.fullmatch("[0-9A-Fa-f]+", content) is not None
    if is_hex and ("encoding" not in params or "encoding=hex" in params.lower()):
        try:
            return bytes.fromhex(content).decode()
        except UnicodeDecodeError:
            return content
    return text_of(content.strip('"'))
