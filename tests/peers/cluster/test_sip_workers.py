"""``server.workers: 2`` with SIP and AudioSocket: one port each, and calls that reach their worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from yarl import URL

from sip_bridge.local import worker_of
from sip_bridge.message.sip import Request
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.workers.control import REPORT_S
from tests.gateway.http.test_webhooks import stream_of
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_sipp
from tests.peers.sip.conftest import LISTEN
from tests.peers.sip.sipp import sipp
from tests.sip_bridge.phone import Phone
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
server: {{workers: 2}}
engine: {{kind: tone}}
sip:
  port: {sip}
  rtp_ports: 21000-21199
  trunks: {{phones: {{addresses: [127.0.0.1], proxy: "sip:127.0.0.1:{phone}"}}}}
  allowed_targets: ["*@127.0.0.1"]
audiosocket: {{port: {audiosocket}}}
calls: {{folder: calls}}
calling: {{allowed_targets: ["+4930*"], caller_ids: ["+4930654321"]}}
carriers:
  twilio: {{account_sid: AC1, auth_token: secret, api_url: "http://127.0.0.1:{carrier}", verify: false}}
routes: {{default: {{dialogue: {{script: listen.yaml}}}}}}
"""


class Carrier:
    """The carrier's REST interface. It takes each order."""

    def __init__(self) -> None:
        self.orders: list[dict[str, str]] = []
        app = web.Application()
        app.router.add_post("/{path:.*}", self._take)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def _take(self, request: web.Request) -> web.Response:
        self.orders.append({name: str(value) for name, value in (await request.post()).items()})
        return web.json_response({"sid": f"CA{len(self.orders):032x}"}, status=201)


class Server:
    """The server, its ports, and a phone and a carrier that it may call."""

    def __init__(self, live: Live, sip: int, audiosocket: int, phone: Phone, carrier: Carrier) -> None:
        self.live = live
        self.sip = sip
        self.audiosocket = audiosocket
        self.phone = phone
        self.carrier = carrier

    async def owners(self, *, ended: bool = False) -> list[int]:
        """The workers of the live calls, or of those that have ended."""
        query = "?ended=true" if ended else ""
        async with aiohttp.ClientSession() as http, http.get(f"{self.live.http}/v1/calls{query}") as answer:
            return [int(call["callId"][2:4], 16) for call in (await answer.json())["calls"]]

    async def no_calls(self) -> None:
        await until(lambda: self.live.metric_is("talkspurt_calls_active", 0), "the calls' end")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("workers")
    (folder / "listen.yaml").write_text(LISTEN)
    sip, audiosocket, port, carrier = free_port(), free_port(), free_port(), Carrier()
    await carrier.runner.setup()
    await web.TCPSite(carrier.runner, "127.0.0.1", port).start()
    with Phone(sip) as phone:
        config = CONFIG.format(sip=sip, audiosocket=audiosocket, phone=phone.port, carrier=port)
        async with serve(folder, config) as live:
            yield Server(live, sip, audiosocket, phone, carrier)
    await carrier.runner.cleanup()


@needs_sipp
async def test_sipp_calls_are_spread_and_their_holds_and_byes_reach_their_worker(
    server: Server, tmp_path: Path
) -> None:
    await sipp("hold", server.sip, tmp_path / "udp", calls=12, concurrent=12, rate=20)
    await server.no_calls()
    await until(lambda: _count(server, 12), "the log of the calls")
    owners = await server.owners(ended=True)
    assert min(owners.count(worker) for worker in (0, 1)) >= 2, owners
    await sipp("call", server.sip, tmp_path / "tcp", calls=2, transport="tcp", pause_ms=300)
    await server.no_calls()


async def _count(server: Server, count: int) -> bool:
    return len(await server.owners(ended=True)) == count


async def test_announced_audiosocket_calls_reach_any_worker(server: Server) -> None:
    with ExitStack() as stack:
        async with aiohttp.ClientSession(server.live.http) as http:

            async def spread() -> bool:
                uuid = uuid4()
                body = {"route": "default", "customParameters": {"call": str(uuid)}}
                async with http.put(f"/v1/calls/expected/{uuid}", json=body) as answer:
                    assert answer.status == 201
                _, writer = await asyncio.open_connection("127.0.0.1", server.audiosocket)
                stack.callback(writer.close)
                writer.write(b"\x01\x00\x10" + uuid.bytes + b"\x10\x01\x40" + bytes(320))

                async def live() -> bool:
                    async with http.put(f"/v1/calls/expected/{uuid}", json={"route": "default"}) as answer:
                        return answer.status == 409

                await until(live, "the call, which each worker knows to be live")
                return set(await server.owners()) == {0, 1}

            await _repeat(spread)
        reader, unknown = await asyncio.open_connection("127.0.0.1", server.audiosocket)
        stack.callback(unknown.close)
        unknown.write(b"\x01\x00\x10" + uuid4().bytes)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"\x00\x00\x00", "it was not announced"
    await server.no_calls()


