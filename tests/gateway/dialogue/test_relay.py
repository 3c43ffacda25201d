"""Dialling out, over real loopback sockets."""

import asyncio
import base64
import contextvars
import hashlib
import hmac
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from gateway.config import DialogueConfig, LimitsConfig
from gateway.dialogue.dialled_socket import DialledSocket
from gateway.dialogue.line import DialogueStats, Ending, Line
from gateway.dialogue.relay import RECONNECT_FIRST_S, RECONNECT_MAX_S, Relay
from gateway.errors import ProtocolError
from gateway.seams.messages import Dtmf, Ended, Text, TurnEvent
from tests.gateway.dialogue.dialogue_fakes import App, RecordingSink, call, running_app, served
from tests.gateway.proxies import ADDRESS, proxied
from tests.waiting import until
from tts_engine.correlation import CORRELATION, Correlation


class Dialled:
    def __init__(self, relay: Relay, sink: RecordingSink, stats: DialogueStats) -> None:
        self.relay, self.sink, self.stats = relay, sink, stats


@pytest.fixture
async def dial(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Dialled]]:
    monkeypatch.setattr("gateway.dialogue.relay.RECONNECT_FIRST_S", 0.01)
    monkeypatch.setattr("gateway.dialogue.relay.RECONNECT_MAX_S", 0.05)
    relays = []

    def make(url: str, *, limits: LimitsConfig | None = None, kind: type[Relay] = Relay, **config: Any) -> Dialled:
        sink, stats = RecordingSink(), DialogueStats()
        relay = kind(
            call(7, from_="+1555", custom_parameters={"k": "v"}),
            sink,
            DialogueConfig(url=url, **config),
            limits=limits or LimitsConfig(),
            stats=stats,
            codec="PCMU/8000",
            version="0.1.0",
        )
        relays.append(relay)
        relay.start()
        return Dialled(relay, sink, stats)

    yield make
    for relay in relays:
        await relay.aclose()


async def test_setup_comes_first_with_the_headers_of_the_recording(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url + "?a=b", auth_token="secret", headers={"X-Mine": "1"})
        call_.relay.send(Dtmf(digit="5"))  # before the line is up
        await until(lambda: app.received and len(app.received[0]) == 2)

        setup, dtmf = app.received[0]
        assert (setup["type"], setup["callStatus"], setup["customParameters"]) == ("setup", "RINGING", {"k": "v"})
        assert "resumed" not in setup
        assert dtmf == {"type": "dtmf", "digit": "5"}
        headers = app.headers[0]
        assert not {"Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions", "Origin", "Accept"} & headers.keys()
        signature = hmac.new(b"secret", (app.url + "?a=b").encode(), hashlib.sha1).digest()
        assert base64.b64decode(headers["X-Twilio-Signature"]) == signature
        assert headers["X-Mine"] == "1"
        assert call_.stats.connected["demo"] == 1


async def test_an_application_is_told_the_span_of_a_call_that_is_traced(dial: Callable[..., Dialled]) -> None:
    parent = f"00-{1:032x}-{1:016x}-01"

    def begin(traceparent: str) -> None:
        CORRELATION.set(Correlation("VX1", traceparent))
        dial(app.url)

    async with running_app() as app:
        for traceparent in ("", parent):
            contextvars.copy_context().run(begin, traceparent)
        await until(lambda: len(app.headers) == 2)
    assert sorted(headers.get("traceparent", "") for headers in app.headers) == ["", parent]


async def test_messages_reach_the_session_and_extensions_stay_home(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url)
        await until(lambda: app.sockets)
        await app.sockets[0].send_str('{"type":"text","token":"Hi","last":true}')
        await until(lambda: call_.sink.messages)
        assert call_.sink.messages == [Text(token="Hi", last=True)]
        call_.relay.send(TurnEvent(turn="t1", event="accepted"))
        call_.relay.send_audio(b"\1\2")
        call_.relay.send(Dtmf(digit="1"))
        await until(lambda: len(app.received[0]) == 2)
        assert [message["type"] for message in app.received[0]] == ["setup", "dtmf"]
        assert app.binary == [b"\1\2"]


