"""What processes that serve the same callers know together: which stream tokens have begun a call, and what ended calls
left for whoever goes on with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Handoff:
    """How a session ended, for whoever goes on with the call."""

    session_id: str
    reason: str
    handoff_data: str | None = None
    transfer_target: str = ""
    route: str = ""


class SharedState(Protocol):
    """Every method raises ``Rejected`` (503) while the state cannot be reached."""

    async def claim(self, token_id: bytes, *, keep_s: float) -> bool:
        """Note that a call begins with this stream token, for ``keep_s`` seconds. False: another call has begun."""
        ...

    async def is_claimed(self, token_id: bytes) -> bool: ...

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        """Keep what a call left."""
        ...

    async def left(self, call_sid: str) -> Sequence[tuple[str, Handoff]]:
        """Return what calls with this id have left, each with its dialect; the latest comes first."""
        ...

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        """Return what a call left and forget it. None: it left nothing, or somebody has taken it."""
        ...

    async def aclose(self) -> None: ...
