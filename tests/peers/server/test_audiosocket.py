"""AudioSocket over real sockets: the listener alone, the table of expected calls, and whole calls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import aiohttp
import pytest
import pytest_asyncio

from gateway.call.expected import ExpectedCall, ExpectedCalls
from gateway.config import AudioSocketConfig, LimitsConfig
from gateway.errors import Rejected
from gateway.listener.audiosocket import AudioSocketLeg, AudioSocketServer
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.incoming import IncomingCall
from talkspurt.simulator.audiosocket_leg import SimulatedAudioSocketLeg as Asterisk
from talkspurt.simulator.call_script import CancelStep, Expect, Press, Step, TextStep, Wait
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from talkspurt.simulator.carrier_leg import Leg, SimulatedUplink
from talkspurt.simulator.carriers.audiosocket import AudioSocketCarrier
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S, until

PATIENT_MS = round(1000 * PATIENCE_S)
CALL = UUID(int=7)
FRAME = b"\x10\x01\x40" + bytes(320)


class Listener:
    """The call behind a leg: writes down what reaches it."""

    def __init__(self, leg: AudioSocketLeg, incoming: IncomingCall) -> None:
        self.leg = leg
        self.incoming = incoming
        self.call_id = "VX" + "0" * 32
        self.listening = True
        self.metered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.audio = bytearray()
        self.digits = ""
        self.closed: list[str] = []

    def on_audio(self, payload: bytes) -> None:
        self.audio += payload

    def on_digit(self, digit: str) -> None:
        self.digits += digit

    def on_mark(self, name: str) -> None:
        raise AssertionError("AudioSocket has no marks")

    def on_round_trip(self, seconds: float) -> None: ...

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        self.closed.append(reason)


class Line:
    """A listener without calls, and plain sockets to it."""

    def __init__(self, **config: Any) -> None:
        self.calls: list[Listener] = []
        self.metered = True
        """True if the records of calls are in the file at once."""
        self._writers: list[asyncio.StreamWriter] = []
        self.expected = ExpectedCalls(limit=2, expiry_s=60)
        self.server = AudioSocketServer(
            AudioSocketConfig(port=0, **config),
            LimitsConfig(setup_timeout_s=config.pop("setup", 10), errors_in_a_row=3),
            self.expected,
            self._begin,
        )

    def _begin(self, leg: AudioSocketLeg, incoming: IncomingCall) -> Any:
        self.calls.append(Listener(leg, incoming))
        if self.metered:
            self.calls[-1].metered.set_result(None)
        return cast(Any, self.calls[-1])

    async def __aenter__(self) -> Line:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.aclose()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def open(self, first: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self._writers.append(writer)
        writer.write(first)
        return reader


async def nothing_from(reader: asyncio.StreamReader) -> bool:
    """True if the connection ends, cleanly or not, without a byte."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def hello(call: UUID = CALL) -> bytes:
    return b"\x01\x00\x10" + call.bytes


