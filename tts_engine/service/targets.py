"""Where engines are: addresses that were written down, names that stand for several, directories that are asked."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

log = logging.getLogger(__name__)


class Address(NamedTuple):
    """One engine."""

    target: str
    """``host:port`` or ``unix:/path``, as gRPC takes it."""
    name: str = ""
    """The name that its certificate has to have, where the target is an address behind a name."""


Source = Callable[[], Awaitable[Iterable[str]]]
"""Asks for the targets of all engines that there are now. Raises OSError where nobody answers."""


def is_name(target: str) -> bool:
    """Return whether the target's host is a name that may stand for several machines."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


async def resolve(target: str) -> set[Address]:
    """Return all addresses behind the name in ``host:port``, those of IPv4 if there are any: a machine with an address
    of both kinds is one engine. A thread asks the resolver.

    Raises:
        OSError: the name has no address, or nobody answers.
    """
    host, _, port = target.rpartition(":")
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    v4 = {f"{address[0]}:{port}" for family, *_, address in answers if family == socket.AF_INET}
    v6 = {f"[{address[0]}]:{port}" for family, *_, address in answers if family == socket.AF_INET6}
    return {Address(one, host) for one in v4 or v6}


class Targets:
    """The engines that there are, as far as is known. ``refresh`` asks again."""

    def __init__(
        self,
        targets: Iterable[str],
        *,
        source: Source | None = None,
        resolver: Callable[[str], Awaitable[set[Address]]] = resolve,
    ) -> None:
        """``source``: is asked for further targets. ``resolver``: see ``resolve``."""
        self.written = targets = tuple(targets)
        """What was written down, names as names."""
        self._fixed = tuple(Address(target) for target in targets if not is_name(target))
        self.names = tuple(target for target in targets if is_name(target))
        """``host:port`` with names that may stand for several engines."""
        self._source, self._resolver = source, resolver
        self._found: dict[str, set[Address]] = {}
        """Addresses by name; those of the source under an empty one."""

    @property
    def change(self) -> bool:
        """Whether the engines may become others."""
        return bool(self.names or self._source)

    def known(self) -> list[Address]:
        """Return every engine once, those that were written down first."""
        found = (address for name in sorted(self._found) for address in sorted(self._found[name]))
        return list(dict.fromkeys((*self._fixed, *found)))

    async def refresh(self) -> None:
        """Ask the resolver and the source. Where nobody answers, what is known stays: a resolver that is down has taken
        no engine along."""
        for name in self.names:
            try:
                self._found[name] = await self._resolver(name)
            except (OSError, UnicodeError) as exc:  # the latter: a label that IDNA does not allow
                log.warning("engine's name not resolved", extra={"target": name, "error": type(exc).__name__})
        if self._source is not None:
            try:
                self._found[""] = {Address(target) for target in await self._source()}
            except OSError as exc:
                log.warning("engines' directory does not answer", extra={"error": type(exc).__name__})
