"""Named rooms, by SIP through a whole gateway: each phone says its tone, and what it hears is looked at by its
spectrum."""

from __future__ import annotations

import asyncio
import json
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from gateway.call.joined import conferences
from gateway.errors import Rejected
from gateway.seams.messages import Background, End, Join, Leave, Mute, Record, RoomEvent, Text, Transfer
from tests.gateway.call.joined.people import Talker, World, world
from tests.gateway.mixing.legs import level_of
from tests.waiting import until

A_HZ, B_HZ, C_HZ = 600, 1000, 1400


class Meeting:
    """The room ``team``: its caller with the bot, and phones that are called."""

    def __init__(self, made: World, http: aiohttp.ClientSession) -> None:
        self.made = made
        self.http = http

    async def ask(self, method: str, path: str, **body: object) -> tuple[int, Any]:
        async with self.http.request(method, f"{self.made.url}{path}", json=body or None) as answer:
            return answer.status, await answer.json() if answer.status != 204 else None

    async def comes(self, phone: Talker, hz: float, **more: object) -> str:
        """A phone is called into the room, answers and speaks; return its leg."""
        status, made = await self.ask("POST", "/v1/rooms/team/legs", to=phone.uri, **more)
        assert (status, made["state"]) == (201, "calling"), made
        await phone.answers()
        phone.talk(hz)
        await until(lambda: self.present(made["leg"]), "the leg")
        return str(made["leg"])

    def present(self, leg: str) -> bool:
        return any(each.name == leg and each.seat is not None for room in self.rooms for each in room.legs)

    @property
    def rooms(self) -> list[conferences.Conference]:
        return list(self.made.made.call_parts.conferences)

    @property
    def caller(self) -> str:
        return self.made.app.session.call_id

    def events(self, leg: str) -> list[str]:
        """The events of a leg that the caller's application receives, except those about speaking."""
        told = [each for each in self.made.app.told if isinstance(each, RoomEvent) and each.leg == leg]
        return [each.event for each in told if each.event != "speaking"]


@asynccontextmanager
async def meeting(folder: Path, **sections: Any) -> AsyncIterator[Meeting]:
    async with world(folder, **sections) as made, aiohttp.ClientSession() as http:
        yield Meeting(made, http)


async def test_three_hear_each_other_and_a_muted_one_is_heard_by_nobody(tmp_path: Path) -> None:
    async with meeting(tmp_path) as made:
        caller, person = made.made.caller, made.made.person
        with made.made.another(codec=8) as third:
            made.made.app.say(Join(room="team"))
            caller.talk(A_HZ)
            b = await made.comes(person, B_HZ)
            c = await made.comes(third, C_HZ)
            await caller.until_hears(B_HZ, C_HZ)
            await person.until_hears(A_HZ, C_HZ)
            await third.until_hears(A_HZ, B_HZ)
            own = ((caller, A_HZ), (person, B_HZ), (third, C_HZ))
            # A gap of a busy machine spreads tones over the spectrum for half a second.
            await until(lambda: all(phone.hears(hz) < 0.01 for phone, hz in own), "none hears himself")
            assert made.events(made.caller) == made.events(b) == made.events(c) == ["joined"]

            status, changed = await made.ask("PATCH", f"/v1/rooms/team/legs/{b}", muted=True)
            assert (status, changed["muted"]) == (200, True)
            await until(lambda: caller.hears(B_HZ) < 0.01 and third.hears(B_HZ) < 0.01, "the muted leg is not heard")
            await person.until_hears(A_HZ, C_HZ)
            made.made.app.say(Mute(leg=b, muted=False))
            made.made.app.say(Mute())
            await caller.until_hears(B_HZ)
            await until(lambda: third.hears(A_HZ) < 0.01, "the caller is muted")
            assert made.events(b) == ["joined", "muted", "muted"]

            await caller.until_hears(C_HZ)  # at more than 0.1
            await made.ask("PATCH", f"/v1/rooms/team/legs/{c}", gainDb=-20)
            await until(lambda: caller.hears(C_HZ) < 0.04, "the quiet leg")

            _, listed = await made.ask("GET", "/v1/rooms")
            (room,) = listed["rooms"]
            assert [(each["leg"], each["muted"], each["gainDb"]) for each in room["legs"]] == [
                (made.caller, True, 0.0), (b, False, 0.0), (c, False, -20.0),
            ]  # fmt: skip

            assert (await made.ask("DELETE", f"/v1/rooms/team/legs/{c}"))[0] == 204
            await third.hung_up()
            await until(lambda: "left" in made.events(c), "the end of the leg")


