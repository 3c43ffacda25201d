"""``examples/ivr/``: its menu by keys, and its fallbacks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from talkspurt.simulator.call_script import Expect, Press, Step
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import serve
from tests.waiting import PATIENCE_S

CONFIG = Path(__file__).parents[3] / "examples/ivr/talkspurt.yaml"
OVER = Expect("hang_up", 1000 * PATIENCE_S)


@pytest.mark.slow
async def test_keys_are_answered_and_who_presses_none_hears_that_nobody_is_there(tmp_path: Path) -> None:
    # A machine that does much else may stop for a moment, which words in pieces do not survive.
    async with serve(tmp_path, CONFIG, {"TALKSPURT__PLAYOUT__LEAD_MS": "500"}) as live:

        async def heard(name: str, *steps: Step) -> str:
            caller = SimulatedCaller(CallOptions(url=f"{live.ws}/media/twilio", steps=(*steps, OVER)))
            await caller.run()
            caller.write_wav(tmp_path / name)
            return await asyncio.to_thread(transcript_of, tmp_path / name)

        hours, person, silent = await asyncio.gather(
            heard("hours.wav", Press("1")), heard("person.wav", Press("0")), heard("silent.wav")
        )
    assert understood("We are open from nine in the morning", hours), hours
    for text in (person, silent):
        assert understood("One moment please", text) and understood("No one can be reached just now", text), text
    assert understood("Sorry, I did not get that", silent), silent
