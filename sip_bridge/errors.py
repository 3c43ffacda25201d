"""Faults at the SIP edge.

    SipError
    ├── ProtocolError   a message that cannot be read; carries the status that a request like it deserves
    ├── NotAcceptable   a readable offer with nothing in it that we can use (488)
    ├── PortsExhausted  no RTP port left for a call (503)
    ├── Unreachable     a URI that leads nowhere (503)
    └── NotAllowed      a target that configuration does not name (403)

A bug of ours raises something else (ValueError, RuntimeError): the two never share a type.
"""

from __future__ import annotations


class SipError(Exception):
    """Base of all faults that come from the SIP side."""


class ProtocolError(SipError):
    """What arrived cannot be read. Says what arrived, what was expected and where.

    Attributes:
        status: SIP status for a request with this fault: 400, 413, 505 ...
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class NotAcceptable(SipError):
    """An offer or answer that names nothing we can use (RFC 3261 section 21.4.26: 488)."""

    status = 488


class PortsExhausted(SipError):
    """No RTP port is left (RFC 3261 section 21.5.4: 503, with Retry-After)."""

    status = 503


class Unreachable(SipError):
    """A URI whose transport, host or port we cannot send to (RFC 3261 section 8.1.2)."""

    status = 503


class NotAllowed(SipError):
    """A target outside ``sip.allowed_targets``."""

    status = 403
