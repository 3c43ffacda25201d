"""A process that has no file for one more connection."""

from __future__ import annotations

import asyncio
import os
import resource


async def without_files() -> None:
    """Let the loop turn a thousand times while no file is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        for _ in range(1000):
            await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
