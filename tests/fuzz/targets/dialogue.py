"""Messages of dialogue managers, recognisers and the engine's clients, and the bodies of HTTP requests."""

from __future__ import annotations

import asyncio
import contextlib
import pkgutil
import struct
from importlib import import_module
from typing import Any

import grpc
import orjson
from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError

import gateway.http
import gateway.webrtc
from gateway.call.directory import LocalDirectory
from gateway.call.handoff import Handoffs
from gateway.call.known_voices import KnownVoices
from gateway.carriers.table import CARRIERS, CarriersConfig
from gateway.cluster.memory_state import MemoryState
from gateway.config import KeyRights, LimitsConfig, RecogniserConfig, RouteConfig, ServerConfig
from gateway.dialogue.wire import BadMessage, decode, decode_sound, encode, refusal
from gateway.errors import ProtocolError
from gateway.http.call_api.attach import AttachRoutes
from gateway.http.request import errors as http_errors
from gateway.http.request.auth import TENANT, WHO, Tenant
from gateway.http.speech_api.transcription import Transcriptions
from gateway.http.speech_api.voices import Voices
from gateway.http.webhooks import Webhooks
from gateway.limits.limiter import Limiter
from gateway.listener.forwarded import PublicUrl
from gateway.listener.sites import Sites
from gateway.listener.stream_claims import StreamClaims
from gateway.principal import ANYONE
from gateway.recognition import listen
from gateway.tokens import Tokens
from gateway.webrtc.sdp import read_fragment, read_offer, write_answer
from tests.fuzz.target import Target, assert_plain, pieces
from tts_engine.api import VoiceInfo
from tts_engine.errors import EngineError, Exhausted
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import wire
from tts_engine.service.link_client import LinkCall, _ClientEnd
from tts_engine.service.link_frames import FrameKind
from tts_engine.service.link_server import _ServerEnd

LIMITS = LimitsConfig(voice_bytes=64 * 1024)
SESSION = "VX" + "0" * 32
MESSAGES: list[dict[str, Any]] = [
    {"type": "text", "token": "Hello", "last": True, "lang": "en", "interruptible": "speech", "preemptible": False,
     "turn": "t1", "voice": "v", "speed": 1.5, "instruct": "softly", "hold": True},
    {"type": "play", "source": "https://example.com/a.wav", "loop": 0, "interruptible": False, "turn": "t2"},
    {"type": "sendDigits", "digits": "1w#"},
    {"type": "language", "ttsLanguage": "de-DE", "transcriptionLanguage": "en"},
    {"type": "language", "languages": [{"code": "fr", "voice": "v", "hints": "a,b"}], "ttsLanguage": "fr"},
    {"type": "config", "config": {"speechTimeout": "800", "partial_prompts": "true"}, "interruptible": "None"},
    {"type": "hints", "hints": ["a", "b"], "lang": "de"},
    {"type": "end", "handoffData": "{}"}, {"type": "cancel", "turn": "t1"}, {"type": "commit", "turn": "t1"},
    {"type": "discard", "turn": "t1"}, {"type": "mark", "name": "m"},
    {"type": "subscribe", "media": True, "sampleRate": 16000}, {"type": "record", "state": "stop"},
    {"type": "transfer", "target": "+49",
    "handoffData": None}, {"type": "leave", "leg": "VX1"},
    {"type": "transfer", "target": "+49", "warm": {"briefing": "b", "accept": ["1", "yes"], "decline": "2"}},
]  # fmt: skip
WORDS = (
    b'"type":', b'"text"', b'"token":', b'"sessionId":"' + SESSION.encode() + b'"', b"null", b"true", b"1e999", b"{}",
    b"[]",
    b"[" * 300, b"]" * 300, b'{"a":' * 300, b"}" * 300, b"9" * 400, b'"\\ud800"', b'"\\u0000"', b",", b":", b"0.25",
)  # fmt: skip


