"""Ports for programs that have to be told theirs."""

from __future__ import annotations

import os
import socket

from talkspurt.bench import ports

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_SHARE = 10_000 // _WORKERS // 2 * 2
_PORTS = range(10_000 + _WORKER * _SHARE, 10_000 + (_WORKER + 1) * _SHARE)
"""This process's among those of one run. They lie below the ranges for RTP in these tests (20000 and up)."""
_given: set[int] = set()


def free_port(count: int = 2) -> int:
    """An even port that is free by UDP and TCP, as are the next ones, ``count`` in all; never the same twice."""
    first = ports.free_port(count, among=_PORTS, given=_given)
    _given.update(range(first, first + count))
    return first


def is_free(port: int) -> bool:
    """Return True if no program has the UDP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
