"""Where calls and transfers may go: nowhere but to what ``sip.allowed_targets`` names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from sip_bridge.errors import ProtocolError
from sip_bridge.message.sip import Uri

_NUMBER = re.compile(r"\+?[0-9*#A-Da-d]{1,40}")
_PARAMS = frozenset({"transport", "user"})
"""URI parameters that a target may have; others (``maddr``, ``ttl``, ``method``) would send it elsewhere."""


def read_target(text: str, domain: str) -> Uri:
    """A target as a URI: a SIP URI as it is, a number (dots, spaces, dashes and brackets are left out) at ``domain``.

    Raises:
        ProtocolError: neither, or a URI that carries more than an address.
    """
    text = text.strip()
    scheme, _, rest = text.partition(":")
    number = re.sub(r"[\s().-]", "", rest if scheme.lower() == "tel" else text)
    if _NUMBER.fullmatch(number):
        if not domain:
            raise ProtocolError("target is a number, expected a SIP URI: no trunk with a proxy says where numbers are")
        return Uri.parse(f"sip:{number}@{domain}")
    uri = Uri.parse(text)
    if uri.scheme not in ("sip", "sips"):
        raise ProtocolError(f"target is a {uri.scheme[:20]} URI, expected sip, sips or a number")
    if uri.headers or not uri.params.keys() <= _PARAMS:
        raise ProtocolError("target carries headers or parameters, expected sip:user@host[:port][;transport=...]")
    if any(char in text for char in '<>"\r\n\t '):
        raise ProtocolError("target holds brackets, quotes or spaces, expected a bare URI")
    return uri


class AllowedTargets:
    """The list, as patterns ``user@host[:port]`` or ``host``, with or without ``sip:``; ``*`` stands for anything.

    A pattern without a port allows any port of its host; one without a user allows only URIs without one.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]

    def allow(self, uri: Uri) -> bool:
        """Whether calls may go there."""
        bare = replace(uri, params={}, headers="")
        texts = {str(bare).partition(":")[2], str(replace(bare, port=None)).partition(":")[2]}
        return any(pattern.fullmatch(text) for pattern in self._patterns for text in texts)


def _compiled(pattern: str) -> re.Pattern[str]:
    text = re.sub(r"^sips?:", "", pattern.strip(), flags=re.IGNORECASE)
    user, at, host = text.rpartition("@")
    parts = [re.escape(part) for part in (user + at).split("*")]
    # No star of a host part may swallow an @ and with it a user that it did not mean.
    hosts = [re.escape(part) for part in host.lower().split("*")]
    return re.compile(".*".join(parts) + "[^@]*".join(hosts), re.DOTALL)
