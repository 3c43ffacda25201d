"""Where calls and transfers may go: only to what ``sip.allowed_targets`` names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from sip_bridge.errors import ProtocolError
from sip_bridge.message.sip import Uri

_NUMBER = re.compile(r"\+?[0-9*#A-Da-d]{1,40}")
_PARAMS = frozenset({"transport", "user"})
"""URI parameters that a target may have. Others (``maddr``, ``ttl``, ``method``) would send the call elsewhere."""


def read_target(text: str, domain: str) -> Uri:
    """Return a target as a URI. A SIP URI stays as it is. A number, without its dots, spaces, dashes and brackets,
    becomes a URI at ``domain``.

    Raises:
        ProtocolError: the text is neither, or is a URI that carries more than an address.
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
    """The allowed targets, as patterns ``user@host[:port]`` or ``host``, with or without ``sip:``. ``*`` stands for
    anything.

    A pattern without a port allows any port of its host. A pattern without a user allows only URIs without a user.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]

    def allow(self, uri: Uri) -> bool:
        """Return whether calls may go to this URI."""
        bare = replace(uri, params={}, headers="")
        texts = {str(bare).partition(":")[2], str(replace(bare, port=None)).partition(":")[2]}
        return any(pattern.fullmatch(text) for pattern in self._patterns for text in texts)


def _compiled(pattern: str) -> re.Pattern[str]:
    text = re.sub(r"^sips?:", "", pattern.strip(), flags=re.IGNORECASE)
    user, at, host = text.rpartition("@")
    parts = [re.escape(part) for part in (user + at).split("*")]
    # A star in a host must not match an @, because it would then also match a user that the pattern does not allow.
    hosts = [re.escape(part) for part in host.lower().split("*")]
    return re.compile(".*".join(parts) + "[^@]*".join(hosts), re.DOTALL)
