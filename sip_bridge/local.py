"""Our side of every message (methods, Via, Contact, tags), and the peers that messages go to. Pure."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sip_bridge.message.sip import BRANCH_MAGIC, Uri, Via

HeaderItems: TypeAlias = Sequence[tuple[str, str]]

TRANSPORTS = ("UDP", "TCP", "TLS")

METHODS = ("INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "INFO", "UPDATE", "REFER", "NOTIFY", "PRACK")
"""The methods that reach the user, which may still refuse them in its present state."""

EXTENSIONS = frozenset({"timer", "100rel", "norefersub", "replaces"})
"""Option tags that are supported in Require."""

ALLOW = ("Allow", ", ".join(METHODS))
SUPPORTED = ("Supported", ", ".join(sorted(EXTENSIONS)))


_MARK = re.compile(rf"(?:{re.escape(BRANCH_MAGIC)})?w([0-9a-f]{{2}})-")


def mark_of(worker: int) -> str:
    """Return the prefix of the tags and branches that a worker (0 to 255) makes."""
    return f"w{worker:02x}-"


def worker_of(text: str) -> int | None:
    """Return the worker that made a tag or branch. None: it has no mark."""
    found = _MARK.match(text)
    return int(found[1], 16) if found else None


@dataclass(frozen=True, slots=True)
class Peer:
    """The source or target of a message: a UDP address, or the connection with that address."""

    transport: str
    """UDP, TCP or TLS."""
    host: str
    """An IP address, not a name, because it is compared with socket addresses."""
    port: int
    name: str = ""
    """The name that a TLS server's certificate must match when we connect to it. Empty: ``host``."""
    listens_at: tuple[str, int] | None = field(default=None, compare=False)
    """Host (address or name) and port to connect to when the connection with this address is gone. None: ``host`` and
    ``port``."""

    def can_be_reached_from(self, host: str) -> bool:
        """Return False if no socket of the address ``host`` can send to this address."""
        try:
            address, ours = ipaddress.ip_address(self.host), ipaddress.ip_address(host)
        except ValueError:
            return False  # a name: it must be looked up first
        known = self.transport in TRANSPORTS and 0 < self.port < 65536
        return known and address.version == ours.version and not (address.is_unspecified or address.is_multicast)


def is_hidden(host: str, *, seen_at: str) -> bool:
    """Return True if a translator hides an address: it is not a public one, and its owner is seen at an address of
    another kind (public, private or loopback).

    Args:
        host: the address that a peer names. A host name is never hidden.
        seen_at: the address that its messages come from.
    """
    try:
        named, seen = ipaddress.ip_address(host), ipaddress.ip_address(seen_at)
    except ValueError:
        return False
    if named.version != seen.version or named.is_unspecified:
        return False
    return not named.is_global and (named.is_loopback, named.is_link_local, named.is_global) != (
        seen.is_loopback,
        seen.is_link_local,
        seen.is_global,
    )


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """The address at which peers reach us, as written in our messages."""

    host: str
    port: int
    """The port of UDP and TCP."""
    tls_port: int = 0
    """The port of TLS. 0: there is no TLS listener; a peer can only use a TLS connection that we opened."""
    mark: str = ""
    """The prefix of our tags and branches: ``mark_of`` the worker, if several workers share the address."""

    def tag(self) -> str:
        """Return a new tag for our side of a dialog."""
        return self.mark + secrets.token_hex(8)

    def via(self, transport: str) -> Via:
        """Return the Via of one request, with a new branch and ``rport`` (RFC 3581)."""
        params = {"branch": BRANCH_MAGIC + self.mark + secrets.token_hex(12), "rport": None}
        return Via(transport, self._host, self._port(transport), params)

    def contact(self, transport: str, user: str = "") -> Uri:
        """Return the URI at which peers reach us by that transport."""
        params = {} if transport == "UDP" else {"transport": transport.lower()}
        return Uri("sip", user, self._host, self._port(transport), params)

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def _port(self, transport: str) -> int:
        return (self.tls_port or 5061) if transport == "TLS" else self.port
