"""What is told of calls and turns that are over, for whoever traces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """When a turn did what. Times are seconds on the clock of the turns."""

    call_id: str
    route: str
    transport: str
    kind: str
    outcome: str
    reason: str
    """Why the turn was cut. Empty: it was not."""
    begun_at: float
    """When somebody began to wait for it; for a turn that was never heard, when it was accepted."""
    ended_at: float
    first_at: float | None = None
    """When its first frame was sent. None: it was never heard."""
    engine: str = ""
    """What made its sound."""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    """Where the time from ``begun_at`` to ``first_at`` went."""
    gaps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """A call. Times are seconds on the clock of the turns."""

    call_id: str
    route: str
    transport: str
    outcome: str
    begun_at: float
    ended_at: float


class Tracer(Protocol):
    """Takes the traces."""

    def traceparent(self, call_id: str) -> str:
        """Return the call's span as W3C Trace Context names it, for services that the call uses."""
        ...

    def call(self, trace: CallTrace) -> None:
        """Take the trace of a call that is over. Called on the event loop; must not block."""
        ...

    def turn(self, trace: TurnTrace) -> None:
        """Take the trace of a turn that is over. Called on the event loop; must not block."""
        ...

    def close(self) -> None:
        """Send what is left. May block."""
        ...
