"""A caller on baresip who waits with music, quieter under the bot's voice, and one who gets an agent in Chromium."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tests.gateway.mixing.legs import tone
from tests.peers.joined.hand_over import (
    AGENT_HZ,
    CALLER_HZ,
    MUSIC_HZ,
    MUSIC_LEVEL,
    Bot,
    bot,
    calling,
    heard_by,
    heard_s,
    hears,
    levels,
    server,
)
from tests.peers.ports import free_port
from tests.peers.programs import needs_baresip, needs_chromium
from tests.peers.sip.baresip import baresip
from tests.peers.web.browsers import Page, chromium, tone_file
from tests.waiting import until
from tts_engine.tone import tone_hz

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_baresip]

PORT = free_port()
SAYS, BACK = "Please wait for a colleague who will help you.", "Your colleague has hung up."

AGENT = """
const pc = window.agent = new RTCPeerConnection();
pc.ontrack = ({track}) => {
  const stream = new MediaStream([track]), audio = window.audio = new Audio(), context = new AudioContext();
  audio.muted = true;  // Chromium decodes a remote track only while an element plays it
  audio.srcObject = stream;
  audio.play();
  const ear = window.ear = context.createAnalyser();
  ear.fftSize = 8192;
  ear.smoothingTimeConstant = 0;
  context.createMediaStreamSource(stream).connect(ear);
};
const raw = {echoCancellation: false, noiseSuppression: false, autoGainControl: false};
pc.addTrack((await navigator.mediaDevices.getUserMedia({audio: raw})).getAudioTracks()[0]);
await pc.setLocalDescription();
await new Promise(done => pc.onicegatheringstatechange = () => pc.iceGatheringState === "complete" && done());
return pc.localDescription.sdp;
"""
HEARS_HZ = """
const bins = new Float32Array(ear.frequencyBinCount);
ear.getFloatFrequencyData(bins);
const top = bins.reduce((best, x, i) => x > bins[best] ? i : best, 0);
return bins[top] > -40 ? top * ear.context.sampleRate / ear.fftSize : 0;
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bot]:
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(server(tmp_path_factory.mktemp("waiting") / "gateway", PORT))
        yield await stack.enter_async_context(bot(live))


@pytest.mark.parametrize("kind", ["music", "background"])
async def test_a_sound_is_quieter_under_the_bots_voice(made: Bot, tmp_path: Path, kind: str) -> None:
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(calling(tmp_path / "caller", made, PORT))
        if kind == "music":
            agent = await stack.enter_async_context(baresip(tmp_path / "agent"))
            made.transfer(f"sip:alice@127.0.0.1:{agent.port}", warm={"briefing": "", "accept": ["1"]})
            await made.told("leg", "ringing")
        else:
            made.call.send("background", source="music.wav", level=0, duck=12)
        await hears(caller, MUSIC_HZ)
        before_s = heard_s(caller)
        await made.says(SAYS)
        after_s = heard_s(caller)
        await hears(caller, MUSIC_HZ, after_s=after_s)
        caller.command("hangup")
        await made.none_left()
        sound = heard_by(caller)
    music, voice = levels(sound, MUSIC_HZ), levels(sound, tone_hz(SAYS))
    under, alone = music[voice > 0.3], music[: round(before_s * 10)]
    # It becomes quieter within 0.1 s, and is loud again later than the voice has ended.
    assert len(under) > 10 and np.median(under) == pytest.approx(MUSIC_LEVEL * 10 ** (-12 / 20), rel=0.25)
    assert alone.max() == pytest.approx(MUSIC_LEVEL, rel=0.2)


@needs_chromium
async def test_an_agent_in_chromium_takes_over_and_leaves(made: Bot, tmp_path: Path) -> None:
    with chromium(microphone=tone_file(tmp_path, AGENT_HZ)) as driver:
        async with calling(tmp_path / "caller", made, PORT) as caller:
            page = Page(driver)
            await page.open(f"{made.live.http}/phone")
            offer = await page.do(AGENT)
            supervise = f"/v1/calls/{made.call.session_id}/supervise"
            answer = await made.ask("POST", supervise, mode="takeover", offer=offer)
            await page.do("await agent.setRemoteDescription({type: 'answer', sdp: args[0]})", answer["sdp"])
            await hears(caller, AGENT_HZ)
            await page.until(lambda hz: abs(hz - CALLER_HZ) < 12, HEARS_HZ)
            await page.do("agent.close()")
            await until(lambda: any(message.get("value") == "none" for message in made.messages), "the agent's end")
            after_s = heard_s(caller)
            await made.says(BACK)
            await hears(caller, tone_hz(BACK), after_s=after_s)
            caller.command("hangup")
            await made.none_left()


async def test_people_talk_on_when_engine_and_application_are_lost(made: Bot, tmp_path: Path) -> None:
    says = tone(AGENT_HZ, 8000, 60.0).tobytes()
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(baresip(tmp_path / "agent", account=";answermode=auto", says=says))
        caller = await stack.enter_async_context(calling(tmp_path / "caller", made, PORT))
        made.transfer(f"sip:alice@127.0.0.1:{agent.port}", mode="bridge")
        await made.told("leg", "answered")
        await hears(caller, AGENT_HZ)
        engine = made.live.engine_pid()
        os.kill(engine, signal.SIGKILL)
        await made.manager.aclose()
        await until(lambda: not Path(f"/proc/{engine}").exists(), "the end of the engine")
        for phone, hz in ((caller, AGENT_HZ), (agent, CALLER_HZ)):
            await hears(phone, hz, after_s=heard_s(phone))
        agent.command("hangup")
        await caller.until("CALL_CLOSED")
        await made.none_left()
