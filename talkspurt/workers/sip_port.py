"""The SIP port of several workers: reads it, gives each datagram to a worker, and passes messages between workers.

The supervisor does this, since it paces no calls: what strangers send costs it, and no caller hears that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from sip_bridge.config import SipConfig
from sip_bridge.dispatch import Dispatcher
from sip_bridge.io.shared_address import PASSED_BYTES, Passed
from sip_bridge.local import Peer
from sip_bridge.message_limit import MessageLimit

log = logging.getLogger(__name__)

_SOURCES = 10_000
_AT_ONCE = 64
"""So many datagrams are read in one go; then connections, and what the workers say, have their turn."""

_TOLD_S = 10.0
"""What was dropped is logged at most this often."""


class SipPort:
    """The bound UDP socket, and a socket of messages to each worker.

    Args:
        udp: the socket. The workers send on it, too.
        living: returns the workers that live; the first one is to get a new call.
        on_call: is told which worker got a new call.
    """

    def __init__(
        self, config: SipConfig, udp: socket.socket, living: Callable[[], Sequence[int]], on_call: Callable[[int], None]
    ) -> None:
        self.udp = udp
        self.undelivered: Counter[int] = Counter()
        """By worker: messages that it did not take, since so many wait there already. Their senders repeat them (RFC
        3261 section 17)."""
        limits, timeouts = config.limits, config.timeouts
        self.dispatcher = Dispatcher(
            MessageLimit(requests_per_s=limits.requests_per_s, burst=limits.burst, sources=_SOURCES),
            # A caller may give up, without a word since the INVITE, as long as we have not answered.
            remember_s=64 * timeouts.t1_s + timeouts.ready_s + timeouts.early_media_s,
        )
        self._living = living
        self._on_call = on_call
        self._workers: dict[int, socket.socket] = {}
        self._buffer = memoryview(bytearray(PASSED_BYTES))
        self._reading = False
        self._told_at = float("-inf")
        udp.setblocking(False)

    def start(self) -> None:
        """Read the port, if that has not begun. Before, what comes waits in the kernel."""
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().add_reader(self.udp.fileno(), self._read)

    def stop(self) -> None:
        """Do not read the port for now."""
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self.udp.fileno())

    def close(self) -> None:
        """Close all sockets."""
        self.stop()
        for worker in list(self._workers):
            self.leave(worker)
        self.udp.close()

    def join(self, worker: int) -> socket.socket:
        """Make the socket of messages of a worker that begins. Return its end, which is to be closed when it is
        passed on."""
        self.leave(worker)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._workers[worker] = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._pass, worker, ours)
        return theirs

    def leave(self, worker: int) -> None:
        """Forget a worker that is gone."""
        if ours := self._workers.pop(worker, None):
            asyncio.get_running_loop().remove_reader(ours.fileno())
            ours.close()

    def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(_AT_ONCE):
            try:
                size, address = self.udp.recvfrom_into(self._buffer)
            except OSError:
                return
            data = bytes(self._buffer[:size])
            if not data.strip(b"\r\n\0"):
                continue  # a keep-alive
            living = self._living()
            if not living:  # what comes now waits in the kernel until a worker is back
                self.stop()
                return
            chosen = self.dispatcher.choose(data, address[0], living, now=now)
            if chosen is None:
                continue
            if chosen.begins_call:
                self._on_call(chosen.worker)
            self._give(chosen.worker, Passed("datagram", chosen.worker, Peer("UDP", address[0], address[1]), data))

    def _pass(self, origin: int, ours: socket.socket) -> None:
        """Pass on what one worker says to another."""
        now = asyncio.get_running_loop().time()
        for _ in range(_AT_ONCE):
            try:
                size = ours.recv_into(self._buffer)
            except OSError:
                return
            if not size:
                self.leave(origin)
                return
            passed = Passed.unpack(bytes(self._buffer[:size]))
            if passed.what == "begun":
                self.dispatcher.begun(passed.data.decode("utf-8", "surrogateescape"), origin, now=now)
                continue
            worker: int | None = passed.worker
            if passed.what == "cancel":
                worker = self.dispatcher.worker_of_cancel(passed.data, now=now)
            # For a worker that is gone, the one that asks answers itself: it knows no such call either.
            if worker is None or worker not in self._living():
                worker = origin
            self._give(worker, replace(passed, worker=origin))

    def _give(self, worker: int, passed: Passed) -> None:
        try:
            self._workers[worker].send(passed.pack())
        except (KeyError, OSError):
            self.undelivered[worker] += 1
            now = asyncio.get_running_loop().time()
            if now - self._told_at >= _TOLD_S:
                self._told_at = now
                total = self.undelivered[worker]
                log.warning("a worker does not keep up with SIP messages", extra={"worker": worker, "dropped": total})
