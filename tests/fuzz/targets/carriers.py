"""Each carrier's media messages, its webhooks and its proofs; AudioSocket and FreeSWITCH's event socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import orjson

from gateway.carriers.asterisk.audiosocket import AudioSocketWire
from gateway.carriers.call_control import NextAction, StreamOrder
from gateway.carriers.call_status import read_status
from gateway.carriers.caller import incoming_call
from gateway.carriers.carrier import Carrier
from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.freeswitch.esl_messages import EslMessage, EslReader
from gateway.carriers.freeswitch.settings import EslConfig
from gateway.carriers.placing import CODE_CHARS, call_sid_of, error_code_of, read_answer
from gateway.carriers.proof import Hook, Upgrade
from gateway.carriers.table import CARRIERS
from gateway.config import ServerConfig
from gateway.errors import ProtocolError, Rejected
from gateway.listener.forwarded import Proxies, PublicUrl
from gateway.listener.sites import Sites
from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import MediaReceived, Message, StreamStarted
from gateway.tokens import Tokens
from tests.fuzz.target import Target, assert_plain, parts, pieces
from tests.fuzz.target import joined as case

VECTORS = Path(__file__).parents[2] / "vectors/carriers"
SECRET = "a-secret-of-at-least-thirty-two-bytes"
WORDS = (
    b'{"event":"media"', b'{"event":"start"', b'"event":', b'"type":', b'"seq":', b'"payload":""', b'"streamSid":"',
    b'"mediaFormat":{', b'"encoding":"audio/x-mulaw"', b'"sampleRate":', b'"customParameters":{', b'"digit":"5"',
    b"null", b"true", b"1e999", b"-0", b'"\\ud83d\\ude00"', b"[" * 300, b'{"a":' * 300, b"9" * 400, b"\x1e",
    b"\x1e\x01",
)  # fmt: skip


def _seeds(name: str) -> list[bytes]:
    """The recorded streams of a carrier as cases; a binary message begins with 0x01."""
    found = []
    for stream in json.loads((VECTORS / f"{name}.json").read_text())["streams"]:
        said = [step["received"] for step in stream["steps"] if "received" in step]
        found.append(case(*(one if isinstance(one, str) else b"\x01" + bytes.fromhex(one["hex"]) for one in said)))
    return [seed for seed in dict.fromkeys(found) if len(seed) < 4000] or [b"{}"]


def _dialect(carrier: Carrier[Any]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        """Whatever a peer says, a dialect reads it or raises ``ProtocolError``, and can still talk."""
        dialect = carrier.dialect(carrier.settings(), {})
        for part in parts(data):
            try:
                said: str | bytes = part[1:] if part[:1] == b"\x01" else part.decode()
            except UnicodeDecodeError:
                continue  # the connection refuses it
            dialect.is_media(part, binary=isinstance(said, bytes))
            try:
                messages = dialect.decode(said)
            except ProtocolError as error:
                assert len(str(error)) < 400
                continue
            for message in messages:
                _use(message, carrier.name, dialect)
        for written in (dialect.mark("0.1"), dialect.clear(), dialect.dtmf("5"), dialect.hangup("data")):
            assert written is None or isinstance(written, bytes)

    return run


def _use(message: Message, name: str, dialect: Any) -> None:
    assert isinstance(message, Message)
    if isinstance(message, StreamStarted):
        call = incoming_call(message, route="default", transport=name)
        assert_plain(call)
        orjson.dumps([call.call_sid, call.from_, call.to, dict(call.custom_parameters)])
        assert isinstance(dialect.media(message.outbound.silence_frame()), bytes)
    elif isinstance(message, MediaReceived):
        assert isinstance(message.payload, bytes)


_TOKENS = Tokens(SECRET, lifetime_s=60)
_LOCAL = PublicUrl(ServerConfig(trusted_proxies=["192.0.2.0/24"]))
_SITES = Sites(ServerConfig(), _LOCAL)
_HEADERS = (
    "authorization", "x-twilio-signature", "x-plivo-signature-v3", "x-plivo-signature-v3-nonce",
    "x-signalwire-signature",
    "telnyx-signature-ed25519", "telnyx-timestamp", "signature", "signature-input", "x-api-key", "jambonz-signature",
    "content-type", "host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "origin",
)  # fmt: skip


def _settings(carrier: Carrier[Any]) -> Any:
    """The carrier's section with every secret that it knows."""
    secrets = {
        name: SECRET for name, field in carrier.settings.model_fields.items() if "Secret" in str(field.annotation)
    }
    secrets |= {"username": "bot"} if "username" in carrier.settings.model_fields else {}
    if "client_secret" in secrets:
        secrets["client_secret"] = "A" * 44
    if "public_key" in secrets:
        secrets["public_key"] = "A" * 43 + "="
    return carrier.settings.model_validate(secrets)


