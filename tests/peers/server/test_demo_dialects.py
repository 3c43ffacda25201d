"""The demo's configuration takes a simulated call of every carrier, without an account."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from talkspurt.simulator.call_script import Expect, Text
from talkspurt.simulator.caller import Caller, CallOptions
from talkspurt.simulator.carriers import CARRIERS
from tests.peers.live_server import Live, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEMO = Path(__file__).parents[3] / "configs/demo.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("demo")
    async with serve(folder, DEMO, {"TALKSPURT__ENGINE__KIND": "tone"}) as running:
        yield running


@pytest.mark.parametrize("dialect", CARRIERS)
async def test_a_simulated_call_is_spoken_to(live: Live, dialect: str) -> None:
    call = Caller(
        CallOptions(url=f"{live.ws}/media/{dialect}", dialect=dialect, steps=(Text("Hello."), Expect("speech", 20_000)))
    )
    await call.run()
    assert call.report()["first_packet_ms"] is not None and not call.report()["violations"]