async def test_aclose_lets_the_queue_leave_and_closes_with_1000(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url, extensions=True)
        await until(lambda: app.received and app.received[0])  # the relay, too, knows that it is connected
        for digit in "123":
            call_.relay.send(Dtmf(digit=digit))
        call_.relay.send(Ended(reason="hangup", duration_ms=1))
        await call_.relay.aclose()
        await call_.relay.aclose()
        await until(lambda: app.closed)
        assert [message["type"] for message in app.received[0]] == ["setup", "dtmf", "dtmf", "dtmf", "ended"]
        assert app.closed == [1000]
        assert call_.sink.events == []
        assert call_.stats.connected["demo"] == 0


@pytest.mark.parametrize("code", [1000, 1001])
async def test_close_on_purpose_ends_the_session(dial: Callable[..., Dialled], code: int) -> None:
    async with running_app() as app:
        call_ = dial(app.url)
        await until(lambda: app.sockets)
        await app.sockets[0].close(code=code)
        await until(lambda: call_.sink.events)
        await call_.relay.aclose()  # its task has ended: it does not dial again
        assert call_.sink.events == ["closed"]
        assert len(app.sockets) == 1


@pytest.mark.parametrize("how", ["drop", "1011"])
async def test_broken_line_is_dialled_again_and_resumed(dial: Callable[..., Dialled], how: str) -> None:
    async with running_app() as app:
        call_ = dial(app.url, extensions=True)
        await until(lambda: app.received and app.received[0])
        app.refuse = True
        if how == "drop":
            app.drop()
        else:
            await app.sockets[0].close(code=1011)
        await until(lambda: call_.sink.events)
        call_.relay.send(Dtmf(digit="9"))
        call_.relay.send_audio(b"stale")
        await until(lambda: app.refused >= 2)
        app.refuse = False
        await until(lambda: len(app.received) == 2 and len(app.received[1]) == 2)

        assert call_.sink.events == ["lost", "resumed"]
        assert call_.stats.reconnects == 1, "attempts that fail are none"
        first, second = app.received[0][0], app.received[1][0]
        assert (first["resumed"], second["resumed"]) == (False, True)
        assert first["sessionId"] == second["sessionId"]
        assert second["callStatus"] == "IN_PROGRESS"
        assert app.received[1][1] == {"type": "dtmf", "digit": "9"}
        assert app.binary == []


class NobodyThere(Relay):
    async def _connect(self) -> DialledSocket:
        raise ConnectionRefusedError


@pytest.mark.virtual_time
async def test_nobody_there_is_given_up_once(dial: Callable[..., Dialled]) -> None:
    call_ = dial("ws://manager/", kind=NobodyThere, give_up_s=1.0)
    await asyncio.sleep(2.0)
    assert call_.sink.events[0] == "lost"
    assert call_.sink.events[1].startswith("failed: dialogue manager of route demo lost for")
    assert len(call_.sink.events) == 2
    assert call_.stats.reconnects == 0


