"""The seam to whoever can place calls: the gateway asks, and is told what became of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

AttemptState = Literal["calling", "ringing", "early_media", "answered", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrder:
    """A call that somebody wants placed."""

    target: str
    """SIP URI, or a number."""
    route: str = "default"
    """What happens to the call when it is answered."""
    from_: str = ""
    """Who calls: a SIP URI or a number; empty: the trunk's own."""
    trunk: str = ""
    """By which trunk; empty: the one that leads there."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the peer, beside those that the protocol needs."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    """For the dialogue manager."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A placed call, until it is answered and long enough after it failed to be asked for."""

    call_id: str
    """Of the session that it becomes."""
    route: str
    state: AttemptState = "calling"
    status: int = 0
    """The peer's last answer, as SIP has it; 0: none yet."""
    reason: str = ""
    """Of a failure: ``busy``, ``no_answer``, ``declined``, ``not_found`` ... ``cancelled``."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""


class Originator(Protocol):
    """Places calls."""

    async def place(self, order: CallOrder) -> Attempt:
        """Begin to call; the attempt goes on by itself.

        Raises:
            Rejected: 403 a target that is not allowed, 422 one that cannot be read, 404 an unknown route or trunk, 503
                no room, no port or no way.
        """
        ...

    def attempt(self, call_id: str) -> Attempt | None:
        """What became of a call that was placed; None: unknown, or answered and so a session's."""
        ...

    def cancel(self, call_id: str) -> bool:
        """Give up a call that is not answered. False: there is none of this id."""
        ...
