"""Frames on a unix socket between two processes of ours: what a Speak link and a voice model's connection have in
common.

A frame is a header, whose first field is the payload's length in bytes, and the payload. Sound leaves at once, so that
the other process begins with it. What nobody waits for, and what comes in great numbers, leaves with what is said next,
or with the next turn of the event loop: of a hundred clauses that begin, or get their places, in one turn each would
cost a system call here, and a turn of the loop there. What has come is taken in several turns, and nothing more is read
meanwhile: of 32 first chunks that come in one read the first ones are with the next process before the last one is
looked at, and whoever else works on the loop waits for a few of them. In groups, because one at a time would take a
turn of each loop, with its system calls, for each.
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
    """One end."""

    def __init__(self, header: struct.Struct, *, most_bytes: int, turn_bytes: int) -> None:
        """
        Args:
            most_bytes: of a payload. A longer one ends the connection.
            turn_bytes: when so many bytes of frames have been taken in a turn of the loop, the next one waits for the
                next turn.
        """
        self.most_bytes = most_bytes
        self._header, self._turn_bytes = header, turn_bytes
        self._transport: asyncio.Transport | None = None
        self._gathered: list[bytes] = []
        """What does not leave at once, until the next turn of the loop."""
        self._got = bytearray()
        """Bounded by one read and the payload of one frame, since nothing is read while whole frames wait here."""
        self._waits = False
        """Do whole frames wait for the next turn?"""
        self.reads = 0
        """How often something has come."""

    @abstractmethod
    def took_frame(self, fields: tuple[Any, ...], payload: bytes) -> None:
        """Take a frame. Raises ValueError or DecodeError if it is none that this end may get; that ends the connection.

        Args:
            fields: of the header, behind the length.
        """

    @abstractmethod
    def lost(self) -> None:
        """Note that the connection has ended."""

    def say(self, payload: bytes, *fields: int, at_once: bool = True) -> None:
        """Send a frame. Behind the end it is dropped.

        Args:
            fields: of the header, behind the length.
            at_once: False: with what is said next, or with the next turn of the loop.
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
        """End the connection when what was said has left."""
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
            if not isinstance(exc, ValueError | DecodeError | RecursionError):  # the last: of nested JSON
                raise  # a bug of ours
            log.warning("a connection ended, since its other end is none of ours", extra={"why": str(exc)})
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
        """Return where the frame ends that begins there. None: it is not whole. Raises ValueError if it is too long."""
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
