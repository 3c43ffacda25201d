"""Bad input over real sockets, against a real server: a clear answer to its sender, and nothing for anyone else.

All the while one call talks in the same process; after each test it has missed nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from talkspurt.simulator.manager import ManagedCall, ManagerTurn, SimulatedManager
from tests.peers.live_server import BINARY, CLOSE, TEXT, Live, RawSocket, Refused, TestCall, serve, start_message
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGE_BYTES = 200_000
LEAD_MS = 1000
CONFIG = f"""
server: {{drain_s: 1}}
engine: {{kind: tone}}
carriers: {{twilio: {{verify: false}}}}
# A busy machine may stop for a moment: what one peer does to another is the question. Raw carriers return no marks.
playout: {{lead_ms: {LEAD_MS}, mark_timeout_s: 0.3}}
routes:
  default: {{dialogue: {{give_up_s: 60}}}}
  left: {{dialogue: {{give_up_s: 0.5}}}}
  bystander: {{}}
  slow: {{dialogue: {{ping_s: 600}}}}  # its manager does not read while others are tested
  out:
    dialogue: {{url: "URL", give_up_s: 300, extensions: true}}
    fallback: One moment.
limits: {{setup_timeout_s: 5.0, message_bytes: {MESSAGE_BYTES}, turn_chars: 20000, errors_in_a_row: 10}}
log: {{json_lines: true}}
"""
STREAM = f"MZ{7:032x}"


@dataclass
class World:
    """The server, who talks in it meanwhile, and the manager that it dials for route ``out``."""

    live: Live
    bystander: Bystander
    dialled: list[ManagedCall]
    manager: SimulatedManager
    slow: tuple[RawSocket, RawSocket]
    """A carrier that never reads, and the manager of its call, which talks without end."""


class Bystander:
    """A call that never stops talking, always the same words: what its caller hears has to be that, whole, again and
    again."""

    TEXT = "One two three four five six seven eight nine ten."

    def __init__(self, call: TestCall) -> None:
        self.test_call = call
        self.turns: list[ManagerTurn] = []
        self.gaps = 0
        """Gaps in turns during which the server had its cores: somebody else's bad input kept it from sending."""
        self._waited_s = 0.0
        call.call.on_turn_end = self._turn_ended

    def go_on(self) -> None:
        self._waited_s = self.test_call.live.kept_waiting_s()
        self.turns.append(self.test_call.call.speak(self.TEXT))
        self.test_call.leg.turn_under_way = False

    def _turn_ended(self, turn: ManagerTurn) -> None:
        # With less waiting than the carrier's buffer lasts, a gap is not this machine's.
        if (self.test_call.live.kept_waiting_s() - self._waited_s) * 1000 < LEAD_MS:
            self.gaps += turn.reported.get("gaps", 0)
        self.go_on()

    def check(self) -> None:
        """Every turn but the one under way was heard whole and without a gap."""
        call = self.test_call.call
        ended = [turn for turn in self.turns if turn.outcome]
        assert {turn.outcome for turn in ended} <= {"finished"} and not call.errors
        assert self.gaps == 0
        assert len({turn.reported["audioMs"] for turn in ended}) <= 1
        leg = self.test_call.leg
        assert not leg.violations and leg.closed_at is None
        if ended:
            # The tone engine is deterministic, so each turn is the same row of samples.
            heard, samples = self._heard(), ended[0].reported["audioMs"] * 8
            assert heard[: samples * len(ended)] == heard[:samples] * len(ended)

    def _heard(self) -> bytes:
        """All that the caller got, without the silence between and in turns."""
        leg, heard, at = self.test_call.leg, bytearray(), 0
        for spurt in leg.spurts:
            begin, at = at + spurt.dry_samples, at + spurt.dry_samples + sum(spurt.samples)
            heard += leg.playout.heard[begin:at]
        return bytes(heard)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    dialled: list[ManagedCall] = []
    manager = SimulatedManager(dialled.append)
    url = await manager.listen()
    async with serve(tmp_path_factory.mktemp("bad"), CONFIG.replace("URL", url)) as live:
        async with TestCall(live, "bystander", number=99) as call:
            bystander = Bystander(call)
            bystander.go_on()
            slow = await RawSocket.connect(live.address, "/media/twilio/slow", receive_buffer=4096)
            slow.json(**start_message(98))
            talker = await RawSocket.connect(live.address, "/v1/dialogue?route=slow")
            session = (await talker.message("setup"))["sessionId"]
            for number in range(40):
                talker.json(type="text", sessionId=session, token=f"Number {number} " + "a" * 60, last=True)
            yield World(live, bystander, dialled, manager, (slow, talker))
            slow.abort()
            talker.abort()
            bystander.go_on = lambda: None  # type: ignore[method-assign]
        await until(lambda: live.metric_is("talkspurt_calls_active", 0), "the end of all calls")
    await manager.aclose()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def others_do_not_notice(world: World) -> AsyncIterator[None]:
    yield
    heard = world.bystander.test_call.leg.messages
    await until(lambda: world.bystander.test_call.leg.messages > heard, "more of the bystander's speech")
    world.bystander.check()
    assert await world.live.status("/readyz") == 200


