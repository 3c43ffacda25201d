"""What a call leaves behind for whoever goes on with it (the webhook ``…/after``, a dialplan): data and a target."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handoff:
    """How a session ended, for whoever goes on with the call."""

    session_id: str
    reason: str
    handoff_data: str | None = None
    transfer_target: str = ""
    route: str = ""


class Handoffs:
    """The handoffs of ended calls, by dialect and the carrier's call id, until somebody asks for them. Of more than
    ``limit`` the oldest is dropped."""

    def __init__(self, *, limit: int = 10_000) -> None:
        self._limit = limit
        self._by_call: OrderedDict[tuple[str, str], Handoff] = OrderedDict()

    def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        """Remember a call's end."""
        self._by_call[dialect, call_sid] = handoff
        self._by_call.move_to_end((dialect, call_sid))
        while len(self._by_call) > self._limit:
            self._by_call.popitem(last=False)

    def take(self, dialect: str, call_sid: str) -> Handoff | None:
        """Return what a call left and forget it. None: the call left nothing, or somebody has taken it."""
        return self._by_call.pop((dialect, call_sid), None)

    def take_of_any(self, call_sid: str, sees: Callable[[str], bool]) -> Handoff | None:
        """The same without a dialect, of the routes that somebody sees. If two dialects have calls with this id, the
        later call counts."""
        found = next(
            (key for key, left in reversed(self._by_call.items()) if key[1] == call_sid and sees(left.route)), None
        )
        return None if found is None else self._by_call.pop(found)
