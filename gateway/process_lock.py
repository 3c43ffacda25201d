"""File locks that the system releases when a process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock(path: Path) -> int | None:
    """Lock a file, creating it if needed. Return the descriptor, which keeps the lock until it is closed. None: another
    living process has the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def wait_for_lock(path: Path) -> int:
    """Lock a file, creating it if needed, when no other process has the lock. Return the descriptor, which keeps the
    lock until it is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
