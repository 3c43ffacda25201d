"""The end of a call: its reason, and what the carrier's next step receives. The parts of a call that may end it share
it and need no reference to the call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from gateway.seams.end_cause import UNKNOWN, EndCause, EndedBy
from gateway.seams.leg import CallInfo
from gateway.seams.shared_state import Handoff

_ENDED_BY: Mapping[str, EndedBy] = {
    "hangup": "caller",
    "cancelled": "caller",
    "end": "manager",
    "transferred": "manager",
    "hangup_by_api": "manager",
}
"""The party that ends a call, by the reason. Every other reason is the gateway's."""


class CallEnd:
    """The end of one call. The first reason stays."""

    def __init__(self, call: CallInfo) -> None:
        self._call = call
        self._decided = asyncio.Event()
        self.reason = ""
        """Reason of the end. Empty while the call lasts."""
        self._cause = UNKNOWN
        self.hangs_up = False
        """True if the gateway closes the leg."""
        self.handoff_data: str | None = None
        self.handoff: Handoff | None = None
        """Data for the webhook that follows the call."""

    @property
    def cause(self) -> EndCause:
        """The cause of the end. If the leg does not know who ended the call, the reason decides."""
        return replace(self._cause, by=self._cause.by or _ENDED_BY.get(self.reason, "gateway"))

    @property
    def decided(self) -> bool:
        """True once the call has been told to end."""
        return self._decided.is_set()

    async def wait(self) -> None:
        """Wait until the call is told to end."""
        await self._decided.wait()

    def end(self, reason: str, *, hang_up: bool, handoff_data: str | None = None, cause: EndCause = UNKNOWN) -> None:
        """End the call; ``hang_up`` also closes the leg. Later calls change nothing."""
        if not self.decided:
            self.reason = reason
            self._cause = cause
            self.hangs_up = hang_up
            self.handoff_data = handoff_data
            self._decided.set()

    def leave(
        self,
        reason: str,
        handoff_data: str | None,
        *,
        target: str = "",
        conference: str = "",
        cause: EndCause = UNKNOWN,
    ) -> None:
        """End the call and leave a handoff for the next step of the carrier. ``target``: the transfer's target, empty
        without a transfer; ``conference``: the carrier's conference in which the call continues. No effect if the call
        has already been told to end."""
        if not self.decided:
            shown = "ended" if reason == "end" else reason
            self.handoff = Handoff(self._call.call_id, shown, handoff_data, target, self._call.route, conference)
            self.end(reason, hang_up=True, handoff_data=handoff_data, cause=cause)
