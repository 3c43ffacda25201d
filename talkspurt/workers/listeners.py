"""Binds the ports of a server: for all its workers, or only to check that they are free."""

from __future__ import annotations

import errno
import socket

from gateway.listener.no_room import BACKLOG
from sip_bridge.config import SipConfig
from talkspurt.config.settings import Config
from talkspurt.invocation import command

_FREE_PORTS = 8
"""Number of ports that are tried for port 0, because a port that is free for TCP may be in use for UDP."""


def check(config: Config) -> None:
    """Check that all ports of a server are free, before slow parts are started.

    Raises:
        OSError: one cannot be had.
    """
    ServerSockets(config).close()


class ServerSockets:
    """Sockets at all ports of a server.

    Raises:
        OSError: a port cannot be had.
    """

    def __init__(self, config: Config) -> None:
        self.tcp: dict[str, list[socket.socket]] = {}
        """TCP listeners by protocol: ``http``, ``audiosocket``, ``sip`` and ``sips``."""
        self.udp: socket.socket | None = None
        """The socket of SIP over UDP."""
        try:
            self._open(config)
        except OSError:
            self.close()
            raise

    def _open(self, config: Config) -> None:
        server, sip, audiosocket = config.server, config.sip, config.audiosocket
        self.tcp["http"] = listen(server.host, server.port, "server")
        if audiosocket is not None:
            self.tcp["audiosocket"] = listen(audiosocket.host, audiosocket.port, "audiosocket")
        if sip is not None:
            self.tcp["sip"], self.udp = listen_for_sip(sip)
            if sip.tls is not None:
                self.tcp["sips"] = listen(sip.host, sip.tls.port, "sip.tls")

    def close(self) -> None:
        """Close them all."""
        for listeners in self.tcp.values():
            close(listeners)
        if self.udp is not None:
            self.udp.close()


def listen(host: str, port: int, section: str) -> list[socket.socket]:
    """Listen for connections at every address of a host.

    Args:
        section: names the setting, for the error.

    Raises:
        OSError: the port cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise OSError(f"{section.partition('.')[0]}.host: {host!r} has no address: {exc.strerror}") from exc
    listeners: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        listener = socket.socket(family, kind, protocol)
        listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as exc:
            close(listeners)
            raise _cannot(host, port, section, exc) from exc
        listener.setblocking(False)
    return listeners


def listen_for_sip(config: SipConfig) -> tuple[list[socket.socket], socket.socket]:
    """Listen for SIP over TCP and UDP at the same port; port 0 takes a free one. Return the listeners, and the UDP
    socket.

    Raises:
        OSError: the port cannot be had.
    """
    for left in reversed(range(1 if config.port else _FREE_PORTS)):
        listeners = listen(config.host, config.port, "sip")
        port = port_of(listeners)
        udp = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind((config.host, port))
        except OSError as exc:
            close([*listeners, udp])
            if not left:
                raise _cannot(config.host, port, "sip", exc) from exc
        else:
            return listeners, udp
    raise AssertionError("unreachable")


def port_of(listeners: list[socket.socket]) -> int:
    """Return the bound port; 0 for no listener."""
    return int(listeners[0].getsockname()[1]) if listeners else 0


def close(sockets: list[socket.socket]) -> None:
    """Close them all."""
    for each in sockets:
        each.close()


def _cannot(host: str, port: int, section: str, exc: OSError) -> OSError:
    where = f"{host}:{port} ({section.partition('.')[0]}.host, {section}.port)"
    if exc.errno != errno.EADDRINUSE:
        return OSError(f"{where} cannot be listened on: {exc.strerror}")
    if section != "server":
        return OSError(f"{where} is in use")
    return OSError(
        f"{where} is in use: `{command()} serve -c FILE --port N` takes another one, --port 0 a free one; "
        f"`{command()} doctor` tells whether a talkspurt serves there"
    )
