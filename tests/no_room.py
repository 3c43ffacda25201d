"""A process that has no file for one more connection, or no room on the disk."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_free() -> Iterator[None]:
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def without_files() -> None:
    """Let the loop turn a thousand times while no file is free."""
    with no_file_free():
        for _ in range(1000):
            await asyncio.sleep(0)


@contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: what fits is written, and the rest fails, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
