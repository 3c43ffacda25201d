"""All errors of a speech engine, as one tree. Each error carries its gRPC status name in ``code``.

EngineError
├── InvalidRequest     INVALID_ARGUMENT    the request cannot be spoken as it is; names the field
├── NotFound           NOT_FOUND           no such voice or model
├── Exhausted          RESOURCE_EXHAUSTED  full; carries the delay after which a retry makes sense
├── Unavailable        UNAVAILABLE         starting, draining, or the process is gone
├── Unauthenticated    UNAUTHENTICATED     the client, or a connection to be made, lacks its proof
├── DeadlineExceeded   DEADLINE_EXCEEDED   nothing came within the configured time
└── SynthesisFailed    INTERNAL            the engine broke while making this utterance
"""

from __future__ import annotations

from typing import Any


class EngineError(Exception):
    """Base of all errors that the engine reports for one request. It can be pickled."""

    code = "INTERNAL"

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, vars(self))


class InvalidRequest(EngineError):
    """The request cannot be spoken: wrong field, unknown script, text too long."""

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, *, field: str = "text") -> None:
        super().__init__(message)
        self.field = field


class NotFound(EngineError):
    """No voice or model of that name."""

    code = "NOT_FOUND"


class Exhausted(EngineError):
    """The engine is full. It refuses a new utterance instead of delaying those that are being spoken."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(EngineError):
    """The engine takes no requests now: it is starting or draining, or its process is gone."""

    code = "UNAVAILABLE"


class Unauthenticated(EngineError):
    """The client has not shown the token, or a network connection would be made without TLS or without a proof."""

    code = "UNAUTHENTICATED"


class DeadlineExceeded(EngineError):
    """No audio came within the configured time."""

    code = "DEADLINE_EXCEEDED"


class SynthesisFailed(EngineError):
    """The engine failed in the middle of this utterance."""

    code = "INTERNAL"


def _remade(kind: type[EngineError], args: tuple[object, ...], fields: dict[str, object]) -> EngineError:
    """Rebuild a pickled error without its ``__init__``, whose keywords are not in ``args``."""
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error
