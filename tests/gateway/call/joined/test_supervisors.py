"""Supervisors of a call, by SIP through a whole gateway: each phone says its tone, and hears what the mode allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiortc import RTCSessionDescription

from gateway.seams.messages import End, Info, Text, Transfer, TurnEvent
from tests.gateway.call.joined.people import Talker, World, world
from tests.gateway.mixing.legs import level_of, tone
from tests.gateway.webrtc.webrtc_gateway import Phone as Browser
from tests.gateway.webrtc.webrtc_gateway import SilentMicrophone
from tests.waiting import until

A_HZ, B_HZ, S_HZ = 600, 1000, 1400


class Desk:
    """A supervisor's phone, and the requests that its owner makes."""

    def __init__(self, made: World, phone: Talker, http: aiohttp.ClientSession) -> None:
        self.made = made
        self.phone = phone
        self.leg = ""
        self._http = http
        self._path = f"{made.url}/v1/calls/{made.app.session.call_id}/supervise"

    async def ask(self, method: str, path: str = "", **body: object) -> tuple[int, Any]:
        async with self._http.request(method, self._path + path, json=body or None) as answer:
            return answer.status, await answer.json() if answer.status != 204 else None

    async def comes(self, mode: str) -> None:
        """The supervisor is called, answers and speaks."""
        status, made = await self.ask("POST", mode=mode, to=self.phone.uri)
        assert (status, made["mode"], made["state"]) == (201, mode, "calling")
        self.leg = made["leg"]
        await self.phone.answers()
        self.phone.talk(S_HZ)
        await until(lambda: self.made.app.session.supervisors.find(self.leg).present, "the supervisor")

    async def becomes(self, mode: str) -> None:
        status, changed = await self.ask("PATCH", f"/{self.leg}", mode=mode)
        assert (status, changed["mode"]) == (200, mode)

    @property
    def told(self) -> list[str]:
        """The messages about the supervisor that the application has received."""
        return [each.value for each in self.made.app.told if isinstance(each, Info) and each.name == "supervisor"]


@asynccontextmanager
async def desk(folder: Path, **sections: Any) -> AsyncIterator[Desk]:
    async with world(folder, **sections) as made, aiohttp.ClientSession() as http:
        with made.another() as phone:
            yield Desk(made, phone, http)


async def joined(made: World) -> None:
    made.app.say(Transfer(target=made.target, mode="bridge"))
    await made.person.answers()
    await made.app.hears_of("answered")
    made.person.talk(B_HZ)


