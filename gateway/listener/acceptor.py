"""Accepts connections before anything else is done for them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from typing import Self

from gateway.listener.no_room import BACKLOG, NO_ROOM, rest

_MOST_REFUSED = 32
"""Most connections that one turn of the loop refuses. A refusal takes about 20 µs."""


class Acceptor:
    """Accepts one connection in a turn of the loop, and refuses those of a crowd without a turn of their own.

    Args:
        listener: a listening socket, which is closed with this object.
        take: serves an accepted connection.
        refuses: returns True if a connection from this address is not wanted.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], object],
        refuses: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self._listener = listener
        self._take = take
        self._refuses = refuses
        listener.setblocking(False)
        self._listen()

    @classmethod
    def of(
        cls,
        server: asyncio.Server,
        take: Callable[[socket.socket], object],
        refuses: Callable[[str], bool] = lambda address: False,
    ) -> list[Self]:
        """Take over the sockets of a server that does not serve."""
        listeners = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
        server.close()
        for listener in listeners:
            listener.listen(BACKLOG)
        return [cls(listener, take, refuses) for listener in listeners]

    @property
    def is_listening(self) -> bool:
        """True until the socket is closed."""
        return self._listener.fileno() >= 0

    def close(self) -> None:
        """Stop accepting. Accepted connections stay."""
        if self.is_listening:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_MOST_REFUSED):
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    rest(self._listener, self._listen)
                return  # any other error: there is none, or the client has closed
            if not self._refuses(str(peer[0])):
                connection.setblocking(False)
                self._take(connection)
                return
            connection.close()


def close_all(acceptors: Iterable[Acceptor]) -> None:
    """Close several."""
    for acceptor in acceptors:
        acceptor.close()
