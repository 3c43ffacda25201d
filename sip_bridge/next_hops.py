"""Chooses where a trunk's calls are sent: its proxies, outbound proxies, the routes that registrars named, or the
registrars themselves. Those that do not answer are left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sip_bridge.config import TrunkConfig
from sip_bridge.errors import Unreachable
from sip_bridge.io.locate import locate_all
from sip_bridge.io.pings import TrunkPings
from sip_bridge.local import Peer
from sip_bridge.message.sip import Address, Uri
from sip_bridge.registration import Registration, loose_route


@dataclass(frozen=True, slots=True)
class NextHop:
    """A hop by which a call may leave."""

    uri: Uri
    routes: tuple[str, ...] = ()
    """Values of Route (RFC 3261 section 8.1.2), the hop's own one first. Empty: the request has no Route."""


@dataclass(frozen=True, slots=True)
class HopTarget:
    """An address of a next hop."""

    peer: Peer
    routes: tuple[str, ...] = ()


class NextHops:
    """The next hops of all trunks.

    Args:
        trunks: the trunks by name, with the accounts with which they call.
        registrations: returns our registrations.
        pings: the checks of the trunks that are checked.
    """

    def __init__(
        self,
        trunks: Mapping[str, TrunkConfig],
        registrations: Callable[[], Sequence[Registration]],
        pings: Mapping[str, TrunkPings],
    ) -> None:
        self._trunks = trunks
        self._registrations = registrations
        self._pings = pings

    def domains(self, trunk: str) -> tuple[Uri, ...]:
        """Return the URIs whose hosts a trunk serves. Numbers belong to the host of the first one. Empty: the trunk
        takes no calls."""
        proxies = self._trunks[trunk].proxies
        if proxies:
            return tuple(map(Uri.parse, proxies))
        accounts = self._accounts(trunk)
        return (*(each.address for each in accounts), *(each.registrar for each in accounts))

    def serving(self, uri: Uri) -> str:
        """Return the trunk that serves the host of a URI. Empty: none."""
        return next((name for name in self._trunks if any(leads_to(each, uri) for each in self.domains(name))), "")

    def reachable(self, trunk: str) -> bool:
        """Return False if a trunk with ``ping_s`` has no proxy that answers."""
        pings = self._pings.get(trunk)
        return pings is None or pings.answers or not self._trunks[trunk].ping_s

    def hops(self, trunk: str) -> list[NextHop]:
        """Return the hops for a call of a trunk, in the order in which to try them.

        The outbound proxy goes first, then the route that the registrar named for this account (RFC 3608 section 5),
        then the proxies, then the registrars.
        """
        config, accounts = self._trunks[trunk], self._accounts(trunk)
        held = [each for each in accounts if each.registered]
        if config.outbound_proxies:
            named = held[0].service_route if held else ()
            return [_through(Uri.parse(each), named) for each in self._alive(trunk, config.outbound_proxies)]
        learned = [each for each in held if each.service_route]
        if learned:
            return [NextHop(Address.parse(each.service_route[0]).uri, each.service_route) for each in learned]
        if not config.proxies:
            return [NextHop(each.hop, each.routes) for each in held or accounts]
        lost = {each.registrar.host for each in accounts if not each.registered}
        proxies = map(Uri.parse, self._alive(trunk, config.proxies))
        return [NextHop(each) for each in sorted(proxies, key=lambda proxy: proxy.host in lost)]

    def _alive(self, trunk: str, proxies: tuple[str, ...]) -> tuple[str, ...]:
        pings = self._pings.get(trunk)
        return tuple(each for each in proxies if pings is None or pings.alive(each)) or proxies

    def _accounts(self, trunk: str) -> list[Registration]:
        """Return the registrations of the account with which a trunk calls."""
        username = self._trunks[trunk].username
        return [
            each
            for each in self._registrations()
            if each.config.trunk == trunk and username in ("", each.config.auth_username or each.config.username)
        ]


def leads_to(proxy: Uri, uri: Uri) -> bool:
    """Return True if a URI is at the host and port of a proxy."""
    return proxy.host == uri.host and uri.port in (None, proxy.port)


def _through(proxy: Uri, service_route: tuple[str, ...]) -> NextHop:
    """Return the hop of an outbound proxy, after which a request visits the route that the registrar named."""
    own = loose_route(proxy)
    if service_route:
        first = Address.parse(service_route[0]).uri
        if (first.host, first.port) == (proxy.host, proxy.port):
            service_route = service_route[1:]
    return NextHop(proxy, (own, *service_route))


async def locate_hops(hops: Sequence[NextHop], *, ours: str) -> list[HopTarget]:
    """Return the addresses of several hops, in their order. A hop without an address is left out.

    Args:
        ours: an address of our socket.

    Raises:
        Unreachable: no hop has an address.
    """
    if len(hops) == 1:
        return [HopTarget(peer, hops[0].routes) for peer in await locate_all(hops[0].uri, ours=ours)]
    found = await asyncio.gather(*(_located(hop, ours) for hop in hops))
    targets: dict[Peer, HopTarget] = {}
    for hop, peers in zip(hops, found, strict=True):
        for peer in () if isinstance(peers, Unreachable) else peers:
            targets.setdefault(peer, HopTarget(peer, hop.routes))
    if not targets:
        raise next(each for each in found if isinstance(each, Unreachable))
    return list(targets.values())


async def _located(hop: NextHop, ours: str) -> list[Peer] | Unreachable:
    try:
        return await locate_all(hop.uri, ours=ours)
    except Unreachable as error:
        return error
