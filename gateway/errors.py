"""Errors at the gateway's edges.

    GatewayError
    ├── ProtocolError   an unreadable message of the peer; nothing else is lost
    ├── Rejected        a refused call or request, with the HTTP status for the reason
    ├── ClipError       a `play` source that is not allowed or cannot be played
    ├── CredentialsError  a file of keys that cannot be read or written
    └── RecordingError  an encrypted recording that cannot be decrypted

A bug in our code raises another type (ValueError, RuntimeError), so the two are never confused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the known word most like ``word``. Empty: none is like it."""
    near = difflib.get_close_matches(word[:80], list(known), 1)
    return f", did you mean {near[0]!r}?" if near else ""


class GatewayError(Exception):
    """The base of all errors that come from outside."""


class ProtocolError(GatewayError):
    """The peer's message is unreadable. The text says what arrived, what was expected and where."""

    def __init__(self, message: str, *, field: str = "", code: str = "invalid_message") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class Rejected(GatewayError):
    """A call or request is refused, with the HTTP status for the reason."""

    def __init__(self, message: str, *, status: int, code: str, param: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class CredentialsError(GatewayError):
    """A file of keys cannot be read or written, or has invalid content. The text names the file."""


class ClipError(GatewayError):
    """A clip is not allowed, or is no supported audio."""


class RecordingError(GatewayError):
    """An encrypted recording has another key, or was changed or truncated.

    Args:
        code: ``no_key``, ``wrong_key`` or ``damaged``.
    """

    def __init__(self, message: str, *, code: str = "damaged") -> None:
        super().__init__(message)
        self.code = code
