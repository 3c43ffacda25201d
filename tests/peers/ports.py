"""Ports for programs that have to be told theirs."""

from __future__ import annotations

import os
import random
import socket

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_SHARE = 10_000 // _WORKERS // 2 * 2
_PORTS = range(10_000 + _WORKER * _SHARE, 10_000 + (_WORKER + 1) * _SHARE)
"""This process's among those of one run.

They lie below those that the kernel gives to sockets that ask for any (32768 and up), and below the ranges for RTP in
these tests (20000 and up). So nobody takes one between the moment it is found free and the moment the program binds it.
"""
_given: set[int] = set()


def free_port(count: int = 2) -> int:
    """An even port of this machine that is free by UDP and TCP, as are those behind it, ``count`` in all; never twice.

    SIP's TLS has the second, and so has RTCP.
    """
    while True:
        first = random.SystemRandom().choice(_PORTS[:-count:2])
        wanted = range(first, first + count)
        if _given.isdisjoint(wanted) and all(_is_free(port) for port in wanted):
            _given.update(wanted)
            return first


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