@asynccontextmanager
async def media(world: World, *, route: str = "default", start: bool = True) -> AsyncIterator[RawSocket]:
    """A Twilio stream, started or not; gone without a word at the end."""
    peer = await RawSocket.connect(world.live.address, f"/media/twilio/{route}")
    try:
        if start:
            peer.json(event="connected", protocol="Call", version="1.0.0")
            peer.json(**start_message())
        yield peer
    finally:
        peer.abort()


@asynccontextmanager
async def dialogue(world: World) -> AsyncIterator[tuple[RawSocket, RawSocket, dict[str, Any]]]:
    """A call on route ``default``: its dialogue socket, its media socket, its ``setup``."""
    manager = await RawSocket.connect(world.live.address, "/v1/dialogue?route=default")
    try:
        async with media(world) as carrier:
            yield manager, carrier, await manager.message("setup")
    finally:
        manager.frame(b"\x03\xe8", opcode=CLOSE)
        await manager.closed()


# --- the carrier's side ----------------------------------------------------------------------------------------------

HARMLESS = {
    "not JSON": "{",
    "an array": "[]",
    "null": "null",
    "no event": "{}",
    "an event of a wrong type": json.dumps({"event": ["media"]}),
    "media without media": json.dumps({"event": "media", "streamSid": STREAM}),
    "a payload of a wrong type": json.dumps({"event": "media", "streamSid": STREAM, "media": {"payload": 1}}),
    "broken base64": json.dumps({"event": "media", "streamSid": STREAM, "media": {"payload": "ab*="}}),
    "an unknown event": json.dumps({"event": "video", "streamSid": STREAM}),
    "another stream": json.dumps({"event": "media", "streamSid": "MZ0", "media": {"payload": "//8="}}),
    "a digit that is none": json.dumps({"event": "dtmf", "streamSid": STREAM, "dtmf": {"digit": "12"}}),
    "an unknown mark": json.dumps({"event": "mark", "streamSid": STREAM, "mark": {"name": "never sent"}}),
    "a second start": json.dumps(start_message(8)),
    "not UTF-8": b"\xff\xfe{",
    "a binary message": b"\x00" * 160,
    "nested deeply": "[" * 5000,
}


@pytest.mark.parametrize("what", HARMLESS)
async def test_an_unreadable_media_message_costs_nothing_but_itself(world: World, what: str) -> None:
    async with dialogue(world) as (manager, carrier, setup):
        data = HARMLESS[what]
        opcode = BINARY if what == "a binary message" else TEXT
        carrier.frame(data, opcode=opcode)  # type: ignore[arg-type]
        carrier.json(event="dtmf", streamSid=STREAM, dtmf={"digit": "5"})
        assert (await manager.message("dtmf"))["digit"] == "5"
        manager.json(type="text", sessionId=setup["sessionId"], token="Still here.", last=True)
        assert (await carrier.message("media"))["streamSid"] == STREAM


async def test_too_many_unreadable_media_messages_close_the_socket(world: World) -> None:
    async with media(world, route="bystander") as carrier:
        for _ in range(10):
            carrier.frame("{")
        assert await carrier.closed() == 1007