class Others:
    """The other workers of a server."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.has: ExpectedCall | None = None

    async def live(self, uuid: UUID) -> ExpectedCall | None:
        return self.has

    async def take(self, uuid: UUID) -> ExpectedCall | None:
        self.asked.set()
        await self.answer.wait()
        return ExpectedCall("sales", {"call": str(uuid)})


async def test_a_call_that_was_announced_to_another_worker_waits_until_it_is_known() -> None:
    async with Line() as line:
        line.server.others = others = Others()
        await line.open(hello() + b"\x10\x00\x02\x01\x02" + b"\x03\x00\x015")
        await others.asked.wait()
        assert not line.calls and line.server.opening == 1
        others.answer.set()
        await until(lambda: line.calls and line.calls[0].digits == "5")
        call = line.calls[0]
        assert (call.leg.expected.route, call.incoming.custom_parameters) == ("sales", {"call": str(CALL)})
        assert bytes(call.audio) == b"\x01\x02" and line.server.opening == 0
        others.has = call.leg.expected
        reader = await line.open(hello(UUID(int=8)))
        assert await reader.read() == b"\x00\x00\x00", "another worker has this call already"


async def test_a_call_brings_its_announcement_and_its_audio_and_keys_get_through() -> None:
    async with Line() as line:
        line.expected.put(CALL, ExpectedCall("sales", {"bot": "billing"}))
        reader = await line.open(hello() + b"\x77\x00\x00" + b"\x10\x00\x02\x01\x02" + b"\x03\x00\x015")
        await until(lambda: line.calls and line.calls[0].digits == "5")
        call = line.calls[0]
        assert (call.leg.expected.route, call.incoming.custom_parameters) == ("sales", {"bot": "billing"})
        assert (call.incoming.call_sid, bytes(call.audio)) == (str(CALL), b"\x01\x02")
        assert call.leg.send_frame(b"\x07" * 320, 0.0)
        assert await reader.readexactly(323) == FRAME, "silence keeps the call alive from its start on"
        assert await reader.readexactly(323) == b"\x10\x01\x40" + b"\x07" * 320
        call.leg.hang_up("end")
        assert await reader.read() == b"\0\0\0", "the end of the session, then the end of the connection"
        await until(lambda: call.closed == ["hangup"])


async def test_a_call_gets_not_even_silence_before_its_record_is_in_the_file() -> None:
    async with Line() as line:
        line.metered = False
        line.expected.put(CALL, ExpectedCall("sales", {}))
        reader = await line.open(hello() + b"\x10\x00\x02\x01\x02" + b"\x03\x00\x015")
        await until(lambda: line.calls and line.calls[0].digits == "5")
        first = asyncio.create_task(reader.readexactly(323))
        call = line.calls[0]
        assert call.leg.send_frame(b"\x07" * 320, 0.0), "what the session lets through goes out"
        assert await first == b"\x10\x01\x40" + b"\x07" * 320, "silence came before"
        call.metered.set_result(None)
        await until(lambda: call.leg._keepalive is not None)


async def test_an_unannounced_call_goes_to_the_default_route_or_is_refused() -> None:
    async with Line(route="default") as line:
        await line.open(hello() + FRAME)
        await until(lambda: line.calls)
        assert line.calls[0].leg.expected == ExpectedCall("default")
    async with Line() as line:
        reader = await line.open(hello() + FRAME)
        assert await reader.read() == b"\0\0\0"
        assert not line.calls


async def test_a_call_without_audio_begins_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.listener.audiosocket.FIRST_AUDIO_S", 0.01)
    async with Line(route="default") as line:
        await line.open(hello())
        await until(lambda: line.calls)
        assert line.calls[0].leg.outbound.sample_rate == 8000


async def test_a_uuid_has_one_connection() -> None:
    async with Line(route="default") as line:
        await line.open(hello() + FRAME)
        await until(lambda: line.calls)
        assert line.server.live(CALL)
        reader = await line.open(hello() + FRAME)
        assert await reader.read() == b"\0\0\0"
        assert len(line.calls) == 1
        line.calls[0].leg.hang_up("end")
        await until(lambda: not line.server.live(CALL))


async def test_only_those_who_may_connect_and_not_too_many() -> None:
    async with Line(allowed=("192.0.2.0/24",)) as line:
        reader = await line.open(hello())
        assert await nothing_from(reader)
    async with Line(route="default", connections=1) as line:
        await line.open(hello() + FRAME)
        await until(lambda: line.calls)
        reader = await line.open(hello(UUID(int=8)))
        assert await nothing_from(reader)


async def test_a_connection_that_says_nothing_or_nonsense_is_closed() -> None:
    async with Line(route="default") as line:
        line.server.setup_timeout_s = 0.02
        reader = await line.open()
        assert await reader.read() == b"\0\0\0"
        reader = await line.open(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b"\0\0\0"
        line.server.setup_timeout_s = 10
        await line.open(hello() + FRAME + b"\x10\x00\x01\0" * 2 + FRAME + b"\x10\x00\x01\0" * 3)
        await until(lambda: line.calls and line.calls[0].closed)
        assert len(line.calls[0].audio) == 640, "what was readable between the errors"


async def test_a_peer_that_does_not_read_loses_frames_instead_of_hearing_them_late() -> None:
    async with Line(route="default") as line:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", line.server.port))
        plain.send(hello() + FRAME)
        await until(lambda: line.calls)
        leg = line.calls[0].leg
        sent = 0
        while leg.send_frame(bytes(320), 0.0):
            sent += 1
            await asyncio.sleep(0)
        # Less than two seconds of speech are under way, whatever the kernel adds.
        assert 0 < sent < 100
        plain.close()
        await until(lambda: line.calls[0].closed)


# --- the table ---


def test_an_expected_call_is_forgotten_in_time_and_the_table_is_bounded() -> None:
    now = 100.0
    calls = ExpectedCalls(limit=2, expiry_s=10, now=lambda: now)
    assert calls.put(UUID(int=1), ExpectedCall("a"))
    now = 105.0
    assert calls.put(UUID(int=2), ExpectedCall("b"))
    assert not calls.put(UUID(int=2), ExpectedCall("c")), "said anew"
    with pytest.raises(Rejected) as full:
        calls.put(UUID(int=3), ExpectedCall("d"))
    assert (full.value.status, full.value.retry_after_s) == (503, 5.0)
    now = 110.0
    assert calls.put(UUID(int=3), ExpectedCall("d"))
    assert calls.take(UUID(int=1)) is None
    assert calls.take(UUID(int=2)) == ExpectedCall("c")
    assert calls.take(UUID(int=2)) is None, "once"
    assert len(calls) == 1


# --- the whole gateway ---


PORT = free_port()
CONFIG = f"""
engine: {{kind: tone}}
audiosocket: {{port: {PORT}}}
playout: {{lead_ms: 1000}}  # where the peer buffers; here it must not
routes: {{default: {{}}, talk: {{}}}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("audiosocket"), CONFIG) as running:
        yield running


