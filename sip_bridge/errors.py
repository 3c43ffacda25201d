"""Faults at the SIP edge.

    SipError
    ├── ProtocolError   a message that cannot be read; carries the status that a request like it deserves
    ├── NotAcceptable   a readable offer with nothing in it that we can use (488)
    ├── PortsExhausted  no RTP port left for a call (503)
    └── Unreachable     a URI that leads nowhere (503)

A bug of ours raises another type (ValueError, RuntimeError), so the two are never confused.
"""

from __future__ import annotations


class SipError(Exception):
    """The base of all faults that come from the SIP side."""


class ProtocolError(SipError):
    """A message that cannot be read. The text says what arrived, what was expected and where.

    Attributes:
        status: the SIP status that answers a request with this fault: 400, 413, 505 ...
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class NotAcceptable(SipError):
    """An offer or answer names nothing that we can use (RFC 3261 section 21.4.26: 488)."""

    status = 488


class PortsExhausted(SipError):
    """No RTP port is left (RFC 3261 section 21.5.4: 503, with Retry-After)."""

    status = 503


class Unreachable(SipError):
    """We cannot send to the transport, host or port of a URI (RFC 3261 section 8.1.2)."""

    status = 503
