"""Telnyx calls of Call Control, against a REST server on this machine."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from gateway.carriers.telnyx.calls import TelnyxCalls
from gateway.carriers.telnyx.settings import TelnyxConfig
from gateway.seams.media_messages import StreamStarted
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until


class Rest:
    """Telnyx' end: writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.keys: set[str] = set()
        self.answers: list[tuple[int, str]] = []
        """The answers to the next requests; then 200."""
        self.url = ""
        self._runner = web.AppRunner(self._app())

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v2/calls/{id}/actions/{action}", self._act)
        return app

    async def _act(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.keys.add(request.headers["Authorization"])
        self.asked.append((f"{request.match_info['id']} {request.match_info['action']}", body))
        status, text = self.answers.pop(0) if self.answers else (200, '{"data":{"result":"ok"}}')
        return web.Response(status=status, text=text, content_type="application/json")

    async def __aenter__(self) -> Rest:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v2"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def config(rest: Rest, **more: Any) -> TelnyxConfig:
    return TelnyxConfig.model_validate({"api_key": "k3y", "api_url": rest.url, **more})


NOBODY: Any = None


def begun(**parameters: str) -> StreamStarted:
    return StreamStarted(stream_id="s", call_sid="v3:abc/def", custom_parameters=parameters)


async def test_what_may_have_been_lost_is_said_again_under_the_same_id() -> None:
    async with Rest() as rest:
        calls = TelnyxCalls(config(rest))
        call = calls.open(begun(), NOBODY)
        assert call is not None
        rest.answers = [(503, ""), (429, "")]
        call.hang_up("end", "a result")
        await until(lambda: len(rest.asked) == 3)
        assert {path for path, _ in rest.asked} == {"v3:abc/def hangup"}
        assert len({body["command_id"] for _, body in rest.asked}) == 1
        assert b64decode(rest.asked[0][1]["client_state"]) == b"a result"
        assert rest.keys == {"Bearer k3y"}
        await calls.aclose()


@pytest.mark.parametrize(("status", "text", "told"), [(422, '{"errors":[{"code":"90018"}]}', 0), (403, "{}", 1)])
async def test_what_is_refused_is_not_repeated(
    caplog: pytest.LogCaptureFixture, status: int, text: str, told: int
) -> None:
    async with Rest() as rest:
        calls = TelnyxCalls(config(rest))
        call = calls.open(begun(), NOBODY)
        assert call is not None
        rest.answers = [(status, text)]
        call.hang_up("end", None)
        await calls.aclose()
        assert [path for path, _ in rest.asked] == ["v3:abc/def hangup"]
        assert len(caplog.records) == told, "a call that has ended already is no fault"


async def test_calls_that_our_texml_leads_are_left_to_it() -> None:
    async with Rest() as rest:
        calls = TelnyxCalls(config(rest))
        assert calls.open(begun(**{"talkspurt.CallSid": "v3:abc"}), NOBODY) is None
        await calls.aclose()


@pytest_asyncio.fixture
async def rest() -> AsyncIterator[Rest]:
    async with Rest() as running:
        yield running


@pytest_asyncio.fixture
async def live(rest: Rest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    text = f"""
engine: {{kind: tone}}
carriers: {{telnyx: {{verify: false, api_key: k3y, api_url: "{rest.url}"}}}}
calling: {{allowed_targets: ["+15550199"]}}
"""
    async with serve(tmp_path_factory.mktemp("telnyx"), text) as running:
        yield running


async def test_a_whole_call_is_keyed_transferred_and_another_one_ended(live: Live, rest: Rest) -> None:
    calls: list[ManagedCall] = []
    manager = SimulatedManager(calls.append)
    await manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
    legs = [CarrierLeg(CARRIERS["telnyx"](number, {})) for number in (1, 2)]
    for leg in legs:
        await leg.connect(f"{live.ws}/media/telnyx/default", timeout_s=PATIENCE_S)
    await until(lambda: len(calls) == 2)
    first, second = sorted(calls, key=lambda call: [leg.carrier.call_sid for leg in legs].index(call.call_sid))
    first.send("sendDigits", digits="12#")
    await until(lambda: rest.asked)
    first.send("transfer", target="+15550199", handoffData="angry")
    second.send("end")
    await asyncio.gather(*(until(lambda leg=leg: leg.closed_at is not None) for leg in legs))
    await until(lambda: len(rest.asked) == 3)
    asked = {path: body for path, body in rest.asked}
    assert asked.keys() == {
        f"{first.call_sid} send_dtmf", f"{first.call_sid} transfer", f"{second.call_sid} hangup",
    }  # fmt: skip
    assert asked[f"{first.call_sid} send_dtmf"]["digits"] == "12#"
    transfer = asked[f"{first.call_sid} transfer"]
    assert (transfer["to"], b64decode(transfer["client_state"])) == ("+15550199", b"angry")
    await manager.aclose()
