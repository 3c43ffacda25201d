"""The torture messages of RFC 5118 (IPv6), each made anew from what the RFC says of it, and the answer that it gets
from a bridge that is at home in IPv6. A sound REGISTER is answered with 501, since we have no registrar, and a sound
BYE with 481, since its dialog is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sip_bridge.message.sip import Uri
from tests.sip_bridge.torture import Torture, message, put
from tests.sip_bridge.virtual_bridge import description

HOST = "2001:db8::9:1"
OURS: dict[str, Any] = {"host": "2001:db8::10", "trunk": {"addresses": ["2001:db8::/32"]}}

VIA = "Via: SIP/2.0/UDP [2001:db8::9:1];branch=z9hG4bKas3-111"
IN_DIALOG = "To: <sip:bot@example.com>;tag=ours"


def sdp(*sections: str) -> bytes:
    return "\r\n".join(["v=0", "o=caller 970960 970960 IN IP6 2001:db8::20", "s=-", "t=0 0", *sections, ""]).encode()


AUDIO = ("m=audio 6000 RTP/AVP 0", "a=rtpmap:0 PCMU/8000")
VIDEO = ("m=video 6002 RTP/AVP 31", "a=rtpmap:31 H261/90000")

MESSAGES = [
    Torture(
        "4.1 IPv6 reference", 501, "it is sound", message(
            "REGISTER sip:[2001:db8::10] SIP/2.0", VIA, "Contact: sip:caller@[2001:db8::1]",
        ),
    ),
    Torture(
        "4.2 IPv6 address without delimiters", 400, "400, since it cannot be read", message(
            "REGISTER sip:2001:db8::10 SIP/2.0", VIA, "Contact: sip:caller@[2001:db8::1]",
        ),
    ),
    Torture(
        "4.3 port ambiguous", 501, "what looks like the port is the address's end",
        message("REGISTER sip:[2001:db8::10:5070] SIP/2.0", VIA, "Contact: sip:caller@[2001:db8::1]"),
    ),
    Torture(
        "4.4 port unambiguous", 501, "it is sound",
        message("REGISTER sip:[2001:db8::10]:5070 SIP/2.0", VIA, "Contact: sip:caller@[2001:db8::1]"),
    ),
    Torture(
        "4.5 received with delimiters", 481, "to take both, since the ABNF forbids what elements do", message(
            "BYE sip:[2001:db8::10] SIP/2.0", VIA.replace(";", ";received=[2001:db8::9:255];"), IN_DIALOG,
        ),
    ),
    Torture(
        "4.5 received without delimiters", 481, "it is sound", message(
            "BYE sip:[2001:db8::10] SIP/2.0", VIA.replace(";", ";received=2001:db8::9:255;"), IN_DIALOG,
        ),
    ),
    Torture(
        "4.6 IPv6 in the session description", 200, "it is sound", message(
            "INVITE sip:bot@[2001:db8::10] SIP/2.0", VIA, "Contact: <sip:caller@[2001:db8::20]>",
            body=sdp("c=IN IP6 2001:db8::20", *AUDIO, *VIDEO),
        ),
    ),
    Torture(
        "4.7 both families in headers", 481, "it is sound", message(
            "BYE sip:bot@host.example.net SIP/2.0", "Via: SIP/2.0/UDP [2001:db8::9:1]:6050;branch=z9hG4bKas3-111",
            "Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKjhja8781hjuaij65144",
            "Via: SIP/2.0/TCP [2001:db8::9:255];branch=z9hG4bK451jj;received=192.0.2.200", IN_DIALOG,
        ),
    ),
    Torture(
        "4.8 both families in the session description", 200, "each section has an address of its own", message(
            "INVITE", VIA, body=sdp(*VIDEO, "c=IN IP4 192.0.2.1", *AUDIO, "c=IN IP6 2001:db8::1"),
        ),
    ),
    Torture(
        "4.8 the same the other way round", 488, "we cannot send to the family that we are not at home in", message(
            "INVITE", VIA, body=sdp(*AUDIO, "c=IN IP4 192.0.2.1", *VIDEO, "c=IN IP6 2001:db8::1"),
        ),
    ),
    Torture(
        "4.9 IPv4-mapped IPv6 addresses", 200, "it is sound, though such addresses should stay in a host", message(
            "INVITE", VIA, "Contact: <sip:caller@[::ffff:192.0.2.10]>",
            body=sdp("c=IN IP6 ::ffff:192.0.2.10", *AUDIO, *VIDEO),
        ),
    ),
    Torture(
        "4.10 three colons, by an error in the ABNF of RFC 3261", 200, "to take it where the address does not matter",
        message("OPTIONS sip:bot@[2001:db8:::192.0.2.1] SIP/2.0", VIA),
    ),
    Torture(
        "4.10 two colons", 200, "it is sound", message("OPTIONS sip:bot@[2001:db8::192.0.2.1] SIP/2.0", VIA),
    ),
]  # fmt: skip

BY_NAME = {torture.name: torture for torture in MESSAGES}


@pytest.mark.virtual_time
@pytest.mark.parametrize("torture", MESSAGES, ids=str)
async def test_message_gets_its_answer_and_the_next_call_is_served(
    torture: Torture, caplog: pytest.LogCaptureFixture
) -> None:
    await put(torture, caplog, caller=HOST, **OURS)


@pytest.mark.virtual_time
async def test_a_bridge_of_ipv4_takes_a_mapped_address_for_what_it_maps(caplog: pytest.LogCaptureFixture) -> None:
    """Section 4.9."""
    mapped = description(host="::ffff:192.0.2.10")
    await put(Torture("", 200, "it is an IPv4 address", message("INVITE", body=mapped)), caplog)


@pytest.mark.virtual_time
async def test_a_bridge_of_ipv4_cannot_speak_to_ipv6(caplog: pytest.LogCaptureFixture) -> None:
    """Section 4.6."""
    body = description(host="2001:db8::20")
    await put(Torture("", 488, "its sockets are of IPv4", message("INVITE", body=body)), caplog)


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("4.1 IPv6 reference", lambda r: r.contact.uri.host, "[2001:db8::1]"),
        ("4.3 port ambiguous", lambda r: Uri.parse(r.uri).port, None),
        ("4.4 port unambiguous", lambda r: Uri.parse(r.uri).port, 5070),
        ("4.5 received with delimiters", lambda r: r.via.params["received"], "[2001:db8::9:255]"),
        ("4.5 received without delimiters", lambda r: r.via.params["received"], "2001:db8::9:255"),
        ("4.7 both families in headers", lambda r: r.via.sent_by, "[2001:db8::9:1]:6050"),
    ],
)
def test_message_says(name: str, read: Callable[[object], object], expected: object) -> None:
    assert read(BY_NAME[name].request) == expected
