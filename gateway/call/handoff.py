"""Data that an ended call leaves for the next step of its carrier (the webhook ``…/after``, a dialplan): its end,
handoff data and transfer target."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from gateway.errors import Rejected
from gateway.seams.shared_state import Handoff, SharedState

log = logging.getLogger(__name__)


class Handoffs:
    """The handoffs of ended calls by dialect and the carrier's call id, until they are taken. Beyond ``limit`` the
    oldest is dropped.

    Args:
        shared: the store that other processes read; None if this process is the only one. A handoff stays in this
            process while the store does not answer.
    """

    def __init__(self, *, limit: int = 10_000, shared: SharedState | None = None) -> None:
        self._limit = limit
        self._shared = shared
        self._by_call: OrderedDict[tuple[str, str], Handoff] = OrderedDict()
        self._sharing: set[asyncio.Task[None]] = set()

    def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        """Store the handoff of a call."""
        self._by_call[dialect, call_sid] = handoff
        self._by_call.move_to_end((dialect, call_sid))
        while len(self._by_call) > self._limit:
            self._by_call.popitem(last=False)
        if self._shared is not None:
            task = asyncio.create_task(self._share(self._shared, dialect, call_sid, handoff), name="share a handoff")
            self._sharing.add(task)
            task.add_done_callback(self._sharing.discard)

    async def _share(self, shared: SharedState, dialect: str, call_sid: str, handoff: Handoff) -> None:
        try:
            await shared.leave(dialect, call_sid, handoff)
        except Rejected as exc:
            log.warning(
                "shared store does not answer, handoff kept in this process",
                extra={"call": handoff.session_id, "why": exc.code},
            )
            return
        if self._by_call.get((dialect, call_sid)) is handoff:
            del self._by_call[dialect, call_sid]

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        """Return and remove the handoff of a call. None: there is none, or it was taken before.

        Raises:
            Rejected: 503 if the handoff may be in the shared store and the store does not answer.
        """
        await self.shared()
        here = self._by_call.pop((dialect, call_sid), None)
        return here if here is not None or self._shared is None else await self._shared.take(dialect, call_sid)

    async def take_of_any(self, call_sid: str, sees: Callable[[str], bool]) -> Handoff | None:
        """Like ``take``, for any dialect and only for routes for which ``sees`` returns True. If calls of two dialects
        have this id, the later call wins."""
        await self.shared()
        here = [(key[0], left) for key, left in reversed(self._by_call.items()) if key[1] == call_sid]
        there = () if here or self._shared is None else await self._shared.left(call_sid)
        dialect = next((dialect for dialect, left in (*here, *there) if sees(left.route)), None)
        return None if dialect is None else await self.take(dialect, call_sid)

    async def shared(self) -> None:
        """Wait until every handoff is in the shared store or has failed to get there."""
        if self._sharing:
            await asyncio.wait(set(self._sharing))
