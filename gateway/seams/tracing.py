"""Traces of ended calls and turns, and the seam to the tracer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """Times of a turn, seconds on the clock of the turns."""

    call_id: str
    route: str
    transport: str
    kind: str
    outcome: str
    reason: str
    """Reason of the cut. Empty: the turn was not cut."""
    begun_at: float
    """Start of the wait for the turn; for a turn that was never heard, the time at which it was accepted."""
    ended_at: float
    first_at: float | None = None
    """Time of its first frame. None: it was never heard."""
    engine: str = ""
    """Engine that made the sound."""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    """Stages of the time from ``begun_at`` to ``first_at``."""
    gaps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """Times of a call, seconds on the clock of the turns."""

    call_id: str
    route: str
    transport: str
    outcome: str
    begun_at: float
    ended_at: float


class Tracer(Protocol):
    """Receiver of traces."""

    def traceparent(self, call_id: str) -> str:
        """Return the call's span in W3C Trace Context form, for services that the call uses."""
        ...

    def call(self, trace: CallTrace) -> None:
        """Take the trace of an ended call. Called on the event loop; must not block."""
        ...

    def turn(self, trace: TurnTrace) -> None:
        """Take the trace of an ended turn. Called on the event loop; must not block."""
        ...

    def close(self) -> None:
        """Send the remaining traces. May block."""
        ...
