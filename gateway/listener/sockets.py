"""Decides which TCP connections may stay, by their number and idle time. Pure.

A connection is *idle* until the head of a request is complete, and again after the answer. It is *reading* while the
body of a request arrives, and *used* by a handler or a call. Idle and reading connections have a deadline. At the
limit, they make room for new ones, so no one can lock others out by leaving connections open. A source at its own
limit makes room for itself. At the limit of all, the source with the most idle connections makes room: if the oldest
made room, a crowd that connects again and again would take the place of a call whose first audio comes late.

A connection that closes still has its descriptor until its peer has taken the rest of an answer, and the end of TLS.
Peers that take nothing have a deadline too, and their connections are the first to make room. A long answer that a slow
peer still takes is not cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

_FEW = 16
"""Most idle connections of a source that is treated like all others: the oldest of all makes room."""
_CROWD_S = 0.1
"""Shortest time between two new connections of a crowd that take the place of older ones of it."""
_CLOSE_S = 10.0
"""Longest time in which a peer takes nothing of the rest of an answer after the end of the connection."""
_SEARCH_EVERY_S = 0.05
"""Shortest pause between two searches for closed connections, regardless of the number of new ones."""


class Socket(Protocol):
    """The transport of a connection."""

    def is_closing(self) -> bool: ...

    def get_write_buffer_size(self) -> int:
        """Return the bytes of answers that the kernel has not taken yet."""
        ...

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
        on_room: called for each connection that makes room for another one.
    """

    def __init__(
        self, *, most: int, per_address: int, idle_s: float, body_s: float, on_room: Callable[[], None] = lambda: None
    ) -> None:
        self._most = most
        self._per_address = per_address
        self._idle_s = idle_s
        self._body_s = body_s
        self._on_room = on_room
        self._addresses: dict[Socket, str] = {}
        self._count: Counter[str] = Counter()
        # Both are in order of time: the first entry became idle, or began to read, first.
        self._idle: dict[Socket, float] = {}
        self._idle_of: dict[str, dict[Socket, None]] = {}
        """Idle connections by address, in the same order."""
        self._crowds: dict[str, float] = {}
        """Addresses with more than a few idle connections, and when each had its last new connection."""
        self._reading: dict[Socket, tuple[float, Callable[[], bool]]] = {}
        self._closing: dict[Socket, tuple[float, int]] = {}
        """Connections that close and are not counted any more: when their peer last took something, and the bytes that
        were left then."""
        self._searched_at = -_SEARCH_EVERY_S

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(
        self, address: str, socket: Socket, *, now: float, scarce: bool = False, for_others: bool = False
    ) -> bool:
        """Admit a new connection. At the limit, an idle one is closed. Return False if there is no room.

        Args:
            scarce: True if it may stay only in place of another one.
            for_others: True if the address is a trusted proxy's, for which ``per_address`` does not hold.
        """
        if (scarce or self._is_full(address)) and now - self._searched_at >= _SEARCH_EVERY_S:
            self._searched_at = now
            self._forget_closed(now)
        if scarce and self._closing:
            self._end_closing(next(iter(self._closing)))
            scarce = False
        is_over = self._count[address] >= self._per_address and not for_others
        if is_over and not self._make_room(self._idle_of.get(address, ())):
            return False
        if scarce or len(self._addresses) >= self._most:
            crowd = max((self._idle_of[each] for each in self._crowds), key=len, default=self._idle)
            if not (self._make_room(crowd) or self._make_room(self._reading)):
                return False
        self._addresses[socket] = address
        self._count[address] += 1
        self._rest(socket, now)
        return True

    def refuses(self, address: str, *, now: float) -> bool:
        """Return True if a new connection can be refused before anything is done for it: there is no room, and it is
        one of a crowd that has had a new connection a moment ago."""
        return len(self._addresses) >= self._most and now - self._crowds.get(address, -_CROWD_S) < _CROWD_S

    def _is_full(self, address: str) -> bool:
        return len(self._addresses) >= self._most or self._count[address] >= self._per_address

    def _make_room(self, among: Iterable[Socket]) -> bool:
        """Close the first of these connections. Return False if there is none."""
        oldest = next(iter(among), None)
        if oldest is not None:
            self._end(oldest)
            self._on_room()
        return oldest is not None

    def begin(self, socket: Socket, *, now: float, whole: Callable[[], bool] = lambda: True) -> None:
        """Mark the connection as used by a request or a call.

        Args:
            whole: returns True when the body of the request is complete.
        """
        if socket in self._addresses:
            self._wake(socket)
            if not whole():
                self._reading[socket] = (now, whole)

    def end(self, socket: Socket, *, now: float) -> None:
        """Mark the connection as idle after its request."""
        if socket in self._addresses:
            self._reading.pop(socket, None)
            self._wake(socket)
            self._rest(socket, now)

    def sweep(self, *, now: float) -> int:
        """Close the connections that are past their deadlines. Return their number."""
        self._forget_closed(now)
        for socket, left in [(socket, left) for socket, (at, left) in self._closing.items() if now - at > _CLOSE_S]:
            if 0 < (now_left := socket.get_write_buffer_size()) < left:
                self._closing[socket] = (now, now_left)
            else:
                self._end_closing(socket)
        for socket in [socket for socket, (_, whole) in self._reading.items() if whole()]:
            del self._reading[socket]
        late = []
        for socket in [socket for socket, since in self._idle.items() if now - since > self._idle_s]:
            if socket.get_write_buffer_size():  # its peer still reads a long answer
                self._wake(socket)
                self._rest(socket, now)
            else:
                late.append(socket)
        late += [socket for socket, (since, _) in self._reading.items() if now - since > self._body_s]
        for socket in late:
            self._end(socket)
        return len(late)

    def remove(self, socket: Socket) -> None:
        """Forget a connection that is closed, before a search finds it. It may be unknown."""
        self._closing.pop(socket, None)
        if socket in self._addresses:
            self._forget(socket)

    def close(self) -> None:
        """Close all connections, because the listener closes."""
        for socket in list(self._addresses):
            socket.close()
            self._forget(socket)
        for socket in list(self._closing):
            self._end_closing(socket)

    def _end(self, socket: Socket) -> None:
        socket.abort()
        self._forget(socket)

    def _end_closing(self, socket: Socket) -> None:
        del self._closing[socket]
        socket.abort()

    def _forget_closed(self, now: float) -> None:
        for socket in [socket for socket in self._addresses if socket.is_closing()]:
            self._forget(socket)
            self._closing[socket] = (now, socket.get_write_buffer_size())

    def _forget(self, socket: Socket) -> None:
        self._wake(socket)
        self._reading.pop(socket, None)
        address = self._addresses.pop(socket)
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]

    def _rest(self, socket: Socket, now: float) -> None:
        """Count a connection as idle."""
        self._idle[socket] = now
        address = self._addresses[socket]
        idle = self._idle_of.setdefault(address, {})
        idle[socket] = None
        if len(idle) > _FEW:
            self._crowds[address] = now

    def _wake(self, socket: Socket) -> None:
        """Count a connection as idle no longer."""
        if self._idle.pop(socket, None) is not None:
            address = self._addresses[socket]
            idle = self._idle_of[address]
            del idle[socket]
            if len(idle) <= _FEW:
                self._crowds.pop(address, None)
            if not idle:
                del self._idle_of[address]
