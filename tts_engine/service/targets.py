"""The addresses of engines: from the configuration, from names that stand for several engines, and from directories."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

log = logging.getLogger(__name__)


class EngineAddress(NamedTuple):
    """One engine."""

    target: str
    """``host:port`` or ``unix:/path``, as gRPC takes it."""
    name: str = ""
    """The name that its certificate has to carry, if the target is an address that a name was resolved to."""


Source = Callable[[], Awaitable[Iterable[str]]]
"""Returns the targets of all current engines. Raises OSError if there is no answer."""


def is_name(target: str) -> bool:
    """Return True if the target's host is a name that may stand for several machines."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


async def resolve(target: str) -> set[EngineAddress]:
    """Return all addresses of the name in ``host:port``. Only IPv4 addresses are returned if there are any, since a
    machine with both kinds is one engine. A thread asks the resolver.

    Raises:
        OSError: the name has no address, or the resolver does not answer.
    """
    host, _, port = target.rpartition(":")
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    v4 = {f"{address[0]}:{port}" for family, *_, address in answers if family == socket.AF_INET}
    v6 = {f"[{address[0]}]:{port}" for family, *_, address in answers if family == socket.AF_INET6}
    return {EngineAddress(one, host) for one in v4 or v6}


class Targets:
    """The known engines. ``refresh`` asks again."""

    def __init__(
        self,
        targets: Iterable[str],
        *,
        source: Source | None = None,
        resolver: Callable[[str], Awaitable[set[EngineAddress]]] = resolve,
    ) -> None:
        """``source`` returns further targets. ``resolver``: see ``resolve``."""
        self.written = targets = tuple(targets)
        """The configured targets, with unresolved names."""
        self._fixed = tuple(EngineAddress(target) for target in targets if not is_name(target))
        self.names = tuple(target for target in targets if is_name(target))
        """``host:port`` with names that may stand for several engines."""
        self._source, self._resolver = source, resolver
        self._found: dict[str, set[EngineAddress]] = {}
        """Addresses by name; those of the source have an empty name."""

    @property
    def change(self) -> bool:
        """True if the list of engines may change."""
        return bool(self.names or self._source)

    def known(self) -> list[EngineAddress]:
        """Return every engine once, the configured ones first."""
        found = (address for name in sorted(self._found) for address in sorted(self._found[name]))
        return list(dict.fromkeys((*self._fixed, *found)))

    async def refresh(self) -> None:
        """Ask the resolver and the source. Without an answer, the known addresses stay: if the resolver is down, the
        engines may still work."""
        for name in self.names:
            try:
                self._found[name] = await self._resolver(name)
            except (OSError, UnicodeError) as exc:  # UnicodeError: a label that IDNA does not allow
                log.warning("engine's name not resolved", extra={"target": name, "error": type(exc).__name__})
        if self._source is not None:
            try:
                self._found[""] = {EngineAddress(target) for target in await self._source()}
            except OSError as exc:
                log.warning("engines' directory does not answer", extra={"error": type(exc).__name__})
