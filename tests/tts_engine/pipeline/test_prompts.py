"""Prompts of the configuration are in the clause cache before the first caller asks, and make no one wait."""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import pytest

from tests.tts_engine.pipeline.test_admission_queue import Places, admission_ms
from tests.tts_engine.pipeline.test_engine import Counter
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.errors import NotFound
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.synthesizer import ClauseRequest, Synthesizer
from tts_engine.tone import ToneSynthesizer
from voicecodecs.registry import AudioFormat

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are made for G.711 only."""
    monkeypatch.setattr("tts_engine.pipeline.prompts.LEG_RATES", (8000,))


GREETING = "Welcome to the shop. How can I help you?"


class Lines(ToneSynthesizer):
    """Hums at the rates of telephone lines, half a second after it is asked, in voices that are there."""

    line_rates: Collection[int] = (8000, 16000)

    def __init__(self, *, delay_s: float = 0.5) -> None:
        super().__init__(delay_s=lambda chunk: delay_s if chunk == 0 else 0.0)

    def synthesize(self, clause: ClauseRequest, playhead: Any) -> Any:
        if clause.voice == "nobody":
            raise NotFound(f"no voice {clause.voice!r}")
        return super().synthesize(clause, playhead)


def made(model: Synthesizer, *prompts: dict[str, Any], **speech: Any) -> tuple[Engine, Counter]:
    seen = Counter()
    config = SpeechConfig.model_validate({"prompts": prompts, **speech})
    return Engine(model, config, observer=seen, clock=asyncio.get_running_loop().time), seen


async def speak(engine: Engine, text: str, rate: int = 8000, **fields: Any) -> list[AudioChunk]:
    fmt = AudioFormat("PCMU") if rate == 8000 else AudioFormat("L16", rate)
    asked = UtteranceRequest(utterance_id="u", format=fmt, **({"language": "en-US"} | fields))
    async with engine.open(asked) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


async def idle(engine: Engine) -> None:
    assert engine._warming is not None
    await asyncio.wait({engine._warming})
    assert not engine._open


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
async def test_the_first_caller_hears_a_prompt_from_the_cache_at_every_rate(rate: int) -> None:
    model = Lines()
    engine, seen = made(model, {"text": GREETING})
    await engine.start()
    assert not model.asked, "the start waits for no prompt"
    await idle(engine)
    assert [(clause.text, clause.line_rate) for clause in model.asked] == [
        (text, line_rate)
        for line_rate in (8000, 16000, None)
        for text in ("Welcome to the shop.", "How can I help you?")
    ]
    seen.lookups.clear()
    chunks = await speak(engine, GREETING, rate)
    assert seen.lookups == ["hit", "hit"] and len(model.asked) == 6
    assert sum(chunks[0].stages_ms.values()) < 1
    await engine.aclose()


@pytest.mark.usefixtures("one_rate")
async def test_a_prompt_of_another_voice_language_or_speed_is_another_prompt() -> None:
    model = Lines()
    engine, seen = made(model, {"text": "Hello.", "voice": "anna", "language": "de-DE", "speed": 1.5})
    await engine.start()
    await idle(engine)
    seen.lookups.clear()
    for fields in ({}, {"voice": "anna", "language": "de-DE"}, {"voice": "anna", "language": "de-DE", "speed": 1.5}):
        await speak(engine, "Hello.", **fields)
    assert seen.lookups == ["miss", "miss", "hit"]
    await engine.aclose()


async def test_readiness_waits_for_prompts_only_where_it_is_told_to() -> None:
    engine, seen = made(Lines(), {"text": GREETING}, prompts_before_ready=True)
    await engine.start()
    seen.lookups.clear()
    await speak(engine, GREETING)
    assert seen.lookups == ["hit", "hit"]
    await engine.aclose()


@pytest.mark.usefixtures("one_rate")
async def test_a_caller_who_comes_while_the_prompt_is_made_shares_it() -> None:
    model = Lines()
    engine, seen = made(model, {"text": GREETING})
    await engine.start()
    await asyncio.sleep(0.1)
    await speak(engine, GREETING)
    assert seen.lookups[1] == "shared" and len(model.asked) == 2
    await idle(engine)
    await engine.aclose()


async def test_a_prompt_that_cannot_be_spoken_is_named_without_its_text_and_the_others_are_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, seen = made(Lines(), {"text": "Secret.", "voice": "nobody"}, {"text": "Hello."})
    with caplog.at_level(logging.INFO):
        await engine.start()
        await idle(engine)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [(r.__dict__["prompt"], r.__dict__["code"]) for r in warnings] == [(0, "NOT_FOUND")] * 3
    (told,) = [record.__dict__ for record in caplog.records if record.message == "prompts are warm"]
    assert (told["asked"], told["kept"]) == (6, 3)
    assert "Secret" not in caplog.text
    seen.lookups.clear()
    await speak(engine, "Hello.")
    assert seen.lookups == ["hit"]
    await engine.aclose()


@pytest.mark.usefixtures("one_rate")
async def test_prompts_outlast_what_is_spoken_later_and_take_half_of_the_cache_at_most() -> None:
    clause_bytes = int(ToneSynthesizer().sample_rate * 4 * 0.05 * 10)  # ten letters of 50 ms
    model = ToneSynthesizer()
    prompts = [{"text": f"{letter * 10}."} for letter in "abcd"]
    engine, seen = made(model, *prompts, cache_bytes=5 * clause_bytes)
    await engine.start()
    await idle(engine)
    for letter in "efghijk":
        await speak(engine, f"{letter * 10}.")
    seen.lookups.clear()
    for letter in "abcd":
        await speak(engine, f"{letter * 10}.")
    assert seen.lookups == ["hit", "hit", "miss", "miss"]
    assert engine.cache.bytes <= 5 * clause_bytes
    await engine.aclose()


@pytest.mark.usefixtures("one_rate")
async def test_no_turn_waits_behind_prompts() -> None:
    """With one place, a turn waits for the clause under way at most, and never for the next prompt."""
    engine, seen = made(Places(), *({"text": f"Prompt {n}."} for n in range(20)))
    await engine.start()
    await asyncio.sleep(0.05)
    waits = [admission_ms(await speak(engine, f"This is turn {n}.")) for n in range(5)]
    assert waits[0] == pytest.approx(150, abs=11)
    assert all(wait == pytest.approx(200, abs=11) for wait in waits[1:]), "one prompt between two turns"
    await idle(engine)
    seen.lookups.clear()
    await speak(engine, "Prompt 19.")
    assert seen.lookups == ["hit"]
    await engine.aclose()


async def test_closing_the_engine_ends_the_warm_up() -> None:
    model = Lines()
    engine, _ = made(model, {"text": GREETING})
    await engine.start()
    await asyncio.sleep(0.1)
    await engine.aclose()
    assert model.active == 0 and len(model.asked) == 1


@pytest.mark.usefixtures("one_rate")
async def test_another_model_gets_the_prompts_when_it_becomes_active() -> None:
    first, second = Lines(), Lines()
    seen = Counter()
    config = SpeechConfig.model_validate({"prompts": [{"text": "Hello."}]})
    engine = Engine({"one": first, "two": second}, config, observer=seen)
    await engine.start()
    await idle(engine)
    await engine.set_active_model("two")
    await idle(engine)
    assert [len(model.asked) for model in (first, second)] == [1, 1]
    await engine.aclose()
