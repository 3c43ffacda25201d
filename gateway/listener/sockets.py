"""Which TCP connections may stay: how many there are, and how long one may be of no use. Pure.

A connection is *idle* until the head of a request is whole, and again behind the answer; *reading* while the body of a
request comes; *used* by a handler or a call. Idle and reading ones have a deadline, and make room for new ones where
there are as many as may be: whoever opens connections and leaves them open locks nobody out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol


class Socket(Protocol):
    """The transport of a connection."""

    def is_closing(self) -> bool: ...

    def close(self) -> None:
        """Send what is buffered first."""
        ...

    def abort(self) -> None: ...


class Sockets:
    """All connections of a listener. Times are seconds on any monotonic clock.

    Args:
        most: connections at a time.
        per_address: of one remote address.
        idle_s: longest time without a request.
        body_s: longest time that the body of a request may take.
    """

    def __init__(self, *, most: int, per_address: int, idle_s: float, body_s: float) -> None:
        self._most = most
        self._per_address = per_address
        self._idle_s = idle_s
        self._body_s = body_s
        self._addresses: dict[Socket, str] = {}
        self._count: Counter[str] = Counter()
        # Both in order of time: the first was made idle, or began to read, first.
        self._idle: dict[Socket, float] = {}
        self._reading: dict[Socket, tuple[float, Callable[[], bool]]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, address: str, socket: Socket, *, now: float) -> bool:
        """Take a new connection; the one that is idle for longest makes room for it. False: it may not stay."""
        if len(self._addresses) >= self._most or self._count[address] >= self._per_address:
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
        """A request is handled, or a call.

        Args:
            whole: tells whether the body of the request has come.
        """
        if socket in self._addresses:
            self._idle.pop(socket, None)
            if not whole():
                self._reading[socket] = (now, whole)

    def end(self, socket: Socket, *, now: float) -> None:
        """The request has been handled."""
        if socket in self._addresses:
            self._reading.pop(socket, None)
            self._idle.pop(socket, None)
            self._idle[socket] = now

    def sweep(self, *, now: float) -> int:
        """End what is over its time; returns how many that were."""
        self._forget_closed()
        for socket in [socket for socket, (_, whole) in self._reading.items() if whole()]:
            del self._reading[socket]
        late = [socket for socket, since in self._idle.items() if now - since > self._idle_s]
        late += [socket for socket, (since, _) in self._reading.items() if now - since > self._body_s]
        for socket in late:
            self._end(socket)
        return len(late)

    def close(self) -> None:
        """End all: the listener ends."""
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
