"""The contents of a message's body."""

from __future__ import annotations

import pytest

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.body import DIGIT_TYPES, description_of, digit_of
from sip_bridge.message.sip import Request
from tests.sip_bridge.sip_messages import request

SDP = b"v=0\r\no=- 1 1 IN IP4 192.0.2.4\r\ns=-\r\nc=IN IP4 192.0.2.4\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n"


def carrying(content: str, body: bytes, *more: tuple[str, str]) -> Request:
    return request("INFO", headers=(("Content-Type", content), *more), body=body)


def test_a_description_stands_alone_or_among_other_parts() -> None:
    alone = description_of(carrying("application/sdp", SDP))
    parts = (
        b"--x\r\nContent-Type: text/plain\r\n\r\nhello\r\n--x\r\nContent-Type: application/sdp\r\n\r\n" + SDP + b"--x--"
    )
    among = description_of(carrying('multipart/mixed; boundary="x"', parts))
    assert alone is not None and among is not None and alone.media == among.media
    for content, body in (
        ("multipart/mixed; boundary = x", parts.replace(b"Content-Type:", b"Content-Type :")),
        ("multipart/mixed;boundary=x;charset=utf-8", parts.replace(b"Content-Type:", b"c:")),
        ("multipart/mixed", b"\r\n" + parts),
        ("Multipart / Mixed;boundary=y", b"--y\r\nContent-Type: multipart/related;boundary=x\r\n\r\n" + parts),
        ("application / SDP ;charset=utf-8", SDP),
    ):
        assert description_of(carrying(content, body)) == alone
    deep = parts
    for name in "abc":
        head = f"--{name}\r\nContent-Type: multipart/mixed\r\n\r\n"
        deep = head.encode() + deep
    with pytest.raises(SipProtocolError, match="multipart"):
        description_of(carrying("multipart/mixed", deep))
    assert description_of(carrying("application/sdp", b"\r\n")) is None
    unnamed = description_of(request("INFO", body=b"\r\n" + SDP))
    assert unnamed is not None and unnamed.media == alone.media


@pytest.mark.parametrize(
    ("content", "more"),
    [("text/plain", ()), ("multipart/mixed", ()), ("application/sdp", (("Content-Encoding", "gzip"),))],
)
def test_any_other_body_is_415(content: str, more: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(SipProtocolError) as refused:
        description_of(carrying(content, SDP, *more))
    assert refused.value.status == 415


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b"Signal=5\r\nDuration=160\r\n", "5"),
        (b"Signal= d\r\nDuration= 100\r\n", "D"),
        (b"signal : 7\nduration : 160", "7"),
        (b"Duration=160\rSignal=*\r", "*"),
        (b"Signal=#", "#"),
        (b"Signal=10\r\nDuration=160\r\n", "*"),
        (b"Signal=11\r\n", "#"),
        (b"Signal=12\r\n", "A"),
        (b"Signal=15\r\n", "D"),
        (b'Signal="3"\r\n', "3"),
        (b"Signal=3 Duration=160\r\n", "3"),
        (b"p=Digit-Collection\r\ny=Digits\r\nd=6\r\n", "6"),
        (b"d=6", "6"),
        (b" # ", "#"),
        (b"9", "9"),
        (b"10", "*"),
        (b"b\r\n", "B"),
        (b" Signal=5\r\n Duration=160", "5"),
        (b"Signal=05\0\0", "5"),
        (b"Signal=star", "*"),
        (b"Signal=%23&Duration=100", "#"),
        (b"Tone=5\r\n", "5"),
        (b"Digits: 5\r\n", "5"),
        (b"5\r\nDuration=160\r\n", "5"),
        (b"5,160", "5"),
        (b'"#"', "#"),
    ],
)
@pytest.mark.parametrize("content", DIGIT_TYPES)
def test_touch_tones_in_every_form_and_type(content: str, body: bytes, key: str) -> None:
    assert digit_of(carrying(content, body)) == key
    assert digit_of(carrying(f"{content.title()};charset=utf-8", body)) == key


def test_a_touch_tone_of_another_type() -> None:
    signal = b"Signal=5\r\nDuration=160\r\n"
    for content in ("application/x-dtmf-relay", "audio/dtmf", '"application/dtmf-relay"', "text/plain"):
        assert digit_of(carrying(content, signal)) == "5"
    parts = b"--x\r\nContent-Type: text/plain\r\n\r\nhello\r\n--x\r\nContent-Type: application/dtmf-relay;a=b\r\n\r\n"
    assert digit_of(carrying("multipart/mixed;boundary=x", parts + signal + b"--x--")) == "5"
    with pytest.raises(SipProtocolError, match="multipart/mixed"):
        digit_of(carrying("multipart/mixed;boundary=x", b"--x\r\nContent-Type: text/html\r\n\r\n5\r\n--x--"))


def test_a_touch_tone_whose_type_is_not_named() -> None:
    assert digit_of(request("INFO", body=b"Signal=5\r\nDuration=160\r\n")) == "5"
    with pytest.raises(SipProtocolError, match="expected application/dtmf-relay"):
        digit_of(request("INFO", body=b"5"))


@pytest.mark.parametrize("content", ["audio/telephone-event", "application/telephone-event"])
def test_an_event_of_rfc_4733_in_an_info(content: str) -> None:
    assert digit_of(carrying(content, bytes([11, 0x80 | 10, 3, 0x20]))) == "#"


@pytest.mark.parametrize("body", [b"", b"\r\n", b"Signal=16\r\nDuration=160", b"Signal=flash", b"Signal=hf", b"!"])
def test_a_keep_alive_and_a_hook_flash_are_not_keys(body: bytes) -> None:
    assert digit_of(carrying("application/dtmf-relay", body)) is None


@pytest.mark.parametrize(
    ("content", "body", "status"),
    [
        ("application/dtmf-relay", b"Signal=word", 400),
        ("application/dtmf-relay", b"Signal=99", 400),
        ("application/dtmf", b"42", 400),
        ("application/dtmf", b"Duration=5", 400),
        ("text/plain", b"*", 415),
    ],
)
def test_what_is_no_touch_tone_is_refused_without_showing_it(content: str, body: bytes, status: int) -> None:
    with pytest.raises(SipProtocolError) as refused:
        digit_of(carrying(content, body))
    assert refused.value.status == status and body.decode() not in str(refused.value).partition("expected")[0]
