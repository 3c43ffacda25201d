"""Room for connections: the queue of a listener, descriptors that are kept for other work, and a pause of a listener
that has none."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Callable
from typing import Any

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` for a lack of resources."""
BACKLOG = 1024
"""Connections that the kernel holds for each listener until they are accepted. In a shorter queue, a crowd leaves no
place for the first packet of others, which is repeated only after 1 s and 3 s."""
RESERVED_SHARE = 8
"""One of so many descriptors is kept for other work: links to engines, health checks, files, and the RTP ports of calls
that have begun."""
MAX_OPEN_FILES = 65536
_REST_S = 1.0
"""The same pause as in asyncio's own servers."""


def open_files() -> int:
    """Return the number of files that this process may open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def rest(listener: socket.socket, listen: Callable[[], None]) -> None:
    """Stop reading from ``listener``, and call ``listen`` after a second, unless the listener is closed by then.
    Without the pause, ``accept`` would fail again immediately."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(listener.fileno())
    loop.call_later(_REST_S, lambda: listen() if listener.fileno() >= 0 else None)


def is_reserved(connection: Any) -> bool:
    """Return True if a connection has a descriptor that is kept for other work, so that it may stay only in place of
    another one. The system gives out the lowest free number, so a high one means that most are used.

    Args:
        connection: a transport.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = connection.get_extra_info("socket")
    return own is not None and soft != resource.RLIM_INFINITY and own.fileno() >= soft - soft // RESERVED_SHARE
