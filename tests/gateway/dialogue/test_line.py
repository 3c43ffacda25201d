"""A dialogue's line and a call's end of it, with a scripted peer and on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import orjson
import pytest

from gateway.dialogue.line import (
    CLOSE_REASON,
    CLOSE_TIMEOUT_S,
    MALFORMED_REASON,
    MESSAGES_AT_ONCE,
    CallLink,
    DialogueStats,
    Ending,
    Line,
    WebSocket,
    setup_of,
)
from gateway.errors import ProtocolError
from gateway.seams.messages import Dtmf, TurnEvent
from tests.gateway.dialogue.dialogue_fakes import RecordingSink, call

pytestmark = pytest.mark.virtual_time


class Peer:
    """The WebSocket: gives what the test has put in, keeps what comes out, and stands still when told to."""

    def __init__(self) -> None:
        self.sent: list[str | bytes] = []
        self.closed: list[tuple[int, bytes]] = []
        self.reads = asyncio.Event()
        """Unset: the peer does not read, and what is sent stays on the way."""
        self.reads.set()
        self.answers_close = True
        self.answers_pings = True
        self.pings: list[bytes] = []
        self.pongs: list[bytes] = []
        self.gone = False
        self._messages: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue()

    def says(self, *texts: str) -> None:
        for text in texts:
            self._messages.put_nowait(aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, text, None))

    def shows(self, kind: aiohttp.WSMsgType, data: Any = None) -> None:
        self._messages.put_nowait(aiohttp.WSMessage(kind, data, None))

    async def receive(self) -> aiohttp.WSMessage:
        return await self._messages.get()

    async def send_str(self, text: str) -> None:
        await self._send(text)

    async def send_bytes(self, data: bytes) -> None:
        await self._send(data)

    async def _send(self, data: str | bytes) -> None:
        await self.reads.wait()
        if self.gone:
            raise ConnectionResetError
        self.sent.append(data)

    async def ping(self, payload: bytes) -> None:
        await self.reads.wait()
        self.pings.append(payload)
        if self.answers_pings:
            self.shows(aiohttp.WSMsgType.PONG, payload)

    async def pong(self, payload: bytes) -> None:
        self.pongs.append(payload)

    async def close(self, *, code: int, message: bytes) -> None:
        self.closed.append((code, message))
        if not self.answers_close:
            await asyncio.Event().wait()

    def get_extra_info(self, name: str) -> None:
        return None


class End:
    """Our end of the line: ``bad`` texts are refused, ``bug`` breaks us, everything else is good."""

    def __init__(self, *, queue_messages: int = 4, errors_in_a_row: int = 3) -> None:
        self.peer = Peer()
        self.stats = DialogueStats()
        self.accepted: list[str] = []
        self.line = Line(
            cast(WebSocket, self.peer),
            queue_messages=queue_messages,
            errors_in_a_row=errors_in_a_row,
            stats=self.stats,
            accept=self._accept,
            refuse=lambda frame, reason: self.line.put("VX1", f"error: {reason}"),
        )
        self.running = asyncio.create_task(self.line.run())

    def _accept(self, text: str) -> None:
        if text == "bad":
            raise ProtocolError("it is bad")
        if text == "bug":
            raise ZeroDivisionError
        self.accepted.append(text)

    async def ending(self, *, within_s: float) -> Ending:
        """Wait for the line's ending; of these seconds none passes on the clock of this machine."""
        async with asyncio.timeout(within_s):
            return await self.running


async def settled() -> None:
    """All that can happen at this moment has happened."""
    await asyncio.sleep(0.001)


async def test_what_is_queued_leaves_in_order_before_the_line_is_closed() -> None:
    end = End()
    end.line.put("VX1", "one")
    end.line.put("VX1", b"sound")
    end.line.put("VX2", "two")
    end.line.finish()
    assert await end.ending(within_s=0.001) is Ending.FINISHED
    assert end.peer.sent == ["one", b"sound", "two"]
    assert end.peer.closed[0] == (1000, CLOSE_REASON)
    assert end.line.leftover() == []