_SETTINGS = [(carrier, _settings(carrier)) for carrier in CARRIERS.values()]


def run_proof(data: bytes) -> None:
    """A forged webhook or upgrade is no proof, whatever its headers, address and body say."""
    first, *said = parts(data) if data else [b""]
    carrier, settings = _SETTINGS[first[0] % len(_SETTINGS)] if first else _SETTINGS[0]
    said += [b""] * (len(_HEADERS) + 2 - len(said))
    # aiohttp refuses an address that is not UTF-8; a header may hold any bytes.
    texts = [one.decode("utf-8", "replace" if at < 2 else "surrogateescape") for at, one in enumerate(said)]
    headers = {name: value for name, value in zip(_HEADERS, texts[2:], strict=False) if value}
    try:
        public = _LOCAL.of("192.0.2.4", {"Host": headers.get("host", "x"), "X-Forwarded-Host": texts[0]})
        _SITES.check("192.0.2.4", {"Host": headers.get("host", ""), "Origin": texts[1]}, changes=True)
    except Rejected as exc:
        str(exc).encode("utf-8", "backslashreplace")
        public = "https://voice.example.com"
    Proxies(["10.0.0.0/8"]).client("10.0.0.1", {"X-Forwarded-For": texts[0]})
    target = "/media/x/" + texts[1]
    form = {"a": [texts[0]], texts[1]: ["b", "a"]}
    for each in (None, form):
        hook = Hook(url=public + target, headers=headers, body=said[1], form=each, now=1.7e9)
        assert not carrier.proof.webhook(settings, hook)
    assert not carrier.proof.upgrade(settings, Upgrade(public_url=public, target=target, headers=headers, now=1.7e9))
    with contextlib.suppress(Rejected):
        _TOKENS.check(texts[1], carrier.name, "default", now=1.7e9)
        raise AssertionError("a made-up token opened a stream")
    with contextlib.suppress(Rejected):
        _TOKENS.check_grant(texts[0], now=1.7e9)
        raise AssertionError("a made-up token let a browser in")


_CONTROLS = [(carrier, settings) for carrier, settings in _SETTINGS if carrier.call_control is not None]


def run_webhook(data: bytes) -> None:
    """Call control answers with XML or JSON that can be read, whatever the fields of a webhook hold."""
    first, *said = parts(data) if data else [b""]
    carrier, settings = _CONTROLS[first[0] % len(_CONTROLS)] if first else _CONTROLS[0]
    control = carrier.call_control
    assert control is not None
    texts = [one.decode("utf-8", "replace") for one in said] + [""] * 6
    control.asks({"Event": texts[0], "event": texts[1], "CallStatus": texts[2]})
    stream = StreamOrder(
        url="wss://voice.example.com/media/x", after_url=f"https://voice.example.com/after?call={texts[0]}",
        caller={"CallSid": texts[0], "From": texts[1], "To": texts[2]},
        parameters={texts[3]: texts[4], "bot": texts[5]}, proven=bool(texts[0]),
    )  # fmt: skip
    answers = [control.start(settings, stream), control.after(NextAction()), control.after(NextAction(dial=texts[0]))]
    answers += [control.after(NextAction()), control.after(NextAction(dial="sip:" + texts[2]))]
    for answer in answers:
        if answer.content_type == "application/json":
            orjson.loads(answer.body)
        elif not any(char in answer.body.decode() for char in _NO_XML):
            ElementTree.fromstring(answer.body)


