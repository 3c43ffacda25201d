"""Dialling in, over real loopback sockets: sharing, loss, strangers; and REST and events beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from gateway.config import DialogueConfig, LimitsConfig, RouteConfig
from gateway.dialogue.dialogues import RouteDialogues
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import DialogueStats
from gateway.dialogue.observers import SUBSCRIBER_MESSAGES, Observers
from gateway.errors import ProtocolError, Rejected
from gateway.principal import ANYONE
from gateway.seams.dialogue import DialogueLink
from gateway.seams.messages import Dtmf, Ended, Text, TurnEvent
from tests.gateway.dialogue.dialogue_fakes import RecordingSink, call, running_app, served
from tests.waiting import until


class Manager:
    """A dialogue manager that dials in."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []
        self.binary: list[bytes] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self.received.append(orjson.loads(message.data))
            else:
                self.binary.append(message.data)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.received if message["type"] == kind]

    async def say(self, session: str | None, kind: str, **fields: Any) -> None:
        named = {"sessionId": session} if session else {}
        await self.socket.send_str(orjson.dumps({"type": kind, **named, **fields}).decode())

    def drop(self) -> None:
        transport = self.socket.get_extra_info("socket")
        transport.shutdown(2)

    def kill(self) -> None:
        """Read nothing more, and vanish."""
        self.task.cancel()
        self.drop()


def dialogues_of(routes: dict[str, RouteConfig]) -> tuple[RouteDialogues, DialogueHub, Observers, DialogueStats]:
    limits, stats, version = LimitsConfig(), DialogueStats(), "0.1.0"
    hub = DialogueHub(routes, limits=limits, stats=stats, version=version)
    observers = Observers(limits=limits)
    made = RouteDialogues(routes, limits=limits, hub=hub, observers=observers, stats=stats, version=version)
    return made, hub, observers, stats


class House:
    """A gateway's dialogues behind a real server."""

    def __init__(self, routes: dict[str, RouteConfig], client: aiohttp.ClientSession) -> None:
        self.dialogues, self.hub, self.observers, self.stats = dialogues_of(routes)
        self.client = client
        self.url = ""
        self.is_allowed: Callable[[web.Request], bool] = lambda request: True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self.hub.handle(request, ANYONE, lambda: self.is_allowed(request))
        except Rejected as exc:
            return web.Response(status=exc.status, text=str(exc))

    async def manager(self, route: str = "demo", *, call_sid: str = "") -> Manager:
        own = f"&callSid={call_sid}" if call_sid else ""
        return Manager(await self.client.ws_connect(f"{self.url}?route={route}{own}"))

    async def attach(self, number: int, route: str = "demo") -> tuple[RecordingSink, DialogueLink]:
        sink = RecordingSink()
        return sink, await self.dialogues.attach(
            call(number, route, call_sid=call_sid(number)), sink, codec="PCMU/8000"
        )


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr("gateway.dialogue.hub.QUEUE_MESSAGES", 16)
    routes = {
        "demo": RouteConfig(),
        "impatient": RouteConfig(dialogue=DialogueConfig(give_up_s=0.3)),
        "out": RouteConfig(dialogue=DialogueConfig(url="ws://x/")),
    }
    async with aiohttp.ClientSession() as client:
        made = House(routes, client)
        async with served(made.handle, "/v1/dialogue") as made.url:
            yield made
            await made.dialogues.aclose()


def session(number: int) -> str:
    return f"VX{number:032x}"


def call_sid(number: int) -> str:
    return f"CA{number:032x}"


async def test_a_socket_that_names_a_call_gets_this_call_and_no_other(house: House) -> None:
    first = await house.manager(call_sid=call_sid(1))
    second = await house.manager(call_sid=call_sid(2))
    await until(lambda: house.stats.connected["demo"] == 2)
    for number in (2, 3, 1):
        await house.attach(number)
    await until(lambda: first.received and second.received)
    assert [message["sessionId"] for message in first.received] == [session(1)]
    assert [message["sessionId"] for message in second.received] == [session(2)]
    everything = await house.manager()
    await until(lambda: everything.received)  # the third has waited
    assert [message["sessionId"] for message in everything.received] == [session(3)]


