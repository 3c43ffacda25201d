"""Frames on a unix socket between two of our processes: the common part of a Speak link and a voice model's connection.

A frame is a header, whose first field is the payload's length in bytes, and the payload. Sound is sent at once, so that
the other process can use it. Frames that are not urgent, or that come in large numbers, are sent with the next frame or
in the next turn of the event loop. Otherwise each of a hundred clauses that begin in one turn would cost a system call
here and a turn of the loop there. Received frames are processed in groups, one group a turn, and nothing more is read
meanwhile. So of 32 first chunks in one read, the first ones are passed on before the last one is processed, and other
tasks of the loop wait for one group only. Single frames would cost a turn of each loop, with its system calls, for each
frame.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from typing import Any, cast

from google.protobuf.message import DecodeError

log = logging.getLogger(__name__)


class FramedSocket(asyncio.Protocol, ABC):
    """One end of the connection."""

    def __init__(self, header: struct.Struct, *, most_bytes: int, turn_bytes: int) -> None:
        """
        Args:
            most_bytes: longest payload. A longer one ends the connection.
            turn_bytes: bytes of frames that are processed in one turn of the loop. The rest waits for the next turn.
        """
        self.most_bytes = most_bytes
        self._header, self._turn_bytes = header, turn_bytes
        self._transport: asyncio.Transport | None = None
        self._gathered: list[bytes] = []
        """Frames that are sent in the next turn of the loop."""
        self._got = bytearray()
        """Received bytes. Bounded by one read and the payload of one frame, since nothing is read while whole frames
        wait here."""
        self._waits = False
        """True while whole frames wait for the next turn."""
        self.reads = 0
        """Number of reads that brought data."""

    @abstractmethod
    def took_frame(self, fields: tuple[Any, ...], payload: bytes) -> None:
        """Take a frame. Raises ValueError or DecodeError if this end may not get such a frame; that ends the
        connection.

        Args:
            fields: the header's fields after the length.
        """

    @abstractmethod
    def lost(self) -> None:
        """Note that the connection has ended."""

    def say(self, payload: bytes, *fields: int, at_once: bool = True) -> None:
        """Send a frame. After the end it is dropped.

        Args:
            fields: the header's fields after the length. at_once: False: send it with the next frame, or in the next
            turn of the loop.
        """
        self._gathered.append(self._header.pack(len(payload), *fields) + payload)
        if at_once:
            self._leave()
        elif len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(gathered)

    def close(self) -> None:
        """End the connection when everything has been sent."""
        self._leave()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self) -> None:
        self._waits = False
        begin = 0
        try:
            while (end := self._end_of_frame(begin)) is not None:
                if begin >= self._turn_bytes:
                    self._waits = True
                    break
                _, *fields = self._header.unpack_from(self._got, begin)
                begin, payload = end, bytes(self._got[begin + self._header.size : end])
                self.took_frame(tuple(fields), payload)
        except Exception as exc:
            self._got.clear()
            self.abort()
            if not isinstance(exc, ValueError | DecodeError | RecursionError):  # RecursionError: nested JSON
                raise  # a bug in our code
            log.warning(
                "a connection was closed, because its other end does not speak our protocol", extra={"why": str(exc)}
            )
            return
        del self._got[:begin]
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._waits:
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._take)
        elif not transport.is_reading():
            transport.resume_reading()

    def _end_of_frame(self, begin: int) -> int | None:
        """Return the end of the frame at ``begin``. None: the frame is not complete. Raises ValueError if it is too
        long."""
        if len(self._got) - begin < self._header.size:
            return None
        length = self._header.unpack_from(self._got, begin)[0]
        if length > self.most_bytes:
            raise ValueError(f"a frame of {length} bytes, expected {self.most_bytes} at most")
        end: int = begin + self._header.size + length
        return end if end <= len(self._got) else None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have the methods, not the type

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self._got += data
        if not self._waits:
            self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        while self._waits:
            self._take()
        self.lost()
