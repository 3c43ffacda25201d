"""The media socket itself, with every simulated carrier at its other end."""

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp import web

from gateway.call.session import Session
from gateway.carriers.switch import StreamNotOpened
from gateway.carriers.table import CARRIERS as SERVED
from gateway.carriers.table import CarriersConfig
from gateway.config import LimitsConfig, ServerConfig
from gateway.errors import Rejected
from gateway.listener.connection import MediaConnection
from gateway.listener.forwarded import PublicUrl
from gateway.listener.server import GatewayServer
from gateway.listener.sites import Sites
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.incoming import IncomingCall
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.peer_socket import PeerSocketError
from tests.gateway.carriers.test_contract import PEERS
from tests.waiting import PATIENCE_S, until

every = pytest.mark.parametrize("dialect", SERVED)


ALL = CarriersConfig.model_validate({carrier.key: {} for carrier in SERVED.values()}).configured()


class Listener:
    """The call behind the socket: writes down what reaches it."""

    def __init__(self, connection: MediaConnection, incoming: IncomingCall) -> None:
        self.connection = connection
        self.incoming = incoming
        self.call_id = "VX1"
        self.listening = True
        self.wants_round_trip = True
        self.trips: list[float] = []
        self.audio = bytearray()
        self.digits = ""
        self.marks: list[str] = []
        self.playback: list[bool] = []
        self.closed: list[str] = []
        self.described: list[dict[str, Any]] = []

    def on_audio(self, payload: bytes) -> None:
        self.audio += payload

    def on_digit(self, digit: str) -> None:
        self.digits += digit

    def on_mark(self, name: str) -> None:
        self.marks.append(name)

    def on_round_trip(self, seconds: float) -> None:
        self.trips.append(seconds)

    def on_playback(self, *, started: bool) -> None:
        self.playback.append(started)

    def on_described(self, **description: Any) -> None:
        self.described.append(description)

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        self.closed.append(reason)


class Line:
    def __init__(self) -> None:
        self.calls: list[Listener] = []
        self.server = GatewayServer(
            ServerConfig(port=0), LimitsConfig(), web.Application(), ALL,
            accept=self._accept, authorise=lambda dialect, route, request, peer: None,  # type: ignore[arg-type]
            sites=Sites(ServerConfig(), PublicUrl(ServerConfig())),
        )  # fmt: skip

    def _accept(self, connection: MediaConnection, incoming: IncomingCall) -> Session:
        self.calls.append(Listener(connection, incoming))
        return cast(Any, self.calls[-1])

    async def call(self, dialect: str) -> tuple[CarrierLeg, Listener]:
        leg, before = CarrierLeg(CARRIERS[dialect](7, {})), len(self.calls)
        await leg.connect(f"ws://127.0.0.1:{self.server.port}/media/{dialect}/default")
        await until(lambda: len(self.calls) > before)
        return leg, self.calls[-1]


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    await made.server.start()
    yield made
    await made.server.aclose()


@every
async def test_audio_keys_marks_and_clear_cross_the_socket(line: Line, dialect: str) -> None:
    leg, call = await line.call(dialect)
    connection, frame = call.connection, call.connection.outbound.silence_frame()
    assert connection.send_frame(frame, 0.0)
    connection.send_mark("0.1")
    leg.send_uplink()
    leg.press("7")
    await until(lambda: call.digits == "7" and leg.messages == 1)
    assert len(call.audio) == leg.carrier.format.frame_bytes
    if connection.has_marks:
        await until(lambda: call.marks == ["0.1"])
    connection.send_clear()
    if connection.dialect.has_clear:
        await until(lambda: leg.clears == 1)
    if dialect == "genesys":
        await until(lambda: call.playback == [True, False])
    await leg.aclose()
    await until(lambda: bool(call.closed))
    assert not leg.violations


@every
async def test_only_a_peer_that_has_a_way_to_empty_its_buffer_is_believed_to_empty_it(line: Line, dialect: str) -> None:
    leg, call = await line.call(dialect)
    assert call.connection.can_clear == (PEERS[dialect].our_clear is not None)
    await leg.aclose()