async def test_sockets_share_new_calls_in_turn_and_every_message_names_its_call(house: House) -> None:
    one, two = await house.manager(), await house.manager()
    await until(lambda: house.stats.connected["demo"] == 2)
    calls = [await house.attach(number) for number in range(4)]
    await until(lambda: len(one.received) == 2 and len(two.received) == 2)
    assert {message["sessionId"] for message in one.received + two.received} == {session(n) for n in range(4)}
    assert one.received[0]["resumed"] is False

    first = int(one.received[0]["sessionId"][2:], 16)
    await one.say(session(first), "text", token="Hi")
    await until(lambda: calls[first][0].messages)
    assert calls[first][0].messages == [Text(token="Hi")]
    calls[first][1].send(Dtmf(digit="4"))
    calls[first][1].send_audio(b"\1\2")
    await until(lambda: one.binary)
    assert one.received[-1] == {"type": "dtmf", "sessionId": session(first), "digit": "4"}
    assert one.binary == [bytes.fromhex(session(first)[2:]) + b"\1\2"]


async def test_a_manager_whose_key_was_revoked_keeps_its_calls_and_gets_no_other(house: House) -> None:
    one, idle = await house.manager(), await house.manager(call_sid=call_sid(9))
    sink, _ = await house.attach(0)
    await until(lambda: one.received)
    house.is_allowed = lambda request: "two" in request.headers
    two = Manager(await house.client.ws_connect(f"{house.url}?route=demo", headers={"two": "1"}))
    await until(lambda: house.stats.connected["demo"] == 3)
    for number in (1, 2, 9):
        await house.attach(number)
    await until(lambda: len(two.received) == 3)
    await one.say(session(0), "text", token="Hi")
    await until(lambda: sink.messages)
    assert len(one.received) == 1 and not idle.received


async def test_calls_of_a_lost_socket_go_to_another(house: House) -> None:
    one = await house.manager()
    await until(lambda: house.stats.connected["demo"] == 1)
    calls = [await house.attach(number) for number in range(3)]
    await until(lambda: len(one.received) == 3)
    two = await house.manager()
    await until(lambda: house.stats.connected["demo"] == 2)
    one.drop()
    await until(lambda: len(two.received) == 3)
    assert all(message["resumed"] and message["callStatus"] == "IN_PROGRESS" for message in two.received)
    assert [sink.events for sink, _ in calls] == [["lost", "resumed"]] * 3
    await two.say(session(2), "cancel")
    await until(lambda: calls[2][0].messages)


async def test_a_manager_of_three_calls_killed_ten_times_misses_no_key_and_gets_none_twice(house: House) -> None:
    links: list[Any] = [house.hub.attach(call(n, "demo"), RecordingSink(), codec="PCMU/8000") for n in range(3)]
    managers: list[Manager] = []

    pressed: list[str] = []

    def all_read() -> bool:
        """Have the managers together read each call's keys, in order and once?"""
        messages = [message for manager in managers for message in manager.of("dtmf")]
        return all([m["digit"] for m in messages if m["sessionId"] == session(n)] == pressed for n in range(3))

    for number in range(11):
        managers.append(await house.manager())
        await until(lambda: len(managers[-1].of("setup")) == 3 and all_read(), "what was not read")
        assert [message["resumed"] for message in managers[-1].of("setup")] == [number > 0] * 3
        if number == 10:
            break
        pressed.append(str(number))
        for link in links:
            link.send(Dtmf(digit=str(number)))
        await until(all_read)
        await until(lambda: not any(link.socket.line.leftover() for link in links), "the pong after it")
        managers[-1].kill()
        for digit in "*#":  # the hub may not have noticed yet
            pressed.append(digit)
            for link in links:
                link.send(Dtmf(digit=digit))
    for manager in managers:
        await manager.socket.close()


async def test_calls_wait_for_a_socket_with_what_was_said_meanwhile(house: House) -> None:
    sink, link = await house.attach(5)
    link.send(Dtmf(digit="1"))
    await until(lambda: sink.events)
    manager = await house.manager()
    await until(lambda: len(manager.received) == 2)
    assert [message["type"] for message in manager.received] == ["setup", "dtmf"]
    assert manager.received[0]["resumed"] is False
    assert sink.events == ["lost", "resumed"]


async def test_call_that_no_manager_takes_is_given_up(house: House) -> None:
    sink, link = await house.attach(5, "impatient")
    await until(lambda: len(sink.events) == 2)
    assert sink.events == ["lost", "failed: no dialogue manager on route impatient within 0.3 s"]
    await link.aclose()


async def test_socket_closed_on_purpose_ends_its_calls(house: House) -> None:
    manager = await house.manager()
    sink, _ = await house.attach(1)
    await until(lambda: manager.received)
    await manager.socket.close(code=1000)
    await until(lambda: sink.events)
    assert sink.events == ["closed"]


