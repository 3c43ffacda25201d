"""A file that is read again when it has changed, while the server runs. The disk is read in a thread."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from gateway.errors import CredentialsError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Pause between two looks at the file. A change counts within this and the time that the reading takes: two seconds."""

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """What a file says now.

    Args:
        read: makes the value of the path. What it cannot read it refuses with ``CredentialsError``.

    Raises:
        CredentialsError: the file cannot be read at first. Later the value before is kept, and the reason logged.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._seen = self._state()
        self.value = read(path)

    async def watch(self, on_change: Callable[[T], None]) -> None:
        """Look at the file until cancelled, and tell each new value."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await asyncio.to_thread(self.look):
                on_change(self.value)

    def look(self) -> bool:
        """Look at the file once. Return whether there is a new value."""
        state = self._state()  # before the reading: a change in between is seen by the next look
        if state == self._seen:
            return False
        self._seen = state
        try:
            self.value = self._read(self._path)
        except CredentialsError as exc:
            log.error("changed file cannot be used, what it said before holds", extra={"why": str(exc)})
            return False
        log.info("file has changed", extra={"file": str(self._path)})
        return True

    def _state(self) -> object:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
