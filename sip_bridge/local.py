"""What our messages say of us, and whom they go to. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sip_bridge.message.sip import BRANCH_MAGIC, Uri, Via

HeaderItems: TypeAlias = Sequence[tuple[str, str]]

METHODS = ("INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "INFO", "UPDATE", "REFER", "NOTIFY")
"""What a user may be asked; it refuses what it does not want in its state."""

EXTENSIONS = frozenset({"timer"})
"""Option tags that may stand in Require."""

ALLOW = ("Allow", ", ".join(METHODS))
SUPPORTED = ("Supported", ", ".join(sorted(EXTENSIONS)))


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a message came from or goes to: by datagram, or on the connection to that address."""

    transport: str
    """UDP, TCP or TLS."""
    host: str
    """An address, not a name: it is compared with what the socket tells."""
    port: int
    name: str = ""
    """Of a TLS server that we call: whom its certificate must be for. Empty: ``host``."""


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """Where peers reach us, as our messages say it."""

    host: str
    port: int
    """Of UDP and TCP."""
    tls_port: int = 0
    """0: not listened on; who calls by TLS then uses the connection that we made."""

    def via(self, transport: str) -> Via:
        """For one request: with a branch of its own, and ``rport`` (RFC 3581)."""
        params = {"branch": BRANCH_MAGIC + secrets.token_hex(12), "rport": None}
        return Via(transport, self._host, self._port(transport), params)

    def contact(self, transport: str, user: str = "") -> Uri:
        """A URI under which that transport reaches us."""
        params = {} if transport == "UDP" else {"transport": transport.lower()}
        return Uri("sip", user, self._host, self._port(transport), params)

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def _port(self, transport: str) -> int:
        return (self.tls_port or 5061) if transport == "TLS" else self.port
