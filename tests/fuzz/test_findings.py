"""Inputs that fuzzing found: each failed before its cause was mended, and is tried again here."""

import itertools

import pytest

from gateway.clips.clips import decode
from gateway.errors import ClipError, ProtocolError
from gateway.webrtc.sdp import MAX_LINES, read_offer
from tests.fuzz.target import joined
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.audio import _wav
from tests.fuzz.targets.dialogue import OFFER, SESSION, VOICE
from tests.fuzz.targets.media import CHECK
from tests.fuzz.targets.sip import CHALLENGE, DIGEST
from tests.fuzz.targets.sip import OFFER as SDP

_HEAD = b"\x07Content-Type: auth/request\nContent-Length: "
_SOUND = b"".join(itertools.repeat(b"\x10\x27\xf0\xd8", 4800))
_SECOND = _wav(1, 12, 16_000, 16, _SOUND * 24)
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + at, 98 + at, b",".join([b"*%c" % (97 + at)] * 10)) for at in range(5)
)

FINDINGS = {
    # The engine's process died: PyAV read the planes of more than eight channels from beyond their table.
    "a recording of twelve channels": ("voice-upload", _SECOND),
    # 6 GB for the kernel that takes this rate to 16 kHz.
    "a recording at an odd rate": ("voice-upload", _wav(1, 1, 47_999, 16, _SOUND * 5)),
    "a recording that FFmpeg has no decoder for": ("voice-upload", _wav(0x1234, 1, 16_000, 16, bytes(4000))),
    "a clip that FFmpeg has no decoder for": ("clip", _wav(0x1234, 1, 8000, 16, bytes(4000))),
    "a manager's type nested deeper than JSON is written": (
        "dialogue", b'{"sessionId":"%s","type":%s%s}' % (SESSION.encode(), b"[" * 300, b"]" * 300),
    ),
    "a carrier's error text nested deeper than Python prints": (
        "media-asterisk", b'{"event":"ERROR","error_text":' + b"[" * 1000 + b"]" * 1000 + b"}",
    ),
    # Text with control characters left these parsers; PostgreSQL takes no NUL, and a terminal obeys the rest.
    "a recogniser's words with a NUL": (
        "recogniser",
        b'{"type":"Results","is_final":true,"channel":{"alternatives":[{"transcript":"a\\u0000\\ud800\\u001b[2J"}]}}',
    ),
    "a browser's offer with a control character": ("webrtc-offer", OFFER.replace(b"AB:AB", b"AB\xc2\x9b:AB", 1)),
    "a phone's offer with a control character": ("sip-sdp", SDP.replace(b"0-15", b"0-\x0015")),
    "a status with a control character": ("call-status", joined("failed", "", "", "", "", "", "", "", "\x1b[2J")),
    "a recogniser's type nested deeper than Python prints": ("recogniser",
    b'{"type":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    "a length of more digits than Python reads": ("event-socket", _HEAD + b"9" * 5000 + b"\n\n"),
    "a STUN attribute shorter than its type": ("stun",
    CHECK[:2] + b"\x00\x08" + CHECK[4:20] + b"\x00\x24\x00\x01\x00\x00\x00\x00"),
    "an offer whose lines end in a lone CR": (
        "webrtc-offer", OFFER.replace(b"\r\nm=application 9", b"\rm=application 0").replace(b"a=mid:1",
        b"a=mid:1\r\na=bundle-only"),
    ),
    "a form that is not UTF-8": ("http-request", b"\x01\x01\x00a=\xff"),
    "a form of a charset that does not exist": ("http-request", b"\x01\x08\x00a=b"),
    "a part with a header that is none": ("http-request", b"\x00\x00\x00" + VOICE.replace(b"Content-Type: audio/wav",
    b"no header")),
    # FFmpeg's resampler makes a filter as long as the rates are far apart, over 14 s for 1.3 GHz.
    "a clip at more than a gigahertz": (
        "clip", b"RIFF\x84\x05\0\0WAVEfmt \x10\0\0\0\x01\0\x08\0\0\x02LISTF\0\x18\0\x18\0data\0\0\0FF"
        b"\x84\x05\0\0WAVEfmt \x10\0\0\0\x01\0\x08\0\0\0\0\x03",
    ),
    "a bracket in a URI that has none around it": (
        "sip-message", CHALLENGE.replace(b"SIP/2.0 401 Unauthorized", b"OPTIONS sip:a@b SIP/2.0").replace(
        b"To: <sip:bot@example.com>;tag=t1", b"To: Contact: example.com>;tag5t1"),
    ),
    "a number beyond decillions": ("cosyvoice-text", b"It is " + b"9" * 40 + b" now"),
    "a contact whose URI has a blank": ("sip-call", b"\x01\x01Contact: To: \x01Evu\x1e\x01\x01-o\x01\x00:"),
    "a letter that is another one in any case": ("markup", b"\xc0ng\xc4\xb1nx"),
    "a user name that is not UTF-8": ("sip-auth", DIGEST.replace(b'"bot"', b'"\xff"')),
    "a realm that is not UTF-8": ("sip-headers", CHALLENGE.replace(b'realm="r"', b'realm="\xff"')),
    "line feeds between messages": ("sip-stream", b"\x00\n\n" + CHALLENGE + b"\n\n\n" + CHALLENGE),
    "a nonce that is not UTF-8": (
        "proof", joined(b"\x06", b"x", b"x", b"", b"", b"sig", b"\xff"),
    ),
    "more full stops than a clause may be long": ("clauses", b"\x00Hello" + b"." * 1000),
    "more closing quotes than a clause may be long": ("clauses", b"\x03Hello." + b'"' * 1000),
    "a Chinese full stop behind the longest clause": ("clauses", b"\x00" + b"x" * 400 + "。".encode()),
    "an error that repeats what was too long": (
        "dialogue",
        b'{"type":"end","sessionId":"' + b"x" * 60_000 + b'","turn":"' + b"y" * 60_000 + b'"}',
    ),
    "a version of YAML with more digits than Python reads": ("config", b"%YAML 1." + b"9" * 5000 + b"\n---\na: b\n"),
    "an escape beyond Unicode": ("config", b'a: "\\UFFFFFFFF"'),
    "aliases of aliases": ("config", _BOMB),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # aiohttp warns of a header that is none
@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_stays_mended(name: str) -> None:
    target, case = FINDINGS[name]
    TARGETS[target].run(case)


def test_a_lone_cr_counts_as_the_end_of_a_line_as_it_does_for_the_parser() -> None:
    with pytest.raises(ProtocolError, match="lines, expected at most"):
        read_offer(OFFER.decode() + "a=x\r" * MAX_LINES)


def test_a_clip_at_an_absurd_rate_is_not_resampled() -> None:
    with pytest.raises(ClipError, match="at 1 Hz, expected 4000"):
        decode(_wav(1, 1, 1, 16, bytes(4000)))
