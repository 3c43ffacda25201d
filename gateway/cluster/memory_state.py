"""The shared state in the memory of one process: of the supervisor, which outlives its workers, or of the only one."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from gateway.seams.shared_state import Handoff

VALUES, HANDOFFS = 50_000, 10_000
"""Most entries of each kind, some hundred bytes each. The oldest are dropped first."""
VALUE_BYTES = 32 * 1024 * 1024
"""Most bytes of all values together."""


class MemoryState:
    """A ``SharedState``.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        """Value and expiry time by key."""
        self._bytes = 0
        self._left: OrderedDict[tuple[str, str], Handoff] = OrderedDict()

    async def first(self, key: str, value: bytes, *, keep_s: float) -> bytes | None:
        known = await self.find(key)
        if known is None:
            await self.put(key, value, keep_s=keep_s)
        return known

    async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
        self._forget(key)
        self._values[key] = (value, self._clock() + keep_s)
        self._bytes += len(value)
        while len(self._values) > VALUES or self._bytes > VALUE_BYTES:
            self._forget(next(iter(self._values)))

    async def find(self, key: str) -> bytes | None:
        value, until = self._values.get(key, (None, 0.0))
        return value if until > self._clock() else None

    def _forget(self, key: str) -> None:
        self._bytes -= len(self._values.pop(key, (b"", 0.0))[0])

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