_STATUS_NAMES = (
    "CallStatus", "status", "Event", "StreamEvent", "StreamError", "AnsweredBy", "SipResponseCode", "sip_code",
    "ErrorCode", "HangupCause", "detail",
)  # fmt: skip


def run_status(data: bytes) -> None:
    """A status callback gives an event or nothing, and a REST answer an id and a code, whatever their fields hold."""
    texts = [one.decode("utf-8", "replace") for one in parts(data)]
    status = read_status(dict(zip(_STATUS_NAMES, texts, strict=False)))
    if status is not None:
        assert_plain(status)
        assert len(status.code) <= CODE_CHARS
        assert status.sip_status is None or 100 <= status.sip_status <= 699
    for text in texts:
        answer = read_answer(text.encode()) or {"sid": text, "code": text, "errors": [{"code": text}]}
        assert len(call_sid_of(answer, "sid")) <= 256 and len(error_code_of(answer)) <= CODE_CHARS
        assert_plain([call_sid_of(answer, "sid"), error_code_of(answer)])


_NO_XML = [chr(code) for code in range(32) if code not in (9, 10, 13)] + ["\ufffe", "\uffff"]
"""Characters that XML 1.0 cannot carry at all. A carrier that sends them gets an answer that it cannot read."""


def run_audiosocket(data: bytes) -> None:
    """A stream gives the same messages, however it was cut into reads."""

    def cut(size: int) -> list[str]:
        wire, found = AudioSocketWire(), []
        for piece in pieces(data[1:], size):
            wire.push(piece)
            while True:
                try:
                    for message in wire.messages():
                        assert_plain(message)
                        found.append(repr(message))
                    break
                except ProtocolError as error:
                    found.append(str(error))
            assert len(wire._pending) <= 65538
        if wire.started:
            wire.audio(bytes(320))
        return found

    assert cut(max(1, len(data))) == cut(data[0] % 32 + 1 if data else 1)


def run_esl(data: bytes) -> None:
    """The switch's stream gives the same messages, however it was cut; its events lead no call astray."""

    def cut(size: int) -> tuple[list[EslMessage], bool]:
        reader, found = EslReader(max_bytes=8192), []
        try:
            for piece in pieces(data[1:], size):
                for message in reader.feed(piece):
                    found.append(message)
        except ProtocolError:
            return found, True
        return found, False

    whole, bad = cut(max(1, len(data)))
    piecewise, also = cut(data[0] % 64 + 1 if data else 1)
    assert whole == piecewise and bad == also
    assert_plain([message.headers for message in whole])
    calls = FreeSwitchCalls(
        EslConfig(host="127.0.0.1", password="x"), "uuid_audio_stream",  # type: ignore[arg-type]
        sample_rate=8000, flush_command="", start_options="", variables={}, files=True,
        media_url=lambda route, given: "",
    )  # fmt: skip
    calls.esl.run = lambda *commands: [_single(command) for command in commands]  # type: ignore[method-assign,assignment]
    calls.esl.play = lambda uuid, file: _single(file)  # type: ignore[method-assign]
    keys: list[str] = []
    call = _Call()
    call.on_digit = keys.append
    calls.open(StreamStarted(stream_id="u-1", call_sid="u-1"), cast(CallEvents, call))
    for message in whole:
        with contextlib.suppress(ProtocolError):
            calls._on_event(message.event)
    assert set(keys) <= set("0123456789*#ABCD")


class _Call:
    """The part of FreeSWITCH's call that a session uses."""

    on_digit: Callable[[str], None]

    def on_mark(self, name: str) -> None: ...

    def on_playback(self, *, started: bool) -> None: ...


def _single(command: str) -> None:
    assert "\n" not in command and "\r" not in command


