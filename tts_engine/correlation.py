"""The id that names one call everywhere: in the log of each process, in the engine's requests and in traces.

A task that works for a call sets ``CORRELATION`` once; tasks that it starts inherit it. The log's formatter reads it,
the engine's client sends it as metadata, and the engine's server sets it for its own task.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

CALL_KEY = "talkspurt-call-id"
"""Metadata of a request to the engine: the id of the call that it is for."""
ROUTE_KEY = "talkspurt-route"
"""Metadata of a request to the engine: the route of that call."""
TRACE_KEY = "traceparent"
"""Metadata of a request to the engine, and a header: W3C Trace Context, section 3.2."""
_SANE = {
    CALL_KEY: re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII),
    ROUTE_KEY: re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII),
    TRACE_KEY: re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII),
}
"""Allowed form of each value, because values go into the log unchanged."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """The call that a task works for."""

    call_id: str = ""
    """Empty: the task works for no call."""
    traceparent: str = ""
    """The call's span; other services may add child spans. Empty: nothing is traced."""
    route: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the keys that a request to the engine carries."""
        pairs = ((CALL_KEY, self.call_id), (TRACE_KEY, self.traceparent), (ROUTE_KEY, self.route))
        return tuple((key, value) for key, value in pairs if value)

    @classmethod
    def of_metadata(cls, metadata: Iterable[tuple[str, str | bytes]]) -> Correlation:
        """Read the correlation that a request carries. A value of another form counts as missing."""
        told = {
            key: value
            for key, value in metadata
            if key in _SANE and isinstance(value, str) and _SANE[key].fullmatch(value)
        }
        return cls(told.get(CALL_KEY, ""), told.get(TRACE_KEY, ""), told.get(ROUTE_KEY, ""))


_NOBODY = Correlation()

CORRELATION: ContextVar[Correlation] = ContextVar("correlation", default=_NOBODY)
"""The correlation of the current task."""

_ROUTES: OrderedDict[str, str] = OrderedDict()
_ROUTES_KEPT = 4096


def remember_route(call_id: str, route: str) -> None:
    """Keep a call's route for lines that name the call and are logged by a task that works for no call, or after the
    call. The oldest calls are forgotten."""
    _ROUTES[call_id] = route
    _ROUTES.move_to_end(call_id)
    if len(_ROUTES) > _ROUTES_KEPT:
        _ROUTES.popitem(last=False)


def known_route(call_id: object) -> str:
    """Return the route of a call, or the empty string if it is not known here."""
    return _ROUTES.get(str(call_id), "")
