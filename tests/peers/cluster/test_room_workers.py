"""``server.workers: 2`` with named rooms and supervisors: phones on both workers, and what each of them hears."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cluster.siblings import Siblings
from sip_bridge.local import worker_of
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.gateway.call.joined.people import Talker
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.sip_bridge.phone import offer
from tests.waiting import PATIENCE_S, until

CONFIG = """
server: {{workers: 2, drain_s: 60}}
engine: {{kind: tone}}
sip:
  port: {sip}
  rtp_ports: 28000-28199
  trunks: {{phones: {{addresses: [127.0.0.1], answer_at_once: true}}}}
  allowed_targets: ["*@127.0.0.1"]
"""
HZ = (600, 1000, 1400)
TEXT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen."


class Caller:
    """A phone whose call one of the workers has, and its application."""

    def __init__(self, phone: Talker, call: ManagedCall) -> None:
        self.phone = phone
        self.call = call
        self.events: list[tuple[str, str]] = []
        self.codes: list[str] = []
        call.on_message = self._told

    def _told(self, message: Any, now: float) -> None:
        if message["type"] == "room" and message["event"] != "speaking":
            self.events.append((message["leg"], message["event"]))
        elif message["type"] == "error":
            self.codes.append(message["code"])

    @property
    def id(self) -> str:
        return self.call.session_id

    async def until_hears(self, *hz: float) -> None:
        """Wait until it hears these tones now."""
        self.phone.heard.clear()
        await self.phone.until_hears(*hz)

    async def until_quiet(self, *hz: float) -> None:
        """Wait until it hears these tones no more, or nothing at all."""

        async def quiet() -> bool:
            self.phone.heard.clear()
            await asyncio.sleep(0.6)  # longer than what ``hears`` looks at
            return all(self.phone.hears(each) < 0.01 for each in hz)

        await until(quiet, f"no {hz} Hz any more")


class Server:
    """The server with its phones and the manager of their calls."""

    def __init__(self, live: Live, sip: int, stack: AsyncExitStack) -> None:
        self.live = live
        self.sip = sip
        self.stack = stack
        self.manager = SimulatedManager(lambda call: None)

    async def callers(self, *workers: int) -> list[Caller]:
        """Phones whose calls these workers have."""
        found: dict[int, list[Caller]] = {0: [], 1: []}
        while any(len(found[worker]) < workers.count(worker) for worker in found):
            phone = self.phone()
            phone.target = f"sip:+4930200@127.0.0.1:{self.sip}"
            await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
            call = await until(lambda phone=phone: self._call_of(phone), "setup")
            worker = worker_of(phone.to_tag)
            assert worker is not None and int(call.session_id[2:4], 16) == worker
            found[worker].append(Caller(phone, call))
        return [found[worker].pop() for worker in workers]

    def _call_of(self, phone: Talker) -> ManagedCall | None:
        return next((call for call in self.manager.calls.values() if call.call_sid == phone.call_id), None)

    def phone(self) -> Talker:
        return self.stack.enter_context(Talker(self.sip))

    async def ask(self, method: str, path: str, **body: object) -> tuple[int, Any]:
        """Ask over a connection of its own, so that any worker may get the question."""
        async with (
            aiohttp.ClientSession(self.live.http) as http,
            http.request(method, path, json=body or None) as answer,
        ):
            return answer.status, await answer.json() if answer.status != 204 else None

    async def legs(self, name: str) -> list[str]:
        """The legs of a room, as any worker lists them."""
        _, listed = await self.ask("GET", "/v1/rooms")
        return [leg["leg"] for room in listed["rooms"] if room["room"] == name for leg in room["legs"]]


def room_of(worker: int) -> str:
    """A name of a room that this worker has."""
    homes = Siblings(Path(), 0, 2, message_bytes=1, next=_nobody, background=_no_tasks)
    return next(f"team-{n}" for n in range(99) if homes.home_of_room(f"team-{n}") == worker)


async def _nobody() -> int:
    raise AssertionError("no call is placed")


async def _no_tasks() -> list[dict[str, Any]]:
    return []


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Server]:
    async with AsyncExitStack() as stack:
        sip = free_port()
        live = await stack.enter_async_context(serve(folder, CONFIG.format(sip=sip)))
        made = Server(live, sip, stack)
        await made.manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
        stack.push_async_callback(made.manager.aclose)
        yield made
        if live.process.returncode is None:  # else it would wait for phones that say nothing
            _, listed = await made.ask("GET", "/v1/calls")
            for call in listed["calls"]:
                await made.ask("DELETE", f"/v1/calls/{call['callId']}")


@pytest.mark.parametrize("home", [0, 1])
async def test_phones_of_both_workers_hear_each_other_in_one_room(tmp_path: Path, home: int) -> None:
    async with served(tmp_path) as server:
        name = room_of(home)
        path = f"/v1/rooms/{name}/legs"
        callers = await server.callers(0, 1)
        a, b = callers
        for caller in callers:
            status, leg = await server.ask("POST", path, call=caller.id)
            assert (status, leg["leg"], leg["state"]) == (201, caller.id, "present"), leg
        await until(lambda: a.events == [(a.id, "joined"), (b.id, "joined")] and b.events == [(b.id, "joined")])
        for caller, other in ((a, b), (b, a)):  # the bot of each call, while no one speaks
            other.phone.heard.clear()
            turn = caller.call.speak(TEXT)
            await until(lambda other=other: other.phone.loudness() > 300, "the other's bot")
            await until(lambda turn=turn: turn.outcome == "finished", "the end of the turn")

        person = server.phone()
        status, called = await server.ask("POST", path, to=person.uri)
        assert (status, int(called["leg"][2:4], 16)) == (201, home), called
        await person.answers()
        c = called["leg"]
        phones = [a.phone, b.phone, person]
        for phone, hz in zip(phones, HZ, strict=True):
            phone.talk(hz)
        for phone, own in zip(phones, HZ, strict=True):
            await phone.until_hears(*(hz for hz in HZ if hz != own))
            # A gap of a busy machine spreads tones over the spectrum for half a second.
            await until(lambda phone=phone, own=own: phone.hears(own) < 0.01, "none hears himself")
        for _ in range(4):  # whichever worker is asked
            assert await server.legs(name) == [a.id, b.id, c]
        assert await server.live.metric("talkspurt_room_legs") == 3

        for number, muted in enumerate((True, False, True, False)):
            status, changed = await server.ask("PATCH", f"{path}/{a.id}", muted=muted)
            assert (status, changed["muted"]) == (200, muted)
            await (b.until_quiet if muted else b.until_hears)(HZ[0])
            await a.until_hears(HZ[1], HZ[2])
            await until(lambda number=number: b.events.count((a.id, "muted")) == number + 1, "the event")
        b.call.send("mute", leg=a.id)
        await b.until_quiet(HZ[0])
        a.call.send("mute", muted=False)
        await b.until_hears(HZ[0])
        b.call.send("mute", leg="VX00" + "0" * 30)
        await until(lambda: b.codes == ["unknown_leg"])

        assert (await server.ask("DELETE", f"{path}/{b.id}"))[0] == 204
        await a.until_quiet(HZ[1])
        await a.until_hears(HZ[2])
        await until(lambda: b.events[-1] == a.events[-1] == (b.id, "left"))
        turn = b.call.speak(TEXT)
        await until(lambda: turn.outcome == "finished" and b.phone.loudness() > 300, "the bot of the call that left")
        b.call.send("join", room=name, muted=True)
        await b.until_hears(HZ[0], HZ[2])
        b.call.send("leave")
        await b.until_quiet(HZ[0])
        assert (await server.ask("DELETE", f"{path}/{c}"))[0] == 204
        await person.hung_up()
        await until(lambda: (c, "left") in a.events, "the end of the called leg")
        a.call.send("leave")

        async def closed() -> bool:
            return await server.legs(name) == []

        await until(closed, "the end of the room")
        assert not a.codes and not a.call.ended and not b.call.ended


async def test_a_supervisor_joins_by_whichever_worker_is_asked(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for caller in await server.callers(0, 1):
            caller.phone.talk(HZ[0])
            path, person = f"/v1/calls/{caller.id}/supervise", server.phone()
            status, leg = await server.ask("POST", path, mode="listen", to=person.uri)
            assert status == 201, leg
            await person.answers()
            person.talk(HZ[1])
            await person.until_hears(HZ[0])
            for mode in ("join", "listen", "join", "listen"):
                status, changed = await server.ask("PATCH", f"{path}/{leg['leg']}", mode=mode)
                assert (status, changed["mode"]) == (200, mode)
                await (caller.until_hears if mode == "join" else caller.until_quiet)(HZ[1])
            assert (await server.ask("DELETE", f"{path}/{leg['leg']}"))[0] == 204
            await person.hung_up()


@pytest.mark.parametrize("home", [0, 1])
async def test_a_killed_worker_ends_its_calls_and_its_rooms_alone(tmp_path: Path, home: int) -> None:
    async with served(tmp_path) as server:
        # The manager was the first to connect, when no worker had a call: worker 0 has its socket.
        name, callers = room_of(home), await server.callers(0, 0, 1)
        a, b, dead = callers
        for caller, hz in zip(callers, HZ, strict=True):
            assert (await server.ask("POST", f"/v1/rooms/{name}/legs", call=caller.id))[0] == 201
            caller.phone.talk(hz)
        await dead.until_hears(HZ[0], HZ[1])
        os.kill(server.live.worker_pids()[1], signal.SIGKILL)
        if home == 0:
            await until(lambda: a.events[-1] == b.events[-1] == (dead.id, "left"), "a leg that is lost")
            await a.until_hears(HZ[1])
            await b.until_hears(HZ[0])
            assert await server.legs(name) == [a.id, b.id] and not a.codes
            return
        await until(lambda: a.codes == b.codes == ["room_lost"], "a room that is lost")
        assert (a.events[-1], b.events[-1]) == ((a.id, "left"), (b.id, "left"))
        turn = a.call.speak(TEXT)
        await until(lambda: turn.outcome == "finished" and a.phone.loudness() > 300, "the bot again")

        async def joins() -> bool:
            status, answer = await server.ask("POST", f"/v1/rooms/{name}/legs", call=a.id)
            assert (status, answer.get("error", {}).get("code")) in ((503, "worker_gone"), (201, None)), answer
            return bool(status == 201)

        await until(joins, "the worker that came back")
        b.call.send("join", room=name)
        await a.until_hears(HZ[1])
        await b.until_hears(HZ[0])


async def test_a_room_lasts_as_long_as_its_calls_while_the_server_drains(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        a, b = await server.callers(0, 0)
        name = room_of(1)  # whose worker may have no call
        for call in [each for each in server.manager.calls.values() if each.session_id[2:4] == "01"]:
            assert (await server.ask("DELETE", f"/v1/calls/{call.session_id}"))[0] == 204
        for caller, hz in ((a, HZ[0]), (b, HZ[1])):
            assert (await server.ask("POST", f"/v1/rooms/{name}/legs", call=caller.id))[0] == 201
            caller.phone.talk(hz)
        await a.until_hears(HZ[1])
        server.live.process.send_signal(signal.SIGTERM)
        await until(lambda: server.live.status_is("/readyz", 503), "a server that is not ready")
        for _ in range(4):
            await a.until_hears(HZ[1])
            await b.until_hears(HZ[0])
        assert len(server.live.worker_pids()) == 2
        for caller in (a, b):
            await caller.phone.bye()
        await asyncio.wait_for(server.live.process.wait(), PATIENCE_S)
        assert server.live.process.returncode == 0