def run_manager(data: bytes) -> None:
    """A message is read, or refused by an ``error`` of a bounded length, from any sender."""
    text: str | bytes = data
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
    for frame in {text, data}:
        for multiplexed in (False, True):
            try:
                assert_plain(decode(frame, limits=LIMITS, multiplexed=multiplexed))
            except BadMessage as exc:
                said = encode(refusal(frame, exc), extensions=True, session_id=exc.session_id)
                assert said is not None and len(said) < 40_000
                orjson.loads(said)


def run_audio_socket(data: bytes) -> None:
    """A binary message is whole samples, or refused; a text message is read or refused."""
    try:
        sound = decode_sound(data, sample_rate=16000)
        assert sound.pcm == data and len(data) % 2 == 0
    except BadMessage as exc:
        assert len(data) % 2 and len(refusal(data, exc).description) < 300
    try:
        assert_plain(decode(data, limits=LIMITS, multiplexed=False, audio=True))
    except BadMessage as exc:
        assert len(refusal(data, exc).description) < 40_000


def run_recogniser(data: bytes) -> None:
    """``Results`` are words, and everything else is another message or an error."""
    with contextlib.suppress(ProtocolError):
        got = listen.decode(data)
        assert_plain(got)
        assert isinstance(got, listen.Other) or listen.decode(listen.encode(got, start_s=0, duration_s=1)) == got


def _bodies() -> list[type[BaseModel]]:
    """The models of all request bodies, and of the messages of the speech socket."""
    found: dict[str, type[BaseModel]] = {}
    for package in (gateway.http, gateway.webrtc):
        for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = import_module(entry.name)
            for name, value in vars(module).items():
                if isinstance(value, type) and issubclass(value, BaseModel) and name.endswith(("Body", "Message")):
                    found[f"{module.__name__}.{name}"] = value
    return list(dict.fromkeys(found[name] for name in sorted(found)))


BODIES = _bodies()


def run_body(data: bytes) -> None:
    """A body is read by its model, or answered with an error that JSON can carry."""
    model = BODIES[data[0] % len(BODIES)] if data else BODIES[0]
    try:
        assert_plain(model.model_validate_json(data[1:]).model_dump(exclude_defaults=True))
    except ValidationError as exc:
        answer = http_errors.of(exc)
        assert answer.status == 422 and len(answer.body or b"") < 2_000 + 8 * len(data)  # type: ignore[arg-type]


_LOOP = asyncio.new_event_loop()
_TYPES = (
    "multipart/form-data; boundary=cut", "application/x-www-form-urlencoded", "application/json", "text/plain",
    "application/x-www-form-urlencoded; charset=utf-7", "multipart/form-data", 'multipart/form-data; boundary="',
    "application/json; charset=nonsense", "application/x-www-form-urlencoded; charset=nonsense",
)  # fmt: skip


class _Engine:
    """Takes every voice."""

    async def list_voices(self) -> list[Any]:
        return []

    async def add_voice(self, **given: Any) -> VoiceInfo:
        assert len(given["wav"]) <= LIMITS.voice_bytes
        assert_plain(given)
        return VoiceInfo(voice_id="v", name="v", languages=("en",), engine="tone", registered=True)


async def _attach(call: str, route: str, parameters: Any) -> None:
    assert len(call) <= 128
    assert_plain([call, route, parameters])


_CONFIGURED = CarriersConfig.model_validate({carrier.key: {} for carrier in CARRIERS.values()}).configured()
_WEBHOOKS = Webhooks(
    PublicUrl(ServerConfig()),
    Sites(ServerConfig(), PublicUrl(ServerConfig())),
    _CONFIGURED,
    {"default": RouteConfig()},
    Tokens(None, lifetime_s=60),
    Handoffs(),
    StreamClaims(LocalDirectory(limit=1), None, keep_s=60),
    MemoryState(),
)
_ENGINE = _Engine()
_VOICES = Voices(_ENGINE, KnownVoices(_ENGINE.list_voices, {}), LIMITS, Transcriptions({}, RecogniserConfig()))  # type: ignore[arg-type]
_ATTACH = AttachRoutes({"asterisk": _attach}, {"default": RouteConfig()}, [])  # type: ignore[arg-type]
_LIMITER = Limiter(LIMITS)
_HANDLERS = (_VOICES.add, _ATTACH.attach, _WEBHOOKS.start, _WEBHOOKS.after, _WEBHOOKS.status)
_DIALECTS = [name for name, carrier in CARRIERS.items() if carrier.call_control is not None]


