"""State that processes serving the same callers share: stream tokens that have begun a call, and handoffs of ended
calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Handoff:
    """The end of a session, for the carrier's next step with the call."""

    session_id: str
    reason: str
    handoff_data: str | None = None
    transfer_target: str = ""
    route: str = ""


class SharedState(Protocol):
    """Store of the shared state. Every method raises ``Rejected`` (503) while the store cannot be reached."""

    async def claim(self, token_id: bytes, *, keep_s: float) -> bool:
        """Record for ``keep_s`` seconds that a call begins with this stream token. False: another call has begun with
        it."""
        ...

    async def is_claimed(self, token_id: bytes) -> bool: ...

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        """Store the handoff of a call."""
        ...

    async def left(self, call_sid: str) -> Sequence[tuple[str, Handoff]]:
        """Return the handoffs of calls with this id, each with its dialect, latest first."""
        ...

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        """Return and remove a handoff. None: there is none, or it was taken before."""
        ...

    async def aclose(self) -> None: ...
