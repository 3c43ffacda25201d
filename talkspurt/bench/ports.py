"""Ports for servers that have to be told theirs."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Sequence

_PORTS = range(10_000, 20_000)
"""They lie below those that the kernel gives to sockets that ask for any (32768 and up). So nobody takes one between
the moment it is found free and the moment the server binds it."""


def free_port(count: int = 2, *, among: Sequence[int] = _PORTS, given: Collection[int] = ()) -> int:
    """Return an even port of this machine that is free by UDP and TCP, as are those behind it, ``count`` in all.

    SIP's TLS has the second, and so has RTCP.

    Args:
        among: ports without a hole; the first one is even.
        given: ports that are not taken, although nobody may have bound them yet.
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
