"""From a SIP URI to a peer."""

import pytest

from sip_bridge.errors import Unreachable
from sip_bridge.io.locate import locate
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
    assert await locate(Uri.parse(uri)) == peer


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
        await locate(Uri.parse(uri))


async def test_an_address_of_our_own_family_needs_no_look_up() -> None:
    uri = Uri.parse("sip:a@[2001:db8::1]:5070")
    assert await locate(uri, ours="::1") == Peer("UDP", "2001:db8::1", 5070)
    with pytest.raises(Unreachable, match=r"192\.0\.2\.1"):
        await locate(Uri.parse("sip:a@192.0.2.1"), ours="::1")
