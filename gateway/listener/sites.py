"""Which names we answer to, and which pages may make a browser use us: a look at ``Host`` and ``Origin`` of a request.

A browser sends what a page asks for from wherever its user is, loopback included, and shows the page the answer where a
name of the page's own was made to point at us (DNS rebinding). It always says in ``Origin`` who asks for an upgrade or
for a change. Programs that are no browser send no ``Origin``, and are not meant here: they prove themselves by keys.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.config import ServerConfig, is_loopback
from gateway.errors import Rejected
from gateway.listener.forwarded import Headers, Proxies, PublicUrl

ANY = "*"


class Sites:
    """The check, for all requests of one listener.

    Args:
        public_url: under which address a request reached us.
    """

    def __init__(self, server: ServerConfig, public_url: PublicUrl) -> None:
        self._public_url = public_url
        self._proxies = Proxies(server.trusted_proxies)
        self._origins = frozenset(server.origins)
        named = [server.public_url, *(origin for origin in server.origins if origin != ANY)]
        self._names = {urlsplit(url).hostname for url in named if url} | {server.host}
        # Beyond loopback, and with no address given, nobody has told which names lead here.
        self._knows_names = bool(server.public_url) or is_loopback(server.host)

    def check(self, peer: str, headers: Headers, *, changes: bool, also: Sequence[str] = ()) -> None:
        """Let a request pass, or say why not.

        Args:
            peer: address at the other end of the connection.
            changes: the request is an upgrade, or of a method that may change something (RFC 9110 section 9.2.1).
            also: more origins that may do what this request asks for; ``*``: all.

        Raises:
            Rejected: 421 for a name that is not ours, 403 for a page of another site.
        """
        host = headers.get("Host", "")
        if not self._is_ours(host) and not self._proxies.trusts(peer):
            raise Rejected(
                f"Host is {host[:80]!r}, which is no name of this server: call it by server.public_url, or list the "
                "site in server.origins",
                status=421, code="misdirected_request",
            )  # fmt: skip
        origin = headers.get("Origin", "")
        if not changes or not origin or {origin, ANY} & {*self._origins, *also}:
            return
        own = self._public_url.of(peer, headers)
        if origin not in (own, f"http://{host}", f"https://{host}"):
            raise Rejected(
                f"Origin is {origin[:80]!r}, expected {own[:80]!r} or one of server.origins",
                status=403, code="origin_not_allowed",
            )  # fmt: skip

    def _is_ours(self, host: str) -> bool:
        if not host or not self._knows_names:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        # No name of a stranger's: an address, a name of this machine or of its own network.
        if "." not in name.rstrip(".") or name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