async def test_no_log_level_lets_a_sockets_library_tell_who_connects(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        leg, call = await line.call("twilio")
        await leg.aclose()
        await until(lambda: bool(call.closed))
    theirs = [record for record in caplog.records if record.name.startswith("gateway.listener")]
    assert not [record for record in theirs if "127.0.0.1" in record.getMessage() or "Upgrade:" in record.getMessage()]


@every
async def test_a_key_between_idle_frames_or_after_the_last_is_not_kept_from_us(
    line: Line, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.listener.receive_batching._STOPPED_S", 3600.0)
    leg, call = await line.call(dialect)
    call.listening = False
    receiving = call.connection._receiving
    assert receiving is not None and not os.get_blocking(receiving._sock.fileno())
    for _ in range(60):
        leg.send_uplink()
    await until(lambda: receiving.gathering)
    leg.press("1")  # alone in the kernel: fewer bytes than it gathers
    receiving._watch(receiving._skipped)  # as the timer does when media has stopped
    await until(lambda: call.digits == "1")
    assert not receiving.gathering
    for _ in range(60):
        leg.send_uplink()
    await until(lambda: receiving.gathering)
    for _ in range(3):
        leg.send_uplink()
    leg.press("2")
    for _ in range(3):  # with those before it they are as many as the kernel gathers
        leg.send_uplink()
    await until(lambda: call.digits == "12")
    call.connection.send_frame(call.connection.outbound.silence_frame(), 0.0)
    assert not receiving.gathering
    await leg.aclose()
    await until(lambda: bool(call.closed))


@every
async def test_hanging_up_closes_the_socket_in_the_peers_own_order(line: Line, dialect: str) -> None:
    leg, call = await line.call(dialect)
    call.connection.hang_up("ended", '{"next":"agent"}')
    await until(lambda: leg.closed_at is not None and bool(call.closed))
    assert not leg.violations


async def test_nothing_is_sent_between_xoff_and_xon(line: Line) -> None:
    leg, call = await line.call("asterisk")
    frame = call.connection.outbound.silence_frame()
    leg._send('{"event":"MEDIA_XOFF","channel_id":"x"}')
    leg.press("1")
    await until(lambda: call.digits == "1")
    assert not call.connection.send_frame(frame, 0.0)
    leg._send('{"event":"MEDIA_XON","channel_id":"x"}')
    leg.press("2")
    await until(lambda: call.digits == "12")
    assert call.connection.send_frame(frame, 0.0)
    await leg.aclose()


class Stranger:
    """A WebSocket client that sends any frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, port: int) -> "Stranger":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /media/twilio/default HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return cls(reader, writer)

    def send(self, opcode: int, payload: bytes = b"", *, fin: bool = True) -> None:
        """One frame with a mask of zeros; ``payload`` up to 125 bytes."""
        self._writer.write(bytes([opcode | 0x80 * fin, 0x80 | len(payload)]) + bytes(4) + payload)

    async def frames_until_close(self) -> list[tuple[int, bytes]]:
        """Opcode and payload of each short frame, the close frame included."""
        frames = []
        async with asyncio.timeout(30):
            while not frames or frames[-1][0] != 8:
                opcode, length = await self._reader.readexactly(2)
                frames.append((opcode & 15, await self._reader.readexactly(length)))
        self._writer.close()
        return frames


async def test_a_message_of_empty_fragments_is_ended_at_a_bound(line: Line) -> None:
    """No limit of bytes ends it, and every fragment costs a look at the message."""
    stranger = await Stranger.connected(line.server.port)
    stranger.send(1, fin=False)
    for _ in range(2000):
        stranger.send(0, fin=False)
    ((opcode, payload),) = await stranger.frames_until_close()
    assert (opcode, int.from_bytes(payload[:2])) == (8, 1009)
    assert b"1024 fragments" in payload


async def test_a_message_in_fragments_is_put_together(line: Line) -> None:
    stranger = await Stranger.connected(line.server.port)
    for _ in range(LimitsConfig().errors_in_a_row):
        for index, part in enumerate((b'{"event":', b"", b'"nonsense"')):
            stranger.send(0 if index else 1, part, fin=False)
        stranger.send(0, b" no JSON")
    ((opcode, payload),) = await stranger.frames_until_close()
    assert (opcode, int.from_bytes(payload[:2])) == (8, 1002)
    assert b"27 characters" in payload


async def test_many_pings_get_one_pong(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that pings and does not read would have us keep a pong for each ping."""
    monkeypatch.setattr("gateway.listener.connection._PONG_S", 3600.0)
    stranger = await Stranger.connected(line.server.port)
    for number in range(1000):
        stranger.send(9, b"%d" % number)
    stranger.send(8, (1000).to_bytes(2))
    assert await stranger.frames_until_close() == [(10, b"0"), (8, (1000).to_bytes(2))]


async def test_a_burst_of_messages_leaves_everybody_else_a_turn_in_between(line: Line) -> None:
    leg, call = await line.call("twilio")
    line.server._media_floods.clock = itertools.count().__next__  # a second for each step: no turn has time for two
    pressed = "".join(str(number % 10) for number in range(1200))
    in_turn = [0]

    def next_turn() -> None:
        in_turn.append(len(call.digits) - sum(in_turn))
        if len(call.digits) < len(pressed):
            asyncio.get_running_loop().call_soon(next_turn)

    for digit in pressed:
        leg.press(digit)
    next_turn()
    await until(lambda: len(call.digits) == len(pressed))
    assert call.digits == pressed  # in their order, and none is lost
    assert max(in_turn) <= 16  # what is taken as it comes, and a step of those that were put off
    await leg.aclose()
    await until(lambda: bool(call.closed))


async def test_what_many_calls_send_at_once_leaves_everybody_else_turns_in_between(line: Line) -> None:
    """A network that was held up brings the audio of all calls in one moment."""
    calls = [await line.call("twilio") for _ in range(20)]
    line.server._media_turns.clock = itertools.count().__next__  # a second for each frame: no turn has time for two
    in_turn = [0]

    def heard() -> list[str]:
        return [call.digits for _, call in calls]

    def next_turn() -> None:
        in_turn.append(len("".join(heard())) - sum(in_turn))
        if sum(in_turn) < 60:
            asyncio.get_running_loop().call_soon(next_turn)

    for digit in "123":
        for leg, _ in calls:
            leg.press(digit)
    next_turn()
    await until(lambda: heard() == ["123"] * 20)
    assert max(in_turn) <= 3  # all that one call has put off
    for leg, call in calls:
        await leg.aclose()
        await until(lambda call=call: bool(call.closed))  # type: ignore[misc]


async def test_the_kernel_keeps_little_of_a_peer_that_sends_in_bursts(line: Line) -> None:
    """All that is there is handled before anybody else's turn, so a megabyte of small messages would stop all calls."""
    _, call = await line.call("twilio")
    assert call.connection._transport is not None
    kernel = call.connection._transport.underlying_transport.get_extra_info("socket")
    assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 64 * 1024


async def test_the_round_trip_is_measured_where_somebody_wants_it(line: Line) -> None:
    leg, call = await line.call("twilio")
    await until(lambda: bool(call.trips))
    assert call.trips[0] >= 0
    call.connection._pong_received(bytes(8))  # answers none of our pings
    call.connection._pong_received(b"?")
    assert len(call.trips) == 1
    await leg.aclose()


async def test_a_refused_stream_is_counted_by_its_reason() -> None:
    refused: list[str] = []

    def refuse(connection: MediaConnection, incoming: IncomingCall) -> Session:
        raise Rejected("no", status=503, code="full")

    made = Line()
    made.server._accept, made.server.on_rejected = refuse, refused.append  # type: ignore[assignment]
    await made.server.start()
    for path, reason in (("twilio/default", "full"), ("nosuch", "not_found")):
        leg = CarrierLeg(CARRIERS["twilio"](7, {}))
        with contextlib.suppress(PeerSocketError):
            await leg.connect(f"ws://127.0.0.1:{made.server.port}/media/{path}")
        await until(lambda reason=reason: refused[-1:] == [reason])  # type: ignore[misc]
        await leg.aclose()
    with pytest.raises(PeerSocketError, match="no carrier 'twillio' is configured, did you mean 'twilio'"):
        await CarrierLeg(CARRIERS["twilio"](7, {})).connect(f"ws://127.0.0.1:{made.server.port}/media/twillio/call")
    await made.server.aclose()


async def test_a_stream_may_be_a_later_request_of_a_connection(line: Line) -> None:
    """Proxies use their connections to us again."""
    address, refused = ("127.0.0.1", line.server.port), list[str]()
    line.server.on_rejected = refused.append
    upgrade = (
        b"GET /media/%s HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    start = str(CARRIERS["twilio"](7, {}).opening()[-1]).encode()
    frame = b"\x81\xfe" + len(start).to_bytes(2) + bytes(4) + start  # masked with zeros

    async def used() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that has carried a request."""
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b" 404 " in await reader.readline()
        await reader.readuntil(b"404: Not Found")
        return reader, writer

    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await used()
        asked = upgrade % b"twilio/default" + frame
        for piece in (asked[:90], asked[90:-40], asked[-40:]):
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await until(lambda: bool(line.calls))
        (call,) = line.calls
        assert not line.server.opening and not line.server.sockets.sweep(now=line.server.now() + 1e6), "a call stays"
        call.connection.send_mark("0.1")
        assert b'"0.1"' in await reader.readuntil(b"}}")
        writer.close()
        await until(lambda: bool(call.closed))

        reader, writer = await used()
        writer.write(upgrade % b"nosuch")
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ") and refused == ["not_found"]
        writer.close()


async def test_an_upgrade_that_the_sockets_library_refuses_leaves_nothing_behind(line: Line) -> None:
    """It comes after our own yes, and such requests kept a connection each."""

    def kept() -> int:
        gc.collect()
        # isinstance would ask each object for its class, and objects of other libraries answer with warnings.
        return sum(issubclass(type(each), MediaConnection) for each in gc.get_objects())

    before = kept()
    for _ in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", line.server.port)
        writer.write(b"GET /media/twilio/default HTTP/1.1\r\nHost: h\r\nSec-WebSocket-Version: 13\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    del reader, writer
    await until(lambda: kept() <= before)


async def test_a_switch_that_closes_the_connection_before_its_answer_got_no_stream(line: Line) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as switch:
        url = f"ws://127.0.0.1:{switch.sockets[0].getsockname()[1]}/x"
        with pytest.raises(StreamNotOpened, match="closed the connection before it answered"):
            await line.server.open_stream("asterisk", url, "default", {}, 30.0)
