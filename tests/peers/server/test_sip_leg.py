"""``talkspurt call --dialect sip`` against a real gateway: the simulated phone and the bridge share no code."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from talkspurt.simulator.call_script import CancelStep, Expect, HangUpStep, Press, Step, TextStep, Wait
from talkspurt.simulator.caller import CallFailed, CallOptions, SimulatedCaller
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENT_MS = round(1000 * PATIENCE_S)
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


PORT = free_port()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    config = f"""
engine: {{kind: tone}}
sip: {{port: {PORT}, rtp_ports: 26000-26999, trunks: {{phones: {{addresses: [127.0.0.1], route: talk}}}}}}
routes: {{talk: {{}}}}
"""
    async with serve(tmp_path_factory.mktemp("sip"), config) as running:
        yield running


async def call(live: Live, *steps: Step, **parameters: str) -> SimulatedCaller:
    url = f"sip:100@127.0.0.1:{PORT}?route=talk&http={live.address.rpartition(':')[2]}"
    caller = SimulatedCaller(CallOptions(url=url, dialect="sip", steps=steps, parameters=parameters))
    await caller.run()
    return caller


async def test_a_phone_hears_a_turn_whole_and_its_headers_arrive(live: Live) -> None:
    caller = await call(
        live, TextStep("A phone hears this."), Expect("quiet", PATIENT_MS), HangUpStep(), account="4711"
    )
    report = caller.report()
    assert report["violations"] == {} and report["turns"][0]["outcome"] == "finished"
    assert report["audio_ms"] >= report["turns"][0]["audioMs"] - 20
    assert caller._call is not None
    assert caller._call.setup["customParameters"] == {"X-account": "4711"}
    await until(lambda: caller.leg.closed_at is not None)


@pytest.mark.parametrize("act", [CancelStep(), Press("5")])
async def test_a_phone_interrupts(live: Live, act: Step) -> None:
    caller = await call(
        live, TextStep(WORDS), Expect("speech", PATIENT_MS), Wait(600), act, Expect("quiet", PATIENT_MS)
    )
    turn = caller.report()["turns"][0]
    assert turn["outcome"] == "interrupted"
    assert WORDS.startswith(turn["heard"]) and 0 < len(turn["heard"]) < len(WORDS)


async def test_nobody_there_is_one_clear_error(live: Live) -> None:
    options = CallOptions(url=f"sip:100@127.0.0.1:{free_port()}", dialect="sip", steps=(Wait(1),))
    with pytest.raises(CallFailed, match="cannot connect"):
        await SimulatedCaller(options).run()
