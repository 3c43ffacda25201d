"""Lets the kernel collect caller audio that has no listener, so that not every frame wakes the process.

On an idle call every 20 ms frame costs a wake-up and a read, ten times the cost of skipping the frame. ``SO_RCVLOWAT``
(Linux, socket(7)) makes the socket readable only when several frames have arrived. This delays only a message between
two idle frames, by less than six frames. When speech begins, a listener joins or media stops, each byte wakes the
process again.
"""

from __future__ import annotations

import asyncio
import socket

_IDLE_FRAMES = 50  # number of skipped frames in a row before batching begins
_GATHERED_FRAMES = 6
_STOPPED_S = 0.5  # after this pause the peer has stopped sending media, and its next message may be alone


class ReceiveBatching:
    """The receive threshold of one socket. ``sock`` is a duplicate of the socket's descriptor, which this object owns
    until ``close``."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._skipped = 0
        self._timer: asyncio.TimerHandle | None = None
        self.gathering = False

    def skipped(self, frame_bytes: int) -> None:
        """Count a skipped media frame; ``frame_bytes`` is its size on the wire."""
        self._skipped += 1
        if self._skipped == _IDLE_FRAMES:
            self._set(frame_bytes * _GATHERED_FRAMES)
            self.gathering = True
            self._watch(self._skipped)

    def wake(self) -> None:
        """Wake for every byte from now on."""
        self._skipped = 0
        if self.gathering:
            self.gathering = False
            self._set(1)
            if self._timer is not None:
                self._timer.cancel()

    def close(self) -> None:
        """Release the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._sock.close()

    def _set(self, at_least_bytes: int) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_least_bytes)

    def _watch(self, before: int) -> None:
        if self._skipped == before and self._timer is not None:
            self._timer = None
            self.wake()
        else:
            self._timer = asyncio.get_running_loop().call_later(_STOPPED_S, self._watch, self._skipped)
