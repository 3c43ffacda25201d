"""Each background task and thread is ended once from inside while calls talk: it comes back or the process ends, and no
call hears of it."""

import asyncio
import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from talkspurt.build import Gateway
from talkspurt.serving import StopSignal
from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import TestCall
from tests.waiting import until
from tts_engine.supervision import SUPERVISOR, Need, SupervisedThread

CALLS = 30
LONG = "One two three four five six seven eight nine ten eleven twelve."


async def ended_once(made: Gateway) -> set[str]:
    """End every task and thread by a cancellation or an exception. Return their names."""
    names = {state.name for state in SUPERVISOR.states()}
    for each in list(SUPERVISOR._all):
        if isinstance(each, SupervisedThread):
            number = ctypes.c_ulong(each.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(SystemError))
    made.call_parts.uplink._wake.set()  # it has no audio to hear, and an exception comes to a thread that runs
    for task in asyncio.all_tasks():
        if task.get_name() in names:
            task.cancel()
    return names


async def talks(live: Any, number: int, over: asyncio.Event) -> int:
    async with TestCall(live, f"bot{number}", number=number + 1) as call:
        turns = 0
        while not over.is_set():
            assert (await call.spoken(LONG)).outcome == "finished"
            turns += 1
        return turns


async def test_every_background_task_comes_back_or_ends_the_process_and_calls_talk_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fatal: list[str] = []
    monkeypatch.setattr(SUPERVISOR, "on_fatal", fatal.append)
    routes = {f"bot{number}": {"dialogue": {"give_up_s": 60}} for number in range(CALLS)}
    sections: dict[str, Any] = {
        "routes": {"default": {}, **routes},
        "carriers": {"twilio": {"verify": False}},
        "calls": {"folder": f"{tmp_path}/calls"},
        "records": {"database_url": f"sqlite:///{tmp_path}/records.sqlite3"},
        "recording": {"folder": f"{tmp_path}/recordings", "keep_days": 1},
        "sip": {"port": 0, "rtp_ports": "43000-43099", "trunks": {"a": {"addresses": ["127.0.0.0/8"]}}},
    }
    async with api_gateway(tmp_path, clones=False, **sections) as (made, _, url):
        live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
        over = asyncio.Event()
        calls = [asyncio.create_task(talks(live, number, over)) for number in range(CALLS)]
        await until(lambda: len(made.directory) == CALLS, "the calls")

        before = dict(SUPERVISOR.restarts)
        needs = {state.name: state.need for state in SUPERVISOR.states()}
        names = await ended_once(made)
        assert {"pacer", "listener", "SIP endpoint", "voices", "engine's health", "load", "uplink"} <= names
        needs_process = {name for name, need in needs.items() if need is Need.PROCESS}
        assert needs_process == {"pacer", "listener", "SIP endpoint"}
        await until(lambda: set(fatal) == needs_process, "the end of the process")

        waiting_for_work = {"call log"}  # the next record wakes it

        def back() -> bool:
            running = {state.name for state in SUPERVISOR.states() if state.running}
            ended = {name for name, count in SUPERVISOR.restarts.items() if count > before.get(name, 0)}
            return names - needs_process - waiting_for_work <= running & ended

        await until(back, "all others")
        over.set()
        assert all(turns >= 1 for turns in await asyncio.gather(*calls))
        await until(lambda: SUPERVISOR.restarts["call log"] > before.get("call log", 0), "the log's thread")

        async with aiohttp.ClientSession(url) as http:

            async def logged() -> bool:
                async with http.get("/v1/calls?ended=true") as answer:
                    assert answer.status == 200
                async with http.get("/v1/health") as answer:
                    shown = {task["name"]: task["restarts"] for task in (await answer.json())["background"]}
                return shown["load"] >= 1 and shown["call log"] >= 1

            await until(logged, "the state in /v1/health")
    told = {vars(record)["task"] for record in caplog.records if record.message.startswith("background task ended")}
    assert told == names


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