@pytest.mark.parametrize(
    ("kind", "code", "ending"),
    [
        (aiohttp.WSMsgType.CLOSE, 1000, Ending.CLOSED),
        (aiohttp.WSMsgType.CLOSE, 1001, Ending.CLOSED),
        (aiohttp.WSMsgType.CLOSE, 0, Ending.CLOSED),
        (aiohttp.WSMsgType.CLOSE, 1011, Ending.LOST),
        (aiohttp.WSMsgType.CLOSED, None, Ending.LOST),
        (aiohttp.WSMsgType.ERROR, None, Ending.LOST),
    ],
)
async def test_only_a_close_on_purpose_is_one(kind: aiohttp.WSMsgType, code: int | None, ending: Ending) -> None:
    end = End()
    end.peer.says("hello")
    end.peer.shows(kind, code)
    assert await end.ending(within_s=1) is ending
    assert end.accepted == ["hello"]


async def test_bad_messages_are_answered_and_only_too_many_in_a_row_end_the_line() -> None:
    end = End(errors_in_a_row=3, queue_messages=20)
    end.peer.says("bad", "bad", "good", "bad")
    end.peer.shows(aiohttp.WSMsgType.BINARY, b"\1\2")
    await settled()
    assert not end.running.done()
    assert end.accepted == ["good"]
    end.peer.says("bad", "never read")
    assert await end.ending(within_s=1) is Ending.MALFORMED
    assert [str(text).split(":")[0] for text in end.peer.sent] == ["error"] * 5
    assert "binary message of 2 bytes" in str(end.peer.sent[3])
    assert end.peer.closed[0] == (1007, MALFORMED_REASON)
    assert end.stats.bad_messages == 5
    assert end.accepted == ["good"]


async def test_what_comes_at_once_is_taken_in_rows_between_which_frames_leave() -> None:
    end = End()
    await settled()
    end.peer.says(*map(str, range(5 * MESSAGES_AT_ONCE)))
    rows = []
    while not end.running.done() and len(end.accepted) < 5 * MESSAGES_AT_ONCE:
        taken = len(end.accepted)
        await asyncio.sleep(0)
        rows.append(len(end.accepted) - taken)
    assert max(rows) == MESSAGES_AT_ONCE and sum(rows) == 5 * MESSAGES_AT_ONCE, rows
    end.running.cancel()


async def test_a_bug_of_ours_in_one_message_is_no_error_of_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    end = End(errors_in_a_row=1)
    end.peer.says("bug", "good")
    await settled()
    assert end.accepted == ["good"]
    assert end.peer.sent == []
    assert caplog.messages == ["dialogue message failed"]
    end.running.cancel()


async def test_a_full_queue_loses_its_oldest_sound_and_no_text() -> None:
    end = End(queue_messages=3)
    end.peer.reads.clear()
    end.line.put("VX1", "on its way")
    await settled()
    for payload in ("one", b"old", b"new", "two", b"newest", "three"):
        end.line.put("VX1", payload)
    end.line.put("VX1", b"no room")
    assert end.stats.audio_dropped == 4
    assert not end.running.done()
    end.peer.reads.set()
    end.line.finish()
    assert await end.ending(within_s=1) is Ending.FINISHED
    assert end.peer.sent == ["on its way", "one", "two", "three"]


async def test_a_peer_that_does_not_read_is_lost_and_its_calls_texts_are_kept() -> None:
    end = End(queue_messages=2)
    end.peer.reads.clear()
    end.line.put("VX1", "on its way")
    await settled()
    for session_id, text in (("VX1", "one"), ("VX2", "two"), ("VX1", "three")):
        end.line.put(session_id, text)
    assert await end.ending(within_s=1) is Ending.LOST
    assert end.line.leftover() == [("VX1", "on its way"), ("VX1", "one"), ("VX2", "two"), ("VX1", "three")]


