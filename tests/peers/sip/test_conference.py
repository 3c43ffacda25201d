"""Three real phones in one conversation: baresip calls the bot; a room or a supervisor's request calls the others. Each
phone says a tone, and what it heard is looked at by its spectrum."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
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
CALLER_HZ, AGENT_HZ, THIRD_HZ = 600, 1000, 1400
RATES = {"pcmu": 8000, "pcma": 8000, "g722/16000/1": 16000}

CONFIG = f"""
engine: {{kind: tone}}
sip:
  port: {PORT}
  rtp_ports: 28000-28999
  allowed_targets: ["*@127.0.0.1"]
  trunks: {{phones: {{addresses: [127.0.0.1], answer_at_once: true}}}}
routes: {{default: {{}}}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("conference"), CONFIG) as running:
        yield running


class Conversation:
    """The caller's call with the bot, up, and two phones that answer by themselves."""

    def __init__(self, live: Live, http: aiohttp.ClientSession, phones: list[Baresip]) -> None:
        self.live = live
        self.http = http
        self.phones = phones
        self.caller, self.agent, self.third = phones
        self.call_id = ""

    async def ask(self, method: str, path: str, **body: object) -> dict[str, Any]:
        async with self.http.request(method, f"{self.live.http}{path}", json=body or None) as answer:
            assert answer.status in (200, 201, 202, 204), await answer.text()
            return dict(await answer.json()) if answer.content_type == "application/json" else {}

    async def calls(self) -> list[dict[str, Any]]:
        return list((await self.ask("GET", "/v1/calls"))["calls"])

    async def close(self) -> None:
        for call in await self.calls():
            async with self.http.delete(f"{self.live.http}/v1/calls/{call['callId']}") as answer:
                assert answer.status in (204, 404)  # it may have ended with another one
        await until(self.none_left, "the end of all calls")

    async def none_left(self) -> bool:
        return not await self.calls()


async def conversation(stack: AsyncExitStack, live: Live, folder: Path, *codecs: str) -> Conversation:
    """Phones in these codecs: the caller's, the agent's, the third one's."""
    phones = []
    for name, hz, codec in zip(("caller", "agent", "third"), (CALLER_HZ, AGENT_HZ, THIRD_HZ), codecs, strict=True):
        says = tone(hz, RATES[codec], 60.0).tobytes()
        account = "" if name == "caller" else ";answermode=auto"
        phones.append(await stack.enter_async_context(baresip(folder / name, codec=codec, account=account, says=says)))
    http = await stack.enter_async_context(aiohttp.ClientSession())
    made = Conversation(live, http, phones)
    made.caller.command("dial", f"sip:100@127.0.0.1:{PORT}")
    await made.caller.until("CALL_ESTABLISHED")
    (call,) = await until(made.calls)
    made.call_id = call["callId"]
    return made


def levels(phone: Baresip) -> dict[int, float]:
    """Return the level of each tone in the loudest second that a phone heard."""
    with wave.open(str(phone.heard)) as file:
        rate, pcm = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    seconds = [pcm[at : at + rate] for at in range(0, len(pcm) - rate + 1, rate // 2)]
    return {hz: max(level_of(each, hz, rate) for each in seconds) for hz in (CALLER_HZ, AGENT_HZ, THIRD_HZ)}


def seconds_of(phone: Baresip) -> float:
    """Return how much a phone has heard so far."""
    found = list(phone.folder.glob("dump-*-dec.wav"))
    return found[0].stat().st_size / 32_000 if found else 0.0


async def sound_at(*phones: Baresip, seconds: float = 3.0) -> None:
    for phone in phones:
        await until(lambda phone=phone: seconds_of(phone) > seconds, "sound at a phone")


def uri_of(phone: Baresip) -> str:
    return f"sip:alice@127.0.0.1:{phone.port}"


@pytest.mark.parametrize("codecs", [("pcmu", "pcmu", "pcmu"), ("pcmu", "g722/16000/1", "pcma")])
async def test_three_phones_hear_each_other_in_a_room(live: Live, tmp_path: Path, codecs: tuple[str, ...]) -> None:
    async with AsyncExitStack() as stack:
        made = await conversation(stack, live, tmp_path, *codecs)
        legs = "/v1/rooms/team/legs"
        await made.ask("POST", legs, call=made.call_id)
        for phone in (made.agent, made.third):
            await made.ask("POST", legs, to=uri_of(phone))
            await phone.until("CALL_ESTABLISHED")
        await sound_at(made.caller, made.agent, made.third, seconds=5.0)
        (room,) = (await made.ask("GET", "/v1/rooms"))["rooms"]
        assert [each["state"] for each in room["legs"]] == ["present"] * 3 and room["speaking"]
        await made.close()
        for phone in made.phones:
            await phone.until("CALL_CLOSED")
        assert (await made.ask("GET", "/v1/rooms"))["rooms"] == []
    own = {made.caller: CALLER_HZ, made.agent: AGENT_HZ, made.third: THIRD_HZ}
    for phone, said in own.items():
        heard = levels(phone)
        for hz, level in heard.items():
            assert level < 0.01 if hz == said else level == pytest.approx(0.25, rel=0.25), (said, heard)


async def test_a_whisper_is_heard_by_the_agent_and_not_by_the_caller(live: Live, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        made = await conversation(stack, live, tmp_path, "pcmu", "pcmu", "pcmu")
        transfer = {"type": "transfer", "target": uri_of(made.agent), "mode": "bridge"}
        await made.ask("POST", f"/v1/calls/{made.call_id}/messages", **transfer)
        await made.agent.until("CALL_ESTABLISHED")
        await made.ask("POST", f"/v1/calls/{made.call_id}/supervise", mode="whisper", to=uri_of(made.third))
        await made.third.until("CALL_ESTABLISHED")
        await sound_at(made.third)
        await sound_at(made.caller, made.agent, seconds=5.0)
        await made.close()
        for phone in made.phones:
            await phone.until("CALL_CLOSED")
    caller, agent, third = map(levels, (made.caller, made.agent, made.third))
    assert agent[THIRD_HZ] > 0.15 and agent[CALLER_HZ] > 0.15
    assert caller[THIRD_HZ] < 0.01 and caller[AGENT_HZ] > 0.15
    assert third[CALLER_HZ] > 0.15 and third[AGENT_HZ] > 0.15 and third[THIRD_HZ] < 0.01
