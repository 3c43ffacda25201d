"""Decides which TCP connections may stay, by their number and idle time. Pure.

A connection is *idle* until the head of a request is complete, and again after the answer. It is *reading* while the
body of a request arrives, and *used* by a handler or a call. Idle and reading connections have a deadline. At the
limit, they make room for new ones, so no one can lock others out by leaving connections open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

_SEARCH_EVERY_S = 0.05
"""Shortest pause between two searches for closed connections, regardless of the number of new ones."""


class Socket(Protocol):
    """The transport of a connection."""

    def is_closing(self) -> bool: ...

    def close(self) -> None:
        """Send what is buffered, then close."""
        ...

    def abort(self) -> None: ...


class Sockets:
    """All connections of a listener. Times are seconds on any monotonic clock.

    Args:
        most: most connections at a time.
        per_address: most connections of one remote address.
        idle_s: longest time without a request.
        body_s: longest time for the body of a request.
    """

    def __init__(self, *, most: int, per_address: int, idle_s: float, body_s: float) -> None:
        self._most = most
        self._per_address = per_address
        self._idle_s = idle_s
        self._body_s = body_s
        self._addresses: dict[Socket, str] = {}
        self._count: Counter[str] = Counter()
        # Both are in order of time: the first entry became idle, or began to read, first.
        self._idle: dict[Socket, float] = {}
        self._reading: dict[Socket, tuple[float, Callable[[], bool]]] = {}
        self._searched_at = -_SEARCH_EVERY_S

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, address: str, socket: Socket, *, now: float) -> bool:
        """Admit a new connection. At the limit, the one that was idle for longest is closed. Return False if there is
        no room."""
        full = len(self._addresses) >= self._most or self._count[address] >= self._per_address
        if full and now - self._searched_at >= _SEARCH_EVERY_S:
            self._searched_at = now
            self._forget_closed()
        if self._count[address] >= self._per_address:
            return False
        if len(self._addresses) >= self._most:
            oldest = next(iter(self._idle), None) or next(iter(self._reading), None)
            if oldest is None:
                return False
            self._end(oldest)
        self._addresses[socket] = address
        self._count[address] += 1
        self._idle[socket] = now
        return True

    def begin(self, socket: Socket, *, now: float, whole: Callable[[], bool] = lambda: True) -> None:
        """Mark the connection as used by a request or a call.

        Args:
            whole: returns True when the body of the request is complete.
        """
        if socket in self._addresses:
            self._idle.pop(socket, None)
            if not whole():
                self._reading[socket] = (now, whole)

    def end(self, socket: Socket, *, now: float) -> None:
        """Mark the connection as idle after its request."""
        if socket in self._addresses:
            self._reading.pop(socket, None)
            self._idle.pop(socket, None)
            self._idle[socket] = now

    def sweep(self, *, now: float) -> int:
        """Close the connections that are past their deadlines. Return their number."""
        self._forget_closed()
        for socket in [socket for socket, (_, whole) in self._reading.items() if whole()]:
            del self._reading[socket]
        late = [socket for socket, since in self._idle.items() if now - since > self._idle_s]
        late += [socket for socket, (since, _) in self._reading.items() if now - since > self._body_s]
        for socket in late:
            self._end(socket)
        return len(late)

    def close(self) -> None:
        """Close all connections, because the listener closes."""
        for socket in list(self._addresses):
            socket.close()
            self._forget(socket)

    def _end(self, socket: Socket) -> None:
        socket.abort()
        self._forget(socket)

    def _forget_closed(self) -> None:
        for socket in [socket for socket in self._addresses if socket.is_closing()]:
            self._forget(socket)

    def _forget(self, socket: Socket) -> None:
        address = self._addresses.pop(socket)
        self._idle.pop(socket, None)
        self._reading.pop(socket, None)
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]