ESL = (
    b"\x07Content-Type: auth/request\n\nContent-Type: command/reply\nReply-Text: +OK accepted\n\n"
    b"Content-Length: 66\nContent-Type: text/event-json\n\n"
    b'{"Event-Name":"DTMF","Unique-ID":"u-1","DTMF-Digit":"5","_body":""}'
)
EVENT = (
    b'{"Event-Name":"CUSTOM","Event-Subclass":"mod_audio_stream::play","Unique-ID":"u-1",'
    b'"_body":"{\\"file\\":\\"/tmp/a.wav\\"}"}'
)
FRAMES = (
    b"\x05\x01\x00\x10" + bytes(range(16)) + b"\x10\x01\x40" + bytes(320) + b"\x03\x00\x015\xff\x00\x01\x02\x00\x00\x00"
)
_SHARED = ("gateway/carriers/reading.py", "gateway/carriers/caller.py")

TARGETS = [
    Target(
        name=f"media-{name}", run=_dialect(carrier), seeds=_seeds(name), words=WORDS, quick=150,
        covers=(f"gateway/carriers/{carrier.key}/dialect.py", *_SHARED),
    )
    for name, carrier in CARRIERS.items()
] + [
    Target(
        name="proof", run=run_proof, without_text="a verdict",
        covers=("gateway/carriers/*/proof.py", "gateway/carriers/proof.py", "gateway/carriers/signatures.py",
                "gateway/tokens.py", "gateway/listener/forwarded.py", "gateway/listener/sites.py"),
        seeds=[
            case(bytes((at,)), "voice.example.com:443", "tok?bodySHA256=ab", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.AAAA",
                 "c2ln", "c2ln", "nonce", "c2ln", "c2ln", "1700000000", "sig1=:AA==:", 'sig1=("a");created=1', "k",
                 "t=1700000000,v1=ab", "application/json", "voice.example.com")
            for at in range(len(_SETTINGS))
        ],
        words=(b"\x1e", b"eyJhbGciOiJub25lIn0.e30.", b"t=", b",v1=", b"=", b"\xff", b"[::1]", b"?", b"&", b"%C3%A9"),
    ),
    Target(
        name="webhook", run=run_webhook, without_text="an answer to the carrier; http-request asserts its fields",
        covers=("gateway/carriers/*/call_control.py", "gateway/carriers/call_control.py"),
        seeds=[case(bytes((at,)), "call-1", "+4930000001", "+4930000002", "bot",
        "b<&\"'") for at in range(len(_CONTROLS))],
        words=(b"\x1e", b"]]>", b"&amp;", b"<!--", b'"', b"'", b"\r\n", b"\xe2\x80\xa8"),
    ),
    Target(
        name="call-status", run=run_status,
        covers=("gateway/carriers/call_status.py", "gateway/carriers/placing.py"),
        seeds=[
            case("no-answer", "", "", "", "", "", "487"), case("", "machine"),
            case("", "", "", "stream-error", "31920"),
            case('{"sid":"CA1","errors":[{"code":"10009"}]}'),
        ],
        words=(b"\x1e", b"completed", b"busy", b"human", b"+4930123456", b'{"code":21211}', b"null", b"[]"),
    ),
    Target(
        name="audiosocket", run=run_audiosocket, covers=("gateway/carriers/asterisk/audiosocket.py",), seeds=(FRAMES,),
        words=(b"\x01\x00\x10", b"\x10\x01\x40", b"\x03\x00\x01", b"\xff\x00\x01", b"\x00\x00\x00"),
    ),
    Target(
        name="event-socket", run=run_esl,
        covers=("gateway/carriers/freeswitch/esl_messages.py", "gateway/carriers/freeswitch/calls.py"),
        seeds=(ESL, b"\x00Content-Length: %d\nContent-Type: text/event-json\n\n" % len(EVENT) + EVENT),
        words=(b"Content-Length: ", b"Content-Type: ", b"\n\n", b"\n", b": ", b'"_body":', b'"Unique-ID":"u-1"',
               b"\xd9\xa3"),
    ),
]  # fmt: skip
