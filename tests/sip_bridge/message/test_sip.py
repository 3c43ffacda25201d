"""SIP messages: what is read, what is refused and how, and that nothing but ProtocolError escapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import (
    MAX_HEADER_BYTES,
    MAX_HEADER_LINE,
    MAX_START_LINE,
    PING,
    Address,
    Headers,
    MalformedRequest,
    MessageStream,
    Request,
    Response,
    Uri,
    Via,
    note_source,
    parse,
    response_to,
)

INVITE = (
    b"INVITE sip:bot@example.com SIP/2.0\r\n"
    b"Via: SIP/2.0/UDP 192.0.2.4:5070;branch=z9hG4bK-one;rport\r\n"
    b"Max-Forwards: 70\r\n"
    b'From: "Ann <the> \\"A\\", Example" <sip:ann@example.org>;tag=f1\r\n'
    b"To: <sip:bot@example.com>\r\n"
    b"Call-ID: one@192.0.2.4\r\n"
    b"CSeq: 1 INVITE\r\n"
    b"Contact: <sip:ann@192.0.2.4:5070;transport=udp>;expires=60\r\n"
    b"Supported: timer, 100rel\r\n"
    b"Content-Type: application/sdp\r\n"
    b"Content-Length: 4\r\n\r\nv=0\n"
)


def reply_of(error: SipProtocolError) -> Response | None:
    """The answer that is due for bytes that could not be read."""
    return error.reply if isinstance(error, MalformedRequest) else None


def invite(data: bytes = INVITE) -> Request:
    message = parse(data)
    assert isinstance(message, Request)
    return message


def changed(old: bytes, new: bytes) -> bytes:
    assert old in INVITE
    return INVITE.replace(old, new)


def test_reads_a_request() -> None:
    request = invite()
    assert (request.method, request.uri, request.body) == ("INVITE", "sip:bot@example.com", b"v=0\n")
    assert request.from_.display_name == 'Ann <the> "A", Example'
    assert (request.from_.tag, request.to.tag, str(request.cseq)) == ("f1", "", "1 INVITE")
    assert (request.via.branch, request.via.sent_by) == ("z9hG4bK-one", "192.0.2.4:5070")
    assert request.contact is not None and request.contact.uri.params == {"transport": "udp"}
    assert request.contact.params == {"expires": "60"}
    assert request.headers.tokens("supported") == {"timer", "100rel"}
    assert request.content_type == "application/sdp"
    assert request.serialise() == INVITE
    assert parse(request.serialise()) == request


def test_reads_every_liberty_of_form() -> None:
    """After RFC 4475 section 3.1.1.1, in our own words: folding, compact names, LF only, spaces, case, Latin-1."""
    request = invite(
        b"\r\n\r\nINVITE sip:vivekg@chair-dnrc.example.com;unknownparam SIP/2.0\n"
        b"TO :\n sip:vivekg@chair-dnrc.example.com ;   tag    = 1918181833n\n"
        b'from   : "J Rosenberg \\\\\\""       <sip:jdrosen@example.com>\n  ;\n  tag = 98asjd8\n'
        b"MaX-fOrWaRdS: 0068\n"
        b"i: intmeth.word%ZK-!.*_+'@word`~)(><:\\/\"][?}{\n"
        b"cseq: 0009\n  INVITE\n"
        b"V: SIP  / 2.0\n /UDP\n    192.0.2.2;branch=390skdjuw\n"
        b"s :\n"
        b"NewFangledHeader:   newfangled value\n continued newfangled value\n"
        b"UnknownHeaderWithUnusualValue: ;;,,;;,;\n"
        b'm:"Quoted string \\"\\"" <sip:jdrosen@example.com> ; newparam =\n      newvalue ;\n  secondparam ; q = 0.33\n'
        b"X-Name: J\xf6rg\n"
        b"v:  SIP  / 2.0  / TCP     spindle.example.com   ;\n  branch  =   z9hG4bK9ikj8  ,\n SIP  /    2.0   / UDP  "
        b"192.168.255.111   ; branch=\n z9hG4bK30239\n\nbody"
    )
    assert request.to.tag == "1918181833n"
    assert request.from_.display_name == 'J Rosenberg \\"'
    assert request.from_.tag == "98asjd8"
    assert (request.cseq.number, request.cseq.method) == (9, "INVITE")
    assert [Via.parse(via).branch for via in request.headers.all("via")] == [
        "390skdjuw",
        "z9hG4bK9ikj8",
        "z9hG4bK30239",
    ]
    assert request.contact is not None
    assert request.contact.params == {"newparam": "newvalue", "secondparam": None, "q": "0.33"}
    assert request.headers.get("newfangledheader") == "newfangled value continued newfangled value"
    assert request.headers.get("Subject") == ""
    assert request.body == b"body"
    assert b"X-Name: J\xf6rg\r\n" in request.serialise()


def test_reads_a_response_without_reason() -> None:
    response = parse(INVITE.replace(b"INVITE sip:bot@example.com SIP/2.0", b"SIP/2.0 200"))
    assert isinstance(response, Response)
    assert (response.status, response.reason) == (200, "")


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("sip:alice;day=tuesday@atlanta.com", "alice;day=tuesday", "atlanta.com", None),
        ("sips:%61lice:secret@[2001:db8::1]:5061;transport=tcp?subject=a%20b", "%61lice:secret", "[2001:db8::1]", 5061),
        ("sip:192.0.2.1", "", "192.0.2.1", None),
        ("tel:+358-555-1234567;postd=pp22", "+358-555-1234567;postd=pp22", "", None),
        ("urn:service:sos", "service:sos", "", None),
    ],
)
def test_uri_keeps_its_text(text: str, user: str, host: str, port: int | None) -> None:
    uri = Uri.parse(text)
    assert (uri.user, uri.host, uri.port) == (user, host, port)
    assert str(uri) == text


@pytest.mark.parametrize(
    ("contact", "uri"),
    [
        ("Lee, Ann <sip:ann@192.0.2.4>", "sip:ann@192.0.2.4"),
        ('"Ann" sip:ann@192.0.2.4;q=1', "sip:ann@192.0.2.4"),
        ("<sip:@192.0.2.4:5070>", "sip:192.0.2.4:5070"),
        ("<sip:+49 30 111@192.0.2.4>;expires=60", "sip:+4930111@192.0.2.4"),
        ("*", None),
    ],
)
def test_a_contact_that_is_written_oddly_is_read(contact: str, uri: str | None) -> None:
    read = parse(changed(b"<sip:ann@192.0.2.4:5070;transport=udp>;expires=60", contact.encode()))
    assert (str(read.contact.uri) if read.contact else None) == uri


def test_without_brackets_parameters_are_the_headers() -> None:
    address = Address.parse("sip:ann@example.org;tag=7;x")
    assert address.params == {"tag": "7", "x": None}
    assert address.uri.params == {}


@pytest.mark.parametrize(
    ("data", "says", "status"),
    [
        (b"", "start line", None),
        (b"GET / HTTP/1.1\r\n\r\n", "start line", None),
        (changed(b"SIP/2.0\r\nVia", b"SIP/7.0\r\nVia"), "version is SIP/7.0", 505),
        (changed(b"INVITE sip:bot@example.com", b"INVITE <sip:bot@example.com>"), "Request-URI", 400),
        (changed(b"CSeq: 1 INVITE", b"CSeq: 1 BYE"), "CSeq method is BYE, expected INVITE", 400),
        (changed(b"CSeq: 1 INVITE", b"CSeq: 36893488147419103232 INVITE"), "CSeq number", 400),
        (changed(b"CSeq: 1 INVITE", b"CSeq: 2147483648 INVITE"), "CSeq number", 400),
        (changed(b"CSeq: 1 INVITE\r\n", b""), "without CSeq", 400),
        (changed(b"Call-ID: one@192.0.2.4\r\n", b""), "without Call-ID", 400),
        (changed(b"Call-ID:", b"Call-ID: two\r\nCall-ID:"), "several call-id", 400),
        (changed(b"Via:", b"X-Via:"), "without Via", None),
        (changed(b"SIP/2.0/UDP", b"HTTP/2.0/UDP"), "Via is", 400),
        (changed(b"192.0.2.4:5070;branch", b"192.0.2.4:99999;branch"), "Via host port", 400),
        (changed(b"Content-Length: 4", b"Content-Length: -999"), "Content-Length is '-999'", 400),
        (changed(b"Content-Length: 4", b"Content-Length: 9999"), "body has 4 bytes, expected 9999", 400),
        (changed(b"Content-Length: 4", b"Content-Length: 4\r\nl: 5"), "several Content-Length", 400),
        (changed(b"To: <sip:bot@example.com>", b"To: <sip:bot@example.com"), "address is", 400),
        (changed(b'From: "Ann', b"From: Ann"), "address is", 400),
        (changed(b"Max-Forwards: 70", b"no colon here"), "header line begins 'no colon here'", None),
        (changed(b"Max-Forwards: 70", b"Max-Forwards: 7\0"), "NUL", None),
        (changed(b"Max-Forwards: 70", b"\r\n".join([b"X: y"] * 300)), "has 309 headers", None),
        (b"INVITE sip:a SIP/2.0\r\nX: " + b"y" * MAX_HEADER_BYTES, "do not end within", None),
        (changed(b"bot@example.com SIP", b"b" * MAX_START_LINE + b" SIP"), "start line has", None),
        (
            changed(b"Max-Forwards: 70", b"X:" + b"\r\n yyyyyyyyyyyyyyy" * (MAX_HEADER_LINE // 16)),
            "header 'X' has",
            None,
        ),
        (changed(b"Max-Forwards: 70", b"\r\n".join([b"Via: " + b"a," * 100] * 3)), "has 301 values", None),
        (changed(b"SIP/2.0/UDP", b"SIP/2.0/UDP/x"), "Via is", 400),
        (changed(b"bot@example.com SIP", b"2001:db8::1 SIP"), "URI host", 400),
        (changed(b"bot@example.com SIP", b"bot@example.com\x0bx SIP"), "Request-URI", 400),
    ],
)
def test_malformed_is_refused_exactly(data: bytes, says: str, status: int | None) -> None:
    with pytest.raises(SipProtocolError, match=says) as caught:
        parse(data)
    reply = reply_of(caught.value)
    assert (reply and reply.status) == status
    if reply:
        via = next(line for line in data.split(b"\r\n") if line.startswith(b"Via:"))
        assert via + b"\r\n" in reply.serialise()


def test_no_reply_to_a_malformed_ack() -> None:
    with pytest.raises(SipProtocolError) as caught:
        parse(INVITE.replace(b"INVITE", b"ACK").replace(b"CSeq: 1 ACK", b"CSeq: x ACK"))
    assert reply_of(caught.value) is None


def test_headers_cannot_be_smuggled_in() -> None:
    for value in ("a\r\nX: b", "a\nb", "a\0"):
        with pytest.raises(ValueError):
            Headers([("Subject", value)])
    with pytest.raises(ValueError):
        Headers([("Sub ject", "a")])
    with pytest.raises(ValueError):
        Request("INVITE", "sip:a\r\nX: y", Headers()).serialise()


def test_headers_replace_in_place() -> None:
    headers = Headers([("Via", "a"), ("To", "b"), ("via", "c"), ("X", "d")])
    assert list(headers.replace("VIA", "1", "2")) == [("VIA", "1"), ("VIA", "2"), ("To", "b"), ("X", "d")]
    assert list(headers.replace("via")) == [("To", "b"), ("X", "d")]
    assert headers.replace("New", "v").get("new") == "v"
    assert headers.all("via") == ("a", "c")


def test_response_copies_what_it_must() -> None:
    request = invite(changed(b"Max-Forwards: 70", b"Record-Route: <sip:p1;lr>, <sip:p2;lr>"))
    ringing = response_to(request, 180, to_tag="ours", headers=[("Contact", "<sip:bot@192.0.2.9>")])
    assert ringing.headers.get("To") == "<sip:bot@example.com>;tag=ours"
    assert ringing.headers.all("Record-Route") == ("<sip:p1;lr>", "<sip:p2;lr>")
    assert parse(ringing.serialise()) == parse(parse(ringing.serialise()).serialise())
    trying = response_to(request, 100)
    assert (trying.to.tag, trying.headers.all("Record-Route")) == ("", ())


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (b"192.0.2.4:5070;branch=z9hG4bK-one;rport", ";branch=z9hG4bK-one;rport=6000;received=198.51.100.7"),
        (b"ann.example:5070;branch=z9hG4bK-one", ";branch=z9hG4bK-one;received=198.51.100.7"),
        (b"198.51.100.7:5070;branch=z9hG4bK-one", ";branch=z9hG4bK-one"),
    ],
)
def test_source_is_noted_in_the_top_via(sent: bytes, seen: str) -> None:
    below = b"\r\nVia: SIP/2.0/TCP below;branch=z9hG4bK-two"
    request = invite(changed(b"192.0.2.4:5070;branch=z9hG4bK-one;rport", sent + below))
    noted = note_source(request, "198.51.100.7", 6000)
    assert noted.headers.all("Via")[0].endswith(seen)
    assert noted.headers.all("Via")[1] == "SIP/2.0/TCP below;branch=z9hG4bK-two"
    assert noted.via.params.get("rport") == (b"rport" in sent and "6000" or None)


@given(st.integers(1, 60), st.integers(1, 5))
def test_stream_is_cut_wherever_it_breaks(size: int, count: int) -> None:
    data = (PING + INVITE + b"\r\n" + INVITE.replace(b"Content-Length", b"l")) * count
    stream = MessageStream()
    cut = [piece for at in range(0, len(data), size) for piece in stream.feed(data[at : at + size])]
    assert [piece for piece in cut if piece == PING] == [PING] * count
    assert [invite(piece).body for piece in cut if piece != PING] == [b"v=0\n"] * (2 * count)


def test_stream_takes_a_length_that_is_folded() -> None:
    data = INVITE.replace(b"Content-Length: 4", b"content-length :\r\n 4")
    assert list(MessageStream().feed(data + data)) == [data, data]


@pytest.mark.parametrize(
    "data",
    [
        b"l: 9999999\r\n\r\n",
        b"Content-Length: x\r\n\r\n",
        b"Content-Length: 4\r\nl: 5\r\n\r\n",
        b"y" * (MAX_HEADER_BYTES + 1),
    ],
)
def test_stream_that_cannot_be_cut(data: bytes) -> None:
    with pytest.raises(SipProtocolError):
        list(MessageStream().feed(b"OPTIONS sip:a SIP/2.0\r\n" + data))


@given(st.binary(max_size=300))
def test_garbage_raises_only_protocol_error(data: bytes) -> None:
    for feed in (parse, lambda data: list(MessageStream().feed(data))):
        try:
            feed(data)
        except SipProtocolError:
            pass


@given(st.integers(0, len(INVITE) - 1), st.integers(0, 12), st.binary(max_size=12))
def test_mutated_messages_are_read_or_refused(at: int, cut: int, put: bytes) -> None:
    data = INVITE[:at] + put + INVITE[at + cut :]
    try:
        message = parse(data)
    except SipProtocolError as error:
        if reply := reply_of(error):
            reply.serialise()
    else:
        again = parse(message.serialise())
        assert (again.call_id, again.cseq, again.via) == (message.call_id, message.cseq, message.via)
