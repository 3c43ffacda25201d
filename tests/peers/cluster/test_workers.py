"""``server.workers: 2``: real workers on one port, with calls that do not know which one has them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gateway.carriers.signatures import twilio_signature
from talkspurt.config.settings import Config
from talkspurt.engines import engine_for_gateway
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.workers.supervisor import WorkerSupervisor
from tests.peers.live_server import Live, RawSocket, Refused, serve
from tests.talkspurt.workers.test_supervisor import kill_at_once
from tests.waiting import PATIENCE_S, until

CONFIG = """
server: {workers: 2, drain_s: 60}
engine: {kind: tone}
carriers: {twilio: {}}
routes: {default: {tenant: shop}, theirs: {tenant: other}}
auth:
  api_keys:
    - {key: "${TEST_KEY}", tenant: shop, scopes: [speak, calls, read, admin, browser]}
    - {key: "${OTHER_KEY}", tenant: other}
"""
KEY = "a-key-of-the-test-0123456789"
OTHER = "a-key-of-another-tenant-012345"
AUTH = {"Authorization": f"Bearer {KEY}"}
TEXT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen."


class Server:
    """The server, a manager for all calls, and those."""

    def __init__(self, live: Live, http: aiohttp.ClientSession) -> None:
        self.live = live
        self.http = http
        self.manager = SimulatedManager(lambda call: None)
        self.legs: dict[str, CarrierLeg] = {}

    async def calls(self, count: int) -> list[ManagedCall]:
        """Place ``count`` more calls, all at once."""
        known = set(self.manager.calls)
        for number in range(len(self.legs), len(self.legs) + count):
            leg = CarrierLeg(TwilioCarrier(number, {}), record=True)
            await leg.connect(f"{self.live.ws}/media/twilio/default", timeout_s=PATIENCE_S)
            self.legs[f"CA{number:032x}"] = leg
        await until(lambda: len(self.manager.calls) == len(known) + count, "setups")
        return [call for call_id, call in self.manager.calls.items() if call_id not in known]

    async def get(self, path: str, status: int = 200) -> Any:
        """An answer over a connection of its own, so that any worker may get the question."""
        async with aiohttp.ClientSession(self.live.http, headers=AUTH) as http, http.get(path) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Server]:
    config = CONFIG.replace("twilio: {}", "twilio: {verify: false}")
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(serve(folder, config, {"TEST_KEY": KEY, "OTHER_KEY": OTHER}))
        live.headers = AUTH
        http = await stack.enter_async_context(aiohttp.ClientSession(live.http, headers=AUTH))
        made = Server(live, http)
        await made.manager.dial_in(f"{live.ws}/v1/dialogue?route=default", headers=AUTH)
        stack.push_async_callback(made.manager.aclose)
        yield made
        for leg in made.legs.values():
            await leg.aclose()


def owner(call: ManagedCall) -> int:
    return int(call.session_id[2:4], 16)


async def test_every_worker_answers_for_the_calls_of_all(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        calls = await server.calls(6)
        spread = [sum(owner(call) == worker for call in calls) for worker in (0, 1)]
        assert min(spread) >= 2, f"{spread} calls on two workers"
        turns = [call.speak(TEXT) for call in calls]
        await until(lambda: all(turn.reported.get("firstPacketMs") for turn in turns), "sound in every call")

        ids = {call.session_id for call in calls}
        for _ in range(4):  # whichever worker is asked
            assert {view["callId"] for view in (await server.get("/v1/calls"))["calls"]} == ids
            assert (await server.get("/v1/health"))["calls"] == 6
        for call in calls:
            for _ in range(2):
                assert (await server.get(f"/v1/calls/{call.session_id}"))["callSid"] == call.call_sid
        assert await server.live.metric("talkspurt_calls_active") == 6
        assert await server.live.metric("talkspurt_calls_limit") == 500
        await server.get(f"/v1/calls/VX00{'0' * 30}", status=404)
        await server.get(f"/v1/calls/VX01{'0' * 30}", status=404)
        await server.get(f"/v1/calls/VXff{'0' * 30}", status=404)
        async with aiohttp.ClientSession() as http, http.get(f"{server.live.http}/v1/calls") as answer:
            assert answer.status == 401, "a list wants a key, as on one worker"

        # Another tenant joins no call of this one, whichever worker has it and whichever is asked.
        for call in calls[:2] * 2:
            body = {"dialect": "asterisk", "call": call.call_sid, "route": "theirs"}
            other = {"Authorization": f"Bearer {OTHER}"}
            async with (
                aiohttp.ClientSession(server.live.http, headers=other) as http,
                http.post("/v1/calls/attach", json=body) as answer,
            ):
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_call")
            async with aiohttp.ClientSession(server.live.http, headers=other) as http:
                async with http.get(f"/v1/calls/{call.session_id}") as answer:
                    assert answer.status == 404
                async with http.get("/v1/calls") as answer:
                    assert (await answer.json())["calls"] == []

        # A message by REST, its effect in the events of all calls, for a call of each worker.
        async with server.http.get("/v1/events") as events:
            seen = asyncio.create_task(_until_interrupted(events, ids))
            while not seen.done():  # the other worker's events join a moment after the answer has begun
                for call in calls:
                    call.speak(TEXT)
                    async with server.http.post(
                        f"/v1/calls/{call.session_id}/messages", json={"type": "cancel"}
                    ) as answer:
                        assert answer.status == 202
                await asyncio.wait({seen}, timeout=0.5)
            await seen

        # A token for one call is made by the worker that has it, and somebody listens in from elsewhere.
        for call in calls[:2]:
            body = {"scope": "read", "call": call.session_id}
            async with server.http.post("/v1/tokens", json=body) as answer:
                assert (await answer.json())["route"] == "default"
            async with server.http.delete(f"/v1/calls/{call.session_id}") as answer:
                assert answer.status == 204
            await until(lambda call=call: call.ended, "the end of a call")
            assert call.ended == "hangup_by_api"

        # Whichever worker is asked to put a model on trial, all give it their calls, and worker 0 counts them.
        async with server.http.post("/v1/models", json={"id": "next", "kind": "tone"}) as answer:
            assert answer.status == 200, await answer.text()
        async with server.http.put("/v1/trial", json={"model": "next", "percent": 100}) as answer:
            assert answer.status == 200, await answer.text()
        of_first = 0

        async def counts_elsewhere() -> bool:
            nonlocal of_first
            (call,) = await server.calls(1)
            of_first += owner(call) == 0
            return bool((await server.get("/v1/trial"))["calls"] > of_first)

        await until(counts_elsewhere, "a call of worker 1 in the trial")


async def _until_interrupted(events: aiohttp.ClientResponse, ids: set[str]) -> None:
    left = set(ids)
    async for line in events.content:
        if line.startswith(b"data: "):
            message = json.loads(line[6:])
            if message["type"] == "interrupt":
                left.discard(message["sessionId"])
        if not left:
            return


async def test_a_killed_worker_ends_its_own_calls_alone_and_comes_back(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        calls = await server.calls(4)
        for call in calls:
            call.speak(TEXT)
        assert await server.live.metric("talkspurt_calls_active") == 4
        # The manager was the first to connect, when no worker had a call: worker 0 has its socket.
        relay_has, dead = 0, 1
        theirs = [call for call in calls if owner(call) == dead]
        others = [call for call in calls if owner(call) == relay_has]
        assert theirs and others
        before = server.live.worker_pids()
        os.kill(before[dead], signal.SIGKILL)
        await until(lambda: all(call.ended == "worker_lost" for call in theirs), "the end of its calls")
        await until(lambda: all(server.legs[call.call_sid].closed_at for call in theirs), "carriers that know")
        turn = others[0].speak("Still here.")
        await until(lambda: turn.outcome == "finished", "speech on the other worker")
        assert {view["callId"] for view in (await server.get("/v1/calls"))["calls"]} == {
            call.session_id for call in others
        }
        await until(lambda: len(server.live.worker_pids()) == 2, "a new worker")
        assert server.live.worker_pids()[relay_has] == before[relay_has]
        task = f"worker {dead} process"  # it belongs to the supervisor, which answers no requests itself

        async def counted() -> bool:
            shown = {each["name"]: each for each in (await server.get("/v1/health"))["background"]}
            return bool(shown[task]["running"] and shown["engine process"]["running"])

        await until(counted, "the supervisor's tasks in the state of the server")
        assert await server.live.metric("talkspurt_background_restarts_total", task=task) == 1

        async def answers() -> bool:
            async with server.http.get(f"/v1/calls/VX{dead:02x}{'0' * 30}") as answer:
                return answer.status == 404

        await until(answers, "the new worker")
        assert await server.live.metric("talkspurt_calls_active") == len(others)
        assert not any(call.ended for call in others)
        # The manager's socket leads the new worker's calls too.
        await server.calls(1)


async def test_a_server_that_stops_lets_the_calls_of_all_workers_end(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        calls = await server.calls(4)
        assert {owner(call) for call in calls} == {0, 1}
        server.live.process.send_signal(signal.SIGTERM)

        async def is_refused() -> bool:  # each worker hears of it by itself
            try:
                (await RawSocket.connect(server.live.address, "/media/twilio/default")).abort()
            except Refused as refused:
                return refused.status == 503
            return False

        await until(is_refused, "a server that takes no new calls")
        await until(lambda: server.live.status_is("/readyz", 503), "a server that is not ready")
        turns = [call.speak("A last word.") for call in calls]
        await until(lambda: all(turn.outcome == "finished" for turn in turns), "speech while it drains")
        for leg in server.legs.values():
            leg.hang_up()
            await leg.aclose()
        await asyncio.wait_for(server.live.process.wait(), PATIENCE_S)
        assert server.live.process.returncode == 0


async def test_a_copied_webhook_starts_nothing_new_at_any_worker(tmp_path: Path) -> None:
    """Each request comes over a connection of its own, so both workers get some of them."""
    secret = "a-secret-of-at-least-thirty-two-bytes"
    config = CONFIG.replace("twilio: {}", f"twilio: {{auth_token: {secret}}}")
    async with serve(tmp_path, config, {"TEST_KEY": KEY, "OTHER_KEY": OTHER}) as live:

        async def send(method: str, path: str, signed: str) -> tuple[int, str]:
            headers = {"X-Twilio-Signature": twilio_signature(secret, live.http + signed)}
            async with (
                aiohttp.ClientSession(live.http) as http,
                http.request(method, path, headers=headers) as answer,
            ):
                return answer.status, await answer.text()

        path = "/webhooks/twilio/default?CallSid=CA1"
        first = await send("GET", path, path)
        assert first[0] == 200
        assert {(await send("POST", path, path))[0] for _ in range(8)} == {403}
        assert {await send("GET", path, path) for _ in range(8)} == {first}


async def test_a_worker_that_is_killed_while_it_starts_ends_no_server_and_comes_up(tmp_path: Path) -> None:
    config = Config.model_validate({"server": {"workers": 2, "port": 0}, "engine": {"kind": "tone"}})
    async with engine_for_gateway(config.engine) as engine:
        supervisor = WorkerSupervisor(config, engine.targets.written, tmp_path)
        over = asyncio.Event()
        killing = asyncio.create_task(kill_at_once(supervisor.workers[0], over))
        async with supervisor.running():
            over.set()
            assert len(await killing) >= 3
            assert supervisor.workers[1].ready, "the other worker serves"
            await until(lambda: supervisor.workers[0].standing.ready, "the worker that was killed")
