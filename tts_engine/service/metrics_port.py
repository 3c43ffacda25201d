"""The port of an engine's own metrics: a few threads, each with one connection, which a stranger cannot use up."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import Counter
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

_MOST = 32
"""Most connections at a time. At the limit, the oldest of the source with the most makes room."""
_WAIT_S = 10.0
"""Longest TLS handshake, and longest wait for a piece of a request or for the peer to take the answer, seconds."""


class _Handler(WSGIRequestHandler):
    timeout = _WAIT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each request."""


class MetricsPort(ThreadingMixIn, WSGIServer):
    """The listener.

    Args:
        host, port: the address.
        app: the WSGI application.
        tls: the context, or None for plain HTTP. The handshake is made in the connection's thread, so that a client
            that does not end it keeps no other one waiting.

    Raises:
        OSError: the port cannot be had.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: Any, tls: ssl.SSLContext | None) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[Any, socket.socket] = {}
        """Connections by their client's address and port, the oldest first."""
        super().__init__((host, port), _Handler)
        self.set_app(app)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, perhaps in place of another one."""
        with self._lock:
            self._open[client_address] = request
            if len(self._open) > _MOST:
                most, _ = Counter(client[0] for client in self._open).most_common(1)[0]
                oldest = next(client for client in self._open if client[0] == most)
                with contextlib.suppress(OSError):  # it has closed already
                    # The method of TLS sockets would take the state from the thread that uses it.
                    socket.socket.shutdown(self._open.pop(oldest), socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        connection = request
        try:
            request.settimeout(_WAIT_S)
            if self._tls is not None:
                connection = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    if client_address not in self._open:
                        return
                    self._open[client_address] = connection
                connection.do_handshake()
            self.finish_request(connection, client_address)
        except OSError:
            pass  # the client is gone or too slow, shows no certificate, or made room
        finally:
            with self._lock:
                self._open.pop(client_address, None)
            self.shutdown_request(connection)
