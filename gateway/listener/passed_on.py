"""A connection over which another worker of this server passes a request on."""

from __future__ import annotations

import socket
from typing import Any

from gateway.listener.turns import InTurns, LoopTurns

PEER_HEADER = "X-Talkspurt-Peer"
"""Header with the client's address, set by the worker that passes the request on. It is trusted only on the workers'
own sockets, which no one else reaches."""
PART_HEADER = "X-Talkspurt-Part"
"""Header that marks a request for one worker's part of an answer, so that it is not counted once per worker."""


class _LikeTcp:
    """A Unix socket with the methods that picows calls. It has no delay to switch off."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if level != socket.IPPROTO_TCP:
            self._inner.setsockopt(level, option, value)

    def getsockopt(self, level: int, option: int) -> int:
        return 0 if level == socket.IPPROTO_TCP else int(self._inner.getsockopt(level, option))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class PassedOn(InTurns):
    """A connection from another worker. It reports the original client's address, as a direct connection would."""

    def __init__(self, inner: Any, turns: LoopTurns) -> None:
        super().__init__(inner, turns)
        self._peer = ""
        self.is_part = False

    def read_head(self, data: bytes) -> None:
        """Read the client's address and the part mark from the head of the request."""
        headers = {}
        for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        self._peer = headers.get(PEER_HEADER.lower(), "")
        self.is_part = PART_HEADER.lower() in headers

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket's value; for ``peername``, the client's address."""
        if name == "peername":
            return self._peer, 0
        found = self.transport.get_extra_info(name, default)
        return _LikeTcp(found) if name == "socket" and found is not None else found