class _Here:
    """A transport of a client on this machine."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5000) if name == "peername" else default


async def _first_request() -> web.Request:
    return make_mocked_request("POST", "/", transport=_Here())


_FIRST = _LOOP.run_until_complete(_first_request())
"""Its application, connection and writer serve all cases: to make them takes longer than any handler."""


def run_request(data: bytes) -> None:
    """A handler answers any body of any kind, and never with 500: that means a bug in the gateway."""
    choice = data[:3].ljust(3, b"\0")

    async def answer() -> web.StreamResponse:
        reader = StreamReader(_Protocol(), 2**16, loop=_LOOP)  # type: ignore[arg-type]
        reader.feed_data(data[3:])
        reader.feed_eof()
        request = make_mocked_request(
            "POST", "/webhooks/x/default?call=a", headers={"Content-Type": _TYPES[choice[1] % len(_TYPES)],
            "Host": "x"},
            match_info={"dialect": _DIALECTS[choice[2] % len(_DIALECTS)], "route": "default"},
            payload=reader, client_max_size=LIMITS.message_bytes, transport=_Here(), protocol=_FIRST.protocol,
            writer=_FIRST._payload_writer, app=_FIRST.app,
        )  # fmt: skip
        request[WHO], request[TENANT] = ANYONE, Tenant(KeyRights(), ANYONE, limiter=_LIMITER)
        return await http_errors.middleware(request, _raising(_HANDLERS[choice[0] % len(_HANDLERS)]))

    assert _LOOP.run_until_complete(answer()).status < 500


def _raising(handler: Any) -> Any:
    """The handler; an error that the middleware takes for a bug in the gateway escapes it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException:
            raise
        except Exception as exc:
            try:
                return http_errors.of(exc)
            except Exception as bug:
                raise _Bug(f"{type(bug).__name__}: {bug}") from bug

    return handle


class _Bug(BaseException):
    """An error that no handler declares. It is no Exception, so that the middleware lets it pass."""


