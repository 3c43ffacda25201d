"""Several models in one engine, several engines behind one client: real processes, the CPU's voices."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from talkspurt.engines import engine_for_gateway, engine_process, make_engine
from tests.waiting import until
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.errors import NotFound, Unavailable
from tts_engine.pipeline.engine import Engine
from tts_engine.service.client import GrpcEngine
from tts_engine.service.process import EngineProcess
from tts_engine.service.server import RETRY_AFTER_S
from tts_engine.tone import ToneSynthesizer
from voicecodecs import g711

TEXT = "Thank you very much, your order is on the way."


async def speak(engine: Engine | GrpcEngine, text: str = TEXT, name: str = "u") -> list[AudioChunk]:
    async with engine.open(UtteranceRequest(utterance_id=name)) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


def sound(chunks: list[AudioChunk]) -> np.ndarray:
    return g711.decode_ulaw(b"".join(frame for chunk in chunks for frame in chunk.frames))


# --- models ---


async def test_an_open_utterance_keeps_its_model_over_a_switch() -> None:
    engine = Engine({"low": ToneSynthesizer(sample_rate=16000), "high": ToneSynthesizer(sample_rate=24000)})
    low = sound(await speak(engine))
    await engine.set_active_model("high")
    high = sound(await speak(engine))
    assert not np.array_equal(low, high)
    await engine.set_active_model("low")
    async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed("Thank you very much, your")
        chunks = [await anext(utterance)]
        await engine.set_active_model("high")
        utterance.feed(" order is on the way.")
        utterance.end_text()
        chunks += [chunk async for chunk in utterance]
    assert np.array_equal(sound(chunks), low)
    assert np.array_equal(sound(await speak(engine)), high), "nothing of one model is in the other's cache"
    await engine.aclose()


async def test_status_names_the_active_model_and_all_that_are_loaded() -> None:
    engine = Engine({"one": ToneSynthesizer(), "two": ToneSynthesizer()})
    await engine.start()
    await engine.set_active_model("two")
    status = await engine.status()
    assert (status.model, status.models, status.engine) == ("two", ("one", "two"), "tone")
    with pytest.raises(NotFound, match="model 'three' is not loaded; there is one, two"):
        await engine.set_active_model("three")
    await engine.aclose()


async def test_a_second_model_with_the_firsts_name_is_refused() -> None:
    with pytest.raises(Unavailable, match="engine.more_models.tone has the name of the first"):
        await make_engine(EngineConfig(kind="tone", more_models={"tone": ModelConfig(kind="tone")}))


async def test_models_are_switched_over_grpc_while_a_turn_speaks() -> None:
    config = EngineConfig(kind="tone", more_models={"voice": ModelConfig(kind="embedded")})
    process = engine_process(config)
    await process.start()
    client = GrpcEngine(process.target, config)
    try:
        assert (await client.status()).models == ("tone", "voice")
        tone = sound(await speak(client))
        async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("Thank you very much, your")
            chunks = [await anext(utterance)]
            await client.set_active_model("voice")
            assert [voice.voice_id for voice in await client.list_voices()] == ["heart"]
            utterance.feed(" order is on the way.")
            utterance.end_text()
            chunks += [chunk async for chunk in utterance]
        assert np.array_equal(sound(chunks), tone)
        assert not np.array_equal(sound(await speak(client))[: len(tone)], tone)
        with pytest.raises(NotFound, match="not loaded"):
            await client.set_active_model("gone")
    finally:
        await client.aclose()
        await process.aclose()


# --- workers ---


@pytest.fixture
async def workers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[EngineProcess]]:
    monkeypatch.setattr("tts_engine.service.process.RESTART_BACKOFF_S", 30.0)
    config = EngineConfig(kind="tone", drain_s=1.0)
    processes = [engine_process(config) for _ in range(2)]
    await asyncio.gather(*(process.start() for process in processes))
    yield processes
    for process in processes:
        await process.aclose()


async def active(process: EngineProcess) -> int:
    client = GrpcEngine(process.target, EngineConfig())
    try:
        return (await client.status()).active
    finally:
        await client.aclose()


async def test_turns_go_to_the_engine_with_the_fewest_and_past_one_that_is_gone(workers: list[EngineProcess]) -> None:
    client = GrpcEngine([process.target for process in workers], EngineConfig())
    opened = []
    for number in range(6):
        utterance = client.open(UtteranceRequest(utterance_id=f"u{number}"))
        utterance.feed("Hello there")
        opened.append(utterance)

    async def balanced() -> bool:
        return [await active(process) for process in workers] == [3, 3]

    await until(balanced)
    for utterance in opened[::2]:  # the first engine's
        await utterance.aclose()
    more = [client.open(UtteranceRequest(utterance_id=f"v{number}")) for number in range(3)]
    for utterance in more:
        utterance.feed("Hello there")
    await until(balanced)
    samples = {
        (sample.name, sample.labels["worker"])
        for family in text_string_to_metric_families((await client.metrics()).decode())
        for sample in family.samples
    }
    assert {("talkspurt_engine_queue_seconds_count", worker) for worker in "01"} <= samples

    for utterance in [*opened, *more]:
        await utterance.aclose()
    assert workers[0].pid is not None
    os.kill(workers[0].pid, signal.SIGKILL)
    lost, begun = 0, time.monotonic()
    for number in range(20):
        try:
            assert await speak(client, name=f"w{number}")
        except Unavailable:
            lost += 1
    assert lost <= 1 + (time.monotonic() - begun), "it is tried again once a second at most"
    assert lost <= 10, "never twice in a row"
    await client.aclose()


async def test_an_engine_that_refused_is_left_alone_for_as_long_as_it_asked() -> None:
    one = EngineConfig(kind="tone").model_copy(
        update={"speech": EngineConfig().speech.model_copy(update={"max_utterances": 1})}
    )
    processes = [engine_process(one), engine_process(EngineConfig(kind="tone"))]
    await asyncio.gather(*(process.start() for process in processes))
    client = GrpcEngine([process.target for process in processes], EngineConfig())
    elsewhere = GrpcEngine(processes[0].target, EngineConfig())
    try:
        # Another gateway fills the first engine, which ours cannot see.
        other = elsewhere.open(UtteranceRequest(utterance_id="other"))
        other.feed("Hello there")

        async def full() -> bool:
            return await active(processes[0]) == 1

        await until(full)
        asked_at = time.monotonic()
        assert await speak(client), "the other engine speaks what the first refused"
        full_one, free_one = client._backends
        assert full_one.load > free_one.load, "though neither has one of our utterances"
        assert full_one._full_until >= asked_at + RETRY_AFTER_S
        await other.aclose()
    finally:
        for end in (client, elsewhere, *processes):
            await end.aclose()


async def test_the_gateway_starts_an_engine_for_each_device() -> None:
    async with engine_for_gateway(EngineConfig(kind="tone", devices=("cuda:0", "cuda:1"))) as client:
        assert len(client._backends) == 2
        first, second = [client.open(UtteranceRequest(utterance_id=name)) for name in "ab"]
        for utterance in (first, second):
            utterance.feed("Hello.")
            utterance.end_text()
        assert [chunk async for chunk in first] and [chunk async for chunk in second]
        text = (await client.metrics()).decode()
        for worker in "01":
            assert f'talkspurt_engine_first_chunk_seconds_count{{engine="tone",worker="{worker}"}} 1.0' in text
