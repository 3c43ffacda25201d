"""State that processes serving the same callers share: proofs and stream tokens that were used, answers that repeated
requests get again, and handoffs of ended calls."""

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
    conference: str = ""
    """Conference of the carrier in which the call continues."""


class Values(Protocol):
    """Small values by key, each kept for a time. Every method raises ``Rejected`` (503) while the store cannot be
    reached."""

    async def first(self, key: str, value: bytes, *, keep_s: float) -> bytes | None:
        """Store a value for ``keep_s`` seconds, unless the key has one. Return the value that it has; None: it had
        none, so the caller is the first."""
        ...

    async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
        """Store a value for ``keep_s`` seconds instead of what the key has."""
        ...

    async def find(self, key: str) -> bytes | None: ...


class SharedState(Values, Protocol):
    """Store of the shared state. Every method raises ``Rejected`` (503) while the store cannot be reached."""

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
