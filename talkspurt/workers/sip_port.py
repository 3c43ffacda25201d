"""The SIP port of several workers: reads it, gives each datagram to a worker, and passes messages between workers.

The supervisor does this because it paces no calls: packets from strangers delay only the supervisor, which no caller
hears.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from sip_bridge.config import SipConfig
from sip_bridge.dialog.invite_server import EARLY_MEDIA_S
from sip_bridge.dispatch import Dispatcher
from sip_bridge.io.shared_address import PASSED_BYTES, Passed
from sip_bridge.local import Peer
from sip_bridge.message_limit import MessageLimit

log = logging.getLogger(__name__)

_SOURCES = 10_000
_AT_ONCE = 64
"""Datagrams that are read at once, before connections and messages of workers are handled."""

_TOLD_S = 10.0
"""Time between two log lines about dropped messages, seconds."""


class SipPort:
    """The bound UDP socket, and a socket of messages to each worker.

    Args:
        udp: the socket. The workers send on it, too.
        living: returns the running workers; the first one gets the next new call. on_call: called with the worker that
        got a new call.
    """

    def __init__(
        self, config: SipConfig, udp: socket.socket, living: Callable[[], Sequence[int]], on_call: Callable[[int], None]
    ) -> None:
        self.udp = udp
        self.undelivered: Counter[int] = Counter()
        """Messages that a worker did not take because its queue was full, by worker. Their senders repeat them (RFC
        3261 section 17)."""
        limits, timeouts = config.limits, config.timeouts
        self.dispatcher = Dispatcher(
            MessageLimit(requests_per_s=limits.requests_per_s, burst=limits.burst, sources=_SOURCES),
            # A caller may cancel, without any message since the INVITE, until we have answered.
            remember_s=64 * timeouts.t1_s + timeouts.ready_s + EARLY_MEDIA_S,
        )
        self._living = living
        self._on_call = on_call
        self._workers: dict[int, socket.socket] = {}
        self._buffer = memoryview(bytearray(PASSED_BYTES))
        self._reading = False
        self._told_at = float("-inf")
        udp.setblocking(False)

    def start(self) -> None:
        """Begin to read the port, if that has not begun. Until then, datagrams wait in the kernel."""
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().add_reader(self.udp.fileno(), self._read)

    @property
    def dropped(self) -> dict[str, int]:
        """The number of SIP messages that were dropped since the start, by reason."""
        return {**self.dispatcher.counts, "undelivered": self.undelivered.total()}

    def stop(self) -> None:
        """Stop reading the port for now."""
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
        """Make the message socket of a new worker. Return the worker's end; close it after it was passed on."""
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
            if not living:  # datagrams wait in the kernel until a worker is back
                self.stop()
                return
            chosen = self.dispatcher.choose(data, address[0], living, now=now)
            if chosen is None:
                continue
            if chosen.begins_call:
                self._on_call(chosen.worker)
            self._give(chosen.worker, Passed("datagram", chosen.worker, Peer("UDP", address[0], address[1]), data))

    def _pass(self, origin: int, ours: socket.socket) -> None:
        """Pass on a message of one worker to another."""
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
            # If the other worker is gone, the asking worker answers itself: it does not know the call either.
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
