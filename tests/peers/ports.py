"""Ports for programs that have to be told theirs."""

from __future__ import annotations

import os
import random
import socket

_KINDS = ((socket.SOCK_DGRAM, 0), (socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, 1))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PORTS = range(10_000 + 2 * _WORKER, 20_000, 2 * _WORKERS)
"""Even ports that are this process's among those of one run.

They lie below those that the kernel gives to sockets that ask for any (32768 and up), and below the ranges for RTP in
these tests (20000 and up). So nobody takes one between the moment it is found free and the moment the program binds it.
"""
_given: set[int] = set()


def free_port() -> int:
    """An even port of this machine that is free by UDP and TCP, and the next by TCP too (SIP's TLS); never twice."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        if port in _given:
            continue
        sockets = [(socket.socket(socket.AF_INET, kind), port + offset) for kind, offset in _KINDS]
        try:
            for probe, at in sockets:
                probe.bind(("127.0.0.1", at))
            _given.add(port)
            return port
        except OSError:
            continue
        finally:
            for probe, _ in sockets:
                probe.close()
