"""A connection over which another worker of this server passes a request on."""

from __future__ import annotations

import asyncio
from typing import Any

PEER_HEADER = "X-Talkspurt-Peer"
"""Says from which address the request came to the worker that passes it on. Believed on the workers' own sockets only,
which nobody else reaches."""
PART_HEADER = "X-Talkspurt-Part"
"""Says that the request asks for one worker's part of an answer, so that it is not counted once a worker."""


class PassedOn:
    """The transport of such a connection. It has the address of whoever made the request, as a direct one would."""

    def __init__(self, transport: asyncio.Transport, head: bytes) -> None:
        """``head`` is the request's."""
        headers = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        self._transport = transport
        self._peer = headers.get(PEER_HEADER.lower(), "")
        self.is_part = PART_HEADER.lower() in headers

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the transport, but for the peer."""
        return (self._peer, 0) if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
