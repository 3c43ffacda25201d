"""Named rooms and the calls of other workers, over their links. Both workers are in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.call.joined import conferences as joined
from gateway.call.joined.conferences import Conferences, JoinedRoom, Member, RoomLeg
from gateway.call.joined.second_legs import SecondLegs
from gateway.cluster.far_rooms import LinkedRooms
from gateway.cluster.room_door import RoomDoor
from gateway.cluster.room_link import MOST_LATE_S, MOST_WAITING, BotFrame, BotMark, Depart, Drops, LegFrame, RoomLink
from gateway.cluster.siblings import Siblings
from gateway.errors import Rejected
from gateway.media.ticker import Ticker
from gateway.mixing.seat import Seat
from gateway.mixing.sources import Pcm
from gateway.seams.messages import Error, Leave, Mute, Outbound, RoomEvent
from tests.gateway.mixing.legs import G722, PCMA, PCMU, Leg, tone
from tests.waiting import until
from voicecodecs.registry import AudioFormat, encoder

ROUTE = "default"


class Call:
    """A call with its leg, its application, and its place in a room."""

    def __init__(self, name: str, fmt: AudioFormat, *, in_real_time: bool = True) -> None:
        self.media = Leg(fmt, in_real_time=in_real_time)
        self.fmt = fmt
        self.seat = Seat(self.media, fmt)
        self.told: list[Outbound] = []
        self.place: JoinedRoom | None = None
        self.left = 0
        self.alone = 0
        self.leg = RoomLeg(
            name=name, route=ROUTE, seat=self.seat, tell=self.told.append, removed=self._removed, alone=self._alone
        )

    def entered(self, place: JoinedRoom) -> None:
        self.place = place

    @property
    def room(self) -> JoinedRoom:
        assert self.place is not None
        return self.place

    def _removed(self) -> None:
        self.place = None
        self.left += 1

    def _alone(self) -> None:
        self.alone += 1

    @property
    def events(self) -> list[tuple[str, str]]:
        return [
            (each.leg, each.event) for each in self.told if isinstance(each, RoomEvent) and each.event != "speaking"
        ]

    @property
    def errors(self) -> list[str]:
        return [each.code for each in self.told if isinstance(each, Error)]

    async def talk(self, hz: float, seconds: float, ticker: Ticker) -> None:
        pcm, encode = tone(hz, self.fmt.sample_rate, seconds), encoder(self.fmt).encode
        begun, samples = ticker.now(), self.fmt.frame_samples
        for number in range(len(pcm) // samples):
            await asyncio.sleep(max(0.0, begun + number * 0.02 - ticker.now()))
            self.seat.on_audio(encode(pcm[number * samples :][:samples]), ticker.now())


class Tape:
    """A recording of a room that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def hear(self, leg: str, pcm: Pcm, *, bot: bool = False) -> None: ...

    def tick(self, now: float, rate: int) -> None: ...

    def pressed(self, leg: str) -> None:
        self.told.append(("pressed", leg))

    def silence(self, leg: str, silent: bool) -> None:
        self.told.append(("silence", leg, silent))

    def left(self, leg: str) -> None:
        self.told.append(("left", leg))

    def close(self) -> None: ...


class World:
    """Worker 1 with the room ``name``, and worker 0 with calls that join it."""

    def __init__(self, folder: Path) -> None:
        self.ticker = Ticker()
        self.drops = Drops()
        self.tape: Tape | None = None
        self.conferences = Conferences(
            cast(SecondLegs, None), self.ticker, {ROUTE: "shop"}, tape=lambda name, route: self.tape
        )
        self.door = RoomDoor(self.conferences, now=self.ticker.now, drops=self.drops)
        siblings = [Siblings(folder, index, 2, message_bytes=1, next=_nobody, background=_no_tasks) for index in (0, 1)]
        self.name = next(f"team-{n}" for n in range(99) if siblings[0].home_of_room(f"team-{n}") == 1)
        self.socket = siblings[1].room_socket(1)
        far = LinkedRooms(siblings[0], now=self.ticker.now, drops=self.drops)
        self.here = Conferences(cast(SecondLegs, None), self.ticker, {ROUTE: "shop"})
        self.here.far = far
        assert far.has(self.name) and not LinkedRooms(siblings[1], now=self.ticker.now, drops=self.drops).has(self.name)

    async def joins(self, call: Call, *, silent: bool = False) -> None:
        """A call of worker 0 joins."""
        await self.here.join(self.name, call.leg, call.entered, silent=silent)

    def enters(self, call: Call) -> None:
        """A call of worker 1 joins."""
        self.conferences.let_in(self.name, call.leg, call.entered, silent=False)


