"""The file of a unix socket that a server listens on. A newer server may take its place while the older one still
serves, and the older one then leaves it alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


class SocketFile:
    """A file that exists and is ours. ``remove`` it at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _file_at(path)

    def remove(self) -> None:
        """Remove the file, unless another server's is in its place. Idempotent."""
        if self._file is not None and _file_at(self._path) == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._file = None


def name_beside(path: str) -> str:
    """Return an unused path in the same folder, for a server that would remove whatever is at its path at its end."""
    return str(Path(path).with_name(f".{secrets.token_hex(4)}"))


def move(made: str, path: str) -> SocketFile:
    """Give a socket that is listened on its real path, in the place of an older socket.

    Raises:
        OSError: something else is there.
    """
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        os.unlink(made)
        raise FileExistsError(f"{path} exists and is no socket")
    os.rename(made, path)
    return SocketFile(path)


def _file_at(path: str) -> tuple[int, int] | None:
    """Return what tells a file from another one at the same path. None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
