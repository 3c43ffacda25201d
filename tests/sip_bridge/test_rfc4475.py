"""The torture messages of RFC 4475, each made anew from what the RFC says of it, and the answer that it gets.

A method that we do not have (REGISTER, MESSAGE) is answered with 501 if the message is sound. What the RFC says of the
content of such a message is shown by reading it, or by an INVITE of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sip_bridge.message.parameters import caller_of
from sip_bridge.message.sip import Response, response_to
from tests.sip_bridge.torture import Torture, message, put
from tests.sip_bridge.virtual_bridge import Far, VirtualBridge, description, placed, played

SDP = description()
_SDP_TYPE = ("Content-Type", "application/sdp")
ALLOW = ("Allow", ("INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "INFO", "UPDATE", "REFER", "NOTIFY", "PRACK"))

_TORTUOUS = (
    "TO :\r\n sip:bot@example.com ;   tag    = 19180n",
    'from   : "J Doe \\\\\\""       <sip:doe@example.net>\r\n  ;\r\n  tag = 98as',
    "MaX-fOrWaRdS: 0068",
    "Call-ID: tortuous.1@192.0.2.1",
    "Content-Length   : " + str(len(SDP)),
    "cseq: 0009\r\n  INVITE",
    "Via  : SIP  /   2.0\r\n /UDP\r\n    192.0.2.2;branch=390skd",
    "s :",
    "NewHeader:   a value\r\n that continues on another line",
    "HeaderWithOddValue: ;;,,;;,;",
    "Content-Type: application/sdp",
    "Route:\r\n <sip:proxy.example.com;lr;unknown=value;unknown-without>",
    "v:  SIP  / 2.0  / TCP     below.example.com   ;\r\n  branch  =   z9hG4bK9i  ,\r\n SIP  /    2.0   / UDP  "
    "192.168.255.1   ; branch=\r\n z9hG4bK3",
    'm:"Quoted \\"\\"" <sip:doe@example.net> ; newparam =\r\n      newvalue ;\r\n  secondparam ; q = 0.33',
)
_FOREIGN = "\u0440\u0430\u0431\u043e\u0442\u0430"
_UNUSUAL = "sip:1_unusual.URI~(to-be!sure)&isn't+it$/crazy?,/;;*:&it+has=1,weird!*pas$wo~d_too.(doesn't-it)@example.com"
_ODD_METHOD = "!interesting-Method0123456789_*+`.%indeed'~"
_LONG = "long" * 20
_PARTS = (
    b"--7a9c\r\nContent-Type: text/plain\r\nContent-Transfer-Encoding: binary\r\n\r\nHello\r\n--7a9c\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\n\r\n0\x82\x01R\x06\x00\r\n\xff\r\n"
    b"--7a9c--\r\n"
)
_PARTS_AND_SDP = _PARTS.replace(b"--7a9c--", b"--7a9c\r\nContent-Type: application/sdp\r\n\r\n" + SDP + b"\r\n--7a9c--")
_MIXED = "Content-Type: multipart/mixed;boundary=7a9c"

SYNTAX = [
    Torture(
        "3.1.1.1 short tortuous INVITE", 481, "it is sound, and in an unknown dialog", message(
            "INVITE sip:bot@example.com;unknownparam SIP/2.0", *_TORTUOUS, body=SDP, without="Contact",
        ),
    ),
    Torture(
        "3.1.1.1 the same outside of dialogs", 200, "it is sound", message(
            "INVITE sip:bot@example.com;unknownparam SIP/2.0", _TORTUOUS[0].partition(";")[0], *_TORTUOUS[1:],
            body=SDP, without="Contact",
        ),
    ),
    Torture(
        "3.1.1.2 wide range of valid characters", 501, "it is sound, but for the method", message(
            f"{_ODD_METHOD} {_UNUSUAL} SIP/2.0", f"CSeq: 139122385 {_ODD_METHOD}",
            "Via: SIP/2.0/TCP host1.example.com;branch=z9hG4bK-.!%66*_+`'~",
            f'To: "BEL:\\\7 NUL:\\\0 DEL:\\\x7f" <{_UNUSUAL}>',
            f"From: token1~` token2'+_ token3*%!.- <sip:mundane@example.com>;fromParam''~+*_!.-%=\"{_FOREIGN}\""
            ";tag=_token~1'+`*%!-.",
            "Call-ID: intmeth.word%ZK-!.*_+'@word`~)(><:\\/\"][?}{", f"extensionHeader-!.%*+_`'~:{_FOREIGN}",
        ), ALLOW,
    ),
    Torture(
        "3.1.1.2 the same in a call", 200, "names and ids are only compared", message(
            f"INVITE {_UNUSUAL} SIP/2.0", f'To: "NUL:\\\0" <{_UNUSUAL}>', 'From: "NUL:\\\0" <sip:x@a.example>;tag=_~1',
            "Call-ID: intmeth.word%ZK-!.*_+'@word`~)(><:\\/\"][?}{", f"X-Name: {_FOREIGN}", body=SDP,
        ),
    ),
    Torture(
        "3.1.1.3 % escaping", 200, "it is sound", message(
            "INVITE sip:sips%3Abot%40example.com@example.net SIP/2.0", "To: sip:%62o%74@example.com",
            "From: <sip:I%20have%20spaces@example.net>;tag=938",
            "Contact: <sip:cal%6Cer@host5.example.net;%6C%72;n%61me=v%61lue%25%34%31>", body=SDP,
        ),
    ),
    Torture(
        "3.1.1.4 escaped NUL in URIs", 501, "it is sound; we have no registrar", message(
            "REGISTER sip:example.com SIP/2.0", "To: sip:null-%00-null@example.com",
            "From: sip:null-%00-null@example.com;tag=839",
            "Contact: <sip:%00@host5.example.com>, <sip:%00%00@host5.example.com>",
        ), ALLOW,
    ),
    Torture(
        "3.1.1.4 the same in a call", 200, "it is sound", message(
            "INVITE sip:null-%00-null@example.com SIP/2.0", "From: sip:null-%00-null@example.com;tag=839", body=SDP,
        ),
    ),
    Torture(
        "3.1.1.5 % that escapes nothing", 501, "the method is RE%47IST%45R, which is not REGISTER", message(
            "RE%47IST%45R sip:registrar.example.com SIP/2.0", 'To: "%Z%45" <sip:resource@example.com>',
            'From: "%Z%45" <sip:resource@example.com>;tag=f23',
            "Contact: <sip:alias1@host1.example.com>, <sip:alias2@host2.example.com>, sip:alias3@host3.example.com",
        ), ALLOW,
    ),
    Torture(
        "3.1.1.6 no blank before <", 200, "it is sound", message("OPTIONS", "From: caller<sip:caller@x.example>;tag=3"),
    ),
    Torture(
        "3.1.1.7 long values", 200, "it is sound, and below our limits", message(
            "INVITE", f'To: "A {_LONG} name"<sip:bot@example.com:6000;unknown={_LONG};{_LONG}=short;{_LONG}NoValue>',
            f"F: sip:{_LONG}name@example.net;tag=12982{'2' * 200}424;{_LONG}={_LONG};{_LONG}",
            f"Call-ID: one{_LONG}callid", f"Unknown-{_LONG}: unknown-{_LONG}-value", "CSeq: 3882340 INVITE",
            "Via: SIP/2.0/TCP sip33.example.com;branch=z9hG4bK-top", f"v: SIP/2.0/TCP sip32.example.com;branch={_LONG}",
            *(f"V: SIP/2.0/TCP sip{n}.example.com, SIP/2.0/UDP sip{n - 1}.example.com" for n in range(31, 1, -2)),
            f"Contact: <sip:{_LONG}contact@host5.example.net>", body=SDP, without="From",
        ),
    ),
    Torture(
        "3.1.1.8 octets behind the message in a datagram", 501, "only the REGISTER counts; we have no registrar",
        message("REGISTER") + message("INVITE", body=SDP), ALLOW,
    ),
    Torture(
        "3.1.1.9 semicolon in the user part", 200, "it is sound", message(
            "OPTIONS sip:user;par=u%40example.net@example.com SIP/2.0",
            "Accept: application/sdp, application/pkcs7-mime, multipart/mixed, message/sip, message/sipfrag",
        ),
    ),
    Torture(
        "3.1.1.10 unknown transports", 200, "the answer goes back by our own hop; those below are kept", message(
            "OPTIONS", "Via: SIP/2.0/UDP t1.example.com;branch=z9hG4bK1", "Via: SIP/2.0/SCTP t2.example.com;branch=2",
            "Via: SIP/2.0/TLS t3.example.com;branch=3", "Via: SIP/2.0/UNKNOWN t4.example.com;branch=4",
            "Via: SIP/2.0/TCP t5.example.com;branch=5",
        ),
    ),
    Torture(
        "3.1.1.11 multipart with binary parts", 501, "it is sound; we take no text messages",
        message("MESSAGE", _MIXED, body=_PARTS), ALLOW,
    ),
    Torture(
        "3.1.1.11 the same in a call", 200, "one part is a session description",
        message("INVITE", _MIXED, body=_PARTS_AND_SDP),
    ),
    Torture(
        "3.1.1.12 unusual reason phrase", None, "a response to no request", message(
            f"SIP/2.0 200 = 2**3 * 5**2 {_FOREIGN}", "CSeq: 35 INVITE",
        ),
    ),
    Torture(
        "3.1.1.13 empty reason phrase", None, "a response to no request",
        message("SIP/2.0 100 ", "CSeq: 35 INVITE"),
    ),
    Torture(
        "3.1.2.1 separators with nothing between", 400, "400", message(
            "INVITE", "Via: SIP/2.0/UDP 192.0.2.15;;,;,,", 'Contact: "Joe" <sip:joe@example.org>;;;;', body=SDP,
        ),
    ),
    Torture(
        "3.1.2.1 the same in Contact alone", 400, "400", message("INVITE", "Contact: <sip:joe@b.example>;;;", body=SDP),
    ),
    Torture(
        "3.1.2.2 Content-Length beyond the datagram", 400, "400", message("INVITE", "Content-Length: 9999", body=SDP),
    ),
    Torture("3.1.2.3 negative Content-Length", 400, "400", message("INVITE", "Content-Length: -999", body=SDP)),
    Torture(
        "3.1.2.4 overlarge numbers in a request", 400, "400, for CSeq", message(
            "REGISTER", "CSeq: 36893488147419103232 REGISTER", "Max-Forwards: 300", "Expires: 1" + "0" * 30,
            "Contact: <sip:caller@host.example.net>;expires=280297596632815",
        ),
    ),
    Torture(
        "3.1.2.5 overlarge numbers in a response", None, "it is dropped", message(
            "SIP/2.0 503 Service Unavailable", "CSeq: 9292394834772304023312 OPTIONS",
            "Retry-After: 949302838503028349304023988", 'Warning: 1812 overture "In Progress"',
        ),
    ),
    Torture(
        "3.1.2.6 quote that does not end", 400, "400", message(
            "INVITE", 'To: "Mr. J. Caller <sip:bot@example.com>', body=SDP,
        ),
    ),
    Torture(
        "3.1.2.7 Request-URI in <>", 400, "400, or to take the URI out; no caller needs that",
        message("INVITE <sip:bot@example.com> SIP/2.0", body=SDP),
    ),
    Torture("3.1.2.8 blank in the Request-URI", 400, "400", message("INVITE sip:bot@b.example; lr SIP/2.0", body=SDP)),
    Torture(
        "3.1.2.9 several blanks in the request line", 200, "400, or to pass over them, which does no harm",
        message("INVITE  sip:bot@example.com  SIP/2.0", body=SDP),
    ),
    Torture(
        "3.1.2.10 blanks at the end of the request line", 200, "400, or to pass over them, which does no harm",
        message("OPTIONS sip:bot@example.com SIP/2.0  "),
    ),
    Torture(
        "3.1.2.11 headers in the Request-URI", 200, "400, or to ignore them, as we do",
        message("INVITE sip:bot@example.com?Route=%3Csip:example.com%3E SIP/2.0", body=SDP),
    ),
    Torture(
        "3.1.2.12 time zone in Date", 200, "400, or to ignore the header, which we never read",
        message("INVITE", "Date: Fri, 01 Jan 2010 16:00:00 EST", body=SDP),
    ),
    Torture(
        "3.1.2.13 URI with headers and without <>", 400, "400, since the URI's end cannot be known",
        message("REGISTER", "Contact: sip:user@example.com?Route=%3Csip:sip.example.com%3E"),
    ),
    Torture(
        "3.1.2.14 blanks within <>", 200, "400, or to pass over them, which does no harm",
        message("OPTIONS", 'To: "Bot, A." < sip:bot@example.com >'),
    ),
    Torture(
        "3.1.2.15 display name of no tokens", 200, "400, or to take it as it is, since it is clear what is meant",
        message("OPTIONS", "From: Bell, Alexander <sip:a.g.bell@example.com>;tag=43"),
    ),
    Torture(
        "3.1.2.16 unknown version", 505, "505", message(
            "OPTIONS sip:bot@example.com SIP/7.0", "Via: SIP/7.0/UDP c.example.com;branch=z9hG4bKkd",
        ),
    ),
    Torture("3.1.2.17 CSeq of another method", 400, "400", message("OPTIONS", "CSeq: 8 INVITE")),
    Torture(
        "3.1.2.18 unknown method, and CSeq of another", 400, "400 or 501", message("NEWMETHOD", "CSeq: 8 INVITE"),
    ),
    Torture(
        "3.1.2.19 overlarge status", None, "it is dropped", message(
            "SIP/2.0 4294967301 more than anybody can count", "CSeq: 353494 INVITE",
        ),
    ),
]  # fmt: skip

BEYOND_SYNTAX = [
    Torture(
        "3.2.1 branch with nothing behind its cookie", 200, "400, or to match as in RFC 2543, as we do",
        message("OPTIONS", "Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK"),
    ),
    Torture(
        "3.3.1 required headers are missing", 400, "400, which the sender can match by its Via",
        message("INVITE", "CSeq: 193942 INVITE", without="From To Call-ID", body=SDP),
    ),
    Torture(
        "3.3.2 unknown scheme in the Request-URI", 416, "416", message("OPTIONS nobodyKnowsThisScheme:opaque SIP/2.0"),
    ),
    Torture(
        "3.3.2 the same in a call", 416, "416", message("INVITE nobodyKnowsThisScheme:opaque SIP/2.0", body=SDP),
    ),
    Torture(
        "3.3.3 known scheme that is not ours", 416, "416", message("OPTIONS soap.beep://192.0.2.103:3002 SIP/2.0"),
    ),
    Torture(
        "3.3.4 unknown schemes in headers", 501, "it is sound; we have no registrar", message(
            "REGISTER", "To: isbn:2983792873", "From: <http://www.example.com>;tag=3", "Contact: <name:John_Smith>",
        ), ALLOW,
    ),
    Torture(
        "3.3.4 the same in a call", 200, "the call goes to whom the Request-URI names", message(
            "INVITE", "To: isbn:2983792873", "From: <http://www.example.com>;tag=3", body=SDP,
        ),
    ),
    Torture(
        "3.3.5 Require and Proxy-Require", 420, "420 that names what Require has; proxies read the other", message(
            "OPTIONS", "Require: nothingSupportsThis, norThis", "Proxy-Require: noProxySupportsThis, norThat",
        ), ("Unsupported", ("nothingSupportsThis", "norThis")),
    ),
    Torture(
        "3.3.6 unknown Content-Type", 415, "415 that names what we take",
        message("INVITE", "Content-Type: application/unknownformat", body=b"<audio>\r\n</audio>"),
        ("Accept", ("application/sdp",)),
    ),
    Torture(
        "3.3.7 unknown authorization scheme", 501, "it is sound; we have no registrar",
        message("REGISTER", "Authorization: NoOneKnowsThisScheme opaque-data=here"), ALLOW,
    ),
    Torture(
        "3.3.8 several values where one is due", 400, "400", message(
            "INVITE", "CSeq: 5 INVITE", "Call-ID: one", "CSeq: 59 INVITE", "Call-ID: two", "From: <sip:a@b.net>;tag=1",
            "From: <sip:b@b.example>;tag=2", "To: <sip:a@a.example>", "To: <sip:b@b.example>", "Max-Forwards: 70",
            "Max-Forwards: 5", body=SDP,
        ),
    ),
    Torture(
        "3.3.9 several Content-Lengths", 400, "400", message(
            "OPTIONS", "Content-Length: 13", "Content-Length: 5", body=b"There's no way to know how many octets",
        ),
    ),
    Torture(
        "3.3.10 response that names a broadcast address", None, "it is dropped", message(
            "SIP/2.0 200 OK", "Via: SIP/2.0/UDP 192.0.2.198;branch=z9hG4bK1", "CSeq: 8 INVITE",
            "Via: SIP/2.0/UDP 255.255.255.255;branch=z9hG4bK2;received=192.0.2.129", body=SDP,
        ),
    ),
    Torture(
        "3.3.11 Max-Forwards of zero", 200, "an endpoint takes what only must not be forwarded",
        message("OPTIONS", "Max-Forwards: 0"),
    ),
    Torture(
        "3.3.12 parameter of Contact", 501, "it is sound; we have no registrar",
        message("REGISTER", "Contact: sip:+19725552222@gw1.example.net;unknownparam"), ALLOW,
    ),
    Torture(
        "3.3.13 parameter of the URI in Contact", 501, "it is sound; we have no registrar",
        message("REGISTER", "Contact: <sip:+19725552222@gw1.example.net;unknownparam>"), ALLOW,
    ),
    Torture(
        "3.3.14 headers in the URI in Contact", 501, "it is sound; we have no registrar",
        message("REGISTER", "Contact: <sip:user@example.com?Route=%3Csip:sip.example.com%3E>"), ALLOW,
    ),
    Torture(
        "3.3.15 Accept without session descriptions", 406, "406, since our answer would be one",
        message("INVITE", "Accept: text/nobodyKnowsThis", body=SDP),
    ),
    Torture(
        "3.4.1 INVITE of RFC 2543", 200, "to take it; there is neither branch, tag, Max-Forwards, Contact nor length",
        message(
            "INVITE", "Via: SIP/2.0/UDP gw.example.com", "From: <sip:+13035551111@gw.example.net;user=phone>",
            "Record-Route: <sip:bot@b.example;maddr=ss1.b.example>", "To: sip:+16505552222@gw.example.net;user=phone",
            without="Max-Forwards Contact Content-Length", body=SDP,
        ),
    ),
]  # fmt: skip

BY_NAME = {torture.name: torture for torture in SYNTAX + BEYOND_SYNTAX}


@pytest.mark.virtual_time
@pytest.mark.parametrize("torture", BY_NAME.values(), ids=str)
async def test_message_gets_its_answer_and_the_next_call_is_served(
    torture: Torture, caplog: pytest.LogCaptureFixture
) -> None:
    await put(torture, caplog)


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("3.1.1.2 wide range of valid characters", lambda m: m.to.display_name, "BEL:\7 NUL:\0 DEL:\x7f"),
        ("3.1.1.2 the same in a call", lambda m: caller_of(m, ()).name, "NUL:\ufffd"),
        ("3.1.1.3 % escaping", lambda m: caller_of(m, ()).to, "sips:bot@example.com"),
        ("3.1.1.3 % escaping", lambda m: caller_of(m, ()).from_, "I have spaces"),
        ("3.1.1.4 the same in a call", lambda m: caller_of(m, ()).to, "null-\ufffd-null"),
        ("3.1.1.6 no blank before <", lambda m: m.from_.display_name, "caller"),
        ("3.1.1.8 octets behind the message in a datagram", lambda m: m.body, b""),
        ("3.1.1.9 semicolon in the user part", lambda m: caller_of(m, ()).to, "user"),
        ("3.1.1.10 unknown transports", lambda m: len(m.headers.all("Via")), 5),
        ("3.1.1.12 unusual reason phrase", lambda m: m.reason, f"= 2**3 * 5**2 {_FOREIGN}"),
        ("3.1.1.13 empty reason phrase", lambda m: m.reason, ""),
        ("3.1.2.14 blanks within <>", lambda m: str(m.to.uri), "sip:bot@example.com"),
        ("3.1.2.15 display name of no tokens", lambda m: m.from_.display_name, "Bell, Alexander"),
        (
            "3.3.12 parameter of Contact",
            lambda m: (m.contact.params, m.contact.uri.params),
            ({"unknownparam": None}, {}),
        ),
        (
            "3.3.13 parameter of the URI in Contact",
            lambda m: (m.contact.params, m.contact.uri.params),
            ({}, {"unknownparam": None}),
        ),
        ("3.3.14 headers in the URI in Contact", lambda m: m.contact.uri.headers, "Route=%3Csip:sip.example.com%3E"),
    ],
)
def test_message_says(name: str, read: Callable[[object], object], expected: object) -> None:
    assert read(BY_NAME[name].message) == expected


@pytest.mark.virtual_time
@pytest.mark.parametrize("start", ["SIP/2.0 200 = 2**3 * 5**2", "SIP/2.0 200 ", "SIP/2.0 200"])
async def test_odd_reason_phrases_in_answers_to_us(start: str) -> None:
    """Sections 3.1.1.12 and 3.1.1.13."""
    with played():
        world = VirtualBridge()
        await placed(world)
        answer = response_to(
            world.asked("INVITE"), 200, to_tag="a", headers=[("Contact", "<sip:a@127.0.0.9>"), _SDP_TYPE], body=SDP
        )
        data = start.encode() + answer.serialise()[len(b"SIP/2.0 200 OK") :]
        world.bridge.endpoint._datagrams.datagram_received(data, ("127.0.0.9", 7000))
        await world.run()
        assert world.asked("ACK") and world.sessions
        await world.finish()


@pytest.mark.virtual_time
async def test_an_answer_on_its_way_to_somebody_else_is_none_to_us() -> None:
    """Section 3.3.10 and RFC 3261 section 8.1.3.3: it names another hop behind us."""
    with played():
        world = VirtualBridge()
        await placed(world)
        before = world.bridge.kept["outgoing"]
        answer = response_to(world.asked("INVITE"), 486, to_tag="a")
        world.take(Response(486, "", answer.headers.add("Via", "SIP/2.0/UDP 255.255.255.255;branch=z9hG4bK2")))
        assert world.bridge.kept["outgoing"] == before
        world.take(answer)
        await world.run()
        assert world.bridge.kept["outgoing"] < before
        await world.finish()


@pytest.mark.virtual_time
async def test_calls_with_the_same_empty_branch_are_two() -> None:
    """Section 3.2.1."""
    with played():
        world = VirtualBridge()
        for call_id in ("one", "two"):
            far = Far(world)
            far.call_id = call_id
            world.take(far.request("INVITE", ("Via", "SIP/2.0/UDP 127.0.0.9:7000;branch=z9hG4bK"), body=SDP))
        await world.run()
        assert len(world.sessions) == 2
        await world.finish()


@pytest.mark.virtual_time
async def test_unknown_authorization_scheme_is_challenged() -> None:
    """Section 3.3.7, where we ask for a password."""
    with played():
        world = VirtualBridge(trunk={"username": "ann", "password": "secret"})
        Far(world).calls(("Authorization", "NoOneKnowsThisScheme opaque-data=here"))
        assert world.replied().status == 401
        assert all(value.startswith("Digest ") for value in world.replied().headers.all("WWW-Authenticate"))
        await world.finish()