async def _nobody() -> int:
    raise AssertionError("no call is placed")


async def _no_tasks() -> list[dict[str, Any]]:
    return []


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(folder)
    await made.door.start(made.socket)
    try:
        yield made
    finally:
        await made.door.aclose()
        made.ticker.close()


@pytest.mark.parametrize(("one", "other", "in_real_time"), [(PCMU, PCMA, True), (G722, PCMU, False)])
async def test_a_call_of_another_worker_hears_the_room_and_is_heard(
    tmp_path: Path, one: AudioFormat, other: AudioFormat, in_real_time: bool
) -> None:
    async with world(tmp_path) as made:
        near, far = Call("VX01", one), Call("VX00", other, in_real_time=in_real_time)
        made.enters(near)
        await made.joins(far)
        assert [leg.name for room in made.conferences for leg in room.legs] == ["VX01", "VX00"]
        assert far.seat.joined and near.events == [("VX01", "joined"), ("VX00", "joined")]
        await until(lambda: far.events == [("VX00", "joined")])
        await asyncio.gather(near.talk(600, 1.5, made.ticker), far.talk(1000, 1.5, made.ticker))
        assert near.media.hears(1000) > 0.2 and near.media.hears(600) < 0.01
        assert far.media.hears(600) > 0.2 and far.media.hears(1000) < 0.01
        assert made.drops.sounds == 0

        far.room.on_message(Mute(leg="VX01"))
        far.room.on_message(Mute(leg="VX02"))
        far.room.on_message(Leave(room="other"))
        await until(lambda: far.errors == ["unknown_leg", "unknown_room"])
        assert near.events[-1] == far.events[-1] == ("VX01", "muted")
        far.media.sent.clear()
        await near.talk(600, 0.5, made.ticker)
        assert far.media.sent == []


