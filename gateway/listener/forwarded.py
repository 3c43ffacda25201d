"""Reads ``X-Forwarded-*`` headers of trusted proxies. No I/O except one log line."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.config import ServerConfig, is_loopback
from gateway.errors import Rejected

log = logging.getLogger(__name__)

REMEMBERED = 256
"""Number of names and addresses in each cache, since each is read several times per request and comes again. A name is
no longer than a request's head, 16 kB."""

Headers = Mapping[str, str]
"""Headers of a request; names may be looked up in upper or lower case."""

_PASSED_ON = re.compile(r"^(?:forwarded$|via$|x-forwarded-)", re.IGNORECASE | re.MULTILINE)
"""Matches, among header names on separate lines, those that tunnels and proxies add."""


class Proxies:
    """Peers whose ``X-Forwarded-*`` headers are trusted: addresses or networks."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def trusts(self, peer: str) -> bool:
        """Return True if this peer's headers are trusted. False if ``peer`` is not an IP address."""
        address = _address(peer)
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, headers: Headers) -> str:
        """Return the client's address: ``peer``, or the address that trusted proxies name instead."""
        # The list is read from its end: only entries written by trusted proxies count.
        for hop in reversed([_without_port(part.strip()) for part in forwarded_for(headers).split(",")]):
            if not self.trusts(peer) or _address(hop) is None:
                break
            peer = hop
        return peer


def forwarded_for(headers: Headers) -> str:
    """Return the list in ``X-Forwarded-For``. Some proxies add a header of their own behind the client's, and all of
    one name are one list (RFC 9110 section 5.3)."""
    all_of = getattr(headers, "getall", None)
    return ", ".join(all_of("X-Forwarded-For", ())) if all_of is not None else headers.get("X-Forwarded-For", "")


class PublicUrl:
    """The public scheme and authority of this server. Carriers sign them, and answers to webhooks contain them."""

    def __init__(self, server: ServerConfig) -> None:
        self._fixed = server.public_url.rstrip("/")
        self._local = server.is_local
        self._scheme = "https" if server.tls is not None else "http"
        self._proxies = Proxies(server.trusted_proxies)
        self._mismatch_logged = False

    def of(self, peer: str, headers: Headers) -> str:
        """Return ``http(s)://host[:port]`` from the configuration, or else from the request.

        Args:
            peer: address at the other end of the connection.

        Raises:
            Rejected: 400, the request's host is no valid host.
        """
        if self._fixed:
            return self._fixed
        scheme, host = self._scheme, headers.get("Host", "")
        if self._proxies.trusts(peer):
            scheme = headers.get("X-Forwarded-Proto", scheme).partition(",")[0].strip()
            host = headers.get("X-Forwarded-Host", host).partition(",")[0].strip()
        if not _is_authority(host):
            raise Rejected(
                f"Host is {host[:80]!r}, expected a name or address, perhaps with a port",
                status=400, code="invalid_host",
            )  # fmt: skip
        return f"{scheme}://{host}"

    def is_local(self, peer: str, headers: Headers) -> bool:
        """Return True if a request comes from this machine, to a listener that only this machine reaches."""
        return self._local and is_loopback(peer) and not _PASSED_ON.search("\n".join(headers))

    def tell_of_mismatch(self, dialect: str, peer: str, headers: Headers) -> None:
        """Report a signature that does not match our address. If a proxy may be the reason, log that once."""
        forwarded = [name for name in headers if name.lower().startswith("x-forwarded-")]
        if self._fixed or self._mismatch_logged or not forwarded:
            return
        self._mismatch_logged = True
        log.error(
            "a signature does not match and the request came through a proxy: set server.public_url to the address "
            "that the carrier calls (logged once)",
            extra={
                "dialect": dialect,
                "checked_for": self.of(peer, headers)[:80],
                "proxy": peer,
                "proxy_trusted": self._proxies.trusts(peer),
                "headers": ", ".join(forwarded)[:80],
            },
        )


@lru_cache(maxsize=REMEMBERED)
def _is_authority(text: str) -> bool:
    try:
        parts = urlsplit(f"//{text}")
        return parts.netloc == text and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or a bracket is not closed
        return False


def _without_port(hop: str) -> str:
    """Return an entry of ``X-Forwarded-For`` without the client's port, which Azure's Application Gateway adds, and
    AWS's load balancer if it is asked to."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


@lru_cache(maxsize=REMEMBERED)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 peers as ::ffff:192.0.2.1.
    return getattr(address, "ipv4_mapped", None) or address
