"""When what a TCP connection delivers has come: the kernel's time of it, not that of the process getting round to it.

A load generator is late itself when its core is busy, and would count that against the server. With ``SO_TIMESTAMPNS``
(Linux, socket(7)) a read tells when the newest segment in it reached this host; over loopback that is when the other
side sent it. Where segments were joined in the socket's queue the time of the last one counts for all of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from typing import cast

_SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; not in Python's socket module."""
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


class KernelArrivals:
    """Reads a connection in place of its transport and passes everything on to the same protocol.

    Args:
        transport: of a plain TCP connection; its protocol is an ``asyncio.BufferedProtocol``.

    Raises:
        OSError: the system gives no times.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._protocol = cast(asyncio.BufferedProtocol, transport.get_protocol())
        # A duplicate: the transport's socket lets nobody read, and socket.dup() would make it block.
        self._sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            self._sock.close()
            raise
        self.at: float | None = None
        """When that which is being delivered came, monotonic seconds; None: the kernel does not say, or not yet: it
        begins to stamp a moment after the first socket of the system has asked."""
        transport.pause_reading()
        self._loop.add_reader(self._sock, self._readable)

    def close(self) -> None:
        """Stop reading. The connection ends only when this has been called, too."""
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
        if not size:  # the end or a failure, which the transport knows to handle
            self.close()
            self._transport.resume_reading()
            return
        if ancillary:
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
            # The stamp is wall clock. Read in this order, an interruption between the two makes it later, not earlier.
            age_s = time.time() - (seconds + nanoseconds * 1e-9)
            self.at = time.monotonic() - age_s
        else:
            self.at = None
        self._protocol.buffer_updated(size)