class _Protocol:
    """The part of a connection that a body's reader uses."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self, resume_parser: bool = True) -> None: ...


VOICE = (
    b'--cut\r\nContent-Disposition: form-data; name="audio"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0\r\n"
    b'--cut\r\nContent-Disposition: form-data; name="transcript"\r\nContent-Length: 5\r\n\r\nhello\r\n'
    b"--cut\r\nContent-Disposition: form-data; name=name\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\nYQ==\r\n--cut--\r\n"
)
FORM = b"CallSid=c1&From=%2B49&To=%2B50&dialect=asterisk&call=c1&bot=a%20b&a=%FF"
JSON = orjson.dumps(
    {"call_sid": "c1", "from": "+49", "to": "+50", "dialect": "asterisk", "call": "c1", "audio": "UklGRg=="}
)

OFFER = """v=0\r
o=- 1 2 IN IP4 127.0.0.1\r
s=-\r
t=0 0\r
a=group:BUNDLE 0 1\r
a=msid-semantic: WMS *\r
m=audio 9 UDP/TLS/RTP/SAVPF 111 0 8 110 126\r
c=IN IP4 0.0.0.0\r
a=rtcp:9 IN IP4 0.0.0.0\r
a=ice-ufrag:abcd\r
a=ice-pwd:abcdefghijklmnopqrstuv\r
a=ice-options:trickle\r
a=fingerprint:sha-256 {finger}\r
a=setup:actpass\r
a=mid:0\r
a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level\r
a=sendrecv\r
a=rtcp-mux\r
a=rtpmap:111 opus/48000/2\r
a=rtcp-fb:111 transport-cc\r
a=fmtp:111 minptime=10;useinbandfec=1\r
a=rtpmap:110 telephone-event/48000\r
a=rtpmap:126 telephone-event/8000\r
a=ssrc:1 cname:x\r
a=candidate:1 1 udp 2130706431 192.0.2.4 5000 typ host generation 0\r
m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r
c=IN IP4 0.0.0.0\r
a=ice-ufrag:abcd\r
a=ice-pwd:abcdefghijklmnopqrstuv\r
a=fingerprint:sha-256 {finger}\r
a=setup:actpass\r
a=mid:1\r
a=sctp-port:5000\r
a=max-message-size:262144\r
""".format(finger=":".join(["AB"] * 32)).encode()
SDP_WORDS = (
    b"m=audio ", b"m=application ", b"a=mid:", b"a=group:BUNDLE ", b"a=ice-ufrag:", b"a=candidate:", b"a=rtpmap:",
    b"a=fmtp:",
    b"a=setup:", b"a=ssrc:", b"a=ssrc-group:", b"a=rtcp-fb:", b"a=extmap:", b"a=sctp-port:", b"a=sctpmap:",
    b"a=bundle-only",
    b"\r\n", b"\r", b"\n", b"\x0b", b"\xe2\x80\xa8", b"\x1c", b"UDP/TLS/RTP/SAVPF", b" typ host", b"tcptype ",
    b"a=rtcp:",
)  # fmt: skip


def run_offer(data: bytes) -> None:
    """An offer that is read can be answered, and whatever cannot be read is a ``ProtocolError``."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ProtocolError):
        read_fragment(text)
    try:
        offer = read_offer(text)
    except ProtocolError:
        return
    assert_plain([offer.codecs, offer.ice, offer.dtls.fingerprints])
    answer = write_answer(
        offer, offer.codecs[0], candidates=[], ice=offer.ice, fingerprints=offer.dtls.fingerprints,
        ssrc=7, label="x", max_message_bytes=1000,
    )  # fmt: skip
    assert answer.count("m=") >= 1
    _ = offer.codecs[0].inbound, offer.codecs[0].outbound


def run_engine(data: bytes) -> None:
    """Messages of the engine's seam, in both directions."""
    with contextlib.suppress(DecodeError, EngineError):
        asked = pb.SpeakRequest.FromString(data)
        start = wire.decode_start(asked.start)
        assert wire.decode_start(wire.encode_start(start)) == start
    with contextlib.suppress(DecodeError, EngineError):
        chunk = wire.decode_chunk(pb.SpeakResponse.FromString(data))
        if all(chunk.frames):  # an engine makes no empty frames, and their number is not carried
            assert wire.decode_chunk(wire.encode_chunk(chunk)).frames == chunk.frames


