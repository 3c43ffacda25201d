"""Finds the transport, address and port of a SIP URI (RFC 3263).

Only the address of the URI's host is looked up. For a domain with only SRV or NAPTR records, the configuration must
name their host and port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from sip_bridge.errors import Unreachable
from sip_bridge.local import TRANSPORTS, Peer
from sip_bridge.message.sip import Uri


async def locate_all(uri: Uri, *, ours: str = "0.0.0.0", timeout_s: float = 4.0) -> list[Peer]:
    """Return the addresses to which a request for this URI may be sent, the first to try first.

    Args:
        ours: an address of our socket, which reaches only addresses of its family.

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
    name = host if transport == "TLS" else ""
    try:
        peer = Peer(transport, str(ipaddress.ip_address(host)), port, name)
    except ValueError:
        pass
    else:
        if not peer.can_be_reached_from(ours):
            raise Unreachable(f"target is at {host[:80]}, which we cannot reach from {ours}")
        return [peer]
    family = socket.AF_INET6 if ":" in ours else socket.AF_INET
    try:
        async with asyncio.timeout(timeout_s):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise Unreachable(f"host {host[:80]} has no address: {error or 'the look-up took too long'}") from error
    hosts = dict.fromkeys(str(each[4][0]) for each in found)
    return [Peer(transport, host, port, name) for host in hosts]


async def locate(uri: Uri, *, ours: str = "0.0.0.0", timeout_s: float = 4.0) -> Peer:
    """Return the first address to which a request for this URI is sent; see ``locate_all``."""
    return (await locate_all(uri, ours=ours, timeout_s=timeout_s))[0]