@pytest.mark.parametrize("url", ["{app}/not-here?api_key=SECRET", "ws://127.0.0.1:9/?api_key=SECRET"])
async def test_what_is_told_of_a_failure_holds_no_key_of_the_address(
    dial: Callable[..., Dialled], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with running_app() as app:
        call_ = dial(url.format(app=app.url.removesuffix("/")), give_up_s=0.05)
        await until(lambda: call_.sink.events and call_.sink.events[-1] != "lost")
    told = [*call_.sink.events, *(str(vars(record)) for record in caplog.records if record.name.startswith("gateway"))]
    assert "cannot connect" in call_.sink.events[-1]
    assert not [line for line in told if "SECRET" in line]


async def test_without_reconnect_a_loss_is_the_end(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url, reconnect=False)
        await until(lambda: app.sockets)
        app.drop()
        await until(lambda: call_.sink.events)
        assert call_.sink.events[0].startswith("failed: ")
        assert len(app.sockets) == 1


class DyingManager(Relay):
    """Its lines break as soon as they are up."""

    async def _connect(self) -> DialledSocket:
        return cast(Any, None)

    async def _serve(self, line: Line) -> Ending:
        return Ending.LOST


@pytest.mark.virtual_time
async def test_application_that_dies_on_every_setup_is_given_up(dial: Callable[..., Dialled]) -> None:
    call_ = dial("ws://manager/", kind=DyingManager, give_up_s=1.0)
    await asyncio.sleep(2.0)
    assert call_.sink.events[-1].startswith("failed")
    assert call_.stats.reconnects > 2


class PoisonedManager(Relay):
    """It answers what it is sent, and a second later dies of a message that the next connection brings again."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config, jitter=lambda: 1.0)
        self.dialled_at: list[float] = []
        self.lives_s = 1.0

    async def _connect(self) -> DialledSocket:
        self.dialled_at.append(asyncio.get_running_loop().time())
        return cast(Any, None)

    async def _serve(self, line: Line) -> Ending:
        line._takes('{"type":"text","token":"Yes?","last":true}')
        await asyncio.sleep(self.lives_s)
        return Ending.LOST


@pytest.fixture
def usual_pauses(monkeypatch: pytest.MonkeyPatch, dial: Callable[..., Dialled]) -> None:
    """The pauses of production, for tests on the virtual clock."""
    monkeypatch.setattr("gateway.dialogue.relay.RECONNECT_FIRST_S", RECONNECT_FIRST_S)
    monkeypatch.setattr("gateway.dialogue.relay.RECONNECT_MAX_S", RECONNECT_MAX_S)


def poisoned(dial: Callable[..., Dialled], **config: Any) -> tuple[Dialled, PoisonedManager]:
    made = dial("ws://manager/", kind=PoisonedManager, **config)
    assert isinstance(made.relay, PoisonedManager)
    return made, made.relay


@pytest.mark.virtual_time
@pytest.mark.usefixtures("usual_pauses")
async def test_application_that_a_message_kills_is_dialled_ever_more_seldom_and_given_up(
    dial: Callable[..., Dialled],
) -> None:
    call_, relay = poisoned(dial, give_up_s=30.0)
    await asyncio.sleep(60)
    pauses = [round(later - earlier - 1, 2) for earlier, later in itertools.pairwise(relay.dialled_at)]
    assert pauses == [0.25, 0.5, 1, 2, 4, 5, 5]
    assert len(call_.sink.messages) == len(relay.dialled_at), "it was no dead application: it answered each time"
    assert call_.sink.events[-1].startswith("failed: dialogue manager of route demo lost for 2")


@pytest.mark.virtual_time
@pytest.mark.usefixtures("usual_pauses")
async def test_a_connection_that_lived_makes_the_next_pause_short_again(dial: Callable[..., Dialled]) -> None:
    call_, relay = poisoned(dial, give_up_s=30.0)
    relay.lives_s = 6.0
    await asyncio.sleep(60)
    pauses = [round(later - earlier - 6, 2) for earlier, later in itertools.pairwise(relay.dialled_at)]
    assert set(pauses) == {0.25}
    assert "failed" not in str(call_.sink.events)


async def read_by_app(call: Dialled, app: App, number: int) -> None:
    """Wait until the application has so many messages, and the relay has its pong for them."""
    line = call.relay._line
    assert line is not None
    await until(lambda: len(app.received[0]) == number and not line.leftover())


async def test_silent_address_times_out(dial: Callable[..., Dialled], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dialogue.relay.CONNECT_S", 0.1)
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    call_ = dial(f"ws://127.0.0.1:{port}/", reconnect=False)
    await until(lambda: call_.sink.events)
    assert "no connection within 0.1 s" in call_.sink.events[0]
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def test_what_a_dead_application_had_not_read_goes_to_the_next_one_once(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url)
        await until(lambda: app.received and app.received[0])
        call_.relay.send(Dtmf(digit="1"))
        await read_by_app(call_, app, 2)
        app.drop()
        for digit in "234":  # the relay has not noticed yet, and writes them to a dead socket
            call_.relay.send(Dtmf(digit=digit))
        await until(lambda: len(app.received) == 2 and len(app.received[1]) == 4)
        assert [message.get("digit", message["type"]) for message in app.received[1]] == ["setup", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["http", "socks"])
async def test_a_manager_behind_a_proxy_that_drops_without_a_close_frame_is_dialled_again_and_gets_the_rest(
    dial: Callable[..., Dialled], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(monkeypatch, kind) as (app, proxy):
        call_ = dial(ADDRESS, auth_token="secret")
        await until(lambda: app.received and app.received[0])
        signature = hmac.new(b"secret", ADDRESS.encode(), hashlib.sha1).digest()
        assert base64.b64decode(app.headers[0]["X-Twilio-Signature"]) == signature
        call_.relay.send(Dtmf(digit="1"))
        await read_by_app(call_, app, 2)
        app.drop()
        for digit in "234":
            call_.relay.send(Dtmf(digit=digit))
        await until(lambda: len(app.received) == 2 and len(app.received[1]) == 4)
        assert [message.get("digit", message["type"]) for message in app.received[1]] == ["setup", "2", "3", "4"]
        assert call_.sink.events == ["lost", "resumed"] and call_.stats.reconnects == 1
        assert proxy.asked == ["manager.test:80"] * 2


async def test_the_latency_of_keepalive_pings_reaches_the_session(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url, ping_s=1.0)
        await until(lambda: call_.sink.round_trips_s)
        assert call_.sink.events == []
    assert 0 < call_.sink.round_trips_s[0] < 10


@asynccontextmanager
async def raw_peer(sent_after_accept: bytes = b"") -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A peer that does the handshake by hand and then neither reads nor answers."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key"))
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + sent_after_accept
        )
        writer.transport.pause_reading()
        writers.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", writers
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
            await asyncio.sleep(0)


async def test_peer_that_vanished_is_noticed_by_its_silence(dial: Callable[..., Dialled]) -> None:
    async with raw_peer() as (url, writers):
        call_ = dial(url, ping_s=0.1)
        await until(lambda: "lost" in call_.sink.events)
        await until(lambda: len(writers) >= 2)  # and dialled again


async def test_peer_that_does_not_read_loses_its_audio_first_then_the_line(
    dial: Callable[..., Dialled], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_peer() as (url, _):
        monkeypatch.setattr("gateway.dialogue.relay.QUEUE_MESSAGES", 16)
        call_ = dial(url)
        await until(lambda: call_.stats.connected["demo"])
        block = bytes(500_000)
        while not call_.stats.audio_dropped:
            call_.relay.send_audio(block)
            await asyncio.sleep(0)
        assert call_.sink.events == []
        for _ in range(17):
            call_.relay.send(Dtmf(digit="1"))
        await until(lambda: call_.sink.events)
        assert call_.sink.events[0] == "lost"


async def test_clean_close_without_a_code_is_on_purpose(dial: Callable[..., Dialled]) -> None:
    async with raw_peer(b"\x88\x00") as (url, _):
        call_ = dial(url)
        await until(lambda: call_.sink.events)
        assert call_.sink.events == ["closed"]


async def test_ten_bad_messages_in_a_row_close_with_1007_and_a_good_one_resets(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url, extensions=True)
        await until(lambda: app.sockets)
        for _ in range(9):
            await app.sockets[0].send_str("this is not JSON")
        await app.sockets[0].send_str('{"type":"cancel"}')
        for _ in range(9):
            await app.sockets[0].send_str('{"type":"text","token":null,"turn":"x"}')
        await until(lambda: len(app.received[0]) == 19)
        assert app.closed == []
        await app.sockets[0].send_bytes(b"\0\1")
        await until(lambda: app.closed)

        assert app.closed == [1007]
        errors = app.received[0][1:]
        assert len(errors) == 19
        assert errors[0]["description"].startswith("Invalid message received, code: 64107, this is not JSON")
        assert (errors[9]["field"], errors[9]["turn"], errors[9]["code"]) == ("token", "x", "invalid_message")
        assert "binary message of 2 bytes" in errors[18]["description"]
        assert call_.stats.bad_messages == 19
        await until(lambda: call_.sink.events)
        assert call_.sink.events == ["failed: dialogue manager of route demo sent too many bad messages in a row"]
        assert len(app.sockets) == 1  # it is not dialled again, to do the same once more


async def test_what_the_session_refuses_is_a_bad_message_and_a_bug_of_ours_is_not(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url)
        await until(lambda: app.sockets)
        call_.sink.raises = ProtocolError("commit.turn is x, expected a held turn", field="turn")
        await app.sockets[0].send_str('{"type":"commit","turn":"x"}')
        await until(lambda: len(app.received[0]) == 2)
        assert "expected a held turn" in app.received[0][1]["description"]
        call_.sink.raises = RuntimeError("a bug")
        await app.sockets[0].send_str('{"type":"cancel"}')
        call_.relay.send(Dtmf(digit="1"))
        await until(lambda: len(app.received[0]) == 3)
        assert call_.stats.bad_messages == 1


async def test_oversized_message_breaks_the_line_and_not_the_call(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        call_ = dial(app.url, limits=LimitsConfig(message_bytes=1000))
        await until(lambda: app.sockets)
        await app.sockets[0].send_str("x" * 2000)
        await until(lambda: "resumed" in call_.sink.events)
        assert app.closed == [1009]


async def test_a_message_that_kills_the_application_twice_is_skipped_and_the_next_ones_follow(
    dial: Callable[..., Dialled], caplog: pytest.LogCaptureFixture
) -> None:
    got: list[str] = []
    deaths = 0

    async def handler(request: web.Request) -> web.WebSocketResponse:
        nonlocal deaths
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            event = message.json()
            got.append(event.get("digit", event["type"]))
            if event.get("digit") == "2":  # the program dies before its library answers a ping
                deaths += 1
                assert request.transport is not None
                request.transport.abort()
                return socket
        return socket

    async with served(handler) as url:
        dialled = dial(url)
        for digit in "1223":
            dialled.relay.send(Dtmf(digit=digit))
        await until(lambda: "3" in got, "the message after both that fail")
        skipped = [event for event in dialled.sink.events if event.startswith("skipped")]
        assert skipped == ["skipped: dtmf 2", "skipped: dtmf 3"]
        assert deaths == 4, "each is tried twice"
        assert got.count("1") <= 2 and got[-1] == "3"
        said = [record for record in caplog.records if "skipped" in record.message]
        assert [(record.kind, record.number) for record in said] == [("dtmf", 2), ("dtmf", 3)]
        assert dialled.stats.messages_dropped == 2


async def test_the_same_key_after_each_restart_is_not_taken_for_one_that_fails(dial: Callable[..., Dialled]) -> None:
    async with running_app() as app:
        dialled = dial(app.url)
        await until(lambda: app.received and app.received[0])
        for number in (1, 2, 3):
            app.drop()
            dialled.relay.send(Dtmf(digit="1"))
            await until(lambda number=number: len(app.received) == number + 1 and len(app.received[-1]) == 2)
            assert app.received[-1][1]["digit"] == "1"
        assert not [event for event in dialled.sink.events if event.startswith("skipped")]
