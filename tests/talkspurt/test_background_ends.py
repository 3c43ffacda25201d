"""Each background task and thread is ended once from inside while calls talk: it comes back or the process ends, and no
call hears of it."""

import asyncio
import ctypes
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import trustme

from talkspurt.bench.ports import free_port
from talkspurt.build import Gateway
from talkspurt.serving import StopSignal
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.listener.test_certificates import write
from tests.peers.live_server import TestCall
from tests.waiting import until
from tts_engine.supervision import SUPERVISOR, Need, SupervisedThread

CALLS = 30
LONG = "One two three four five six seven eight nine ten eleven twelve."


def end(name: str, made: Gateway) -> None:
    """End the tasks and threads of a name by a cancellation or an exception."""
    for each in list(SUPERVISOR._all):
        if isinstance(each, SupervisedThread) and each.name == name:
            number = ctypes.c_ulong(each.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(SystemError))
    if name == "uplink":
        made.call_parts.uplink._wake.set()  # it has no audio to hear, and an exception comes to a thread that runs
    for task in asyncio.all_tasks():
        if task.get_name() == name:
            task.cancel()


async def talks(live: Any, number: int, over: asyncio.Event) -> int:
    async with TestCall(live, f"bot{number}", number=number + 1) as call:
        turns = 0
        while not over.is_set():
            assert (await call.spoken(LONG)).outcome == "finished"
            turns += 1
        return turns


@asynccontextmanager
async def talking(
    folder: Path, **more: Any
) -> AsyncIterator[tuple[Gateway, str, list[asyncio.Task[int]], asyncio.Event]]:
    """A gateway, its address, its talking calls and what ends them."""
    routes = {f"bot{number}": {"dialogue": {"give_up_s": 60}} for number in range(CALLS)}
    sections: dict[str, Any] = {
        "routes": {"default": {"recording": True}, "short": {}, **routes},
        "carriers": {"twilio": {"verify": False}},
        "calls": {"folder": f"{folder}/calls"},
        "records": {"database_url": f"sqlite:///{folder}/records.sqlite3"},
        "recording": {"folder": f"{folder}/recordings", "keep_days": 1},
        "sip": {"port": 0, "rtp_ports": "43000-43099", "trunks": {"a": {"addresses": ["127.0.0.0/8"]}}},
    }
    async with api_gateway(folder, clones=False, **(sections | more)) as (made, _, url):
        live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
        over = asyncio.Event()
        calls = [asyncio.create_task(talks(live, number, over)) for number in range(CALLS)]
        await until(lambda: len(made.directory) == CALLS, "the calls")
        yield made, url, calls, over


def restarted(before: Mapping[str, int]) -> set[str]:
    return {name for name, count in SUPERVISOR.restarts.items() if count > before.get(name, 0)}


def running() -> set[str]:
    return {state.name for state in SUPERVISOR.states() if state.running}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(each)["task"] for each in caplog.records if each.message.startswith("background task ended")]


async def test_every_background_task_comes_back_or_ends_the_process_and_calls_talk_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fatal: list[str] = []
    monkeypatch.setattr(SUPERVISOR, "on_fatal", fatal.append)
    async with talking(tmp_path) as (made, url, calls, over):
        before = dict(SUPERVISOR.restarts)
        needs = {state.name: state.need for state in SUPERVISOR.states()}
        names = set(needs)
        for name in names:
            end(name, made)
        assert {"pacer", "listener", "SIP endpoint", "voices", "engine's health", "load", "uplink"} <= names
        needs_process = {name for name, need in needs.items() if need is Need.PROCESS}
        assert needs_process == {"pacer", "listener", "SIP endpoint"}
        await until(lambda: set(fatal) == needs_process, "the end of the process")

        waiting_for_work = {"call log"}  # the next record wakes it
        others = names - needs_process - waiting_for_work
        await until(lambda: others <= running() & restarted(before), "all others")
        over.set()
        assert all(turns >= 1 for turns in await asyncio.gather(*calls))
        await until(lambda: "call log" in restarted(before), "the log's thread")

        async with aiohttp.ClientSession(url) as http:

            async def logged() -> bool:
                async with http.get("/v1/calls?ended=true") as answer:
                    assert answer.status == 200
                async with http.get("/v1/health") as answer:
                    shown = {task["name"]: task["restarts"] for task in (await answer.json())["background"]}
                return shown["load"] >= 1 and shown["call log"] >= 1

            await until(logged, "the state in /v1/health")
    assert set(told(caplog)) == names


async def test_each_background_task_ends_in_turn_and_no_other_part_and_no_call_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fatal: list[str] = []
    monkeypatch.setattr(SUPERVISOR, "on_fatal", fatal.append)
    authority = trustme.CA()
    chain, key = write(authority, tmp_path, "bot.example")
    nowhere = f"127.0.0.1:{free_port()}"
    sections: dict[str, Any] = {
        "records": {
            "database_url": f"sqlite:///{tmp_path}/records.sqlite3",
            "webhook_url": f"http://{nowhere}/",
            "webhook_secret": f"whsec_{'c2VjcmV0' * 6}",
        },
        "sip": {
            "port": 0,
            "tls": {"port": 0, "certificate": chain, "key": key},
            "rtp_ports": "43000-43099",
            "trunks": {"a": {"addresses": ["127.0.0.0/8"], "proxy": f"sip:{nowhere}", "ping_s": 1}},
            "registrations": [{"registrar": f"sip:{nowhere}", "username": "bot"}],
        },
        "carriers": {
            "twilio": {"verify": False},
            "freeswitch": {"esl": {"host": "127.0.0.1", "port": free_port(), "password": "x"}},
        },
    }
    async with talking(tmp_path, **sections) as (made, url, calls, over):
        live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
        async with TestCall(live, "default", number=CALLS + 1, uplink=True) as recorded:
            await until(lambda: "recordings" in running(), "the thread of the recordings")
            needs = {state.name: state.need for state in SUPERVISOR.states()}
            named = ("certificates", f"pings a sip:{nowhere}", "records webhook", "registration", "event socket")
            assert all(any(name.startswith(each) for name in needs) for each in named), needs
            for name, need in needs.items():
                before, sessions = dict(SUPERVISOR.restarts), {call.call_id for call in made.directory}
                caplog.clear()
                end(name, made)
                if name == "call log":  # the next record wakes it
                    async with TestCall(live, "short", number=CALLS + 2) as short:
                        await short.spoken("Hello.")
                if need is Need.PROCESS:
                    await until(lambda name=name: fatal == [name], f"the end of the process by {name}")
                    fatal.clear()
                else:
                    back = {name}
                    await until(lambda back=back, before=before: back <= running() & restarted(before), name)
                assert restarted(before) == {name} and set(told(caplog)) == {name}
                assert sessions <= {call.call_id for call in made.directory}
                async with aiohttp.ClientSession(url) as http, http.get("/readyz") as answer:
                    assert answer.status == 200
            assert (await recorded.spoken(LONG)).outcome == "finished"
            over.set()
            assert all(turns >= 1 for turns in await asyncio.gather(*calls))


async def test_the_end_of_a_task_that_the_process_needs_stops_it_with_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SUPERVISOR, "on_fatal", None)
    stop = StopSignal()

    async def listens() -> None:
        raise RuntimeError("the listening socket is closed")

    SUPERVISOR.task("listener", listens, need=Need.PROCESS)
    await asyncio.wait_for(stop.wait(), 60)
    assert stop.exit_code == 1
    assert capsys.readouterr().err == "talkspurt: the listener has ended, so the server ends\n"
