"""A connection over which another worker of this server passes a request on."""

from __future__ import annotations

from typing import Any

from gateway.listener.turns import InTurns, Turns

PEER_HEADER = "X-Talkspurt-Peer"
"""Says from which address the request came to the worker that passes it on. Believed on the workers' own sockets only,
which nobody else reaches."""
PART_HEADER = "X-Talkspurt-Part"
"""Says that the request asks for one worker's part of an answer, so that it is not counted once a worker."""


class PassedOn(InTurns):
    """Such a connection. It has the address of whoever made the request, as a direct one would."""

    def __init__(self, behind: Any, turns: Turns) -> None:
        super().__init__(behind, turns)
        self._peer = ""
        self.is_part = False

    def read_head(self, data: bytes) -> None:
        """Learn from the head of its request for whom it is."""
        headers = {}
        for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        self._peer = headers.get(PEER_HEADER.lower(), "")
        self.is_part = PART_HEADER.lower() in headers

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket, but for the peer."""
        return (self._peer, 0) if name == "peername" else self.transport.get_extra_info(name, default)
