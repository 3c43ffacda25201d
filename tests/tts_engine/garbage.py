"""Many objects in a process of ours, to see how many of them a collection of garbage looks at."""

import asyncio
import gc
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
