"""The SIP address that several workers share, as seen from one worker.

Another process reads the UDP port and chooses the worker for each datagram (``sip_bridge/dispatch.py``). All workers
have the port's socket and send on it directly. A TCP or TLS connection belongs to one worker. A message on it for
another worker's call is passed to that worker, whose messages to this peer come back the same way, since the peer may
be reachable only by this connection. A CANCEL names no worker: the dispatcher, which is told of each call that begins
on a connection, finds it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sip_bridge.local import Peer, mark_of, worker_of
from sip_bridge.message.head import read_head

PASSED_BYTES = 256 * 1024
"""Longest message between the processes. The kernel would drop a longer one."""

_CONNECTIONS = 1000
_MESSAGES_PER_TURN = 8
"""Messages that are read in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A SIP message on its way between two processes."""

    what: str
    """``datagram``: it came to the UDP port. ``message``: it came over another worker's connection. ``cancel``: the
    same, from a source that may cancel. ``write``: to be written to another worker's connection. ``begun``: the Call-ID
    of a call that begins on a connection."""
    worker: int
    """The other worker: the receiver on the way to the dispatcher, the sender on the way from it."""
    peer: Peer
    data: bytes

    def pack(self) -> bytes:
        """Return it as bytes for a socket that preserves message boundaries."""
        peer = self.peer
        host, port = peer.listens_at or ("", 0)
        head = f"{self.what} {self.worker} {peer.transport} {peer.host} {peer.port} {peer.name} {host} {port}\n"
        return head.encode() + self.data

    @classmethod
    def unpack(cls, packed: bytes) -> Passed:
        """Read the result of ``pack``."""
        head, _, data = packed.partition(b"\n")
        what, worker, transport, host, port, name, listens_host, listens_port = head.decode().split(" ")
        listens_at = (listens_host, int(listens_port)) if listens_host else None
        return cls(what, int(worker), Peer(transport, host, int(port), name, listens_at), data)


class SharedAddress:
    """The address, and the socket to the process that reads its port.

    Args:
        worker: the index of this worker.
        workers: the number of workers.
        port, tls_port: the port of UDP and TCP, and that of TLS (0: none).
        port_socket: the bound UDP socket, which this process does not read.
        dispatcher: a message socket to and from the dispatching process.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        *,
        port: int,
        tls_port: int,
        port_socket: socket.socket,
        dispatcher: socket.socket,
    ) -> None:
        self.worker = worker
        self.workers = workers
        self.port = port
        self.tls_port = tls_port
        self.mark = mark_of(worker)
        self.unsent = 0
        """Messages that a full socket did not take; their sender retransmits them (RFC 3261 section 17)."""
        self._port_socket = port_socket
        self._dispatcher = dispatcher
        self._buffer = memoryview(bytearray(PASSED_BYTES))
        self._connected_at: OrderedDict[Peer, int] = OrderedDict()
        """Peers with a connection to another worker, and that worker; the most recent ones."""
        self._closing = False
        for each in (port_socket, dispatcher):
            each.setblocking(False)

    def start(self, take: Callable[[bytes, Peer, bool], None], write: Callable[[bytes, Peer], None]) -> None:
        """Start to receive messages.

        Args:
            take: takes a message of a peer; True: it is a CANCEL whose source may cancel, as the connection's worker
                has found.
            write: writes a message to this worker's connection with a peer, or to a new one.
        """
        asyncio.get_running_loop().add_reader(self._dispatcher.fileno(), self._read, take, write)

    def _read(self, take: Callable[[bytes, Peer, bool], None], write: Callable[[bytes, Peer], None]) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            try:
                size = self._dispatcher.recv_into(self._buffer)
            except OSError:
                return
            if not size:  # the other process has closed the socket
                asyncio.get_running_loop().remove_reader(self._dispatcher.fileno())
                return
            passed = Passed.unpack(bytes(self._buffer[:size]))
            if passed.what == "write":
                write(passed.data, passed.peer)
            else:
                if passed.what != "datagram":
                    self._note(passed.peer, passed.worker)
                take(passed.data, passed.peer, passed.what == "cancel")
            if self._closing:
                return

    def _note(self, peer: Peer, worker: int) -> None:
        self._connected_at[peer] = worker
        self._connected_at.move_to_end(peer)
        if len(self._connected_at) > _CONNECTIONS:
            self._connected_at.popitem(last=False)

    def pass_on(self, data: bytes, peer: Peer) -> bool:
        """Pass a message from a connection to the worker that it names. False: it belongs to this worker."""
        head = read_head(data)
        named = None
        if head is not None and head.method != "CANCEL":
            named = worker_of(head.ours or head.replaced)
        if named is None or named == self.worker or named >= self.workers:
            return False
        self._send(Passed("message", named, peer, data))
        return True

    def tell_begun(self, call_id: str, peer: Peer) -> None:
        """Tell the dispatcher of a call that begins on a connection of this worker."""
        self._send(Passed("begun", self.worker, peer, call_id.encode("utf-8", "surrogateescape")))

    def pass_cancel(self, data: bytes, peer: Peer) -> None:
        """Pass a CANCEL from a connection of this worker to the worker of its call. The CANCEL of an unknown call comes
        back.

        The caller has checked that the source may cancel, since only this worker knows the connection's certificate.
        """
        self._send(Passed("cancel", self.worker, peer, data))

    def write_elsewhere(self, data: bytes, peer: Peer) -> bool:
        """Let another worker write to its connection with a peer. False: no such connection is known."""
        worker = self._connected_at.get(peer)
        if worker is None:
            return False
        self._send(Passed("write", worker, peer, data))
        return True

    def _send(self, passed: Passed) -> None:
        try:
            self._dispatcher.send(passed.pack())
        except OSError:
            self.unsent += 1

    # --- as a datagram transport -----------------------------------------------------------------------------------

    def sendto(self, data: bytes, address: tuple[str, int]) -> None:
        """Send a datagram from the port that all workers share."""
        try:
            self._port_socket.sendto(data, address)
        except OSError:
            self.unsent += 1

    def is_closing(self) -> bool:
        """Return True if nothing is sent any more."""
        return self._closing

    def close(self) -> None:
        """Stop. The port stays open for the other workers. Idempotent."""
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().remove_reader(self._dispatcher.fileno())
            self._port_socket.close()
            self._dispatcher.close()
