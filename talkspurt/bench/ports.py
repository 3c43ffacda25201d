"""Finds free ports for servers that need a fixed one."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Sequence

_PORTS = range(10_000, 20_000)
"""These ports lie below those that the kernel assigns to sockets by itself (32768 and up). So no other socket takes one
between the check and the moment at which the server binds it."""


def free_port(count: int = 2, *, among: Sequence[int] = _PORTS, given: Collection[int] = ()) -> int:
    """Return an even port of this machine from which ``count`` consecutive ports are free for UDP and TCP.

    SIP's TLS uses the second one, and so does RTCP.

    Args:
        among: ports without a hole; the first one is even.
        given: ports to be left out, because they were assigned but may not be bound yet.
    """
    while True:
        first = random.SystemRandom().choice(among[:-count:2])
        if all(port not in given and _is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
