"""The matrix of dialects and oddities over real sockets: the call begins, sound crosses both ways, and the oddity is
counted."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from gateway.call.session import Session
from gateway.carriers.oddities import KINDS
from gateway.carriers.table import CARRIERS as SERVED
from gateway.config import LimitsConfig, ServerConfig
from gateway.listener.connection import MediaConnection
from gateway.listener.forwarded import PublicUrl
from gateway.listener.server import GatewayServer
from gateway.listener.sites import Sites
from gateway.seams.incoming import IncomingCall
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS, VARIANTS
from talkspurt.simulator.carriers.carrier import SimulatedCarrier
from tests.gateway.listener.test_connection import ALL, Listener
from tests.waiting import PATIENCE_S, until

every = pytest.mark.parametrize("dialect", SERVED)
CONTROL = (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG)
JSON_AUDIO = [name for name in SERVED if name in ("twilio", "signalwire", "telnyx", "plivo", "exotel")]


class Line:
    """A server whose calls are written down, and whose oddities are counted."""

    def __init__(self, **limits: Any) -> None:
        self.calls: list[Listener] = []
        self.odd: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.server = GatewayServer(
            ServerConfig(port=0), LimitsConfig(**limits), web.Application(), ALL,
            accept=self._accept, authorise=lambda dialect, route, request, peer: None,  # type: ignore[arg-type]
            sites=Sites(ServerConfig(), PublicUrl(ServerConfig())),
            on_rejected=self.refused.append, on_oddity=lambda dialect, kind: self.odd.append((dialect, kind)),
        )  # fmt: skip

    def _accept(self, connection: MediaConnection, incoming: IncomingCall) -> Session:
        self.calls.append(Listener(connection, incoming))
        return cast(Any, self.calls[-1])


@dataclass
class Peer:
    """A carrier's socket that sends anything."""

    line: Line
    dialect: str
    carrier: SimulatedCarrier
    ws: aiohttp.ClientWebSocketResponse

    async def send(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            await self.ws.send_bytes(message)
        else:
            await self.ws.send_str(message)

    async def open(self) -> Listener:
        for message in self.carrier.opening():
            await self.send(message)
        return await self.begun()

    async def begun(self) -> Listener:
        await until(lambda: bool(self.line.calls))
        return self.line.calls[0]

    async def sound_crosses(self) -> None:
        """Check that the caller is heard, a key arrives, and the caller hears our voice."""
        call = await self.begun()
        call.audio.clear()
        frame = b"\x01" * (self.carrier.format.frame_bytes or 160)
        await self.send(self.carrier.media(frame))
        await self.send(self.carrier.dtmf("7"))
        await until(lambda: call.digits.endswith("7") and bytes(call.audio).endswith(frame[:100]))
        assert call.connection.send_frame(call.connection.outbound.silence_frame(), 0.0)
        wanted = aiohttp.WSMsgType.TEXT if call.connection.dialect.media_is_text else aiohttp.WSMsgType.BINARY
        while (await self.receive()).type is not wanted:
            pass

    async def receive(self) -> aiohttp.WSMessage:
        """Return the next message that is not a ping or a pong."""
        while (message := await self.ws.receive(timeout=PATIENCE_S)).type in CONTROL:
            pass
        assert message.type is not aiohttp.WSMsgType.CLOSED
        return message

    def counted(self, kind: str) -> bool:
        return (self.dialect, kind) in self.line.odd


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    await made.server.start()
    yield made
    await made.server.aclose()


@pytest.fixture
async def peer(line: Line, dialect: str) -> AsyncIterator[Peer]:
    carrier = CARRIERS[dialect](7, {"bot": "billing"})
    url = f"ws://127.0.0.1:{line.server.port}/media/{dialect}/default"
    protocols = [carrier.subprotocol] if carrier.subprotocol else []
    async with aiohttp.ClientSession() as http, http.ws_connect(url, protocols=protocols, autoping=False) as ws:
        yield Peer(line, dialect, carrier, ws)


@every
async def test_audio_and_keys_before_the_start(peer: Peer) -> None:
    frame = b"\x01" * (peer.carrier.format.frame_bytes or 160)
    for _ in range(5):
        await peer.send(peer.carrier.media(frame))
    if peer.dialect != "genesys":  # its messages are numbered, and none may come before open
        await peer.send(peer.carrier.dtmf("1"))
    call = await peer.open()
    assert call.incoming.custom_parameters["bot"] == "billing"
    assert not call.audio and not call.digits
    await peer.sound_crosses()
    assert peer.counted("early_audio") and (peer.dialect == "genesys" or peer.counted("early_event"))


@every
async def test_an_opening_message_that_is_repeated(peer: Peer) -> None:
    call = await peer.open()
    for _ in range(12):  # more than the limit of errors in a row
        for message in peer.carrier.opening():
            await peer.send(message)
    await peer.sound_crosses()
    assert len(peer.line.calls) == 1 and not call.closed
    assert peer.counted("repeated_start")


@every
async def test_unreadable_messages_before_the_start(peer: Peer) -> None:
    for message in ("{", "[]", '{"event":7}', '{"type":["x"]}', "null"):
        await peer.send(message)
    await peer.open()
    await peer.sound_crosses()


@every
async def test_a_stop_without_a_start_closes_the_socket(peer: Peer) -> None:
    stop = peer.carrier.stop()
    if stop is None or peer.dialect == "genesys":
        return  # closing the socket is the stop, or a stop needs an open
    await peer.send(stop)
    message = await peer.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE and message.data == 1000
    assert not peer.line.calls


@every
async def test_after_the_stop_the_socket_closes(peer: Peer) -> None:
    call = await peer.open()
    stop = peer.carrier.stop()
    if stop is None or peer.dialect == "genesys":
        return  # the peer closes the socket itself
    await peer.send(stop)
    message = await peer.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE and message.data == 1000
    assert call.closed == ["hangup"]


def swapped(value: Any) -> Any:
    """Return a JSON value with numbers for texts of digits, and texts for numbers."""
    if isinstance(value, dict):
        return {key: entry if key == "payload" else swapped(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [swapped(entry) for entry in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


@every
async def test_numbers_for_texts_and_texts_for_numbers(peer: Peer) -> None:
    for message in peer.carrier.opening():
        await peer.send(json.dumps(swapped(json.loads(message))) if isinstance(message, str) else message)
    await peer.sound_crosses()


BASE64: dict[str, Callable[[str], str]] = {
    "url-safe": lambda text: text.replace("+", "-").replace("/", "_"),
    "unpadded": lambda text: text.rstrip("="),
    "line-broken": lambda text: text[:76] + "\r\n" + text[76:],
    "with a last line break": lambda text: text + "\n",
}


@pytest.mark.parametrize("variant", BASE64)
@pytest.mark.parametrize("dialect", JSON_AUDIO)
async def test_base64_variants(peer: Peer, variant: str) -> None:
    call = await peer.open()
    audio = bytes(range(1, 255)) * 2
    written = BASE64[variant](base64.b64encode(audio).decode())
    for _ in range(12):  # more than the limit of errors in a row
        body = json.loads(str(peer.carrier.media(audio)))
        body["media"]["payload"] = written
        await peer.send(json.dumps(body))
    await until(lambda: bytes(call.audio) == audio * 12)
    assert peer.counted("base64")


@every
async def test_a_stall_and_a_burst(peer: Peer) -> None:
    call = await peer.open()
    frame = b"\x01" * (peer.carrier.format.frame_bytes or 160)
    for _ in range(100):
        await peer.send(peer.carrier.media(frame))
    await until(lambda: len(call.audio) == 100 * len(frame))
    await peer.sound_crosses()


@every
async def test_marks_that_never_return_do_not_stop_the_sound(peer: Peer) -> None:
    call = await peer.open()
    assert call.connection.send_frame(call.connection.outbound.silence_frame(), 0.0)
    for number in range(200):
        if call.connection.has_marks:
            call.connection.send_mark(f"0.{number}")
    await peer.sound_crosses()


@every
async def test_the_latest_ping_is_answered(peer: Peer) -> None:
    await peer.open()
    for number in range(4):
        await peer.ws.ping(b"%d" % number)
    answered = []
    while b"3" not in answered:
        message = await peer.ws.receive(timeout=PATIENCE_S)
        assert message.type is not aiohttp.WSMsgType.CLOSED
        if message.type is aiohttp.WSMsgType.PONG:
            answered.append(bytes(message.data))
    assert answered == [b"0", b"3"]


@every
async def test_an_oddity_is_logged_once_a_call(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        frame = b"\x01" * (peer.carrier.format.frame_bytes or 160)
        for _ in range(3):
            await peer.send(peer.carrier.media(frame))
        await peer.open()
    logged = [record for record in caplog.records if getattr(record, "kind", "") == "early_audio"]
    assert len(logged) == 1 and peer.line.odd.count((peer.dialect, "early_audio")) == 3
    assert all(kind in KINDS for _, kind in peer.line.odd)


@pytest.mark.parametrize("variant", VARIANTS)
async def test_other_ways_in_which_carriers_begin(line: Line, variant: str) -> None:
    carrier = VARIANTS[variant](7, {"bot": "billing"})
    leg = CarrierLeg(carrier)
    await leg.connect(f"ws://127.0.0.1:{line.server.port}/media/{carrier.dialect}/default")
    await until(lambda: bool(line.calls))
    (call,) = line.calls
    assert call.incoming.call_sid == carrier.call_sid
    told = call.incoming.custom_parameters
    assert told == ({} if carrier.dialect == "exotel" else {"bot": "billing"})
    leg.send_uplink()
    for number in range(3):
        assert call.connection.send_frame(call.connection.outbound.silence_frame(), 0.0)
        if call.connection.has_marks:
            call.connection.send_mark(f"0.{number}")
    await until(lambda: leg.messages == 3 and bool(call.audio))
    call.connection.send_clear()
    await leg.aclose()
    assert not leg.violations


@pytest.mark.parametrize("dialect", ["freeswitch", "freeswitch-fork"])
async def test_a_switch_without_metadata_begins_soon(peer: Peer) -> None:
    await peer.send(peer.carrier.media(b"\x01" * 320))
    call = await peer.begun()
    assert call.incoming.from_ == "" and not call.closed
    await peer.sound_crosses()


@pytest.mark.parametrize("dialect", ["freeswitch", "freeswitch-fork"])
async def test_metadata_after_the_call_began_still_fills_in_the_description(peer: Peer) -> None:
    await peer.send(peer.carrier.media(b"\x01" * 320))
    call = await peer.begun()
    await peer.send('{"uuid":"11111111-0000-4000-8000-000000000001","from":1000,"to":"2000","bot":"billing"}')
    await until(lambda: bool(call.described))
    assert call.described == [
        {
            "call_sid": "11111111-0000-4000-8000-000000000001",
            "from_": "1000",
            "to": "2000",
            "parameters": {"bot": "billing"},
        }
    ]
    await peer.sound_crosses()
    assert peer.counted("late_metadata") and len(peer.line.calls) == 1


@pytest.mark.parametrize("dialect", ["telnyx"])
async def test_a_codec_that_cannot_be_decoded_is_refused_with_what_to_set(peer: Peer) -> None:
    start = {"media_format": {"encoding": "AMR-WB", "sample_rate": 16000}}
    await peer.send(json.dumps({"event": "start", "stream_id": "s", "start": start}))
    message = await peer.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE and message.data == 1002
    assert peer.line.refused == ["unsupported_encoding"]


@pytest.mark.parametrize("dialect", ["genesys"])
async def test_genesys_is_given_the_time_that_it_asks_for(peer: Peer) -> None:
    call = await peer.open()
    error = {"code": 429, "message": "Rate limit exceeded", "retryAfter": "PT0.2S"}
    message = {"version": "2", "type": "error", "seq": 2, "id": call.connection.dialect._session_id}  # type: ignore[attr-defined]
    await peer.send(json.dumps({**message, "parameters": error}))
    frame = call.connection.outbound.silence_frame()
    await until(lambda: not call.connection.send_frame(frame, 0.0))
    await until(lambda: call.connection.send_frame(frame, 0.0))
    await asyncio.sleep(0)