async def test_stranger_gets_an_error_and_late_messages_of_an_ended_call_do_not(house: House) -> None:
    manager = await house.manager()
    sink, link = await house.attach(1)
    await until(lambda: manager.received)
    await manager.say(session(9), "cancel")
    await manager.say(None, "cancel")
    await until(lambda: len(manager.of("error")) == 2)
    stranger, nameless = manager.of("error")
    assert (stranger["sessionId"], stranger["field"]) == (session(9), "sessionId")
    assert "sessionId" not in nameless and nameless["field"] == "sessionId"

    link.send(Ended(reason="hangup", duration_ms=1))
    await link.aclose()
    await until(lambda: manager.of("ended"))
    for _ in range(20):
        await manager.say(session(1), "text", token="late")
    await until(lambda: house.stats.late_messages == 20)
    assert len(manager.of("error")) == 2
    assert not manager.socket.closed
    assert sink.messages == []


async def test_bad_messages_of_one_call_name_it_and_close_the_socket_in_the_end(house: House) -> None:
    manager = await house.manager()
    sink, _ = await house.attach(1)
    await until(lambda: manager.received)
    sink.raises = ProtocolError("turn x is unknown", field="turn")
    for _ in range(10):
        await manager.say(session(1), "commit", turn="x")
    await manager.task
    errors = manager.of("error")
    assert len(errors) == 10
    assert (errors[0]["sessionId"], errors[0]["turn"], errors[0]["field"]) == (session(1), "x", "turn")
    assert manager.socket.close_code == 1007


@pytest.mark.parametrize("route", ["", "nowhere", "out"])
async def test_route_that_takes_no_managers_answers_404(house: House, route: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
        await house.manager(route)


async def test_closing_lets_queues_leave_and_takes_nobody_new(house: House) -> None:
    manager = await house.manager()
    _, link = await house.attach(1)
    await until(lambda: manager.received)
    link.send(Ended(reason="shutdown", duration_ms=1))
    await link.aclose()
    await house.dialogues.aclose()
    await manager.task
    assert manager.of("ended") and manager.socket.close_code == 1000
    with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
        await house.manager()


async def test_rest_speaks_in_and_events_come_with_extensions(house: House) -> None:
    async with house.observers.subscribe() as everything:
        manager = await house.manager()
        sink, link = await house.attach(1)
        await until(lambda: manager.received)
        async with house.observers.subscribe(session(1)) as mine:
            house.observers.inject(session(1), b'{"type":"text","token":"from outside"}')
            assert sink.messages == [Text(token="from outside")]
            with pytest.raises(ProtocolError, match="digits"):
                house.observers.inject(session(1), b'{"type":"sendDigits"}')
            link.send(TurnEvent(turn="t1", event="accepted"))
            await link.aclose()
            events = [orjson.loads(text) async for text in mine]
        assert events == [{"type": "turn", "sessionId": session(1), "turn": "t1", "event": "accepted"}]
        house.observers.close()
        assert [orjson.loads(text)["type"] async for text in everything] == ["setup", "turn"]
    for outside in (house.observers.subscribe, lambda name: house.observers.inject(name, b"")):
        with pytest.raises(Rejected, match="no live call"):
            outside(session(1))


async def test_slow_subscriber_loses_the_oldest_and_is_told_how_many(house: House) -> None:
    _, link = await house.attach(1)
    async with house.observers.subscribe(session(1)) as slow:
        for number in range(SUBSCRIBER_MESSAGES + 3):
            link.send(TurnEvent(turn=f"t{number}", event="accepted"))
        await link.aclose()
        events = [orjson.loads(text) async for text in slow]
    assert events[0] == {"type": "dropped", "count": 3}
    assert [events[1]["turn"], len(events)] == ["t3", SUBSCRIBER_MESSAGES + 1]


async def test_route_with_an_address_is_dialled() -> None:
    async with running_app() as app:
        routes = {"demo": RouteConfig(dialogue=DialogueConfig(url=app.url))}
        dialogues, *_ = dialogues_of(routes)
        link = await dialogues.attach(call(1), RecordingSink(), codec="PCMU/8000")
        await until(lambda: app.received and app.received[0])
        await link.aclose()
        await dialogues.aclose()


async def test_a_call_that_cannot_be_told_ends_alone_and_the_socket_serves_the_others(
    house: House,
) -> None:
    bad = RecordingSink()
    await house.dialogues.attach(call(7, "demo", call_sid="a\udcff"), bad, codec="PCMU/8000")
    good, _ = await house.attach(1)
    await asyncio.sleep(0)  # both wait for a manager
    manager = await house.manager()
    await until(lambda: good.ready, "the good call")
    assert bad.events[-1] == "failed: internal error"
    later, _ = await house.attach(2)
    await until(lambda: later.ready, "a later call")
    await until(lambda: len(manager.of("setup")) == 2, "both calls at the manager")
    manager.drop()
    await until(lambda: house.stats.connected["demo"] == 0, "no ghost")
