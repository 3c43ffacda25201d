"""A connection over which another worker of this server passes a request on."""

from __future__ import annotations

from typing import Any

from gateway.listener.turns import InTurns, LoopTurns

PEER_HEADER = "X-Talkspurt-Peer"
"""Header with the client's address, set by the worker that passes the request on. It is trusted only on the workers'
own sockets, which no one else reaches."""
PART_HEADER = "X-Talkspurt-Part"
"""Header that marks a request for one worker's part of an answer, so that it is not counted once per worker."""


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
        return (self._peer, 0) if name == "peername" else self.transport.get_extra_info(name, default)
