"""Check that parsers take time in proportion to their input: ``python -m tests.fuzz.scaling`` prints a table.

Each row repeats a structure that is likely to be read again and again: nested, many headers, many blanks, many parts.
The readings of numbers (``tts_engine/text/verbalise`` and others) are not among them: they get clauses, which have 400
characters at most.
CPU time of this process, best of five, at a size and at twice that size.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.errors import GatewayError
from gateway.listener.forwarded import Proxies
from sip_bridge.errors import SipError
from sip_bridge.message import sdp
from sip_bridge.message.body import description_of
from sip_bridge.message.digest import parse_auth
from sip_bridge.message.head import read_head
from sip_bridge.message.parameters import read_user_to_user
from sip_bridge.message.sip import Address, MessageStream, Request, parse
from talkspurt.config.yaml_file import ConfigError
from talkspurt.config.yaml_file import parse as parse_yaml
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.dialogue import OFFER, SESSION
from tests.fuzz.targets.sip import INVITE, message
from tts_engine.errors import EngineError
from tts_engine.text.clauses import ClauseSplitter

START = 8 * 1024
"""Smallest input that is measured, bytes or characters. Below it, fixed costs hide the rest."""

_SHORTEST_S = 0.005
"""A measurement lasts at least so long: an input that takes less is read several times."""

BOUND = 2.2
"""Most that twice the input may cost."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A structure of any size, and who reads it."""

    make: Callable[[int], bytes]
    """Returns an input of about so many bytes."""
    read: Callable[[bytes], object]


