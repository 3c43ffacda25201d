"""Tells when files have changed on the disk, for keys and certificates that are renewed while a process runs."""

from __future__ import annotations

import os
from pathlib import Path


class ChangedFiles:
    """The files of one value. Their content counts as changed until it is taken: if it cannot be used, the reason may
    be ours, such as no free descriptor, and nothing else would bring it back."""

    def __init__(self, *files: str | Path) -> None:
        self._files = files
        self._taken = self._looked = self._now()
        self._refused: object = None

    def _now(self) -> object:
        """Return a value that differs when a file has changed or a link points elsewhere."""
        found: list[object] = []
        for file in self._files:
            try:
                status = os.stat(file)
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append(None)
        return found

    def changed(self) -> bool:
        """Return True if the files differ from those that were taken last. Call it before reading them, so that a
        change in between is seen by the next call."""
        self._looked = self._now()
        return self._looked != self._taken

    def take(self) -> None:
        """Note that the files are in use as they were at the last call of ``changed``."""
        self._taken, self._refused = self._looked, None

    def refuse(self) -> bool:
        """Note that they cannot be used. Return True the first time, for the log."""
        first = self._looked != self._refused
        self._refused = self._looked
        return first