async def test_the_bots_voice_and_its_marks_come_in_order_and_what_waits_comes_back_at_the_end(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        near, far = Call("VX01", PCMU), Call("VX00", PCMU)
        made.enters(near)
        await made.joins(far)
        frame = encoder(PCMU).encode(tone(600, 8000, 0.02))
        for number in range(10):
            assert far.seat.send_frame(frame, made.ticker.now())
            far.seat.send_mark(f"m{number}")
        await until(lambda: len(far.media.marks) == 10)
        assert [name for name, _ in far.media.marks] == [f"m{number}" for number in range(10)]
        assert [payload for payload, _ in near.media.sent] == [payload for payload, _ in far.media.sent] == 10 * [frame]

        far.seat.send_clear()  # nothing waits
        for _ in range(50):
            far.seat.send_frame(frame, made.ticker.now())
        far.seat.send_mark("end")
        await until(lambda: len(near.media.sent) > 12)
        far.room.leave()
        await until(lambda: far.left == 1)
        await until(lambda: len(far.media.marks) == 11)
        assert len(far.media.sent) == 60, "the rest of the bot's second, without the room"
        assert not far.seat.joined and near.events[-1] == ("VX00", "left") and near.alone == 1
        far.seat.send_frame(b"direct" + frame[6:], made.ticker.now())
        assert far.media.sent[-1][0] == b"direct" + frame[6:]
        assert not made.door.visits


async def test_a_cleared_voice_is_not_heard(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        near, far = Call("VX01", PCMU), Call("VX00", PCMU)
        made.enters(near)
        await made.joins(far)
        for _ in range(50):
            far.seat.send_frame(encoder(PCMU).encode(tone(600, 8000, 0.02)), made.ticker.now())
        await until(lambda: near.media.sent)
        far.seat.send_clear()
        far.seat.send_mark("after")
        await until(lambda: far.media.marks)
        assert len(near.media.sent) < 20


async def test_a_room_refuses_a_call_of_another_worker_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        far = Call("VX00", PCMU)
        monkeypatch.setattr(joined, "MOST_LEGS", 0)
        with pytest.raises(Rejected) as refused:
            await made.joins(far)
        assert (refused.value.status, refused.value.code, refused.value.param) == (429, "room_full", "name")
        assert not far.seat.joined and far.place is None and list(made.conferences) == []
    with pytest.raises(Rejected) as refused:
        await made.joins(far)
    assert (refused.value.status, refused.value.code) == (503, "worker_gone") and refused.value.retry_after_s > 0
    assert not far.seat.joined and far.left == 0


async def test_a_lost_room_and_a_lost_call_are_told_and_the_others_go_on(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        near, far, other = Call("VX01", PCMU), Call("VX00", PCMU), Call("VX00b", PCMU)
        made.enters(near)
        await made.joins(far)
        await made.joins(other)
        cast(Any, other.room).link.abort()  # as when its worker is killed
        await until(lambda: near.events[-1] == far.events[-1] == ("VX00b", "left"))
        await asyncio.gather(near.talk(600, 0.6, made.ticker), far.talk(1000, 0.6, made.ticker))
        assert near.media.hears(1000) > 0.2 and far.media.hears(600) > 0.2
        for visit in list(made.door.visits):
            visit.link.abort()  # as when the room's worker is killed
        await until(lambda: far.left == 1)
        assert far.events[-1] == ("VX00", "left") and far.errors == ["room_lost"] and not far.seat.joined
        assert far.seat.send_frame(b"x" * 160, 0.0) and far.media.sent[-1] == (b"x" * 160, 0.0)


async def test_the_rooms_recording_hides_keys_and_leaves_a_call_out(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.tape = Tape()
        far = Call("VX00", PCMU)
        await made.joins(far, silent=True)
        await until(lambda: far.events)
        assert far.room.silence(False), "the room is recorded"
        far.room.pressed()
        far.room.close()
        await until(lambda: not made.door.visits)
        assert made.tape.told == [
            ("silence", "VX00", True), ("silence", "VX00", False), ("pressed", "VX00"), ("left", "VX00"),
        ]  # fmt: skip
        made.tape = None
        await made.joins(far)
        await until(lambda: len(far.events) == 2)
        assert not far.room.silence(True)
        far.room.close()
        assert far.left == 2 and not far.seat.joined


async def test_a_worker_waits_until_the_calls_of_others_have_left_its_rooms(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        far = Call("VX00", PCMU)
        await made.joins(far)
        await made.door.wait_empty(0.01)
        waiting = asyncio.create_task(made.door.wait_empty(60))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        far.room.close()
        await waiting
        await made.door.wait_empty(0)


class Socket:
    """The transport of a link whose other process reads nothing."""

    def __init__(self) -> None:
        self.written = 0
        self.is_aborted = False

    def writelines(self, frames: list[bytes]) -> None:
        self.written += len(frames)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_while_the_other_process_stands_still_the_oldest_sound_is_dropped_and_nothing_else() -> None:
    drops = Drops()
    socket, link = Socket(), RoomLink(lambda message: None, lambda: None, drops)
    link.connection_made(cast(Any, socket))
    link.post(LegFrame(b"first", 0.0))
    assert socket.written == 1
    link.pause_writing()
    link.post(BotMark("kept"))
    for number in range(MOST_WAITING + 50):
        link.post((LegFrame if number % 2 else BotFrame)(b"%d" % number, 0.0))
    assert (drops.sounds, socket.written) == (51, 1)
    sent: list[object] = []
    link.send = lambda message, **_: sent.append(message)  # type: ignore[method-assign]
    link.resume_writing()
    assert sent[0] == BotMark("kept") and len(sent) == MOST_WAITING
    assert sent[1] == LegFrame(b"51", 0.0) and sent[-1] == LegFrame(b"%d" % (MOST_WAITING + 49), 0.0)
    link.pause_writing()
    for _ in range(MOST_WAITING):
        link.post(Depart())
    assert not socket.is_aborted
    link.post(Depart())
    assert socket.is_aborted, "more than sound waits: the other process is lost"


async def test_stale_sound_is_dropped(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        near, far = Call("VX01", PCMU), Call("VX00", PCMU)
        made.enters(near)
        await made.joins(far)
        far.seat.on_audio(b"\xff" * 160, made.ticker.now() - MOST_LATE_S - 0.1)
        (visit,) = made.door.visits
        visit.link.post(LegFrame(b"\xff" * 160, made.ticker.now() - MOST_LATE_S - 0.1))
        await until(lambda: made.drops.sounds == 2)
        assert far.media.sent == [] and near.media.sent == []


async def test_a_call_that_ends_while_it_joins_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        far = Call("VX00", PCMU)

        def over(place: JoinedRoom) -> None:
            assert not isinstance(place, Member)
            place.close()

        await made.here.join(made.name, far.leg, over, silent=False)
        assert not far.seat.joined and far.left == 1
        await until(lambda: not made.door.visits)
        joining = asyncio.create_task(made.joins(far))
        await asyncio.sleep(0)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        assert not far.seat.joined
        await until(lambda: not made.door.visits)
        assert list(made.conferences) == []
