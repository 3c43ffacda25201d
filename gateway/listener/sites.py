"""Decides by ``Host`` and ``Origin`` which names are ours, and which pages may make a browser use this server.

A browser sends a page's requests from its user's machine, which may be this one. It shows the page the answer if a name
of the page's own points at us (DNS rebinding). For an upgrade or a change, ``Origin`` always names the page's site.
Other programs send no ``Origin``; they prove themselves by keys.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.config import ServerConfig, is_loopback, origin_of
from gateway.errors import Rejected
from gateway.listener.forwarded import REMEMBERED, Headers, Proxies, PublicUrl

ANY = "*"

_HOST = re.compile(
    r"(\[(?P<address>[0-9A-Fa-f:.]+(%[\w.%-]+)?)\]|(?P<name>[\w-]+(\.[\w-]+)*\.?))(:[0-9]{0,5})?", re.ASCII
)
"""A name of ASCII letters as browsers send it, or an address, and a port (RFC 9110 section 7.2). A more lenient reader
finds our address in ``evil.example@127.0.0.1``, and no dot in ``evil%2Eexample``."""


class Sites:
    """The check for all requests of one listener.

    Args:
        public_url: gives the public address of a request.
    """

    def __init__(self, server: ServerConfig, public_url: PublicUrl) -> None:
        self._public_url = public_url
        self._proxies = Proxies(server.trusted_proxies)
        self._origins = frozenset(server.origins)
        named = [server.public_url, *(origin for origin in server.origins if origin != ANY)]
        self._names = {urlsplit(url).hostname for url in named if url} | {server.host}
        # Beyond loopback and without a configured address, the names of this server are unknown. Then keys protect it;
        # without keys, only addresses and names of this network are accepted.
        self._knows_names = bool(server.public_url) or is_loopback(server.host) or server.insecure

    def check(self, peer: str, headers: Headers, *, changes: bool, also: Sequence[str] = ()) -> None:
        """Check a request.

        Args:
            peer: address at the other end of the connection.
            changes: True for an upgrade and for a method that may change something (RFC 9110 section 9.2.1).
            also: further origins that are allowed for this request. ``*``: all origins.

        Raises:
            Rejected: 421, the name is not ours; 403, the page belongs to another site.
        """
        host = headers.get("Host", "")
        if not self._is_ours(host) and not self._proxies.trusts(peer):
            raise Rejected(
                f"Host is {host[:80]!r}, which is not a name of this server: use server.public_url, or list the "
                "site in server.origins",
                status=421, code="misdirected_request",
            )  # fmt: skip
        shown = headers.get("Origin", "")
        if not changes or not shown or {shown, ANY} & {*self._origins, *also}:
            return
        own = origin_of(self._public_url.of(peer, headers))
        if shown not in (own, f"http://{host}", f"https://{host}"):
            raise Rejected(
                f"Origin is {shown[:80]!r}, expected {own[:80]!r} or one of server.origins",
                status=403, code="origin_not_allowed",
            )  # fmt: skip

    def _is_ours(self, host: str) -> bool:
        if not host or not self._knows_names:
            return True
        name = _name(host)
        if name is None:
            return False
        # A stranger cannot own these: an address, or a name of this machine or of its network.
        if "." not in name.rstrip(".") or name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def check_one_host(hosts: Sequence[str], target: str) -> None:
    """Check that a request names one host (RFC 9112 section 3.2), so that a proxy and this server read the same one.

    Args:
        hosts: the values of all its headers ``Host``.
        target: the target in its first line, which may have a host of its own.

    Raises:
        Rejected: 400, it names several.
    """
    try:
        own = "" if target.startswith("/") else urlsplit(target).netloc
    except ValueError:
        own = target
    if len(hosts) > 1 or (own and own.lower() not in map(str.lower, hosts)):
        raise Rejected("the request names several hosts", status=400, code="invalid_host")


@lru_cache(maxsize=REMEMBERED)
def _name(host: str) -> str | None:
    """Return the name in a ``Host`` header without the port, in lower case. None: it is no name."""
    found = _HOST.fullmatch(host)
    return None if found is None else (found["address"] or found["name"]).lower()
