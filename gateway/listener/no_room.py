"""What a listener does when there is no room for one more connection, which would be announced again at once."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` that say so."""
_REST_S = 1.0
"""As long as in asyncio's own servers."""


def rest(listener: socket.socket, listen: Callable[[], None]) -> None:
    """Stop reading from ``listener``, and call ``listen`` after a second, unless it has been closed meanwhile."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(listener.fileno())
    loop.call_later(_REST_S, lambda: listen() if listener.fileno() >= 0 else None)