async def test_each_mode_is_heard_by_its_own_sides(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        caller, person, phone = made.made.caller, made.made.person, made.phone
        await joined(made.made)
        caller.talk(A_HZ)
        await made.comes("listen")
        await phone.until_hears(A_HZ, B_HZ)
        await caller.until_hears(B_HZ)
        assert caller.hears(S_HZ) < 0.01 and person.hears(S_HZ) < 0.01 and phone.hears(S_HZ) < 0.01

        await made.becomes("whisper")
        await person.until_hears(S_HZ, A_HZ)
        caller.heard.clear()
        await caller.until_hears(B_HZ)
        assert caller.hears(S_HZ) < 0.01 and made.told == []

        await made.becomes("join")
        await caller.until_hears(S_HZ, B_HZ)
        await person.until_hears(S_HZ, A_HZ)
        assert made.told == ["join"]

        status, _ = await made.ask("POST", mode="listen", leg=made.leg)  # a second request for the same supervisor
        assert status == 200
        await until(lambda: caller.hears(S_HZ) < 0.01 and person.hears(S_HZ) < 0.01, "the supervisor is not heard")
        assert made.told == ["join", "none"]


async def test_a_takeover_silences_the_bot_and_its_end_returns_the_caller(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        app, caller = made.made.app, made.made.caller
        app.say(Text(token="This sentence is long enough to be cut. " * 8, last=True, turn="t1"))
        await until(lambda: caller.loudness() > 300, "the bot")
        await made.comes("takeover")
        await caller.until_hears(S_HZ)
        assert made.told == ["takeover"] and app.session.turns.speaking() is None
        app.say(Text(token="No one hears this.", last=True, turn="t2"))
        app.say(End())
        status, _ = await made.ask("DELETE", f"/{made.leg}")
        assert status == 204
        await app.over()  # the bot has left meanwhile
        events = [each.event for each in app.told if isinstance(each, TurnEvent) and each.turn == "t2"]
        assert "started" not in events and events[-1] == "interrupted"


async def test_the_caller_goes_on_with_a_supervisor_when_the_application_is_lost(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        session = made.made.app.session
        await made.comes("takeover")
        session.on_dialogue_failed("lost")
        made.made.caller.heard.clear()
        await made.made.caller.until_hears(S_HZ)
        assert not session.ending.decided
        made.made.app.session.supervisors.remove(made.leg)
        await made.made.app.over()


async def test_a_browser_takes_over(tmp_path: Path) -> None:
    async with desk(tmp_path, webrtc={"addresses": ["127.0.0.1"]}) as made:
        caller, browser = made.made.caller, Browser(microphone=SilentMicrophone(tone(S_HZ, 48000, 60.0)), channel=False)
        try:
            status, answer = await made.ask("POST", mode="takeover", offer=await browser.offer())
            assert (status, answer["state"]) == (201, "calling"), answer
            await browser.connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
            caller.talk(A_HZ)
            await caller.until_hears(S_HZ)
            await until(lambda: level_of(browser.pcm[-24_000:], A_HZ, 48000) > 0.1, "the caller at the browser")
            assert level_of(browser.pcm[-24_000:], S_HZ, 48000) < 0.01 and made.told == ["takeover"]
        finally:
            await browser.close()
        await until(lambda: made.told == ["takeover", "none"], "the browser's end")
        assert not made.made.app.session.ending.decided


async def test_the_callers_end_ends_the_supervisor(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        await made.comes("join")
        await made.made.caller.bye()
        await made.phone.hung_up()
        await made.made.app.over()


async def test_requests_that_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        for body, status, code in [
            ({"mode": "whisper", "to": made.phone.uri}, 409, "no_person"),
            ({"mode": "join", "to": "sip:x@192.0.2.1"}, 403, "target_not_allowed"),
            ({"mode": "join"}, 422, "invalid_body"),
            ({"mode": "shout", "to": made.phone.uri}, 422, "invalid_body"),
            ({"mode": "join", "leg": "VX0"}, 404, "unknown_leg"),
        ]:
            answer = await made.ask("POST", **body)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code), (body, answer)
        assert (await made.ask("DELETE", "/VX0"))[0] == 404
        assert (await made.ask("GET"))[1] == {"supervisors": []}


async def test_a_supervisor_who_is_busy_is_forgotten_and_recorded(tmp_path: Path) -> None:
    async with desk(tmp_path, calls={"folder": str(tmp_path / "calls")}) as made:
        session = made.made.app.session
        await made.ask("POST", mode="join", to=made.phone.uri)
        invite = await made.phone.next("INVITE")
        made.phone.replies(invite, 486)
        await until(lambda: not session.supervisors.views(), "the refusal")
        assert session.stats.journal is not None
        record = session.record(failed=False)
        assert record is not None
        assert [each.event for each in record.entries if each.kind == "supervised"] == ["failed"]


@pytest.mark.parametrize(("key", "status"), [("other", 404), ("caller", 403), ("boss", 201)])
async def test_tenants_and_scopes(tmp_path: Path, key: str, status: int) -> None:
    keys = [
        {"key": "boss", "tenant": "one", "scopes": ["supervise"]},
        {"key": "caller", "tenant": "one", "scopes": ["calls", "read"]},
        {"key": "other", "tenant": "two"},
    ]
    async with desk(tmp_path, auth={"api_keys": keys}, routes={"default": {"tenant": "one"}}) as made:
        made._http.headers["Authorization"] = f"Bearer {key}"
        answer = await made.ask("POST", mode="listen", to=made.phone.uri)
        assert answer[0] == status, answer