async def test_what_no_pong_covers_was_not_read_and_is_left_over() -> None:
    end = End()
    end.line.put("VX1", "read")
    await settled()
    end.peer.answers_pings = False
    end.line.put("VX1", "one")
    end.line.put("VX1", b"sound")
    await settled()
    end.line.put("VX2", "two")
    await settled()
    assert end.peer.sent == ["read", "one", b"sound", "two"]
    assert len(end.peer.pings) == 2  # one at a time: none for "two" before that for "one" is answered
    end.peer.shows(aiohttp.WSMsgType.PONG, b"")  # of a heartbeat
    end.peer.shows(aiohttp.WSMsgType.PONG, end.peer.pings[0])  # a second time
    end.peer.shows(aiohttp.WSMsgType.CLOSED)
    assert await end.ending(within_s=1) is Ending.LOST
    assert end.line.leftover() == [("VX1", "one"), ("VX2", "two")]


async def test_a_pong_covers_what_left_before_its_ping_and_no_more() -> None:
    end = End()
    end.peer.answers_pings = False
    end.line.put("VX1", "one")
    await settled()
    end.line.put("VX1", "two")
    await settled()
    end.peer.shows(aiohttp.WSMsgType.PONG, end.peer.pings[0])
    await settled()
    assert len(end.peer.pings) == 2
    end.peer.shows(aiohttp.WSMsgType.CLOSED)
    assert await end.ending(within_s=1) is Ending.LOST
    assert end.line.leftover() == [("VX1", "two")]


async def test_a_peer_that_answers_no_ping_keeps_a_bounded_number_unread() -> None:
    end = End(queue_messages=3)
    end.peer.answers_pings = False
    for number in range(9):
        end.line.put("VX1", str(number))
        await settled()
    end.peer.shows(aiohttp.WSMsgType.CLOSED)
    assert await end.ending(within_s=1) is Ending.LOST
    assert end.line.leftover() == [("VX1", "6"), ("VX1", "7"), ("VX1", "8")]


async def test_a_ping_of_the_peer_is_answered() -> None:
    end = End()
    end.peer.shows(aiohttp.WSMsgType.PING, b"hello")
    await settled()
    assert end.peer.pongs == [b"hello"]
    end.running.cancel()


async def test_what_is_replayed_has_room_of_its_own_in_the_queue() -> None:
    end = End(queue_messages=2)
    end.line.replay("VX1", [str(number) for number in range(50)])
    end.line.put("VX1", "new")
    await settled()
    assert end.peer.sent == [*(str(number) for number in range(50)), "new"]
    assert not end.running.done()
    end.running.cancel()


async def test_a_close_frame_behind_a_broken_write_still_says_how_the_line_ended() -> None:
    end = End()
    end.peer.gone = True
    end.line.put("VX1", "too late")
    await settled()
    assert not end.running.done()
    end.peer.shows(aiohttp.WSMsgType.CLOSE, 1000)
    assert await end.ending(within_s=CLOSE_TIMEOUT_S) is Ending.CLOSED


async def test_a_broken_write_without_a_close_frame_is_a_loss_after_a_while() -> None:
    end = End()
    begun = asyncio.get_running_loop().time()
    end.peer.gone = True
    end.line.put("VX1", "too late")
    assert await end.ending(within_s=2 * CLOSE_TIMEOUT_S) is Ending.LOST
    assert asyncio.get_running_loop().time() - begun == pytest.approx(CLOSE_TIMEOUT_S)


async def test_a_peer_that_does_not_answer_our_close_is_not_waited_for() -> None:
    end = End()
    end.peer.answers_close = False
    end.line.finish()
    assert await end.ending(within_s=3 * CLOSE_TIMEOUT_S) is Ending.FINISHED


async def test_a_cancelled_line_leaves_no_task() -> None:
    end = End()
    end.peer.reads.clear()
    end.line.put("VX1", "stuck")
    await settled()
    end.running.cancel()
    await asyncio.wait([end.running])
    assert end.running.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- a call's end