class _Wire(asyncio.Transport):
    """The part of a socket that a link uses."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def is_reading(self) -> bool:
        return True


async def _speak(_requests: object, context: Any) -> None:
    """Answers each message with one of 30 kB, so that a client who takes nothing is waited for."""
    while await context.read() is not grpc.aio.EOF:
        await context.write(pb.SpeakResponse(payload=bytes(30_000)))


async def _link(data: bytes) -> None:
    server = _ServerEnd(set(), _speak, Exhausted("full", retry_after_s=1.0), most_calls=3, most_bytes=4096)
    client = _ClientEnd(4096)
    for end in (server, client):
        end.connection_made(_Wire())
    call = LinkCall(client, (("call", "VX"),), pb.SpeakStart(utterance_id="u"))
    for end in (server, client):
        for piece in pieces(data, 1000):
            if end._transport is not None and not end._transport.is_closing():
                end.data_received(piece)
                await asyncio.sleep(0)
        end.connection_lost(None)
    while call._ended is not grpc.aio.EOF or call._got:  # it hears of its end once, whatever came
        await call.receive()
    await asyncio.gather(*server.tasks, return_exceptions=True)
    assert not server._calls and not client.calls


def run_link(data: bytes) -> None:
    """Frames of the link between gateway and engine, at both ends."""
    _LOOP.run_until_complete(_link(data))


def _frame(call: int, kind: FrameKind, payload: bytes = b"") -> bytes:
    return struct.pack("<IIB", len(payload), call, kind) + payload


START = pb.SpeakRequest(
    start=pb.SpeakStart(utterance_id="u", encoding="OPUS", sample_rate=48000, ptime_ms=20, speed=1.5)
)
CHUNK = pb.SpeakResponse(
    payload=b"abcdef", frame_bytes=[2], first_sample=1, samples=3, stages_ms={"a": 1.0}, engine="x"
)

TARGETS = [
    Target(
        name="dialogue", run=run_manager, covers=("gateway/dialogue/wire.py", "gateway/seams/plain_text.py"),
        words=WORDS,
        seeds=[orjson.dumps({"sessionId": SESSION, **message}) for message in MESSAGES],
    ),
    Target(
        name="audio-socket", run=run_audio_socket, covers=("gateway/dialogue/audio_socket.py",), words=WORDS,
        seeds=(bytes(640), b'{"type":"clear"}', b'{"type":"mark","name":"m"}'),
    ),
    Target(
        name="recogniser", run=run_recogniser, covers=("gateway/recognition/listen.py",), words=WORDS,
        seeds=(listen.encode(listen.Results(text="a b", final=True), start_s=0, duration_s=1).encode(),
               b'{"type":"Metadata"}',
               b'{"type":"Results","is_final":true,"channel":{"alternatives":[{"transcript":"a\\u0000\\ud800b"}]}}'),
    ),
    Target(
        name="http-json", run=run_body, covers=("gateway/http/**/*.py", "gateway/webrtc/signalling.py"), words=WORDS,
        seeds=[bytes((at,)) + orjson.dumps({name: "1" for name in model.model_fields}) for at,
        model in enumerate(BODIES)],
    ),
    Target(
        name="http-request", run=run_request, quick=150,
        covers=("gateway/http/speech_api/voices.py", "gateway/http/webhooks.py", "gateway/http/call_api/attach.py",
                "gateway/http/request/errors.py"),
        seeds=[b"\0\0\0" + VOICE, b"\1\1\0" + FORM, b"\2\1\0" + FORM, b"\2\2\1" + JSON, b"\0\2\0" + JSON,
        b"\1\2\0" + JSON],
        words=(b"--cut", b"\r\n", b"\r\n\r\n", b"--cut--", b'Content-Disposition: form-data; name="audio"',
               b"Content-Length: -1",
               b"Content-Type: multipart/mixed; boundary=in", b"Content-Encoding: gzip", b"%FF", b"&", b"=",
               b"name*=utf-8''a"),
    ),
    Target(name="webrtc-offer", run=run_offer, covers=("gateway/webrtc/sdp.py",), seeds=(OFFER,), words=SDP_WORDS,
    quick=150),
    Target(
        name="engine-seam", run=run_engine, without_text="text to speak, made plain by the gateway, and sound",
        covers=("tts_engine/service/wire.py",),
        seeds=(START.SerializeToString(), CHUNK.SerializeToString()),
    ),
    Target(
        name="engine-link", run=run_link, without_text="frames of bytes",
        covers=("tts_engine/service/link_*.py", "tts_engine/service/framing/framed.py"),
        seeds=(
            _frame(1, FrameKind.BEGIN, b'{"call": "VX"}') + _frame(1, FrameKind.MESSAGE, START.SerializeToString())
            + _frame(1, FrameKind.TAKEN, bytes(4)) + _frame(1, FrameKind.HALF_CLOSE) + _frame(2, FrameKind.BEGIN, b"{}")
            + _frame(2, FrameKind.CANCEL),
            _frame(1, FrameKind.MESSAGE, CHUNK.SerializeToString())
            + _frame(1, FrameKind.END, pb.Failure(code="NOT_FOUND", details="d").SerializeToString()),
        ),
        words=[_frame(1, kind) for kind in FrameKind],
    ),
]  # fmt: skip