@pytest.mark.parametrize("fragments", [1, 4])
async def test_an_oversized_media_message_closes_the_socket(world: World, fragments: int) -> None:
    async with media(world) as carrier:
        piece = b"x" * (MESSAGE_BYTES // fragments + 1)
        for number in range(fragments):
            carrier.frame(piece, opcode=0 if number else TEXT, fin=number == fragments - 1)
        assert await carrier.closed() in (1009, 1002)


async def test_a_header_that_promises_an_exabyte_closes_the_socket(world: World) -> None:
    async with media(world) as carrier:
        carrier.raw(RawSocket.head(1 << 60))
        assert await carrier.closed() in (1009, 1002)


@pytest.mark.parametrize(
    "message",
    [
        {"event": "media", "streamSid": STREAM, "media": {"payload": "//8="}},
        {"event": "dtmf", "streamSid": STREAM, "dtmf": {"digit": "1"}},
        {"event": ["start"]},
    ],
    ids=["media", "dtmf", "an event of a wrong type"],
)
async def test_a_stream_that_does_not_start_is_closed_at_the_setup_timeout(
    world: World, message: dict[str, Any]
) -> None:
    async with media(world, start=False) as carrier:
        carrier.json(**message)
        assert await carrier.closed() == 1008


async def test_a_stream_in_a_codec_that_we_lack_is_closed(world: World) -> None:
    async with media(world, start=False) as carrier:
        carrier.json(**start_message(mediaFormat={"encoding": "AMR-WB", "sampleRate": 16000}))
        assert await carrier.closed() == 1002


async def test_who_never_starts_a_stream_or_never_finishes_a_request_is_cut(world: World) -> None:
    async def cut(sent: bytes) -> None:
        host, _, port = world.live.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            try:
                await reader.read()
            except ConnectionError:
                pass
        writer.close()

    async with media(world, start=False) as carrier:
        beginnings = (b"", b"GET /media/twi", b"GET /media/twilio HTTP/1.1\r\nHost: x\r\n", b"GET /heal",
                      b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # fmt: skip
        code, *_ = await asyncio.gather(carrier.closed(), *map(cut, beginnings))
        assert code == 1008


@pytest.mark.parametrize(
    ("path", "status"),
    [("/media/unknown", 404), ("/media/twilio/nowhere", 404), ("/media/", 404), ("/v1/dialogue?route=nowhere", 404),
     ("/v1/dialogue?route=out", 404), ("/media/twilio/%00", 404), ("/media/../healthz", 404)],
)  # fmt: skip
async def test_an_address_that_leads_nowhere_is_refused_before_the_upgrade(
    world: World, path: str, status: int
) -> None:
    with pytest.raises(Refused) as refused:
        await RawSocket.connect(world.live.address, path)
    assert refused.value.status == status


@pytest.mark.parametrize("line", [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"x" * 100_000])
async def test_bytes_that_are_no_request_end_their_connection(world: World, line: bytes) -> None:
    host, _, port = world.live.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE_S):
        try:
            writer.write(line)
            writer.write_eof()
            await reader.read()
        except OSError:  # reset already
            pass
    writer.close()


# --- the dialogue manager's side -------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "not JSON": (lambda sid: "nope", ""),
    "an array": (lambda sid: "[1]", ""),
    "a binary message": (lambda sid: b"\x00\x01", ""),
    "no type": (lambda sid: json.dumps({"sessionId": sid}), "type"),
    "an unknown type": (lambda sid: json.dumps({"type": "sing", "sessionId": sid}), "type"),
    "an unknown call": (lambda sid: json.dumps({"type": "end", "sessionId": "VX" + "0" * 32}), "sessionId"),
    "no call": (lambda sid: json.dumps({"type": "text", "token": "a"}), "sessionId"),
    "a token of a wrong type": (lambda sid: json.dumps({"type": "text", "sessionId": sid, "token": 5}), "token"),
    "last of a wrong type": (
        lambda sid: json.dumps({"type": "text", "sessionId": sid, "token": "a", "last": "yes"}),
        "last",
    ),
    "100,000 characters": (
        lambda sid: json.dumps({"type": "text", "sessionId": sid, "token": "word " * 20_000, "last": True}),
        "token",
    ),
    "an unknown turn": (lambda sid: json.dumps({"type": "commit", "sessionId": sid, "turn": "unknown"}), "turn"),
    "a speed out of range": (
        lambda sid: json.dumps({"type": "text", "sessionId": sid, "token": "a", "speed": 100}),
        "speed",
    ),
    "digits that are none": (lambda sid: json.dumps({"type": "sendDigits", "sessionId": sid, "digits": "a"}), "digits"),
    "a private clip": (
        lambda sid: json.dumps({"type": "play", "sessionId": sid, "source": "https://127.0.0.1/x.wav"}),
        None,  # type: ignore[dict-item]
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_dialogue_message_is_answered_with_what_was_wrong(world: World, what: str) -> None:
    make, where = BAD[what]
    async with dialogue(world) as (manager, carrier, setup):
        manager.frame(make(setup["sessionId"]))
        if where is None:
            event = await manager.message("turn")
            while event["event"] == "accepted":
                event = await manager.message("turn")
            assert event["event"] == "failed" and event["description"]
        else:
            error = await manager.message("error")
            assert error["field"] == where and len(error["description"]) < 2000
        manager.json(type="text", sessionId=setup["sessionId"], token="Still here.", last=True)
        assert (await carrier.message("media"))["streamSid"] == STREAM


async def test_a_repeated_turn_id_is_an_error_and_the_first_turn_goes_on(world: World) -> None:
    async with dialogue(world) as (manager, carrier, setup):
        for _ in range(2):
            manager.json(type="text", sessionId=setup["sessionId"], token="Once.", last=True, turn="a")
        error = await manager.message("error")
        assert error["turn"] == "a" and error["field"] == "turn"
        while (event := await manager.message("turn"))["event"] != "finished":
            assert event["turn"] == "a" and event["event"] in ("accepted", "started")


async def test_ten_bad_dialogue_messages_in_a_row_close_the_socket_and_nine_do_not(world: World) -> None:
    async with dialogue(world) as (manager, carrier, setup):
        for _ in range(9):
            manager.frame("nope")
        manager.json(type="mark", sessionId=setup["sessionId"], name="fine")
        for _ in range(9):
            manager.frame("nope")
        for _ in range(18):
            await manager.message("error")
        manager.frame("nope")
        assert await manager.closed() == 1007


async def test_an_oversized_dialogue_message_closes_its_socket(world: World) -> None:
    async with dialogue(world) as (manager, carrier, setup):
        manager.frame(json.dumps({"type": "text", "sessionId": setup["sessionId"], "token": "x" * MESSAGE_BYTES}))
        assert await manager.closed() == 1009


ODD_TEXTS = {
    "empty": "",
    "blanks": "  \n\t ",
    "emoji": "\U0001f600\U0001f468‍\U0001f469‍\U0001f467",
    "control characters": "a\x00b\x07c\x1b[31m‮ d",
    "mixed scripts": "Hello, мир, 世界, שלום, नमस्ते, สวัสดี!",
    "half a surrogate": "a\ud800b",
    "one word of 5000 letters": "a" * 5000,
    "markup": "<speak>&amp;</speak> </script> ]]>",
    "only punctuation": "... !? -- ,,,",
}


@pytest.mark.parametrize("what", ODD_TEXTS)
async def test_odd_text_ends_its_turn_once_and_the_next_is_spoken(world: World, what: str) -> None:
    async with dialogue(world) as (manager, carrier, setup):
        sid = setup["sessionId"]
        manager.json(type="text", sessionId=sid, token=ODD_TEXTS[what], last=True, turn="odd", preemptible=True)
        ends = []
        refused = asked = False
        while not ends or ends[-1] != ("next", "finished"):
            message = await manager.next_message()
            refused |= message["type"] == "error"
            if not asked and (refused or message["type"] == "turn" and message["event"] != "accepted"):
                asked = True
                manager.json(type="text", sessionId=sid, token="Yes.", last=True, turn="next")
            if message["type"] == "turn" and message["event"] in ("finished", "failed", "interrupted"):
                ends.append((message["turn"], message["event"]))
        assert len(ends) == (1 if refused else 2)


# --- lost connections ------------------------------------------------------------------------------------------------


async def test_a_carrier_lost_before_the_start_leaves_nothing(world: World) -> None:
    calls = await world.live.metric("talkspurt_calls_total")
    async with media(world, start=False):
        pass
    assert await world.live.metric("talkspurt_calls_total") == calls


@pytest.mark.parametrize("state", ["started", "speaking", "holding", "token stream open"])
async def test_a_carrier_lost_ends_the_call_for_its_manager(world: World, state: str) -> None:
    async with dialogue(world) as (manager, carrier, setup):
        sid = setup["sessionId"]
        text = {"type": "text", "sessionId": sid, "token": "A long sentence about nothing at all. ", "turn": "a"}
        if state != "started":
            manager.json(**text, last=state != "token stream open", hold=state == "holding")
        if state in ("speaking", "token stream open"):
            await carrier.message("media")
        carrier.abort()
        ends = []
        while True:
            message = await manager.next_message()
            if message["type"] == "ended":
                break
            if message["type"] == "turn" and message["event"] in ("finished", "failed", "interrupted"):
                ends.append(message["event"])
        assert message["sessionId"] == sid and message["reason"] == "hangup"
        assert ends == ([] if state == "started" else ["interrupted"])
        manager.json(**text, last=True)  # could not know yet: no error
        manager.frame("nope")
        assert (await manager.message("error"))["field"] == ""


@pytest.mark.parametrize("speaking", [False, True])
async def test_a_dialled_in_manager_lost_without_another_ends_the_call(world: World, speaking: bool) -> None:
    manager = await RawSocket.connect(world.live.address, "/v1/dialogue?route=left")
    async with media(world, route="left") as carrier:
        setup = await manager.message("setup")
        if speaking:
            manager.json(type="text", sessionId=setup["sessionId"], token="And so on and so forth.", last=True)
            await carrier.message("media")
        manager.abort()
        assert await carrier.closed() == 1000


async def test_the_calls_of_a_lost_manager_go_to_another(world: World) -> None:
    first = await RawSocket.connect(world.live.address, "/v1/dialogue?route=default")
    async with media(world) as carrier:
        setup = await first.message("setup")
        assert setup["resumed"] is False
        first.abort()
        second = await RawSocket.connect(world.live.address, "/v1/dialogue?route=default")
        resumed = await second.message("setup")
        assert (resumed["resumed"], resumed["sessionId"]) == (True, setup["sessionId"])
        second.json(type="text", sessionId=setup["sessionId"], token="Back again.", last=True)
        await carrier.message("media")
        second.abort()


async def test_a_manager_that_closes_on_purpose_and_leaves_at_once_ends_its_calls(world: World) -> None:
    for _ in range(5):
        first = await RawSocket.connect(world.live.address, "/v1/dialogue?route=default")
        async with media(world) as carrier:
            await first.message("setup")
            second = await RawSocket.connect(world.live.address, "/v1/dialogue?route=default")
            first.close_and_leave()
            assert await carrier.closed() == 1000
            second.frame("nope")  # its answer is the first that this socket gets: it was not handed the call
            assert (await second.next_message())["type"] == "error"
            second.close_and_leave()


@pytest.mark.parametrize("state", ["listening", "speaking"])
async def test_a_dialled_manager_that_is_lost_is_dialled_again(world: World, state: str) -> None:
    world.dialled.clear()
    async with media(world, route="out") as carrier:
        await until(lambda: world.dialled, "the dial-out")
        call = world.dialled[0]
        if state == "speaking":
            call.speak("And so on and so on.")
            await carrier.message("media")
        for socket in list(world.manager.sockets):
            socket._transport.disconnect(graceful=False)  # type: ignore[union-attr]
        await until(lambda: len(world.dialled) == 2, "the second dial-out")
        assert world.dialled[1].session_id == call.session_id
        turn = world.dialled[1].speak("Back again.")
        await until(lambda: turn.outcome, "the end of the turn after the loss")
        assert turn.outcome == "finished"


# --- the slow, and what is left --------------------------------------------------------------------------------------


async def test_after_a_hundred_short_calls_nothing_is_left(world: World) -> None:
    async def short_calls(count: int) -> None:
        for number in range(count):
            async with dialogue(world) as (manager, carrier, setup):
                manager.json(type="text", sessionId=setup["sessionId"], token=f"Call {number}.", last=True)
                await carrier.message("media")
                if number % 2:
                    carrier.json(event="stop", streamSid=STREAM)

    await short_calls(30)
    await until(lambda: world.live.metric_is("talkspurt_calls_active", 2))
    files, memory = world.live.open_files(), world.live.resident_kb()
    await short_calls(100)
    await until(lambda: world.live.metric_is("talkspurt_calls_active", 2))
    await until(lambda: world.live.open_files() <= files, "all sockets closed")
    assert world.live.resident_kb() - memory < 3000


async def test_a_peer_that_never_reads_is_counted_and_bounded(world: World) -> None:
    carrier, manager = world.slow
    await until(lambda: world.live.metric_at_least("talkspurt_send_stalls_total", 1, transport="twilio"), "a stall")
    carrier.abort()
    assert (await manager.message("ended"))["reason"] == "hangup"


async def test_nothing_of_what_was_said_is_in_the_log(world: World) -> None:
    text = world.live.logged()
    assert "unreadable media message" in text
    assert not any(secret in text for secret in (Bystander.TEXT, "Still here", "Back again", "long sentence"))
