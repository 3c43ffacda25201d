"""Frames of a link: many Speak calls between two processes of one machine, on one unix socket.

A frame is a header and a payload. The header is the payload's length (32 bits, little-endian), the call's number (32
bits, the client counts them) and the kind (8 bits). All that one turn of the event loop has to say leaves in one write.

======== ============== ======================================================================
Client   ``BEGIN``      a call, with its metadata as JSON, an object of strings
both     ``MESSAGE``    a ``SpeakRequest`` or a ``SpeakResponse``
client   ``HALF_CLOSE`` no more messages come
client   ``CANCEL``     the call is given up; nothing more is said of it
client   ``TAKEN``      so many bytes of messages were taken (32 bits): the server may send more
server   ``END``        the last of a call: nothing, or a ``Failure``
both     ``PING``       of no call; the server answers with the same
======== ============== ======================================================================
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import cast

from google.protobuf.message import DecodeError

log = logging.getLogger(__name__)

_HEADER = struct.Struct("<IIB")
COUNT = struct.Struct("<I")
"""The payload of ``TAKEN``."""

SUFFIX = ".speak"
"""What the path of a link's socket has behind that of the engine's."""


class Kind(IntEnum):
    """See the table above."""

    BEGIN = 0
    MESSAGE = 1
    HALF_CLOSE = 2
    CANCEL = 3
    TAKEN = 4
    END = 5
    PING = 6


class LinkEnd(asyncio.Protocol, ABC):
    """One end of a link."""

    def __init__(self, most_bytes: int) -> None:
        """``most_bytes``: of a payload. A longer one, or an unknown kind, ends the link."""
        self.most_bytes = most_bytes
        self._transport: asyncio.Transport | None = None
        self._got = bytearray()
        self._frames: list[bytes] = []
        self._flushing = False
        self.reads = 0
        """How often something has come."""

    @abstractmethod
    def took(self, call: int, kind: Kind, payload: bytes) -> None:
        """Take a frame. Raises ValueError or DecodeError if it is none that this end may get; that ends the link."""

    @abstractmethod
    def lost(self) -> None:
        """Note that the link has ended."""

    def send(self, call: int, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame with all others of this turn of the loop. Behind the end it is dropped."""
        self._frames += (_HEADER.pack(len(payload), call, kind), payload)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Have ``flush`` called when what is ready now has run."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what was said."""
        self._flushing = False
        frames, self._frames = self._frames, []
        if frames and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(frames))

    def close(self) -> None:
        """Send what is left, and end the link."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the link at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have the methods, not the type

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        got = self._got
        got += data
        begin = 0
        try:
            while len(got) - begin >= _HEADER.size:
                length, call, kind = _HEADER.unpack_from(got, begin)
                if length > self.most_bytes:
                    raise ValueError(f"a frame of {length} bytes, expected {self.most_bytes} at most")
                end = begin + _HEADER.size + length
                if len(got) < end:
                    break
                self.took(call, Kind(kind), bytes(got[begin + _HEADER.size : end]))
                begin = end
        except (ValueError, DecodeError, RecursionError) as exc:  # the last: of nested JSON
            log.warning("a link ended, since its other end is none of ours", extra={"why": str(exc)})
            got.clear()
            self.abort()
            return
        del got[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost()
