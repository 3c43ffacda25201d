"""Bots and clients on other frameworks, as their users run them: the programs of a page, and the pipecat bot in a call.

The frameworks live in an environment of their own, which ``.ci/bots`` makes; without it, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import TwilioCarrier
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]
PYTHON = (ROOT / os.environ.get("BOTS_ENV", "build/bots")) / "bin/python"
SNIPPETS = re.findall(r"^## (.+?)$.*?```python\n(.*?)```", (ROOT / "docs/speech-server.md").read_text(), re.M | re.S)
CONFIG = """
engine: {kind: tone}
carriers: {twilio: {verify: false}}
routes:
  default:
    dialogue: {audio: true}
    interruptible: none
    report_input_during_agent_speech: any
"""

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment of the frameworks: .ci/bots makes it"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("bots"), CONFIG) as running:
        yield running


@pytest.mark.parametrize(("client", "program"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
async def test_a_program_of_the_page_gets_speech(live: Live, tmp_path: Path, client: str, program: str) -> None:
    (tmp_path / "snippet.py").write_text(program.replace("127.0.0.1:8080", live.address))
    process = await asyncio.create_subprocess_exec(
        PYTHON, "snippet.py", cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, errors.decode()
    if client == "openai":
        assert (tmp_path / "hello.wav").stat().st_size > 20_000
    else:
        assert float(out.split()[0]) > 0.5


async def test_the_page_has_a_program_for_each_client() -> None:
    assert [name for name, _ in SNIPPETS] == ["openai", "LiveKit Agents", "pipecat"]


async def test_the_pipecat_bot_greets_answers_a_key_and_hangs_up(live: Live, tmp_path: Path) -> None:
    log = (tmp_path / "bot.log").open("wb")
    environment = {**os.environ, "OPENAI_BASE_URL": f"{live.http}/v1", "OPENAI_API_KEY": "none"}
    bot = await asyncio.create_subprocess_exec(
        PYTHON, ROOT / "examples/pipecat_bot.py", live.http, env=environment, stdout=log, stderr=log
    )
    leg, uplink = CarrierLeg(TwilioCarrier(1, {}), record=True), SimulatedUplink()
    try:
        await until(lambda: b"waiting for calls" in (tmp_path / "bot.log").read_bytes(), "the bot")
        await leg.connect(f"{live.ws}/media/twilio/default", timeout_s=PATIENCE_S)
        uplink.join(leg)
        await until(lambda: leg.marks >= 1, "the greeting's end")
        leg.press("5")
        await until(lambda: leg.marks >= 2, "the answer's end")
        leg.press("0")
        await until(lambda: leg.closed_at is not None, "the end of the call")
        assert leg.marks == 3 and not leg.violations
    finally:
        uplink.stop()
        await leg.aclose()
        bot.terminate()
        await bot.wait()
        log.close()
