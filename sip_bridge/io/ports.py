"""The UDP ports of calls' media: an even port for RTP and the next one for RTCP (RFC 3550 section 11).

Both ports of a pair are bound before it is handed out, so no other program can take a port named in a session
description.
"""

from __future__ import annotations

import errno
import socket
from collections import deque

from sip_bridge.errors import PortsExhausted


def share(low: int, high: int, workers: int) -> list[tuple[int, int]]:
    """Return one port range for each worker. The ranges do not overlap, and their numbers of pairs differ by at most
    one.

    Args:
        low, high: the whole range, both included.

    Raises:
        ValueError: there are fewer pairs than workers.
    """
    first, pairs = low + low % 2, (high + 1 - low - low % 2) // 2
    if pairs < workers:
        raise ValueError(f"UDP ports {low}-{high} are {pairs} pairs for {workers} workers, expected one each")
    begins = [first + 2 * (pairs * worker // workers) for worker in range(workers + 1)]
    return [(begin, end - 1) for begin, end in zip(begins, begins[1:], strict=False)]


_NO_SOCKET = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors that another port would not mend."""


class PortPair:
    """Two bound sockets. The user of the pair must close it, which also returns its ports to the pool."""

    def __init__(self, pool: PortPool, port: int, rtp: socket.socket, rtcp: socket.socket) -> None:
        self.port = port
        """The port of RTP. RTCP has the next one."""
        self.rtp = rtp
        self.rtcp = rtcp
        self._pool = pool
        self._open = True

    def close(self) -> None:
        """Close both sockets and free the ports. Close a transport over one of the sockets first. Idempotent."""
        if self._open:
            self._open = False
            self.rtp.close()
            self.rtcp.close()
            self._pool._free.append(self.port)


class PortPool:
    """The pairs of one range. The pair that has been free for longest is handed out first, so that late packets of an
    ended call do not reach the next one.

    Args:
        host: address to bind.
        low, high: the range, both included. An odd ``low`` or even ``high`` is left out.

    Raises:
        ValueError: the range has no pair.
    """

    def __init__(self, host: str, low: int, high: int) -> None:
        self._host = host
        self._range = (low, high)
        self._free = deque(range(low + low % 2, high, 2))
        if not (1 <= low <= 65535 and high <= 65535 and self._free):
            raise ValueError(f"RTP ports are {low}-{high}, expected an even port and the next within 1-65535")
        self.size = len(self._free)
        """Number of pairs in the range."""

    @property
    def in_use(self) -> int:
        """Number of pairs that are handed out."""
        return self.size - len(self._free)

    def take(self) -> PortPair:
        """Bind a pair. A pair that another program uses is skipped and tried again later.

        Raises:
            PortsExhausted: every pair of the range is in use, by us or by other programs; or the system has no
                descriptor or memory for a socket.
        """
        for _ in range(len(self._free)):
            port = self._free.popleft()
            try:
                return PortPair(self, port, *self._bind(port))
            except OSError as exc:
                if exc.errno in _NO_SOCKET:
                    self._free.appendleft(port)
                    raise PortsExhausted(f"no socket for RTP: {exc.strerror}") from exc
                self._free.append(port)
        low, high = self._range
        raise PortsExhausted(
            f"no RTP port free in {low}-{high} on {self._host}: {self.in_use} of {self.size} pairs carry calls, "
            "the others are taken or cannot be bound"
        )

    def _bind(self, port: int) -> tuple[socket.socket, socket.socket]:
        rtp = self._socket(port)
        try:
            return rtp, self._socket(port + 1)
        except OSError:
            rtp.close()
            raise

    def _socket(self, port: int) -> socket.socket:
        bound = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)
            bound.bind((self._host, port))
        except OSError:
            bound.close()
            raise
        return bound