async def _repeat(begin: Callable[[], Awaitable[bool]]) -> None:
    """Begin calls until both workers have one. While a worker is not ready, or before it has said how it does, the
    other one gets them all."""

    async def spread() -> bool:
        await asyncio.sleep(REPORT_S)
        return await begin()

    await until(spread, "calls on both workers")


async def test_placed_calls_are_spread_and_their_answers_reach_their_worker(server: Server) -> None:
    placed: list[str] = []
    async with aiohttp.ClientSession(server.live.http) as http:

        async def spread() -> bool:
            async with http.post("/v1/calls", json={"to": f"sip:ann@127.0.0.1:{server.phone.port}"}) as answer:
                assert answer.status == 201, await answer.text()
                placed.append((await answer.json())["callId"])
            return {call[2:4] for call in placed} == {"00", "01"}

        await _repeat(spread)
        refused: set[str] = set()
        while len(refused) < len(placed):
            message = await server.phone.receive()
            if isinstance(message, Request) and message.method == "INVITE":
                server.phone.answer(message, 486)
                refused.add(message.call_id)

        async def failed() -> bool:
            states = []
            for call in placed:
                async with http.get(f"/v1/calls/{call}") as answer:
                    states.append((await answer.json())["reason"])
            return states == ["busy"] * len(placed)

        await until(failed, "the ends of the calls")


async def test_the_stream_of_a_placed_call_reaches_the_worker_of_its_order(server: Server) -> None:
    """Each connection reaches any of the two workers, so that of eight streams some reach the other one."""
    placed: list[str] = []
    legs: list[CarrierLeg] = []
    async with aiohttp.ClientSession(server.live.http) as http:

        async def call() -> bool:
            body = {"to": "+4930123456", "carrier": "twilio"}
            async with http.post("/v1/calls", json=body) as answer:
                assert answer.status == 201, await answer.text()
                placed.append((await answer.json())["callId"])
            order = await until(lambda: server.carrier.orders[len(placed) - 1 :], "the order")
            form = {"CallSid": f"CA{len(placed):032x}"}
            async with http.post(URL(order[0]["Url"]).path_qs, data=form) as answer:
                url, parameters = stream_of("twilio", await answer.text())
            legs.append(CarrierLeg(TwilioCarrier(len(placed), parameters)))
            await legs[-1].connect(server.live.ws + URL(url).path, timeout_s=PATIENCE_S)
            return len(placed) >= 8 and {each[2:4] for each in placed} == {"00", "01"}

        await _repeat(call)

        async def live() -> dict[str, Any]:
            async with http.get("/v1/calls") as answer:
                return {view["callId"]: view for view in (await answer.json())["calls"]}

        async def all_live() -> bool:
            return set(await live()) == set(placed)

        await until(all_live, "each call under the id of its order")
        for view in (await live()).values():
            assert (view["direction"], view["to"], view["route"]) == ("outbound", "+4930123456", "default")
        for each in placed:
            async with http.delete(f"/v1/calls/{each}") as answer:
                assert answer.status == 204
        for leg in legs:
            await leg.aclose()
    await server.no_calls()


async def test_a_killed_worker_ends_its_own_calls_alone(server: Server) -> None:
    with ExitStack() as stack:
        phones: dict[int | None, Phone] = {}
        while phones.keys() != {0, 1}:
            phone = stack.enter_context(Phone(server.sip))
            await phone.call()
            if phones.setdefault(worker_of(phone.to_tag), phone) is not phone:
                await phone.bye()
        dead, lives, late = phones[0], phones[1], stack.enter_context(Phone(server.sip))
        killed = server.live.worker_pids()[0]
        os.kill(killed, signal.SIGKILL)
        await until(lambda: killed not in server.live.worker_pids(), "its end")
        bye = dead.request("BYE")

        async def refused() -> bool:  # repeated, as a phone does: the first may have been on its way to the dead one
            dead.send(bye)
            return not dead.nothing()

        await until(refused, "an answer")
        await dead.response(481)
        await late.call()
        await late.bye()
        await lives.bye()
        await until(lambda: len(server.live.worker_pids()) == 2, "a new worker")
    await server.no_calls()
