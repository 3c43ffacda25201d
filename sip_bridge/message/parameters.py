"""Reads the caller's identity and parameters from an INVITE, and makes and reads User-to-User (RFC 7433). Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias
from urllib.parse import unquote

from gateway.seams.plain_text import plain
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Address, Headers, Message, Request, Uri
from sip_bridge.message.sip import unquote as unquote_text

USER_TO_USER = "User-to-User"

MAX_HANDOFF_BYTES = 2048
"""Most bytes of data in one header. In hex these are twice as many characters, which still fit in a datagram."""

DidFrom: TypeAlias = Literal["auto", "request_uri", "to", "p_called_party_id"]
"""The place of the called number in an INVITE."""

_ANONYMOUS = "anonymous.invalid"
"""The host of an identity that is hidden (RFC 3323 section 4.1.1.3)."""

_NUMBER = re.compile(r"\+?[0-9*#]+")

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
    """Custom headers by name, User-to-User, and the caller's verification (``Identity``, ``verstat``)."""


def number_of(uri: Uri) -> str:
    """Return the number in a URI: its user part without parameters and password, and without visual separators if it
    is a telephone number (tel, ``+`` or ``user=phone``). For another scheme, return the text after it; for a URI
    without a user part, the whole URI."""
    if uri.host and not uri.user:
        return plain(str(uri))
    user = unquote(re.split("[;:]", uri.user, maxsplit=1)[0])
    is_telephone = uri.scheme == "tel" or user.startswith("+") or (uri.params.get("user") or "").lower() == "phone"
    return plain(re.sub("[-.()]", "", user) if is_telephone else user)


def is_number(text: str) -> bool:
    """Return True if a text of ``number_of`` is a telephone number."""
    return _NUMBER.fullmatch(text) is not None


def caller_of(
    invite: Request, patterns: Sequence[str], *, did_from: DidFrom = "auto", accounts: Container[str] = ()
) -> SipCaller:
    """Read the caller and the called party from a trunk's INVITE.

    Trunks are trusted, so P-Asserted-Identity (RFC 3325), Remote-Party-ID and P-Preferred-Identity go before From, in
    this order. Of several identities, a number goes before a name. The party that forwarded the call is the latest one
    in Diversion (RFC 5806) or History-Info (RFC 7044), or the one that transferred it (Referred-By, RFC 3892).

    Args:
        patterns: names of headers that become parameters; a trailing ``*`` matches any rest.
        did_from: the header with the called party. ``auto``: P-Called-Party-ID (RFC 7315) if there is one, else the
            Request-URI, or To if the Request-URI names our account or no user.
        accounts: the users of our registrations. Registrars send calls for any number to them.

    Raises:
        SipProtocolError: the Request-URI cannot be read.
    """
    called = number_of(_called(invite, did_from, accounts))
    from_, name = _party(_identities(invite.headers) or [invite.from_], invite.from_)
    diverted = next(iter(_addresses(invite.headers, "Diversion")), None)
    referred = next(iter(_addresses(invite.headers, "Referred-By")), None)
    parameters = {**custom_headers(invite.headers, patterns), **_verification(invite)}
    handed = invite.headers.get(USER_TO_USER)
    if handed:
        parameters[USER_TO_USER] = read_user_to_user(handed)
    return SipCaller(
        from_=from_,
        to=called,
        forwarded_from=number_of(diverted.uri)
        if diverted
        else _forwarded_from(invite.headers, called) or (number_of(referred.uri) if referred else ""),
        name=name,
        parameters=parameters,
    )


def _party(identities: Sequence[Address], *others: Address) -> tuple[str, str]:
    """Return number and name of a party. A number goes before a name, and ``others`` may give the name."""
    party = next((each for each in identities if is_number(number_of(each.uri))), identities[0])
    names = [each.display_name for each in (party, *identities, *others) if each.display_name]
    return number_of(party.uri), plain(names[0]) if names else ""


def connected_party(message: Message) -> tuple[str, str] | None:
    """Return number and name of the peer in a re-INVITE, an UPDATE or the answer to ours (RFC 3325, RFC 5876). None:
    the message has no identity. From and To say nothing here, because they stay the same in a dialog."""
    identities = _addresses(message.headers, "P-Asserted-Identity") or _addresses(message.headers, "Remote-Party-ID")
    return _party(identities) if identities else None


def _called(invite: Request, did_from: DidFrom, accounts: Container[str]) -> Uri:
    asked = Uri.parse(invite.uri)
    named = _addresses(invite.headers, "P-Called-Party-ID")
    if named and did_from in ("auto", "p_called_party_id"):
        return named[0].uri
    nameless = bool(asked.host) and not asked.user and bool(invite.to.uri.user)
    if did_from == "to" or (did_from == "auto" and (nameless or number_of(asked) in accounts)):
        return invite.to.uri
    return asked


def _addresses(headers: Headers, name: str) -> list[Address]:
    """Return the readable values of a header. An unreadable hint is ignored."""
    found = []
    for value in headers.all(name):
        with contextlib.suppress(SipProtocolError):
            found.append(Address.party(value))
    return found


def _identities(headers: Headers) -> list[Address]:
    """Return the identities of the caller from the first header that has any."""
    parties = _addresses(headers, "Remote-Party-ID")
    calling = [each for each in parties if unquote_text(each.params.get("party") or "calling").lower() == "calling"]
    known = (_addresses(headers, "P-Asserted-Identity"), calling, _addresses(headers, "P-Preferred-Identity"))
    return next(filter(None, ([each for each in of if each.uri.host != _ANONYMOUS] for of in known)), [])


def _forwarded_from(headers: Headers, called: str) -> str:
    """Return the party before the latest diversion in History-Info.

    A diversion is an entry with ``cause`` (RFC 7544) or the tag ``mp``, or one after an entry with a Reason. If no
    entry is marked, return the latest party other than the called one.
    """
    history = _addresses(headers, "History-Info")
    for before, after in reversed(list(pairwise(history))):
        if "cause" in after.uri.params or "mp" in after.params or "reason=" in before.uri.headers.lower():
            return number_of(before.uri)
    others = [number for each in history if (number := number_of(each.uri)) != called]
    return others[-1] if others else ""


def _verification(invite: Request) -> dict[str, str]:
    """Return what the network says about the caller's number, for the application to judge: the signatures
    (``Identity``, RFC 8224) and the result of their check (``verstat``, 3GPP TS 24.229 section 7.2A.20)."""
    found = {}
    if signed := invite.headers.all("Identity"):
        found["Identity"] = plain(", ".join(signed))
    for address in (*_addresses(invite.headers, "P-Asserted-Identity"), invite.from_):
        # It is a parameter of the number, so in a sip URI it is in the user part; some networks put it elsewhere.
        of_number = (part.partition("=") for part in address.uri.user.split(";")[1:])
        texts = [value for name, _, value in of_number if name.strip().lower() == "verstat"]
        texts += [params.get("verstat") or "" for params in (address.uri.params, address.params)]
        if value := next(filter(None, texts), ""):
            return {**found, "verstat": plain(unquote(value))}
    return found


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


def route_of(number: str, numbers: Mapping[str, str], default: str) -> str:
    """Return the route of a called number: that of the longest matching key, else the default."""
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