async def test_the_bot_is_heard_by_all_and_speakers_are_reported(tmp_path: Path) -> None:
    async with meeting(tmp_path) as made:
        made.made.app.say(Join(room="team", muted=True))
        with made.made.another() as third:
            for phone in (made.made.person, third):
                status, _ = await made.ask("POST", "/v1/rooms/team/legs", to=phone.uri)
                assert status == 201
                await phone.answers()
            await until(lambda: len(made.rooms[0].legs) == 3 and all(each.seat for each in made.rooms[0].legs))
            made.made.app.say(Text(token="Good morning. " * 20, last=True))
            await until(lambda: third.loudness() > 300 and made.made.person.loudness() > 300, "the bot")
            third.talk(C_HZ)
            told = made.made.app.told
            await until(lambda: any(isinstance(e, RoomEvent) and e.event == "speaking" for e in told), "a speaker")
            (leg,) = {each.leg for each in told if isinstance(each, RoomEvent) and each.event == "speaking"}
            assert leg == made.rooms[0].legs[2].name == made.rooms[0].speaking


async def test_a_call_that_leaves_is_with_its_bot_again_and_the_room_closes_with_its_last_leg(tmp_path: Path) -> None:
    async with meeting(tmp_path) as made:
        app, session = made.made.app, made.made.app.session
        status, _ = await made.ask("POST", "/v1/rooms/team/legs", call=made.caller)
        assert status == 201
        await made.comes(made.made.person, B_HZ)
        await made.made.caller.until_hears(B_HZ)
        app.say(Leave())
        assert not session.seat.joined and not session.ending.decided and len(made.rooms) == 1
        app.say(Text(token="We are alone.", last=True))
        await until(lambda: made.made.caller.loudness() > 300, "the bot")
        made.rooms[0].remove(made.rooms[0].legs[0])
        await made.made.person.hung_up()
        assert made.rooms == []
        app.say(Join(room="team"))  # and again
        await until(lambda: session.rooms.joined)


async def test_people_talk_on_when_the_bot_has_left_and_the_last_call_ends(tmp_path: Path) -> None:
    async with meeting(tmp_path) as made:
        made.made.app.say(Join(room="team"))
        leg = await made.comes(made.made.person, B_HZ)
        made.made.app.say(End())
        made.made.caller.heard.clear()
        await made.made.caller.until_hears(B_HZ)
        await made.ask("DELETE", f"/v1/rooms/team/legs/{leg}")
        await made.made.caller.hung_up()
        await made.made.app.over()
        assert made.rooms == []


async def test_joins_that_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    async with meeting(tmp_path) as made:
        app = made.made.app
        refusals: list[tuple[dict[str, object], str, int, str]] = [
            ({"call": "VX0"}, "team", 404, "unknown_call"),
            ({"to": "sip:x@192.0.2.1"}, "team", 403, "target_not_allowed"),
            ({"call": made.caller}, "no%20name", 422, "invalid_room"),
            ({"call": made.caller, "to": "x"}, "team", 422, "invalid_body"),
            ({"call": made.caller, "gainDb": 90}, "team", 422, "invalid_body"),
            ({"to": made.made.person.uri, "route": "other"}, "team", 404, "unknown_route"),
        ]
        for body, path, status, code in refusals:
            answer = await made.ask("POST", f"/v1/rooms/{path}/legs", **body)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code), (body, answer)
        assert made.rooms == []
        app.say(Join(room="team"))
        await until(lambda: app.session.rooms.joined)
        app.say(Join(room="other"))
        app.say(Background(source="x.wav"))
        app.say(Mute(leg="VX0"))
        app.say(Leave(room="other"))
        app.say(Transfer(target=made.made.target, mode="bridge"))
        await until(lambda: len(app.errors) == 5, "five errors")
        assert set(app.errors) == {"in_room", "unknown_leg", "unknown_room", "not_supported"}
        path = f"/v1/calls/{made.caller}/supervise"
        status, refused = await made.ask("POST", path, mode="join", to=made.made.person.uri)
        assert (status, refused["error"]["code"]) == (409, "in_room")
        monkeypatch.setattr(conferences, "MOST_LEGS", 1)
        status, refused = await made.ask("POST", "/v1/rooms/team/legs", to=made.made.person.uri)
        assert (status, refused["error"]["code"]) == (429, "room_full")


