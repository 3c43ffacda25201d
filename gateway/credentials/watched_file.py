"""A file that is reloaded after changes while the server runs. The disk is read in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from gateway.errors import CredentialsError
from tts_engine.changed_files import ChangedFiles

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Pause between two checks of the file. A change takes effect within two seconds, including the time for reading."""

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The current value of a file.

    Args:
        read: makes the value from the path. Raises ``CredentialsError`` for an unreadable file.

    Raises:
        CredentialsError: the file cannot be read initially. Later, the old value is kept and the reason logged.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._files = ChangedFiles(path)
        self.value = read(path)

    async def watch(self, on_change: Callable[[T], None]) -> None:
        """Check the file until cancelled, and pass each new value to ``on_change``."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await asyncio.to_thread(self.look):
                on_change(self.value)

    def look(self) -> bool:
        """Check the file once. Return True if there is a new value."""
        if not self._files.changed():
            return False
        try:
            self.value = self._read(self._path)
        except CredentialsError as exc:
            if self._files.refuse():
                log.error("changed file cannot be used, its old content stays in effect", extra={"why": str(exc)})
            return False
        self._files.take()
        log.info("file reloaded", extra={"file": str(self._path)})
        return True
