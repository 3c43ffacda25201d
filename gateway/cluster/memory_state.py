"""The shared state in the memory of the supervisor, which outlives its workers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from gateway.seams.shared_state import Handoff

TOKENS, HANDOFFS = 50_000, 10_000
"""Most entries of each kind, some hundred bytes each. The oldest are dropped first."""


class MemoryState:
    """A ``SharedState``.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._claimed: OrderedDict[bytes, float] = OrderedDict()
        self._left: OrderedDict[tuple[str, str], Handoff] = OrderedDict()

    async def claim(self, token_id: bytes, *, keep_s: float) -> bool:
        if await self.is_claimed(token_id):
            return False
        self._claimed[token_id] = self._clock() + keep_s
        self._claimed.move_to_end(token_id)
        while len(self._claimed) > TOKENS:
            self._claimed.popitem(last=False)
        return True

    async def is_claimed(self, token_id: bytes) -> bool:
        return self._claimed.get(token_id, 0.0) > self._clock()

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        self._left[dialect, call_sid] = handoff
        self._left.move_to_end((dialect, call_sid))
        while len(self._left) > HANDOFFS:
            self._left.popitem(last=False)

    async def left(self, call_sid: str) -> Sequence[tuple[str, Handoff]]:
        return [(key[0], handoff) for key, handoff in reversed(self._left.items()) if key[1] == call_sid]

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        return self._left.pop((dialect, call_sid), None)

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""
