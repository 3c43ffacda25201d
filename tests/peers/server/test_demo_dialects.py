"""The demo's configuration takes a simulated call of every carrier, without an account."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from talkspurt.simulator.call_script import Expect, TextStep
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from talkspurt.simulator.carriers import CARRIERS
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENT_MS = round(1000 * PATIENCE_S)
DEMO = Path(__file__).parents[3] / "configs/demo.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("demo")
    async with serve(folder, DEMO, {"TALKSPURT__ENGINE__KIND": "tone"}) as running:
        yield running


@pytest.mark.parametrize("dialect", CARRIERS)
async def test_a_simulated_call_is_spoken_to(live: Live, dialect: str) -> None:
    call = SimulatedCaller(
        CallOptions(
            url=f"{live.ws}/media/{dialect}", dialect=dialect, steps=(TextStep("Hello."), Expect("speech", PATIENT_MS))
        )
    )
    await call.run()
    assert call.report()["first_packet_ms"] is not None and not call.report()["violations"]


async def test_two_callers_at_once_each_get_their_own_call(live: Live) -> None:
    both = [
        SimulatedCaller(CallOptions(url=f"{live.ws}/media/twilio", steps=(TextStep("Hello."), Expect("quiet", 20_000))))
        for _ in range(2)
    ]
    await asyncio.gather(*(call.run() for call in both))
    assert [len(call.report()["turns"]) for call in both] == [1, 1]
    assert len({call.report()["session_id"] for call in both}) == 2
