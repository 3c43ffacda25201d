"""Converts targets that the calling policy (``gateway/calling/``) has allowed to URIs. Pure."""

from __future__ import annotations

import re

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Uri

_NUMBER = re.compile(r"\+?[0-9*#]{1,40}")


def domain_of(uri: Uri) -> str:
    """Return the host of a URI, with its port if it has one."""
    return uri.host if uri.port is None else f"{uri.host}:{uri.port}"


def read_target(text: str, domain: str) -> Uri:
    """Return a target as a URI. A SIP URI is unchanged; a number becomes a URI at ``domain``.

    Raises:
        SipProtocolError: the text is neither, or there is no domain for a number. The error does not name the target.
    """
    if text.startswith(("sip:", "sips:")):
        return Uri.parse(text)
    if not _NUMBER.fullmatch(text):
        raise SipProtocolError("target is neither a SIP URI, a number nor a live call of this server")
    if not domain:
        raise SipProtocolError("target is a number, expected a SIP URI: no trunk has a proxy to which numbers belong")
    return Uri.parse(f"sip:{text}@{domain}")
