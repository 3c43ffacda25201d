"""Errors of the SIP side.

    SipError
    ├── SipProtocolError  an unreadable message; carries the status that answers such a request
    ├── NotAcceptable     a readable offer with nothing usable in it (488)
    ├── PortsExhausted    no RTP port left for a call (503)
    └── Unreachable       a URI that leads nowhere (503)

A bug in our code raises another type (ValueError, RuntimeError), so the two are never confused.
"""

from __future__ import annotations


class SipError(Exception):
    """The base of all errors on the SIP side."""


class SipProtocolError(SipError):
    """An unreadable message. The text says what arrived, what was expected and where.

    Attributes:
        status: the SIP status that answers such a request: 400, 413, 505 ...
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class NotAcceptable(SipError):
    """An offer or answer with nothing usable in it (RFC 3261 section 21.4.26: 488)."""

    status = 488


class PortsExhausted(SipError):
    """No RTP port is left (RFC 3261 section 21.5.4: 503, with Retry-After)."""

    status = 503


class Unreachable(SipError):
    """The transport, host or port of a URI cannot be reached (RFC 3261 section 8.1.2)."""

    status = 503
