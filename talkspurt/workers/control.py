"""Messages between the supervisor and a worker: datagrams of JSON on a Unix socket, some with a file descriptor.

supervisor → worker: the configuration (a memory file, never on disk), its part of the SIP port, accepted connections,
knowledge and counts of the other workers. worker → supervisor: its index, its state, its own knowledge and counts.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
from pathlib import Path
from typing import Any

import orjson

from talkspurt.config.settings import Config

REPORT_S = 0.25
"""Time between two reports of a worker, seconds. Between reports, the supervisor distributes new connections by its
own counts."""

_BYTES = 256 * 1024
"""Receive buffer, more than the kernel takes in one message (net.core.wmem_default)."""


class Closed(Exception):
    """The other side is gone."""


class ControlChannel:
    """One end of the socket. It never blocks, apart from ``wait``. ``fileno`` is for the event loop's reader."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    @classmethod
    def connect(cls, path: Path) -> ControlChannel:
        """Connect to the supervisor."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(path))
        return cls(sock)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any], *, descriptor: int | None = None) -> bool:
        """Send a message. False: the other side is gone, or does not keep up."""
        try:
            data = orjson.dumps(message)
            if descriptor is None:
                self._socket.send(data)
            else:
                socket.send_fds(self._socket, [data], [descriptor])
        except OSError:
            return False
        return True

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the next message, and the descriptor that came with it. None: there is none now.

        Raises:
            Closed: the other side is gone.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _BYTES, 1)
        except BlockingIOError:
            return None
        except OSError as exc:
            raise Closed from exc
        if not data:
            raise Closed
        message: dict[str, Any] = orjson.loads(data)
        return message, (descriptors[0] if descriptors else None)

    def wait(self) -> tuple[dict[str, Any], int]:
        """Block until the next message. Return it with its descriptor.

        Raises:
            Closed: the other side is gone.
        """
        select.select([self._socket], [], [])
        received = self.receive()
        assert received is not None and received[1] is not None
        return received[0], received[1]

    def close(self) -> None:
        self._socket.close()


def write_config(config: Config) -> int:
    """Return the descriptor of a memory file with the configuration, secrets included."""
    descriptor = os.memfd_create("talkspurt configuration")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        pickle.dump(config, file)
    return descriptor


def read_config(descriptor: int) -> Config:
    """Read the configuration from the supervisor, and close the descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        config = pickle.load(file)  # noqa: S301
    assert isinstance(config, Config)
    return config
