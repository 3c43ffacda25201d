"""Tells when files have changed on the disk, for keys and certificates that are renewed while a process runs."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

_MAX_BYTES = 16 * 2**20
"""Longest file that is read. 50,000 keys are shorter."""


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
        change in between is seen by the next call. Files that would hold their reader for ever, such as a named pipe,
        are refused here."""
        self._looked = self._now()
        if self._looked == self._taken:
            return False
        if odd := _odd(self._files):
            if self.refuse():
                log.error("changed file cannot be used, its old content stays in effect", extra={"why": odd})
            return False
        return True

    def take(self) -> None:
        """Note that the files are in use as they were at the last call of ``changed``."""
        self._taken, self._refused = self._looked, None

    def refuse(self) -> bool:
        """Note that they cannot be used. Return True the first time, for the log."""
        first = self._looked != self._refused
        self._refused = self._looked
        return first


def _odd(files: Sequence[str | Path]) -> str:
    """Return the reason why a file must not be read. Empty: there is none. Readers themselves report a missing one."""
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):
            return f"{file} is no regular file"
        if status.st_size > _MAX_BYTES:
            return f"{file} has {status.st_size} bytes, expected at most {_MAX_BYTES}"
    return ""