whole = pytest.mark.asyncio(loop_scope="module")


async def call(live: Live, *steps: Step, **parameters: str) -> SimulatedCaller:
    port = live.address.rpartition(":")[2]
    url = f"audiosocket://127.0.0.1:{PORT}/talk?http={port}"
    caller = SimulatedCaller(CallOptions(url=url, dialect="audiosocket", steps=steps, parameters=parameters))
    await caller.run()
    return caller


def broken(leg: Leg) -> set[str]:
    """Return the violations of the protocol, without fast audio: after a pause this process reads much at once."""
    return set(leg.violations) - {"audio came faster than it can be played"}


@whole
async def test_a_call_is_heard_whole_and_never_early(live: Live) -> None:
    caller = await call(
        live, TextStep("Nothing runs ahead of the caller on this line."), Expect("quiet", PATIENT_MS), x="1"
    )
    report = caller.report()
    assert not broken(caller.leg), "a frame came in two pieces, or of another size"
    assert report["turns"][0]["outcome"] == "finished"
    assert caller._call is not None
    (turn,) = caller._call.turns.values()
    took_ms = (caller.leg.spurts[-1].arrivals[-1] - turn.sent_at) * 1000
    assert 1000 < turn.reported["audioMs"] < took_ms + 300, "never far ahead of the caller"
    assert caller._call.setup["customParameters"] == {"x": "1"}
    assert caller._call.setup["transport"] == "audiosocket"


@whole
@pytest.mark.parametrize("act", [CancelStep(), Press("5")])
async def test_an_interruption_stops_the_frames_and_heard_text_is_what_came(live: Live, act: Step) -> None:
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    caller = await call(
        live, TextStep(words), Expect("speech", PATIENT_MS), Wait(700), act, Expect("quiet", PATIENT_MS)
    )
    report = caller.report()
    turn = report["turns"][0]
    assert turn["outcome"] == "interrupted"
    assert words.startswith(turn["heard"]) and 0 < len(turn["heard"]) < len(words)
    # What the gateway says was heard is what the caller got, but for the frame under way. More came than that: the
    # fade, and the frames of silence that keep an idle line alive.
    assert report["audio_ms"] >= turn["heardMs"] - 20


@whole
async def test_who_is_expected(live: Live) -> None:
    uuid = "6f1d2f0e-52a0-4e0b-8d4d-2f1c3b5a7e90"
    path = f"/v1/calls/expected/{uuid}"
    async with aiohttp.ClientSession(live.http) as http:

        async def put(path: str, body: Any) -> int:
            async with http.put(path, json=body) as answer:
                return answer.status

        assert await put(path, {"route": "talk", "customParameters": {"a": "b"}}) == 201
        assert await put(path, {"route": "talk"}) == 200
        assert await put(path, {"route": "nowhere"}) == 404
        assert await put(path, {"rout": "talk"}) == 422
        assert await put(path, {"customParameters": {"a": 1}}) == 422
        assert await put("/v1/calls/expected/7", {}) == 422
        async with http.delete(path) as answer:
            assert answer.status == 204
        async with http.delete(path) as answer:
            assert answer.status == 404


@whole
async def test_a_call_that_nobody_expects_is_refused_and_counted(live: Live) -> None:
    before = await live.metric("talkspurt_calls_rejected_total", reason="unknown_call")
    leg = Asterisk(AudioSocketCarrier(98, {}))
    await leg.connect(f"audiosocket://127.0.0.1:{PORT}", timeout_s=PATIENCE_S)
    await until(lambda: leg.closed_at is not None)
    assert await live.metric("talkspurt_calls_rejected_total", reason="unknown_call") == before + 1


@whole
async def test_a_live_call_cannot_be_expected_and_rest_ends_it(live: Live) -> None:
    leg = Asterisk(AudioSocketCarrier(99, {}))
    uplink = SimulatedUplink()
    url = f"audiosocket://127.0.0.1:{PORT}/default?http={live.address.rpartition(':')[2]}"
    await leg.connect(url, timeout_s=PATIENCE_S)
    uplink.join(leg)
    async with aiohttp.ClientSession(live.http) as http:

        async def the_call() -> Any:
            async with http.get("/v1/calls") as answer:
                return next((c for c in (await answer.json())["calls"] if c["callSid"] == leg.carrier.call_sid), None)

        await until(the_call)
        view = await the_call()
        async with http.put(f"/v1/calls/expected/{leg.carrier.call_sid}", json={}) as answer:
            assert answer.status == 409
        async with http.delete(f"/v1/calls/{view['callId']}") as answer:
            assert answer.status == 204
    await until(lambda: leg.closed_at is not None)
    uplink.stop()
    assert not broken(leg)


async def test_the_routes_are_there_only_where_the_listener_is(tmp_path: Path) -> None:
    async with serve(tmp_path, "engine: {kind: tone}") as plain:
        assert await plain.status(f"/v1/calls/expected/{CALL}", method="PUT", json={}) == 404
