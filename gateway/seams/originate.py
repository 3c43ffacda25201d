"""The seam to whoever can place calls: the gateway orders a call, and is told what became of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gateway.seams.calling import Allowance

AttemptState = Literal["calling", "ringing", "early_media", "answered", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrder:
    """A call that somebody wants placed."""

    target: str
    """SIP URI, or a number."""
    route: str = "default"
    """What happens to the call when it is answered."""
    from_: str = ""
    """Who calls: a SIP URI or a number. Empty: the trunk's own From."""
    trunk: str = ""
    """Name of the trunk that carries the call. Empty: the trunk that leads to ``target``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers for the peer, in addition to those that the protocol needs."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    """Custom parameters for the dialogue manager."""
    allowance: Allowance | None = None
    """What the key that ordered the call may place. None: nobody's key did."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A placed call. It is kept until the call is answered, or for some time after it failed so that one can ask."""

    call_id: str
    """Id of the session that the attempt becomes."""
    route: str
    state: AttemptState = "calling"
    status: int = 0
    """SIP status code of the peer's last answer; 0: there is none yet."""
    reason: str = ""
    """Why the attempt failed: ``busy``, ``no_answer``, ``declined``, ``not_found`` ... ``cancelled``."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""


class Originator(Protocol):
    """Places calls."""

    async def place(self, order: CallOrder) -> Attempt:
        """Begin to call. Returns at once, and the attempt goes on by itself.

        Raises:
            Rejected: 403, the target, caller id or a header is not allowed; 422, the target cannot be read; 404, the
                route or trunk is unknown; 429, the key or the route has too many calls; 503, there is no room for a
                call, no free port or no trunk that leads to the target.
        """
        ...

    def attempt(self, call_id: str) -> Attempt | None:
        """What became of a call that was placed. None: the id is unknown, or the call was answered and is a session."""
        ...

    def under_way(self) -> list[Attempt]:
        """The calls that were placed and are neither answered nor given up."""
        ...

    def cancel(self, call_id: str) -> bool:
        """Give up a call that is not answered yet. False: there is no such call of this id."""
        ...
