"""What the body of a message says."""

from __future__ import annotations

import pytest

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.body import description_of, digit_of
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
    assert description_of(carrying("application/sdp", b"\r\n")) is None


@pytest.mark.parametrize(
    ("content", "more"),
    [("text/plain", ()), ("multipart/mixed", ()), ("application/sdp", (("Content-Encoding", "gzip"),))],
)
def test_any_other_body_is_415(content: str, more: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(SipProtocolError) as refused:
        description_of(carrying(content, SDP, *more))
    assert refused.value.status == 415


def test_touch_tones_come_in_two_forms() -> None:
    assert digit_of(carrying("application/dtmf-relay", b"Signal= d\r\nDuration= 100\r\n")) == "D"
    assert digit_of(carrying("application/dtmf", b" # ")) == "#"
    assert digit_of(request("INFO")) is None


@pytest.mark.parametrize(
    ("content", "body", "status"),
    [("application/dtmf-relay", b"Signal=flash", 400), ("application/dtmf", b"12", 400), ("text/plain", b"*", 415)],
)
def test_what_is_no_touch_tone_is_refused_without_showing_it(content: str, body: bytes, status: int) -> None:
    with pytest.raises(SipProtocolError) as refused:
        digit_of(carrying(content, body))
    assert refused.value.status == status and body.decode() not in str(refused.value).partition("expected")[0]
