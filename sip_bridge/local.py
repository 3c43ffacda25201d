"""What our messages say of ourselves, and the peers that they go to. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sip_bridge.message.sip import BRANCH_MAGIC, Uri, Via

HeaderItems: TypeAlias = Sequence[tuple[str, str]]

METHODS = ("INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "INFO", "UPDATE", "REFER", "NOTIFY")
"""The methods that a user may be asked. It refuses those that it does not want in its present state."""

EXTENSIONS = frozenset({"timer"})
"""Option tags that may stand in Require."""

ALLOW = ("Allow", ", ".join(METHODS))
SUPPORTED = ("Supported", ", ".join(sorted(EXTENSIONS)))


_MARK = re.compile(rf"(?:{re.escape(BRANCH_MAGIC)})?w([0-9a-f]{{2}})-")


def mark_of(worker: int) -> str:
    """Return how the tags and branches of one of several workers begin (0 to 255)."""
    return f"w{worker:02x}-"


def worker_of(text: str) -> int | None:
    """Return the worker that made a tag or a branch. None: it has no mark of ours."""
    found = _MARK.match(text)
    return int(found[1], 16) if found else None


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a message came from or goes to: by datagram, or on the connection to that address."""

    transport: str
    """UDP, TCP or TLS."""
    host: str
    """An address, not a name, since it is compared with the address that the socket tells."""
    port: int
    name: str = ""
    """The name that the certificate of a TLS server must be for, if we call it. Empty: ``host``."""


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """Where peers reach us, as our messages name it."""

    host: str
    port: int
    """The port of UDP and TCP."""
    tls_port: int = 0
    """The port of TLS. 0: we do not listen for TLS, and a peer can only use a TLS connection that we made."""
    mark: str = ""
    """How our tags and branches begin: ``mark_of`` the worker, where several have this address."""

    def tag(self) -> str:
        """Return a new tag for our side of a dialog."""
        return self.mark + secrets.token_hex(8)

    def via(self, transport: str) -> Via:
        """Return the Via of one request, with a branch of its own and ``rport`` (RFC 3581)."""
        params = {"branch": BRANCH_MAGIC + self.mark + secrets.token_hex(12), "rport": None}
        return Via(transport, self._host, self._port(transport), params)

    def contact(self, transport: str, user: str = "") -> Uri:
        """Return a URI under which peers reach us by that transport."""
        params = {} if transport == "UDP" else {"transport": transport.lower()}
        return Uri("sip", user, self._host, self._port(transport), params)

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def _port(self, transport: str) -> int:
        return (self.tls_port or 5061) if transport == "TLS" else self.port
