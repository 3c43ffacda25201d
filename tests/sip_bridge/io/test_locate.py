"""From a SIP URI to a peer."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.zone
import pytest

from sip_bridge.errors import Unreachable
from sip_bridge.io.locate import locate_all
from sip_bridge.local import Peer
from sip_bridge.message.sip import Uri


@pytest.mark.parametrize(
    ("uri", "peer"),
    [
        ("sip:a@192.0.2.1", Peer("UDP", "192.0.2.1", 5060)),
        ("sip:a@192.0.2.1:5070;transport=tcp", Peer("TCP", "192.0.2.1", 5070)),
        ("sip:192.0.2.1;transport=TLS", Peer("TLS", "192.0.2.1", 5061, "192.0.2.1")),
        ("sips:a@192.0.2.1;transport=tcp", Peer("TLS", "192.0.2.1", 5061, "192.0.2.1")),
        ("sip:a@localhost", Peer("UDP", "127.0.0.1", 5060)),
        ("sip:a@localhost;transport=tls", Peer("TLS", "127.0.0.1", 5061, "localhost")),
    ],
)
async def test_where_a_uri_leads(uri: str, peer: Peer) -> None:
    assert (await locate_all(Uri.parse(uri)))[0] == peer


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("tel:+4930123", "tel"),
        ("sip:a@192.0.2.1;transport=ws", "WS"),
        ("sip:a@nowhere.invalid", "nowhere.invalid"),
        ("sip:a@[2001:db8::1]:5070", "2001:db8::1"),
        ("sip:a@192.0.2.1:0", "port is 0"),
    ],
)
async def test_a_uri_that_leads_nowhere_says_why(uri: str, why: str) -> None:
    with pytest.raises(Unreachable, match=why):
        await locate_all(Uri.parse(uri))


async def test_an_address_of_our_own_family_needs_no_look_up() -> None:
    uri = Uri.parse("sip:a@[2001:db8::1]:5070")
    assert await locate_all(uri, ours="::1") == [Peer("UDP", "2001:db8::1", 5070)]
    with pytest.raises(Unreachable, match=r"192\.0\.2\.1"):
        await locate_all(Uri.parse("sip:a@192.0.2.1"), ours="::1")


ZONE = """
$ORIGIN carrier.test.
@ 60 IN SOA ns. admin. 1 60 60 60 60
@ 60 IN NAPTR 20 10 "s" "SIP+D2U" "" _sip._udp
@ 60 IN NAPTR 10 10 "s" "SIP+D2T" "" _sip._tcp
@ 60 IN NAPTR 5 10 "u" "E2U+sip" "!^.*$!sip:x@y!" .
_sip._udp 60 IN SRV 20 0 5070 localhost.
_sip._udp 60 IN SRV 10 0 5060 127.0.0.3.
_sip._udp 60 IN SRV 10 0 5061 dead.invalid.
_sip._tcp 60 IN SRV 10 0 5080 localhost.
_sips._tcp 60 IN SRV 10 0 5091 localhost.
_sip._udp.plain 60 IN SRV 1 1 5065 localhost.
_sip._udp.none 60 IN SRV 0 0 0 .
"""


@asynccontextmanager
async def name_server(zone: str = ZONE) -> AsyncIterator[dns.asyncresolver.Resolver]:
    """A name server on loopback, and a resolver that asks it."""
    records = dns.zone.from_text(zone, origin="carrier.test.", relativize=False, check_origin=False)

    class Server(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            asked = dns.message.from_wire(data)
            reply = dns.message.make_response(asked)
            found = records.get_rrset(asked.question[0].name, asked.question[0].rdtype)
            if found:
                reply.answer.append(found)
            else:
                reply.set_rcode(dns.rcode.NXDOMAIN)
            self.transport.sendto(reply.to_wire(), addr)  # type: ignore[attr-defined]

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Server, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    try:
        yield resolver
    finally:
        transport.close()


@pytest.mark.parametrize(
    ("uri", "peers"),
    [
        ("sip:a@carrier.test", ["TCP 127.0.0.1 5080", "UDP 127.0.0.3 5060", "UDP 127.0.0.1 5070"]),
        ("sip:carrier.test;transport=udp", ["UDP 127.0.0.3 5060", "UDP 127.0.0.1 5070"]),
        ("sip:carrier.test;transport=tcp", ["TCP 127.0.0.1 5080"]),
        ("sips:carrier.test", ["TLS 127.0.0.1 5091"]),
        ("sip:carrier.test;transport=tls", ["TLS 127.0.0.1 5091"]),
        ("sip:plain.carrier.test", ["UDP 127.0.0.1 5065"]),
    ],
)
async def test_the_records_of_a_domain_are_followed_in_order(uri: str, peers: list[str]) -> None:
    """RFC 3263 section 4: NAPTR chooses the transport, SRV the hosts; a host without an address is left out."""
    async with name_server() as resolver:
        found = await locate_all(Uri.parse(uri), resolver=resolver)
    assert [f"{each.transport} {each.host} {each.port}" for each in found] == peers
    assert {each.name for each in found if each.transport == "TLS"} <= {"carrier.test"}


@pytest.mark.parametrize("uri", ["sip:none.carrier.test", "sip:nothing.carrier.test", "sip:carrier.test:5060"])
async def test_a_domain_without_usable_records_is_a_host(uri: str) -> None:
    async with name_server() as resolver:
        with pytest.raises(Unreachable, match="has no address"):
            await locate_all(Uri.parse(uri), resolver=resolver)


async def test_weights_share_the_calls_of_one_priority() -> None:
    zone = ZONE.split("@ 60 IN NAPTR")[0] + "_sip._udp IN SRV 1 90 1 localhost.\n_sip._udp IN SRV 1 10 2 localhost.\n"
    random.seed(1)
    async with name_server(zone) as resolver:
        found = [(await locate_all(Uri.parse("sip:carrier.test"), resolver=resolver))[0].port for _ in range(200)]
    assert 160 < found.count(1) < 198
