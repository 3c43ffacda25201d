"""``turn started`` says where the first packet's time went: calls over real gRPC, in every way a turn can begin."""

import asyncio
import wave
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gateway.call.turn_taking.turn import STAGES
from talkspurt.simulator.manager import ManagerTurn
from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import TestCall
from tests.waiting import PATIENCE_S, until
from tts_engine.config import EngineConfig
from tts_engine.service.server import SpeechServer
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead
from tts_engine.tone import ToneSynthesizer

Call = Callable[..., TestCall]


class SlowTone(ToneSynthesizer):
    """Hums. It says that it took 30 ms for the wording, 60 in a queue and 40 for the sound; 20 ms it does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.clauses = 0
        """The number of clauses made."""

    async def synthesize(self, clause: ClauseRequest, playhead: Playhead) -> AsyncGenerator[PcmChunk, None]:
        await asyncio.sleep(0.15)
        first = True
        async for chunk in super().synthesize(clause, playhead):
            if first:
                yield PcmChunk(pcm=chunk.pcm, words=chunk.words, text_ms=30, queue_ms=60, engine_ms=40)
            else:
                yield chunk
            first = False
        self.clauses += 1


def stages_of(turn: ManagerTurn) -> dict[str, float]:
    """The stages of a turn, which add up to its first packet."""
    return added_up(turn.reported)


def added_up(started: Any) -> dict[str, float]:
    stages: dict[str, float] = started["stages"]
    assert set(stages) <= set(STAGES)
    assert min(stages.values()) >= 0
    assert abs(sum(stages.values()) - started["firstPacketMs"]) <= 1
    return stages


@pytest.fixture
def voice() -> SlowTone:
    return SlowTone()


@pytest.fixture
async def call(tmp_path: Path, voice: SlowTone) -> Any:
    (tmp_path / "clips").mkdir()
    with wave.open(str(tmp_path / "clips" / "beep.wav"), "wb") as clip:
        clip.setparams((1, 2, 8000, 0, "NONE", ""))
        clip.writeframes(np.full(8000, 9000, np.int16).tobytes())
    sections: dict[str, Any] = {
        "routes": {"default": {}, "greets": {"welcome_greeting": "Good evening to you."}},
        "carriers": {"twilio": {"verify": False}},
        "clips": {"folder": str(tmp_path / "clips")},
    }
    async with api_gateway(tmp_path, clones=False, synthesizer=voice, **sections) as (made, _, url):
        live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
        yield lambda route="default": TestCall(live, route)


async def test_what_the_engine_says_is_told_and_the_rest_is_named(call: Call) -> None:
    async with call() as test:
        stages = stages_of(await test.spoken("Hello there. And more."))
        assert [stages[name] for name in ("queue", "engine", "token")] == [60, 40, 0]
        assert stages["text"] >= 30
        assert stages["loop"] >= 15  # the voice was silent about 20 ms


async def test_the_wait_for_the_token_behind_a_full_stop_is_told(call: Call, voice: SlowTone) -> None:
    async with call() as test:
        turn = test.call.open_turn("")
        test.call.send("text", token="The price is 3.", last=False, turn=turn.turn)
        await until(lambda: voice.clauses, "the clause")
        await asyncio.sleep(0.1)  # the application's own pause, which the stage measures: it has no event
        test.call.send("text", token=" And more.", last=True, turn=turn.turn)
        await until(lambda: turn.outcome)
        stages = stages_of(turn)
        assert stages["token"] >= 50, "the clause was ready 100 ms before the token came"
        assert [stages[name] for name in ("queue", "engine")] == [60, 40]


async def test_a_cached_clause_and_a_clip_have_stages_too(call: Call) -> None:
    async with call() as test:
        for _ in range(2):
            stages = stages_of(await test.spoken("Hello there."))
        assert stages["engine"] == stages["queue"] == 0
        test.call.send("play", source="beep.wav", turn="p")
        await until(lambda: [m for m in test.messages if m.get("turn") == "p" and m.get("event") == "finished"])
        (started,) = [m for m in test.messages if m.get("turn") == "p" and m.get("event") == "started"]
        assert added_up(started)["fetch"] >= 0


async def test_a_greeting_has_stages_too(call: Call) -> None:
    async with call("greets") as test:
        await until(lambda: any(m.get("event") == "finished" for m in test.messages))
        (started,) = [message for message in test.messages if message.get("event") == "started"]
        assert added_up(started)["engine"] == 40


async def test_what_was_made_before_anybody_waited_does_not_count(call: Call) -> None:
    """A held turn that is committed when its sound is there, and a turn behind one that speaks."""
    async with call() as test:
        held = test.call.speak("This was ready long ago.", hold=True)
        await test.spoken("Hello there.")
        test.call.send("commit", turn=held.turn)
        behind = test.call.speak("One more sentence.")
        await until(lambda: held.outcome and behind.outcome)
        for turn in (held, behind):
            assert stages_of(turn)["engine"] == stages_of(turn)["queue"] == 0


async def test_a_turn_that_preempts_has_stages_too(call: Call) -> None:
    async with call() as test:
        first = test.call.speak("A long sentence that is cut before its end.", preemptible=True)
        await until(lambda: "firstPacketMs" in first.reported)
        second = await test.spoken("Excuse me please.")
        assert first.outcome == "interrupted"
        assert stages_of(first)["queue"] == stages_of(second)["queue"] == 60


async def test_a_turn_that_was_refused_elsewhere_tells_what_that_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The engine that refused the first turn is not asked again within the test, however slow the machine.
    monkeypatch.setattr("tts_engine.service.client._GONE_S", 2 * PATIENCE_S)
    cold = SpeechServer(EngineConfig(listen=f"unix:{tmp_path}/cold.sock"))  # it listens, and has no engine yet
    await cold.start()
    sections: dict[str, Any] = {"carriers": {"twilio": {"verify": False}}, "routes": {"default": {}}}
    async with api_gateway(tmp_path, clones=False, synthesizer=SlowTone(), before=[cold.address], **sections) as (
        made,
        _,
        url,
    ):
        async with TestCall(SimpleNamespace(ws=url.replace("http", "ws")), "default") as test:  # type: ignore[arg-type]
            stages = stages_of(await test.spoken("Hello there."))
            assert stages["moved"] > 0
            assert stages["queue"] == 60
            assert "moved" not in stages_of(await test.spoken("Hello again."))
    await cold.aclose()
