"""A CosyVoice checkpoint on the CPU, tiny and random, from a dialogue manager's text to what the caller hears. Version
3 has a process of its own, as on a GPU."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from talkspurt.cli import main
from tests.peers.live_server import START_S, Live, TestCall, child_environment, serve
from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S, until
from tts_engine.api import UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.cosyvoice.models.config import Version
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2_grpc as pb_grpc
from tts_engine.service import wire
from tts_engine.service.client import GrpcEngine
from voicecodecs import g711

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
engine:
  kind: cosyvoice{version}
  model_folder: {folder}
  device: cpu
  voices_folder: {folder}-voices
  cache_folder: {folder}-cache
  cosyvoice:  # this machine may be too slow for two
    {{max_clauses: 8, first_chunk_s: 1000, own_process: {own_process}}}
  more_models: {{hum: {{kind: tone}}}}
  models_folder: {folder}/..
routes: {{talk: {{}}}}
carriers: {{twilio: {{verify: false}}}}
"""
TEXT = "Your order left the warehouse this morning."


@pytest.fixture(scope="module", params=[2, 3], ids=["cosyvoice2", "cosyvoice3"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    version: Version = request.param
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert main(["engine", "make-checkpoint", str(folder), "--version", str(version), "--size", "tiny"]) == 0
    return CONFIG.format(version=version, folder=folder, own_process="true" if version == 3 else "false")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(config: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("server"), config) as running:
        yield running


async def spoken(call: TestCall, text: str) -> np.ndarray:
    """Speak a turn to its end; RMS of each 100 ms of what was heard of it, full scale is 1.

    Silence while the caller waited for sound is none of it: this machine may make sound slower than it is played.
    """
    leg, before = call.leg, call.leg.playout.end
    turn = await call.spoken(text)
    assert turn.outcome == "finished", turn
    await until(lambda: leg.playout.position(time.monotonic()) >= leg.playout.end, "the end of the sound")
    pcm = g711.decode_ulaw(bytes(leg.playout.heard[before:])).astype(np.float64) / 32768
    loudness = np.sqrt(np.mean(pcm[: len(pcm) // 800 * 800].reshape(-1, 800) ** 2, axis=1))
    return loudness[loudness > 0]


async def test_a_caller_hears_the_model_speak(live: Live) -> None:
    async with TestCall(live, "talk") as call:
        heard = await spoken(call, TEXT)
        assert len(heard) >= 10 and np.median(heard) > 0.003
        assert not call.leg.violations
    for name in (
        "talkspurt_engine_queue_seconds_count", "talkspurt_engine_batch_size_count",
        "talkspurt_engine_first_chunk_seconds_count", "talkspurt_engine_realtime_factor_count",
        "talkspurt_engine_cache_bytes",
    ):  # fmt: skip
        assert await live.metric(name) > 0, name


async def test_a_cut_turn_frees_the_engine_and_the_next_is_spoken(live: Live) -> None:
    async with TestCall(live, "talk") as call:
        turn = call.call.speak(TEXT * 4)
        await until(lambda: call.leg.spurts, "speech")
        call.call.send("cancel")
        await until(lambda: turn.outcome == "interrupted", "the cut")
        await until(lambda: live.metric_at_least("talkspurt_engine_freed_seconds_count", 1), "the engine freed")
        assert len(await spoken(call, "Hello again.")) > 0


def loaded(listed: dict[str, Any]) -> list[dict[str, Any]]:
    """Without OpenAI's names, which stand for one of them."""
    return [model for model in listed["data"] if not model["stands_for"]]


async def test_models_are_listed_and_switched_while_a_turn_speaks(live: Live) -> None:
    async with aiohttp.ClientSession(live.http) as http, TestCall(live, "talk") as call:
        async with http.get("/v1/models") as answer:
            models = loaded(await answer.json())
        assert [(model["id"], model["active"]) for model in models] == [(models[0]["id"], True), ("hum", False)]
        turn = call.call.speak(TEXT)
        await until(lambda: call.leg.spurts, "speech")
        async with http.post("/v1/models/active", json={"model": "hum"}) as answer:
            assert answer.status == 200 and [m["active"] for m in loaded(await answer.json())] == [False, True]
        await until(lambda: turn.outcome, "the turn's end")
        assert turn.outcome == "finished"
        await spoken(call, TEXT)
        assert await live.metric("talkspurt_engine_first_chunk_seconds_count", engine="tone") == 1
        for body, status in (({"model": "gone"}, 404), ({"name": "hum"}, 422), ({}, 422)):
            async with http.post("/v1/models/active", json=body) as answer:
                assert answer.status == status and (await answer.json())["error"]["message"]
        async with http.post("/v1/models/active", json={"model": models[0]["id"]}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("config", [3], ids=["cosyvoice3"], indirect=True)
async def test_a_model_is_loaded_beside_the_one_that_speaks_and_unloaded(live: Live) -> None:
    async with aiohttp.ClientSession(live.http) as http, TestCall(live, "talk") as call:
        for body, status in (({"id": "next", "folder": "tiny-cache"}, 422), ({"id": "next", "folder": "tiny"}, 200)):
            turn = call.call.speak(TEXT)
            await until(lambda: call.leg.spurts, "speech")
            async with http.post("/v1/models", json=body) as answer:
                assert answer.status == status, await answer.text()
            await until(lambda turn=turn: turn.outcome, "the turn's end")
            assert turn.outcome == "finished"
        async with http.post("/v1/models/active", json={"model": "next"}) as answer:
            assert answer.status == 200
        assert np.median(await spoken(call, TEXT)) > 0.003
        assert await live.metric("talkspurt_engine_batch_size_count", model="next") > 0
        async with http.delete("/v1/models/next") as answer:
            assert answer.status == 409
        async with http.post("/v1/models/active", json={"model": "hum"}) as answer:
            assert answer.status == 200
        async with http.delete("/v1/models/next") as answer:
            assert [model["id"] for model in loaded(await answer.json())][1:] == ["hum"]


@pytest.mark.slow
async def test_an_engine_alone_serves_health_reflection_and_metrics_and_drains(config: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(config)
    listen = f"unix:{tmp_path}/engine.sock"
    port = free_port()
    more = {"TALKSPURT__ENGINE__LISTEN": listen, "TALKSPURT__ENGINE__METRICS_PORT": str(port)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talkspurt", "engine", "-c", str(file), env={**child_environment(), **more}
    )
    client = GrpcEngine(listen, EngineConfig())
    try:
        async with grpc.aio.insecure_channel(listen) as channel, asyncio.timeout(START_S):
            health = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=wire.SERVICE)
            seen = []
            async for answer in health.Watch(request, wait_for_ready=True):
                seen.append(answer.status)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    break
            assert seen[0] == health_pb2.HealthCheckResponse.NOT_SERVING, "it answers before it is warm"
            models = await pb_grpc.SpeechEngineStub(channel).ListModels(pb.ListModelsRequest())
            assert models.models == [models.active, "hum"]
        utterance = client.open(UtteranceRequest(utterance_id="u"))
        utterance.feed(TEXT)
        utterance.end_text()
        first = await anext(utterance)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert "talkspurt_engine_batch_size_count" in await answer.text()
        process.terminate()
        rest = [chunk async for chunk in utterance]
        assert first.frames and sum(len(chunk.frames) for chunk in rest) > 0, "live speech is spoken to its end"
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        await client.aclose()
        if process.returncode is None:
            process.kill()
            await process.wait()
