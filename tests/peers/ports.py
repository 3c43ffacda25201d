"""Ports for programs that have to be told theirs."""

from __future__ import annotations

import random
import socket

_KINDS = ((socket.SOCK_DGRAM, 0), (socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, 1))
_random = random.SystemRandom()


def free_port() -> int:
    """An even port of this machine that is free by UDP and TCP, and the next by TCP too (SIP's TLS).

    It lies below those that the kernel gives to sockets that ask for any (32768 and up), and below the ranges for RTP
    in these tests (20000 and up): none of them takes it before the program does.
    """
    while True:
        port = _random.randrange(10_000, 20_000, 2)
        sockets = [(socket.socket(socket.AF_INET, kind), port + offset) for kind, offset in _KINDS]
        try:
            for probe, at in sockets:
                probe.bind(("127.0.0.1", at))
            return port
        except OSError:
            continue
        finally:
            for probe, _ in sockets:
                probe.close()
