"""Carries messages between two processes of ours over a unix socket in a private folder.

A frame is its length in bytes (32 bits, little-endian) and a pickled list of messages: all that one turn of the event
loop had to say, in one write.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any, cast

_LENGTH = struct.Struct("<I")


class Connection(asyncio.Protocol):
    """One end. Both ends have to be the same release, and each has to trust the other.

    What is sent and not yet read is bounded by the messages themselves: one chunk of sound for each clause.
    """

    def __init__(self, take: Callable[[Any], None]) -> None:
        """``take`` is called with each message, in order, on the event loop."""
        self.closed = asyncio.Event()
        """Set when nothing more comes."""
        self._take = take
        self._transport: asyncio.Transport | None = None
        self._got = bytearray()
        self._said: list[object] = []

    def send(self, message: object) -> None:
        """Send a message, together with all others of this turn of the loop. After the end it is dropped."""
        if not self._said:
            asyncio.get_running_loop().call_soon(self._flush)
        self._said.append(message)

    def close(self) -> None:
        """Send what is left, and end the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        said, self._said = self._said, []
        if said and self._transport is not None and not self._transport.is_closing():
            frame = pickle.dumps(said, 5)
            self._transport.writelines([_LENGTH.pack(len(frame)), frame])

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have the methods, not the type

    def data_received(self, data: bytes) -> None:
        got = self._got
        got += data
        begin = 0
        while len(got) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(got, begin)
            end = begin + _LENGTH.size + length
            if len(got) < end:
                break
            with memoryview(got)[begin + _LENGTH.size : end] as frame:
                messages = pickle.loads(frame)
            for message in messages:
                self._take(message)
            begin = end
        del got[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