def _sip(line: bytes, before: bytes = b"", behind: bytes = b"") -> Shape:
    """A message with a repeated piece in its head."""

    def make(size: int) -> bytes:
        return message(b"OPTIONS sip:bot@example.com SIP/2.0", before + line * (size // len(line)) + behind)

    return Shape(make, parse)


def _repeated(piece: bytes, read: Callable[[bytes], object], before: bytes = b"", behind: bytes = b"") -> Shape:
    return Shape(lambda size: before + piece * (size // len(piece)) + behind, read)


def _in_bits(data: bytes) -> None:
    stream = MessageStream()
    for at in range(0, len(data), 16):
        for _ in stream.feed(data[at : at + 16]):
            pass


def _multipart(data: bytes) -> None:
    request = parse(data)
    assert isinstance(request, Request)
    description_of(request)


def _multipart_of(piece: bytes) -> Shape:
    def make(size: int) -> bytes:
        head = b'Content-Type: multipart/mixed;boundary="cut"'
        return message(b"INVITE sip:bot@example.com SIP/2.0", head, body=piece * (size // len(piece)))

    return Shape(make, _multipart)


def _clauses(data: bytes) -> None:
    splitter = ClauseSplitter()
    splitter.feed(data.decode())
    splitter.flush()


def _clauses_in_bits(data: bytes) -> None:
    splitter, text = ClauseSplitter(), data.decode()
    for at in range(0, len(text), 4):
        splitter.feed(text[at : at + 4])
    splitter.flush()


def _on_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode())


def _target(name: str) -> Callable[[bytes], object]:
    return TARGETS[name].run


_yaml = lambda data: parse_yaml(data, "file.yaml", {})  # noqa: E731
_MANY_SECTIONS = b"m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\n"

SHAPES: Mapping[str, Shape] = {
    "sip: blanks in the start line": _repeated(b" ", parse, b"OPTIONS x", b"y"),
    "sip: words in the start line": _repeated(b"x ", parse, b"OPTIONS ", b" SIP/2.0"),
    "sip: headers": _sip(b"X: y\r\n"),
    "sip: folded lines": _sip(b"\r\n x", b"Subject: "),
    "sip: blanks before a colon": _sip(b" ", b"X", b": y"),
    "sip: commas of a Via": _sip(b",", b"v: SIP/2.0/UDP a"),
    "sip: parameters": _sip(b";a", b"m: <sip:a@b>"),
    "sip: contacts": _sip(b"<sip:a@b>,", b"m: "),
    "sip: escapes in a quote": _repeated(b"\\\\", _on_text(Address.parse), b'"'),
    "sip: brackets": _repeated(b"<", _on_text(Address.parse)),
    "sip: line breaks before a message": _repeated(b"\r\n", parse),
    "sip head: folded lines": _repeated(b"\r\n x", read_head, b"OPTIONS sip:a SIP/2.0\r\nt: "),
    "sip head: blanks before a colon": _repeated(b" ", read_head, b"OPTIONS sip:a SIP/2.0\r\nt", b": y"),
    "sip head: Vias": _repeated(b"v: ,\r\n", read_head, b"SIP/2.0 200 OK\r\n"),
    "sip stream: in bits": _repeated(INVITE, _in_bits),
    "sip stream: headers in bits": _repeated(b"X: y\r\n", _in_bits, b"OPTIONS sip:a SIP/2.0\r\n"),
    "sip stream: folds in bits": _repeated(b"\r\n ", _in_bits, b"OPTIONS sip:a SIP/2.0\r\nl: 0"),
    "sip stream: pings": _repeated(b"\r\n\r\n", lambda data: list(MessageStream().feed(data))),
    "sip stream: line feeds": _repeated(b"\n", lambda data: list(MessageStream().feed(data))),
    "sip body: parts": _multipart_of(b"--cut\r\n\r\n"),
    "sip body: types without end": _multipart_of(b"--cut\r\nContent-Type:\n"),
    "sip auth: parameters": _repeated(b'a=",",', _on_text(parse_auth), b"Digest b=c,"),
    "sip auth: escapes": _repeated(b"\\a", _on_text(parse_auth), b'Digest a="', b'"'),
    "sip user-to-user: hex": _repeated(b"61", _on_text(read_user_to_user), behind=b"x"),
    "sdp: attributes": _repeated(b"a=x:1\r\n", sdp.parse, b"v=0\r\n"),
    "sdp: keys": _repeated(b"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AA\r\n", _target("sip-sdp"),
    b"v=0\r\no=- 1 2 IN IP4 h\r\nc=IN IP4 h\r\nm=audio 4 RTP/AVP 0\r\n"),
    "sdp: formats": _repeated(b" 0", sdp.parse, b"v=0\r\no=- 1 2 IN IP4 h\r\nc=IN IP4 h\r\nm=audio 4 RTP/AVP"),
    "webrtc: sections": _repeated(_MANY_SECTIONS, _target("webrtc-offer"), OFFER),
    "webrtc: lines ended by CR": _repeated(b"a=rtpmap:111 opus/48000/2\r", _target("webrtc-offer"), OFFER),
    "webrtc: codecs": _repeated(b"a=fmtp:8 a=b;c=d\r\n", _target("webrtc-offer"), OFFER.partition(b"m=application")[0]),
    "webrtc: items of a group": _repeated(b" 0", _target("webrtc-offer"), b"v=0\r\na=group:BUNDLE",
    b"\r\n" + OFFER[5:]),
    "webrtc: candidates": _repeated(b"a=candidate:1 1 udp 1 192.0.2.4 5 typ host\r\n", _target("webrtc-offer"), OFFER),
    "dialogue: nested lists": _repeated(b"[", _target("dialogue"), b'{"type":"text","token":'),
    "dialogue: keys": _repeated(b'"a":1,', _target("dialogue"), b"{", b'"type":"end"}'),
    "dialogue: escapes": _repeated(b"\\u0000", _target("dialogue"), b'{"type":"text","token":"', b'"}'),
    "dialogue: a long id": _repeated(b"x", _target("dialogue"), b'{"type":"end","sessionId":"' + SESSION.encode(),
    b'"}'),
    "media: parameters": _repeated(b'"a":1,', _target("media-twilio"),
    b'{"event":"start","start":{"customParameters":{', b'"b":2}}}'),
    "media: base64": _repeated(b"QUFB", _target("media-twilio"), b'{"event":"media","media":{"payload":"', b'"}}'),
    "media: words of plain text": _repeated(b" a:b", _target("media-asterisk"), b"MEDIA_START"),
    "media: messages": _repeated(b'{"event":"x"}\x1e', _target("media-plivo")),
    "media: headers of Plivo": _repeated(b"a=b,", _target("media-plivo"), b'{"event":"start","extra_headers":"', b'"}'),
    "websocket: fragments": _repeated(b"\x1e\x80", _target("websocket"), b"\x00"),
    "websocket: pings": _repeated(b"\x1e\x03", _target("websocket"), b"\x00"),
    "audiosocket: empty frames": _repeated(b"\x10\x00\x00", _target("audiosocket"), b"\x1f\x01\x00\x10" + bytes(16)),
    "event socket: headers in bits": _repeated(b"a: b\n", _target("event-socket"), b"\x3f"),
    "event socket: events": _repeated(b"Content-Type: x\n\n", _target("event-socket"), b"\x3f"),
    "form: parts": _repeated(b"--cut\r\n\r\n\r\n", _target("http-request"), bytes(3)),
    "form: headers of a part": _repeated(b"a: b\r\n", _target("http-request"), bytes(3) + b"--cut\r\n"),
    "form: line breaks": _repeated(b"\r\n", _target("http-request"), bytes(3) + b"--cut\r\n\r\n"),
    "form: fields": _repeated(b"a=b&", _target("http-request"), b"\1\1\0"),
    "form: escapes": _repeated(b"%FF", _target("http-request"), b"\1\1\0a="),
    "json: nested": _repeated(b"[", _target("http-json"), b"\0"),
    "proxies: hops": _repeated(b"10.0.0.1,", _on_text(lambda text: Proxies(["10.0.0.0/8"]).client("10.0.0.1",
    {"X-Forwarded-For": text}))),
    "markup: brackets": _repeated(b"<", _target("markup"), b"\xff"),
    "markup: tags without end": _repeated(b"<break ", _target("markup"), b"\xff"),
    "markup: attributes": _repeated(b" a='b'", _target("markup"), b"\xff<sub"),
    "markup: a long quote": _repeated(b"x", _target("markup"), b"\xff<sub alias='"),
    "markup: open elements": _repeated(b"<say-as>", _target("markup"), b"\xff"),
    "markup: entities": _repeated(b"&#", _target("markup"), b"\xff"),
    "markup: words": _repeated(b"nginx ", _target("markup"), b"\xff"),
    "markup: no word's end": _repeated(b"SQL Serve", _target("markup"), b"\xff"),
    "clauses: sentences": _repeated(b"Yes. ", _clauses),
    "clauses: commas": _repeated(b", ", _clauses),
    "clauses: full stops": _repeated(b".", _clauses),
    "clauses: initials": _repeated(b"a.", _clauses),
    "clauses: closing quotes": _repeated(b'"', _clauses, b"Hello."),
    "clauses: line breaks": _repeated(b"\n", _clauses, b"Hello."),
    "clauses: no blank": _repeated(b"x", _clauses),
    "clauses: sentences in bits": _repeated(b"Yes. ", _clauses_in_bits),
    "clauses: blanks in bits": _repeated(b" ", _clauses_in_bits, b"Acme Inc."),
    "clauses: closing quotes in bits": _repeated(b'"', _clauses_in_bits, b"Hello."),
    "clauses: full stops in bits": _repeated(b".", _clauses_in_bits, b"Hello"),
    "config: keys": Shape(lambda size: b"".join(b"k%d: v\n" % at for at in range(size // 8)), _yaml),
    "config: lists": _repeated(b"- a\n", _yaml, b"a:\n"),
    "config: brackets": _repeated(b"[],", _yaml, b"a: [", b"]"),
    "config: blanks": _repeated(b" ", _yaml, b"a: b", b"c"),
    "config: references": _repeated(b"${", _yaml, b"a: "),
}  # fmt: skip


def _seconds(shape: Shape, data: bytes, times: int) -> float:
    """CPU time of reading an input so many times."""
    began = time.process_time()
    for _ in range(times):
        with contextlib.suppress(GatewayError, SipError, EngineError, ConfigError):
            shape.read(data)
    return time.process_time() - began


def growth(shape: Shape, *, start: int = START, factor: int = 2, best_of: int = 5) -> tuple[float, float, float]:
    """Return CPU seconds at ``start``, at ``factor`` times that, and their ratio."""
    small, large = shape.make(start), shape.make(start * factor)
    once = max(_seconds(shape, small, 1), 1e-6)
    times = max(1, round(_SHORTEST_S / once))
    pairs = [(_seconds(shape, small, times), _seconds(shape, large, times)) for _ in range(best_of)]
    first, second = min(pair[0] for pair in pairs) / times, min(pair[1] for pair in pairs) / times
    return first, second, second / first


def main() -> int:
    """Print the table. The status is the number of rows over the bound at 8 or 32 kB."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # as servers do: what all modules hold is not walked through while something is measured
    over = 0
    print(f"{'structure':36} {'8 kB, ms':>9} {'16 kB':>9} {'ratio':>6} {'32 kB':>9} {'64 kB':>9} {'ratio':>6}")
    for name, shape in SHAPES.items():
        rows = [growth(shape), growth(shape, start=4 * START)]
        cells = " ".join(f"{first * 1e3:9.3f} {second * 1e3:9.3f} {ratio:6.2f}" for first, second, ratio in rows)
        worst = any(ratio > BOUND for _, _, ratio in rows)
        print(f"{name:36} {cells}{'  <--' if worst else ''}", flush=True)
        over += worst
    return over


if __name__ == "__main__":
    sys.exit(main())
