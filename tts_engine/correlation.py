"""The id by which one call is found everywhere: in the log of each process, in the engine's requests and in traces.

A task that works for a call sets ``CORRELATION`` once; whatever it starts inherits it. The log's formatter reads it,
the engine's client sends it along as metadata, and the engine's server sets it for its own task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

CALL_KEY = "talkspurt-call-id"
"""Metadata of a request to the engine: the id of the call that it is for."""
TRACE_KEY = "traceparent"
"""Metadata of a request to the engine, and a header: W3C Trace Context, section 3.2."""
_SANE = {
    CALL_KEY: re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII),
    TRACE_KEY: re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII),
}
"""What a value may look like: it goes into the log as it is."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Whom a task works for."""

    call_id: str = ""
    """Empty: for no call."""
    traceparent: str = ""
    """The call's span, to which other services may add theirs. Empty: nothing is traced."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the keys that a request to the engine carries."""
        pairs = ((CALL_KEY, self.call_id), (TRACE_KEY, self.traceparent))
        return tuple((key, value) for key, value in pairs if value)

    @classmethod
    def of_metadata(cls, metadata: Iterable[tuple[str, str | bytes]]) -> Correlation:
        """Return what a request carries. A value of another form counts as none."""
        told = {
            key: value
            for key, value in metadata
            if key in _SANE and isinstance(value, str) and _SANE[key].fullmatch(value)
        }
        return cls(told.get(CALL_KEY, ""), told.get(TRACE_KEY, ""))


_NOBODY = Correlation()

CORRELATION: ContextVar[Correlation] = ContextVar("correlation", default=_NOBODY)
"""Of the task that runs."""
