"""Pauses a listener that cannot accept a connection for lack of resources; else ``accept`` would fail again
immediately."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` for a lack of resources."""
_REST_S = 1.0
"""The same pause as in asyncio's own servers."""


def rest(listener: socket.socket, listen: Callable[[], None]) -> None:
    """Stop reading from ``listener``, and call ``listen`` after a second, unless the listener is closed by then."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(listener.fileno())
    loop.call_later(_REST_S, lambda: listen() if listener.fileno() >= 0 else None)
