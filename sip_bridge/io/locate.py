"""Finds the transport, address and port of a SIP URI (RFC 3263): NAPTR and SRV records, then all addresses of a host.

NAPTR and SRV count only for a domain: a name with a dot, without a port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from functools import cache
from typing import Any

import dns.asyncresolver
import dns.exception
import dns.name
import dns.resolver

from sip_bridge.errors import Unreachable
from sip_bridge.local import TRANSPORTS, Peer
from sip_bridge.message.sip import Uri

_RECORDS_S = 2.0
"""Longest wait for NAPTR and SRV records. Without an answer, the domain counts as a host."""

_CACHED = 1000
_MAX_TARGETS = 20
"""Most addresses that are returned."""

_SERVICES = {"SIP+D2U": "UDP", "SIP+D2T": "TCP", "SIPS+D2T": "TLS"}
"""Transports of NAPTR services (RFC 3263 section 4.1)."""

_SRV_NAMES = {"UDP": "_sip._udp", "TCP": "_sip._tcp", "TLS": "_sips._tcp"}

_Service = tuple[str, str, int]
"""Transport, host and port."""


@cache
def _system_resolver() -> dns.asyncresolver.Resolver | None:
    try:
        resolver = dns.asyncresolver.Resolver()
    except dns.exception.DNSException:
        return None  # the system names no server
    resolver.cache = dns.resolver.LRUCache(_CACHED)
    return resolver


async def locate_all(
    uri: Uri,
    *,
    ours: str = "0.0.0.0",
    timeout_s: float = 4.0,
    resolver: dns.asyncresolver.Resolver | None = None,
) -> list[Peer]:
    """Return the addresses to which a request for this URI may be sent, in the order in which to try them.

    Args:
        ours: an address of our socket, which reaches only addresses of its family.
        resolver: asks for NAPTR and SRV records. None: the system's name servers.

    Raises:
        Unreachable: the URI is not a SIP URI, names an unsupported transport or port 0, or has a host without an
            address of our family.
    """
    if uri.scheme not in ("sip", "sips") or not uri.host:
        raise Unreachable(f"target is a {uri.scheme} URI, expected sip or sips")
    named = uri.params.get("transport")
    transport = named.upper() if named else "UDP"
    if uri.scheme == "sips":
        transport = "TLS"  # also over transport=tcp, which then means TLS over TCP (RFC 3261 section 26.2.2)
    if transport not in TRANSPORTS:
        raise Unreachable(f"target's transport is {transport[:20]}, expected udp, tcp or tls")
    if uri.port == 0:
        raise Unreachable("target's port is 0, expected 1 to 65535")
    host, port = uri.host.strip("[]"), uri.port or (5061 if transport == "TLS" else 5060)
    try:
        peer = Peer(transport, str(ipaddress.ip_address(host)), port, host if transport == "TLS" else "")
    except ValueError:
        pass
    else:
        if not peer.can_be_reached_from(ours):
            raise Unreachable(f"target is at {host[:80]}, which we cannot reach from {ours}")
        return [peer]
    try:
        async with asyncio.timeout(timeout_s):
            services = []
            if uri.port is None and "." in host.strip("."):
                wanted = [transport] if named or transport == "TLS" else ["UDP", "TCP"]
                services = await _services(host, wanted, resolver or _system_resolver(), ask_naptr=len(wanted) > 1)
            return await _addresses(services or [(transport, host, port)], host, ours)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise Unreachable(f"host {host[:80]} has no address: {error or 'the look-up took too long'}") from error


async def _addresses(services: list[_Service], domain: str, ours: str) -> list[Peer]:
    """Return the addresses of the hosts of a domain.

    Raises:
        OSError: no host has an address of our family.
    """
    family = socket.AF_INET6 if ":" in ours else socket.AF_INET
    loop = asyncio.get_running_loop()
    found: dict[Peer, None] = {}
    problem: OSError | UnicodeError = OSError("no service for this transport")
    for transport, host, port in services:
        try:
            entries = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            problem = error
            continue
        for entry in entries:
            # A certificate must match the domain of the URI, not the host of its record (RFC 5922 section 7.1).
            found[Peer(transport, str(entry[4][0]), port, domain if transport == "TLS" else "")] = None
    if not found:
        raise problem
    return list(found)[:_MAX_TARGETS]


async def _services(
    domain: str, wanted: list[str], resolver: dns.asyncresolver.Resolver | None, *, ask_naptr: bool
) -> list[_Service]:
    """Return the services that the records of a domain name, best first. Empty: it has no records."""
    if resolver is None:
        return []
    usual = [(transport, f"{_SRV_NAMES[transport]}.{domain}") for transport in wanted]
    naptr, *srv = await asyncio.gather(
        _records(resolver, domain, "NAPTR") if ask_naptr else _nothing(),
        *(_records(resolver, name, "SRV") for _, name in usual),
    )
    pointed = []
    for record in sorted(naptr, key=lambda each: (each.order, each.preference)):
        transport = _SERVICES.get(record.service.decode("ascii", "replace").upper(), "")
        if transport and record.flags.lower() == b"s":
            pointed.append((transport, await _records(resolver, str(record.replacement), "SRV")))
    if not any(records for _, records in pointed):
        pointed = [(transport, records) for (transport, _), records in zip(usual, srv, strict=True)]
    return [
        (transport, str(record.target).rstrip("."), record.port)
        for transport, records in pointed
        for record in _in_order(records)
        if str(record.target) != "." and record.port
    ]


async def _nothing() -> list[Any]:
    return []


async def _records(resolver: dns.asyncresolver.Resolver, name: str, kind: str) -> list[Any]:
    try:
        absolute = dns.name.from_text(name)
        answer = await resolver.resolve(absolute, kind, search=False, raise_on_no_answer=False, lifetime=_RECORDS_S)
    except (dns.exception.DNSException, OSError, ValueError):
        return []  # no such name, or no server answers
    return list(answer)


def _in_order(records: list[Any]) -> list[Any]:
    """Return SRV records by priority, and at random by weight within one priority (RFC 2782)."""
    ordered = []
    for priority in sorted({each.priority for each in records}):
        left = [each for each in records if each.priority == priority]
        while left:
            chosen = random.choices(left, weights=[each.weight or 0.001 for each in left])[0]
            left.remove(chosen)
            ordered.append(chosen)
    return ordered
