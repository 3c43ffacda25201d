"""Carriers that take audio ahead get it in longer messages where the configuration says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from talkspurt.simulator.call_script import CancelStep, Expect, TextStep, Wait
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENT_MS = round(1000 * PATIENCE_S)
CARRIERS = ("twilio", "telnyx", "plivo", "signalwire")
CONFIG = f"""
engine: {{kind: tone}}
carriers: {{{", ".join(f"{name}: {{verify: false, message_ms: 40}}" for name in CARRIERS)}}}
routes: {{default: {{}}, call: {{}}}}
"""
SENTENCE = (
    "One two three four five six seven eight nine ten, and one more for the road, and another one for the way home."
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("length"), CONFIG) as running:
        yield running


@pytest.mark.parametrize("dialect", CARRIERS)
async def test_messages_have_the_length_and_nothing_else_changes(live: Live, dialect: str) -> None:
    steps = (
        TextStep("Hello there."),
        Expect("quiet", PATIENT_MS),
        TextStep(SENTENCE),
        Wait(1500),
        CancelStep(),
        Wait(500),
    )
    call = SimulatedCaller(CallOptions(url=f"{live.ws}/media/{dialect}", dialect=dialect, steps=steps))
    await call.run()
    report = call.report()
    rate = call.leg.playout.sample_rate
    lengths = {samples / rate for spurt in call.leg.spurts for samples in spurt.samples}
    assert lengths == {0.04}, lengths
    assert (report["gaps"], report["violations"]) == (0, {})
    first, second = report["turns"]
    assert (first["outcome"], second["outcome"]) == ("finished", "interrupted")
    assert second["heard"] and SENTENCE.startswith(second["heard"].rstrip())
