"""What collections of garbage look at, and what is left to them."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


async def most_looked_at() -> int:
    """Make 100,000 objects that stay, and return the most objects that one collection looked at meanwhile."""
    looked_at = [0]

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    kept: list[list[None]] = []
    gc.callbacks.append(note)
    for _ in range(100):
        kept.extend([] for _ in range(1000))
        await asyncio.sleep(0)
    gc.callbacks.remove(note)
    return max(looked_at)


@asynccontextmanager
async def leaving_no_circles() -> AsyncIterator[None]:
    """Fail if only a collection frees an object of ours that is made in the block. What is frozen alive, as during
    calls, would stay."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = {kind for one in gc.garbage if (kind := type(one)).__module__.startswith("tts_engine.")}
        assert not ours, ours
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
