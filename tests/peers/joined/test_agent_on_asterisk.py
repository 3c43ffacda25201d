"""A hand-over from a caller on baresip to agents on a real Asterisk, and from a caller whose Asterisk refuses REFER.

One call goes to one agent after the other, as an application does that looks for someone who is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.mixing.legs import tone
from tests.peers.asterisk.peer import Asterisk, asterisk
from tests.peers.asterisk.test_real_asterisk_sip import MODULES
from tests.peers.joined.hand_over import (
    AGENT_HZ,
    CALLER_HZ,
    MUSIC_HZ,
    Bot,
    bot,
    calling,
    heard,
    heard_by,
    heard_s,
    hears,
    levels,
    server,
)
from tests.peers.ports import free_port
from tests.peers.programs import needs_asterisk, needs_baresip
from tests.peers.sip.baresip import baresip
from tests.waiting import until
from tts_engine.tone import tone_hz

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.asterisk, needs_asterisk, needs_baresip]

BRIEFING, BACK = "The bill is wrong.", "Your colleague has hung up."
DECIDES = {"accept": ["1"], "decline": ["2"]}

AGENTS = """
[in]
exten => accepts,1,Answer()
 same => n,MixMonitor({folder}/both.wav,r({folder}/heard.wav))
 same => n,Wait(2)
 same => n,SendDTMF(1)
 same => n,Playtones({tone})
 same => n,Wait(60)
exten => declines,1,Answer()
 same => n,Wait(0.3)
 same => n,SendDTMF(2)
 same => n,Wait(60)
exten => undecided,1,Answer()
 same => n,Wait(60)
exten => busy,1,Busy(1)
exten => rings,1,Ringing()
 same => n,Wait(60)
exten => talks,1,Answer()
 same => n,Playtones({tone})
 same => n,Wait(60)
"""


@dataclass(frozen=True)
class Office:
    """The bot's gateway and the agents' switch."""

    made: Bot
    switch: Asterisk
    port: int
    """The SIP port of the gateway."""
    switch_port: int
    folder: Path

    def agent(self, name: str) -> str:
        return f"sip:{name}@127.0.0.1:{self.switch_port}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    port, switch_port = free_port(), free_port()
    files = {
        "pjsip.conf": (
            f"[udp]\ntype=transport\nprotocol=udp\nbind=127.0.0.1:{switch_port}\n"
            "[bot]\ntype=endpoint\ncontext=in\naors=bot\ndisallow=all\nallow=ulaw\nallow_transfer=no\n"
            f"[bot]\ntype=aor\ncontact=sip:bot@127.0.0.1:{port}\n"
            "[by-address]\ntype=identify\nendpoint=bot\nmatch=127.0.0.1\n"
        ),
        "rtp.conf": "[general]\nrtpstart=31000\nrtpend=31999\n",
        "extensions.conf": AGENTS.format(folder=folder, tone=AGENT_HZ),
    }
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(server(folder / "gateway", port))
        made = await stack.enter_async_context(bot(live))
        modules = (*MODULES, "res_pjsip_refer")
        switch = await stack.enter_async_context(asterisk(folder / "asterisk", files, modules=modules))
        yield Office(made, switch, port, switch_port, folder)


async def test_a_caller_whom_no_agent_takes_is_with_the_bot_again(office: Office, tmp_path: Path) -> None:
    made = office.made
    outcomes = {"busy": "busy", "rings": "noAnswer", "declines": "declined", "undecided": "noAnswer"}
    async with calling(tmp_path / "caller", made, office.port) as caller:
        for name, event in outcomes.items():
            made.transfer(office.agent(name), warm={"briefing": "", **DECIDES}, ringTimeoutS=1, acceptTimeoutS=1)
            await made.told("leg", event)
            await made.told("error", "transfer_failed")
        after_s = heard_s(caller)
        await made.says(BACK)
        await hears(caller, tone_hz(BACK), after_s=after_s)
        caller.command("hangup")
        await made.none_left()
    await office.switch.over()


async def test_the_agent_is_briefed_accepts_and_hangs_up_and_the_bot_returns(office: Office, tmp_path: Path) -> None:
    made, at_agent = office.made, office.folder / "heard.wav"
    async with calling(tmp_path / "caller", made, office.port) as caller:
        made.transfer(office.agent("accepts"), warm={"briefing": BRIEFING, **DECIDES}, onHangup="return")
        await made.told("leg", "accepted")
        await hears(caller, AGENT_HZ)
        await until(lambda: (levels(heard(at_agent), CALLER_HZ) > 0.15).sum() >= 10, "the caller at the agent")
        await office.switch.cli("channel request hangup all")
        await made.told("leg", "hangup")
        after_s = heard_s(caller)
        await made.says(BACK)
        await hears(caller, tone_hz(BACK), after_s=after_s)
        caller.command("hangup")
        await made.none_left()
        briefing_hz, briefed, waited = tone_hz(BRIEFING), heard(at_agent), heard_by(caller)
    assert (levels(briefed, briefing_hz) > 0.15).any()
    assert (levels(waited, briefing_hz) < 0.05).all() and (levels(waited, MUSIC_HZ) > 0.15).any()
    assert (levels(briefed, MUSIC_HZ) < 0.05).all()
    before = levels(briefed, briefing_hz) > 0.15
    assert (levels(briefed, CALLER_HZ)[before] < 0.05).all(), "the caller is not heard during the briefing"


async def test_a_caller_who_hangs_up_during_the_briefing_ends_the_agents_leg(office: Office, tmp_path: Path) -> None:
    made = office.made
    async with calling(tmp_path / "caller", made, office.port) as caller:
        made.transfer(office.agent("undecided"), warm={"briefing": BRIEFING, **DECIDES})
        await made.told("leg", "answered")
        caller.command("hangup")
        ended = await made.told("ended", "hangup")
        assert ended["by"] == "caller"
    await made.none_left()
    await office.switch.over()


async def test_a_switch_that_refuses_refer_is_bridged(office: Office, tmp_path: Path) -> None:
    made = office.made
    says = tone(CALLER_HZ, 8000, 60.0).tobytes()
    async with baresip(tmp_path / "agent", account=";answermode=auto", says=says) as agent:
        calls = len(made.manager.calls)
        await office.switch.cli("channel originate PJSIP/bot extension talks@in")
        await until(lambda: len(made.manager.calls) > calls, "setup")
        target = f"sip:alice@127.0.0.1:{agent.port}"
        made.transfer(target, mode="refer")
        failed = await made.told("error", "transfer_failed")
        assert "603" in failed["description"]
        messages = f"/v1/calls/{made.call.session_id}/messages"
        await made.ask("POST", messages, type="transfer", target=target)  # auto: REFER is tried again
        await made.told("leg", "answered")
        await hears(agent, AGENT_HZ)
        assert sum(message["type"] == "error" for message in made.messages) == 1
        agent.command("hangup")
        await made.none_left()
    await office.switch.over()
