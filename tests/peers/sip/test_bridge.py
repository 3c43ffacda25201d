"""A bridge between two real phones: baresip calls the bot, which calls another baresip and joins both."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio

from tests.gateway.mixing.legs import level_of, tone
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_baresip
from tests.peers.sip.baresip import Baresip, baresip
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_baresip]

PORT = free_port()
CALLER_HZ, AGENT_HZ = 600, 1000
RATES = {"pcmu": 8000, "pcma": 8000, "g722/16000/1": 16000}

CONFIG = f"""
engine: {{kind: tone}}
sip:
  port: {PORT}
  rtp_ports: 27000-27999
  allowed_targets: ["*@127.0.0.1"]
  trunks: {{phones: {{addresses: [127.0.0.1], answer_at_once: true}}}}
routes: {{default: {{}}}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("bridge"), CONFIG) as running:
        yield running


async def calls(live: Live) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(f"{live.http}/v1/calls") as answer:
        return list((await answer.json())["calls"])


def levels(phone: Baresip) -> dict[int, float]:
    """Return the level of each tone in the loudest second that a phone heard."""
    with wave.open(str(phone.heard)) as file:
        rate, pcm = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    seconds = [pcm[at : at + rate] for at in range(0, len(pcm) - rate + 1, rate // 2)]
    return {hz: max(level_of(each, hz, rate) for each in seconds) for hz in (CALLER_HZ, AGENT_HZ)}


@pytest.mark.parametrize(("caller_codec", "agent_codec"), [("pcmu", "pcmu"), ("pcmu", "g722/16000/1")])
async def test_two_phones_hear_each_other_through_the_gateway(
    live: Live, tmp_path: Path, caller_codec: str, agent_codec: str
) -> None:
    def says(hz: int, codec: str) -> bytes:
        return tone(hz, RATES[codec], 60.0).tobytes()

    async with (
        baresip(
            tmp_path / "agent", codec=agent_codec, account=";answermode=auto", says=says(AGENT_HZ, agent_codec)
        ) as agent,
        baresip(tmp_path / "caller", codec=caller_codec, says=says(CALLER_HZ, caller_codec)) as caller,
    ):
        caller.command("dial", f"sip:100@127.0.0.1:{PORT}")
        await caller.until("CALL_ESTABLISHED")
        (call,) = await until(lambda: calls(live))
        transfer = {"type": "transfer", "target": f"sip:alice@127.0.0.1:{agent.port}", "mode": "bridge"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{live.http}/v1/calls/{call['callId']}/messages", json=transfer) as answer,
        ):
            assert answer.status == 202
        await agent.until("CALL_ESTABLISHED")
        for phone in (agent, caller):  # two seconds of sound at each side
            await until(lambda phone=phone: _seconds(phone) > 3.0, "sound at a phone")
        agent.command("hangup")
        await caller.until("CALL_CLOSED")
    for phone, hears, says_hz in ((caller, AGENT_HZ, CALLER_HZ), (agent, CALLER_HZ, AGENT_HZ)):
        heard = levels(phone)
        assert heard[hears] == pytest.approx(0.25, rel=0.2) and heard[says_hz] < 0.01


def _seconds(phone: Baresip) -> float:
    found = list(phone.folder.glob("dump-*-dec.wav"))
    return found[0].stat().st_size / 32_000 if found else 0.0
