"""The file of a unix socket that a server listens on. A newer server may replace it while the older one still serves;
the older one then leaves the file alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


class SocketFile:
    """The socket file of this server. Call ``remove`` at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _file_at(path)

    def remove(self) -> None:
        """Remove the file, unless another server has replaced it. Idempotent."""
        if self._file is not None and _file_at(self._path) == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._file = None


def name_beside(path: str) -> str:
    """Return an unused path in the same folder, for a server that removes the file at its path when it ends."""
    return str(Path(path).with_name(f".{secrets.token_hex(4)}"))


def move(made: str, path: str) -> SocketFile:
    """Move a listening socket to its real path, where it replaces an older socket.

    Raises:
        OSError: something else is there.
    """
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        os.unlink(made)
        raise FileExistsError(f"{path} exists and is no socket")
    os.rename(made, path)
    return SocketFile(path)


def _file_at(path: str) -> tuple[int, int] | None:
    """Return the identity of the file at a path. None: there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