def link(sink: RecordingSink, stats: DialogueStats, *, extensions: bool = True, replay_messages: int = 4) -> CallLink:
    setup = setup_of(call(1, call_status="RINGING"), codec="PCMU/8000", version="0.1.0")
    return CallLink(
        setup, sink, extensions=extensions, multiplexed=True, replay_messages=replay_messages, stats=stats
    )  # fmt: skip


def unsent(end: End) -> list[dict[str, Any]]:
    """Return the messages that wait on a line whose peer reads nothing."""
    return [orjson.loads(text) for _, text in end.line.leftover()[1:]]


async def stuck() -> End:
    end = End(queue_messages=100)
    end.peer.reads.clear()
    end.line.put("VX1", "on its way")
    await settled()
    return end


async def test_what_was_said_without_a_line_follows_the_setup_and_sound_is_gone() -> None:
    sink, stats = RecordingSink(), DialogueStats()
    waiting = link(sink, stats, replay_messages=4)
    for digit in "123456":
        waiting.send(Dtmf(digit=digit))
    waiting.send_audio(b"\1\2")
    end = await stuck()
    waiting.line_up(end.line)
    waiting.send(Dtmf(digit="7"))
    first, *rest = unsent(end)
    assert stats.replayed == 0  # the first line replays nothing: nothing was missed
    assert (first["type"], first["resumed"], first["callStatus"]) == ("setup", False, "RINGING")
    assert [message["digit"] for message in rest] == list("34567")
    assert stats.messages_dropped == 2
    assert (sink.ready, sink.events) == (1, [])
    end.running.cancel()


async def test_a_loss_and_its_end_are_told_once_and_the_next_setup_says_so() -> None:
    sink = RecordingSink()
    lost = link(sink, DialogueStats())
    one, other = await stuck(), await stuck()
    lost.line_up(one.line)
    lost.line_down([])
    lost.line_down([])  # dialled in vain
    lost.send(Dtmf(digit="1"))
    lost.line_up(other.line)
    setup, digit = unsent(other)
    assert (setup["resumed"], setup["callStatus"]) == (True, "IN_PROGRESS")
    assert digit["digit"] == "1"
    assert (sink.ready, sink.events) == (1, ["lost", "resumed"])
    assert lost._stats.replayed == 1
    for end in (one, other):
        end.running.cancel()


async def test_a_setup_that_did_not_leave_is_not_sent_behind_the_next_one() -> None:
    sink = RecordingSink()
    moved = link(sink, DialogueStats())
    slow, other = await stuck(), await stuck()
    moved.line_up(slow.line)
    moved.send(Dtmf(digit="1"))
    moved.line_down([text for _, text in slow.line.leftover()[1:]])
    moved.line_up(other.line)
    assert [message["type"] for message in unsent(other)] == ["setup", "dtmf"]
    for end in (slow, other):
        end.running.cancel()


async def test_after_its_end_a_call_sends_and_reports_nothing() -> None:
    sink = RecordingSink()
    over = link(sink, DialogueStats())
    end = await stuck()
    over.line_up(end.line)
    over.close()
    before = len(unsent(end))
    over.send(Dtmf(digit="1"))
    over.send_audio(b"\1\2")
    over.line_down([])
    assert len(unsent(end)) == before
    assert sink.events == []
    end.running.cancel()


async def test_a_plain_application_is_told_that_a_session_goes_on_and_only_then() -> None:
    plain = link(RecordingSink(), DialogueStats(), extensions=False)
    one, other = await stuck(), await stuck()
    plain.line_up(one.line)
    plain.line_down([])
    plain.line_up(other.line)
    (first,), (second,) = unsent(one), unsent(other)
    assert "resumed" not in first
    assert second == {**first, "callStatus": "IN_PROGRESS", "resumed": True}
    for end in (one, other):
        end.running.cancel()


async def test_a_plain_application_gets_no_extensions() -> None:
    plain = link(RecordingSink(), DialogueStats(), extensions=False)
    end = await stuck()
    plain.line_up(end.line)
    plain.send(TurnEvent(turn="t", event="accepted"))
    assert [message["type"] for message in unsent(end)] == ["setup"]
    end.running.cancel()
