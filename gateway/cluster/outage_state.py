"""Values that the processes share, and that this process knows alone while the shared store does not answer."""

from __future__ import annotations

from contextlib import suppress

from gateway.cluster.memory_state import MemoryState
from gateway.errors import Rejected
from gateway.seams.shared_state import Values


class OutageState:
    """``Values`` that never raise. While the shared store does not answer, only this process's values are known.

    Args:
        shared: None: this is the only process.
        here: the values of this process.
    """

    def __init__(self, shared: Values | None, here: Values | None = None) -> None:
        self._shared = shared
        self._here: Values = here or MemoryState()

    async def first(self, key: str, value: bytes, *, keep_s: float) -> bytes | None:
        known = await self._here.first(key, value, keep_s=keep_s)
        if self._shared is not None:
            with suppress(Rejected):
                there = await self._shared.first(key, known or value, keep_s=keep_s)
                return known if there is None else there
        return known

    async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
        await self._here.put(key, value, keep_s=keep_s)
        if self._shared is not None:
            with suppress(Rejected):
                await self._shared.put(key, value, keep_s=keep_s)

    async def find(self, key: str) -> bytes | None:
        if self._shared is not None:
            with suppress(Rejected):
                there = await self._shared.find(key)
                if there is not None:
                    return there
        return await self._here.find(key)