class Elsewhere:
    """The rooms of another process, which lets no one in until it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.silences: list[bool] = []
        self.closed = 0
        self.name = "team"

    def has(self, name: str) -> bool:
        return name == "team"

    async def join(self, name: str, leg: Any, entered: Callable[[Any], None], *, silent: bool) -> None:
        self.asked.append(name)
        await self.answer
        entered(self)

    def silence(self, silent: bool) -> bool:
        self.silences.append(silent)
        return True

    def close(self) -> None:
        self.closed += 1


async def test_a_call_joins_a_room_of_another_process_once(tmp_path: Path) -> None:
    async with meeting(tmp_path) as made:
        far = made.made.made.call_parts.conferences.far = Elsewhere()
        app, session = made.made.app, made.made.app.session
        app.say(Join(room="team"))
        await until(lambda: far.asked)
        for _ in range(2):  # while the other process has not answered
            status, refused = await made.ask("POST", "/v1/rooms/team/legs", call=made.caller)
            assert (status, refused["error"]["code"]) == (409, "in_room")
        status, refused = await made.ask(
            "POST", f"/v1/calls/{made.caller}/supervise", mode="join", to=made.made.person.uri
        )
        assert (status, refused["error"]["code"]) == (409, "in_room")
        app.say(Record(state="pause"))
        far.answer.set_result(None)
        await until(lambda: session.rooms.joined)
        await until(lambda: far.silences == [True])
        assert made.rooms == [] and far.asked == ["team"]
        session.end("over", hang_up=True)
        await until(lambda: far.closed == 1)


async def test_a_call_that_another_process_refuses_may_join_another_room(tmp_path: Path) -> None:
    async with meeting(tmp_path) as made:
        far = made.made.made.call_parts.conferences.far = Elsewhere()
        app, session = made.made.app, made.made.app.session
        far.answer.set_exception(Rejected("the worker is gone", status=503, code="worker_gone"))
        app.say(Join(room="team"))
        await until(lambda: app.errors == ["worker_gone"])
        assert not session.rooms.joined
        app.say(Join(room="ours"))
        await until(lambda: session.rooms.joined)


async def test_a_recorded_room_has_a_channel_for_each_leg(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    config = {"recording": {"folder": str(folder)}, "routes": {"default": {"recording": True}}}
    async with meeting(tmp_path, **config) as made:
        caller, person = made.made.caller, made.made.person
        caller.talk(A_HZ)
        made.made.app.say(Join(room="team"))
        b = await made.comes(person, B_HZ)
        for _ in range(3):
            person.heard.clear()
            await person.until_hears(A_HZ)
        made.made.app.say(Record(state="pause"))
        for _ in range(3):
            person.heard.clear()
            await person.until_hears(A_HZ)
        _, listed = await made.ask("GET", "/v1/rooms")
        name = listed["rooms"][0]["id"]
        assert listed["rooms"][0]["recorded"]
        assert (await made.ask("GET", f"/v1/recordings/{name}"))[0] == 404, "it is not complete"
        made.rooms[0].remove(made.rooms[0].legs[0])
        await made.ask("DELETE", f"/v1/rooms/team/legs/{b}")
        await until((folder / f"{name}.json").exists, "the end of the recording")
        _, told = await made.ask("GET", f"/v1/recordings/{name}")
        async with made.http.get(f"{made.made.url}/v1/recordings/{name}/audio") as answer:
            assert (answer.status, answer.content_type) == (200, "audio/wav")
            assert await answer.read() == (folder / f"{name}.wav").read_bytes()
        for wrong in (f"RM{0:032x}", made.caller, "RM1", "..%2Fx"):
            status, refused = await made.ask("GET", f"/v1/recordings/{wrong}")
            assert (status, refused["error"]["code"]) == (404, "unknown_recording")
    places = told["legs"]
    assert told == {
        "room": "team",
        "tenant": "default",
        "legs": json.loads((folder / f"{name}.json").read_text())["legs"],
    }
    assert [(each["leg"], each["channel"]) for each in places] == [(made.caller, 2), (b, 3)]
    with wave.open(str(folder / f"{name}.wav")) as file:
        assert (file.getnchannels(), file.getframerate()) == (8, 16000)
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, 8)
    assert len(sound) / 16000 == pytest.approx(places[1]["toS"], abs=0.1)
    pieces = [sound[at : at + 4000] for at in range(0, len(sound) - 3999, 4000)]
    a_alone = [level_of(each[:, 1], A_HZ, 16000) for each in pieces]
    b_alone = [level_of(each[:, 2], B_HZ, 16000) for each in pieces]
    paused = sound[np.flatnonzero(sound[:, 1])[-1] + 1 :]
    assert max(a_alone) == pytest.approx(0.25, rel=0.2) and max(b_alone) == pytest.approx(0.25, rel=0.2)
    assert max(level_of(each[:, 1], B_HZ, 16000) for each in pieces) < 0.01
    assert len(paused) >= 6000, "the caller's leg is silent while its recording is paused"
    assert np.abs(paused[:, 2]).max() > 0.1 * 32768, "the person's leg is not"
    assert not sound[:, 3:].any()
