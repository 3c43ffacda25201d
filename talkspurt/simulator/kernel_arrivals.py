"""Gets the arrival time of data on a TCP connection from the kernel, instead of the time at which this process read it.

A load generator is late when its core is busy, and would count that against the server. With ``SO_TIMESTAMPNS`` (Linux,
socket(7)) a read returns the time at which its newest segment reached this host; over loopback the other side sent it
at that time. If segments were joined in the socket's queue, the time of the last one counts for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import cast

_SO_TIMESTAMPNS = 35
"""Value from asm-generic/socket.h, since Python's socket module does not have it."""
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_BEGINS_S = 5.0
"""Longest wait for the kernel's first stamp, seconds."""


@contextlib.asynccontextmanager
async def stamping() -> AsyncIterator[None]:
    """Let the kernel stamp all arriving packets while the block runs.

    The kernel begins to stamp a moment after the first socket has asked for it, later on a busy machine, and stops with
    the last such socket. So an extra socket asks first, and waits for a stamp on a packet to itself. If the system
    gives no times, the block runs without them.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        own.setblocking(False)
        with contextlib.suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            until = time.monotonic() + _BEGINS_S
            while time.monotonic() < until:
                own.send(b"?")
                await asyncio.sleep(0.001)
                if own.recvmsg(1, _ANCILLARY_BYTES)[1]:
                    break
        yield


class KernelArrivals:
    """Reads a connection in place of its transport, and passes everything on to the same protocol.

    Args:
        transport: a plain TCP transport whose protocol is an ``asyncio.BufferedProtocol``.

    Raises:
        OSError: the system gives no times.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._protocol = cast(asyncio.BufferedProtocol, transport.get_protocol())
        # A duplicate is used, because the transport's socket cannot be read; socket.dup() would make the socket block.
        self._sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            self._sock.close()
            raise
        self.at: float | None = None
        """Arrival time of the data that is being delivered, monotonic seconds. None: the kernel gives none, or none yet
        (``stamping``)."""
        transport.pause_reading()
        self._loop.add_reader(self._sock, self._readable)

    def close(self) -> None:
        """Stop reading. The connection stays open until this has been called."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _readable(self) -> None:
        try:
            size, ancillary, _, _ = self._sock.recvmsg_into([self._protocol.get_buffer(-1)], _ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:  # the end or a failure, which the transport handles
            self.close()
            self._transport.resume_reading()
            return
        if ancillary:
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
            # The stamp is wall clock. In this order an interruption between the two readings makes it later, not
            # earlier.
            age_s = time.time() - (seconds + nanoseconds * 1e-9)
            self.at = time.monotonic() - age_s
        else:
            self.at = None
        self._protocol.buffer_updated(size)
