"""Faults at the gateway's edges.

    GatewayError
    ├── ProtocolError   the peer sent a message that cannot be read; nothing else is lost
    ├── Rejected        a call or request that we refuse, with the HTTP status that says why
    ├── ClipError       a `play` source that may not, or cannot, be played
    ├── CredentialsError  a file of keys that cannot be read or written
    └── RecordingError  an encrypted recording that cannot be opened, or is not what was recorded

A bug of ours raises another type (ValueError, RuntimeError), so the two are never confused.
"""

from __future__ import annotations


class GatewayError(Exception):
    """The base of all faults that come from outside."""


class ProtocolError(GatewayError):
    """The peer's message cannot be read. The text says what arrived, what was expected and where."""

    def __init__(self, message: str, *, field: str = "", code: str = "invalid_message") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class Rejected(GatewayError):
    """A call or request is refused, with the HTTP status that says why."""

    def __init__(self, message: str, *, status: int, code: str, param: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class CredentialsError(GatewayError):
    """A file of keys cannot be read or written, or has not what it should have. The text names the file."""


class ClipError(GatewayError):
    """A clip may not be fetched, or is not audio that we can decode."""


class RecordingError(GatewayError):
    """An encrypted recording has another key, or was changed or cut off.

    Args:
        code: ``no_key``, ``wrong_key`` or ``damaged``.
    """

    def __init__(self, message: str, *, code: str = "damaged") -> None:
        super().__init__(message)
        self.code = code
