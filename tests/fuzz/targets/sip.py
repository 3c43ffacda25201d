"""SIP messages and streams of them, their headers, session descriptions and credentials."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace
from typing import Any

from sip_bridge.dialog.dialog import Dialog, dialog_id, min_session_s, session_agreed, session_answer
from sip_bridge.dialog.transfer import fragment_status
from sip_bridge.errors import NotAcceptable, SipProtocolError
from sip_bridge.incoming import incoming_call
from sip_bridge.message import sdp
from sip_bridge.message.body import description_of, digit_of
from sip_bridge.message.digest import ClientAuth, ServerAuth, authorization, parse_auth, wants_fresh_nonce
from sip_bridge.message.head import read_head
from sip_bridge.message.parameters import SipCaller, caller_of, read_user_to_user, route_of
from sip_bridge.message.reason import cause_of_answer, cause_of_request, read_reasons
from sip_bridge.message.referral import Referral, read_referral
from sip_bridge.message.replaces import Replaces, read_replaces
from sip_bridge.message.sip import (
    PING,
    Headers,
    MalformedRequest,
    Message,
    MessageStream,
    Request,
    Response,
    Uri,
    note_source,
    parse,
    response_to,
)
from sip_bridge.outgoing import Referred
from sip_bridge.registration import granted
from sip_bridge.targets import read_target
from tests.fuzz.target import Target, assert_plain, pieces
from voicecodecs.registry import AudioFormat

REALM = "talkspurt"
_SERVER = ServerAuth(realm=REALM, secret=b"a secret of thirty-two bytes....")

OFFER = b"""v=0\r\no=- 1 2 IN IP4 192.0.2.4\r\ns=-\r\nc=IN IP4 192.0.2.4\r\nt=0 0\r
m=audio 4000 RTP/AVP 0 8 9 107 101 13\r
a=rtpmap:0 PCMU/8000\r\na=rtpmap:107 opus/48000/2\r\na=fmtp:107 minptime=10\r\na=rtpmap:101 telephone-event/8000\r
a=fmtp:101 0-15\r\na=ptime:20\r\na=maxptime:60\r\na=sendrecv\r\na=rtcp:4001\r\na=rtcp-mux\r\n"""
SECURE = OFFER.replace(b"RTP/AVP", b"RTP/SAVP") + (
    b"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkw|2^31\r\n"
)
DIGEST = (
    b'Digest username="bot", realm="talkspurt", nonce="0123456789abcdef", uri="sip:bot@example.com", '
    b'response="0123456789abcdef0123456789abcdef", algorithm=SHA-256, qop=auth, nc=00000001, cnonce="x", opaque="\\"o"'
)

REASON = b'Q.850;cause=16;text="Normal \\"call\\" clearing", SIP;cause=480'


def message(first: bytes, *more: bytes, body: bytes = b"", method: bytes = b"INVITE") -> bytes:
    """A message with the headers that all need."""
    lines = [
        first,
        b"Via: SIP/2.0/UDP 192.0.2.4:5070;branch=z9hG4bK-one;rport;received=192.0.2.5",
        b'From: "Ann <the> \\"A\\", Example" <sip:ann@example.org;user=phone>;tag=f1',
        b"To: <sip:bot@example.com>;tag=t1",
        b"Call-ID: one@192.0.2.4",
        b"CSeq: 1 " + method,
        *more,
    ]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


INVITE = message(
    b"INVITE sip:bot@example.com SIP/2.0",
    b"m: <sip:ann@192.0.2.4:5070;transport=udp>;expires=60",
    b"Record-Route: <sip:p1.example.org;lr>, <sip:p2.example.org;lr>",
    b"Supported: timer, 100rel\r\n\treplaces",
    b"Session-Expires: 1800;refresher=uac",
    b"Min-SE: 90",
    b"P-Asserted-Identity: <tel:+4930000001>",
    b"Diversion: <sip:x@y>;reason=busy",
    b"User-to-User: 68616c6c6f;encoding=hex",
    b"Refer-To: <sip:a@b;user=phone?Replaces=one%3Bto-tag%3Dt%3Bfrom-tag%3Df&X-Case=1%0a>",
    b"Referred-By: <sip:c@d>",
    b"Replaces: one@192.0.2.4;to-tag=t;from-tag=f;early-only",
    b"Authorization: " + DIGEST,
    b"Content-Type: application/sdp",
    body=OFFER,
)
MULTIPART = message(
    b"INVITE sip:bot@example.com SIP/2.0",
    b'c: multipart/mixed;boundary="cut"',
    b"Contact: *",
    body=b"--cut\r\nContent-Type: application/sdp\r\n\r\n" + OFFER + b"\r\n--cut--",
)
ANSWER = message(
    b"SIP/2.0 200 OK",
    b"Contact: <sip:bot@192.0.2.9>;expires=60, <sip:other@192.0.2.9>",
    b"Session-Expires: 90;refresher=uas",
    b"Expires: 120",
    body=OFFER,
)
CHALLENGE = message(
    b"SIP/2.0 401 Unauthorized",
    b'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth,auth-int", algorithm=MD5, stale=TRUE, opaque="o"',
)
WORDS = (
    b"SIP/2.0", b"INVITE", b"ACK", b"Via: ", b"v: ", b"From: ", b"To: ", b"CSeq: ", b"Call-ID: ", b"Contact: ", b"l: ",
    b"Content-Length: ", b"Session-Expires: ", b"Authorization: Digest ", b"username=", b"qop=auth", b";tag=", b";lr",
    b"<sip:", b"sips:", b"tel:", b'"', b"\\", b"\r\n", b"\r\n ", b"\r\n\r\n", b"\x00", b"\xff", b"\xc2\x85", b"[::1]",
    b"application/sdp", b"multipart/mixed;boundary=", b"a=crypto:", b"a=rtpmap:", b"m=audio ", b"c=IN IP4 ", b"*",
    b"Reason: ", b";cause=", b"Refer-To: ", b"?Replaces=", b"%3Bto-tag%3D", b";from-tag=", b"%0d%0a", b"&",
)  # fmt: skip


def _read(data: bytes) -> Message | None:
    """Read a message. None: it is none; an answer that is due has then been written."""
    try:
        return parse(data)
    except MalformedRequest as error:
        if error.reply is not None:
            error.reply.serialise()
    except SipProtocolError:
        pass
    return None


def _same(ours: Message, again: Message) -> bool:
    def kept(message: Message) -> list[tuple[str, str]]:
        return [(name, value) for name, value in message.headers if name.lower() != "content-length"]

    if isinstance(ours, Request) and isinstance(again, Request):
        head = (ours.method, ours.uri) == (again.method, again.uri)
    else:
        head = (ours.status, ours.reason.strip()) == (again.status, again.reason.strip())
    return head and ours.body == again.body and kept(ours) == kept(again)


def run_message(data: bytes) -> None:
    """A message that was read and written again reads the same, and every request can be answered."""
    got = _read(data)
    if got is None:
        return
    try:
        again = parse(got.serialise())
    except SipProtocolError as error:
        assert error.status == 513, error  # our Content-Length made it longer than a message may be
        return
    assert _same(got, again)
    if isinstance(got, Request):
        noted = note_source(got, "192.0.2.77", 5060)
        for status in (100, 200, 486):
            parse(response_to(noted, status, to_tag="ours").serialise())
        again = parse(noted.serialise())
        assert again.via.branch == got.via.branch or any(char in '<"' for char in got.headers.all("Via")[0])


def _as_call(got: Request) -> None:
    """The gateway gets plain text, even of ids that SIP itself keeps byte for byte."""
    call: Any = SimpleNamespace(
        route="a", inbound=AudioFormat("PCMU"), session_id="", call_sid=got.call_id, trunk_name="t", domain="",
        joined_to="", direction="inbound", parent_call_sid=got.call_id,
        caller=SipCaller(got.uri, "", parameters=dict(got.headers)),
    )  # fmt: skip
    assert_plain(incoming_call(call))


def run_headers(data: bytes) -> None:
    """Reading any header of a message raises nothing but ``SipProtocolError``."""
    got = _read(data)
    if got is None:
        return
    with contextlib.suppress(SipProtocolError, NotAcceptable):
        description_of(got)
    with contextlib.suppress(SipProtocolError):
        min_session_s(got)
    fragment_status(got.body)
    if isinstance(got, Response):
        run_response(got)
        return
    with contextlib.suppress(SipProtocolError):
        assert digit_of(got) in (None, *"0123456789ABCD*#")
    with contextlib.suppress(SipProtocolError):
        caller = caller_of(got, ["*"])
        assert_plain(caller)
    assert_plain(cause_of_request(got))
    _as_call(got)
    route_of(caller.to, {"+49*": "a", "bot": "b"}, "default").encode()
    dialog_id(got, received=True)
    with contextlib.suppress(SipProtocolError):
        session_answer(got, wanted_s=1800)
    assert_plain(route_of(caller.to, {"+49*": "a"}, "default"))
    with contextlib.suppress(SipProtocolError):
        _check_referral(read_referral(got, by=got.from_.uri))
    with contextlib.suppress(SipProtocolError):
        replaces = read_replaces(got)
        assert replaces is None or Replaces.parse(str(replaces)) == replaces
    with contextlib.suppress(SipProtocolError):
        _ = Dialog.as_server(got, "ours").next_hop
    with contextlib.suppress(SipProtocolError):
        _SERVER.check(
            got.headers.all("Authorization"), {"bot": "secret"}, method=got.method, uri=got.uri, now=1_700_000_000.0
        )


def _check_referral(referral: Referral) -> None:
    """The headers that a REFER asks for cannot begin another line."""
    asked = Referred(referral, "").headers(lambda name: True)
    again = parse(Request("INVITE", str(referral.target), Headers([*parse(ANSWER).headers, *asked])).serialise())
    assert [(name, value) for name, value in again.headers if name == "Replaces"] == [
        (name, value.strip()) for name, value in asked if name == "Replaces"
    ]


def run_response(got: Response) -> None:
    """The same for a response to our request."""
    request = parse(INVITE)
    assert isinstance(request, Request)
    assert_plain(cause_of_answer(got))
    authorization(got, request, ClientAuth("bot", "secret"))
    wants_fresh_nonce(got)
    granted(got, Uri.parse("sip:bot@192.0.2.9"), asked_s=300)
    with contextlib.suppress(SipProtocolError):
        session_agreed(got)
    with contextlib.suppress(SipProtocolError):
        _ = Dialog.as_client(request, got).next_hop


def run_head(data: bytes) -> None:
    """A head that is complete reads the same when its headers are written in short."""
    head, got = read_head(data), _read(data)
    if got is not None:
        assert head is not None
        method, ours = (got.method, got.to.tag) if isinstance(got, Request) else ("", got.via.branch)
        assert (head.method, head.call_id) == (method, "".join(got.call_id.split()))
        assert head.ours.split() == ours.split()


def run_stream(data: bytes) -> None:
    """A stream gives the same messages, however it was cut into reads."""

    def cut(size: int) -> tuple[list[bytes], bool]:
        stream, found = MessageStream(), []
        try:
            for piece in pieces(data[1:], size):
                for message in stream.feed(piece):
                    found.append(message)
        except SipProtocolError:
            return found, True
        return found, False

    whole, piecewise = cut(max(1, len(data))), cut(data[0] % 64 + 1 if data else 1)
    assert whole == piecewise
    for got in whole[0]:
        if got != PING:
            _read(got)


def run_sdp(data: bytes) -> None:
    """An answer to whatever can be read can be read, and has as many sections."""
    try:
        offer = sdp.parse(data)
    except SipProtocolError:
        return
    for srtp in ("optional", "required"):
        luck = random.Random(1)
        talk = sdp.Negotiation(host="192.0.2.9", port=4000, srtp=srtp, random_bytes=luck.randbytes)
        try:
            answer = sdp.parse(talk.answer(offer))
        except NotAcceptable:
            continue
        assert len(answer.media) == len(offer.media)
        assert talk.agreed is not None
        _ = talk.agreed.sent_format
        assert_plain(talk.agreed)
        sdp.parse(talk.offer())
    theirs = sdp.Negotiation(host="192.0.2.9", port=4000, srtp="preferred", random_bytes=random.Random(1).randbytes)
    theirs.offer()
    with contextlib.suppress(NotAcceptable):
        _ = theirs.accept(offer).sent_format


def run_auth(data: bytes) -> None:
    """Credentials and challenges, and other values that stand alone."""
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(SipProtocolError):
        parse_auth(text)
    with contextlib.suppress(SipProtocolError):
        _SERVER.check([text], {"bot": "secret"}, method="INVITE", uri="sip:bot@example.com", now=1_700_000_000.0)
    ClientAuth("bot", "secret").answer([text], method="REGISTER", uri="sip:example.com", cnonce="c")
    assert_plain(read_user_to_user(text))
    assert_plain(read_reasons([text]))
    with contextlib.suppress(SipProtocolError):
        again = str(read_target(text, "example.com"))
        assert str(Uri.parse(again)) == again


_MESSAGE = ("sip_bridge/message/sip.py",)
_KEPT = "SIP keeps bytes as they are; sip-headers asserts what leaves it"
TARGETS = [
    Target(
        name="sip-message", run=run_message, without_text=_KEPT, covers=_MESSAGE, words=WORDS,
        seeds=(INVITE, MULTIPART, ANSWER, CHALLENGE),
    ),
    Target(
        name="sip-headers", run=run_headers, words=WORDS, seeds=(INVITE, MULTIPART, ANSWER, CHALLENGE),
        covers=("sip_bridge/message/body.py", "sip_bridge/message/parameters.py", "sip_bridge/message/reason.py",
                "sip_bridge/message/referral.py", "sip_bridge/message/replaces.py", "sip_bridge/dialog/dialog.py",
                "sip_bridge/dialog/transfer.py"),
    ),
    Target(
        name="sip-stream", run=run_stream, without_text=_KEPT, covers=_MESSAGE, words=WORDS,
        seeds=(b"\x05" + INVITE + ANSWER, b"\x00\r\n\r\n\r\n" + CHALLENGE + PING),
    ),
    Target(
        name="sip-head", run=run_head, without_text=_KEPT, covers=("sip_bridge/message/head.py",), words=WORDS,
        seeds=(INVITE, MULTIPART, ANSWER, CHALLENGE),
    ),
    Target(name="sip-sdp", run=run_sdp, covers=("sip_bridge/message/sdp.py",), words=WORDS, seeds=(OFFER, SECURE)),
    Target(
        name="sip-auth", run=run_auth, covers=("sip_bridge/message/digest.py", "sip_bridge/targets.py"), words=WORDS,
        seeds=(DIGEST, CHALLENGE, REASON, b"sip:ann@example.org;transport=tls", b"+49 30 1234"),
    ),
]  # fmt: skip
