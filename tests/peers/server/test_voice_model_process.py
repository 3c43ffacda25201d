"""CosyVoice in a process of its own beside the engine's: what each holds, what they speak, and that neither outlives
the other."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talkspurt.engines import engine_process
from tests.waiting import until
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.errors import EngineError, NotFound, Unavailable
from tts_engine.service.client import GrpcEngine
from tts_engine.service.process import EngineProcess

TEXT = "Your order 66 left the warehouse this morning. It will arrive on Friday, I hope."


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("models") / "tiny3"
    make(folder, 3)
    return EngineConfig.model_validate(
        {
            "model_folder": str(folder),
            "device": "cpu",
            "voices_folder": str(folder.with_name("voices")),
            "cosyvoice": {
                "own_process": True, "max_clauses": 8, "first_chunk_s": 1e6, "euler_steps": 2,
                "text_processes": 1,
            },
        }
    )  # fmt: skip


@pytest.fixture
async def engine(config: EngineConfig) -> AsyncIterator[EngineProcess]:
    process = engine_process(config)
    await process.start()
    yield process
    await process.aclose()


@pytest.fixture
async def client(engine: EngineProcess, config: EngineConfig) -> AsyncIterator[GrpcEngine]:
    client = GrpcEngine(engine.target, config)
    yield client
    await client.aclose()


async def speak(client: GrpcEngine, text: str = TEXT, voice: str = "") -> list[AudioChunk]:
    async with client.open(UtteranceRequest(utterance_id="u", voice=voice)) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


def children(pid: int) -> dict[str, int]:
    """The processes that a process has started, by the module that they run."""
    pids = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    commands = {each: Path(f"/proc/{each}/cmdline").read_text() for each in pids}
    return {found[1]: each for each, command in commands.items() if (found := re.search(r"-m\0([\w.]+)", command))}


def model_of(engine: EngineProcess) -> int:
    assert engine.pid is not None
    return children(engine.pid)["talkspurt.voice_model"]


def loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


async def test_the_engine_has_the_connections_and_the_model_the_networks(
    engine: EngineProcess, client: GrpcEngine
) -> None:
    model = model_of(engine)
    spoken = await asyncio.gather(*(speak(client) for _ in range(4)))
    for chunks in spoken:
        words = [span for chunk in chunks for span in chunk.spans]
        assert [TEXT[word.start_char : word.end_char] for word in words] == TEXT.split()
        assert all(word.end_sample <= chunks[-1].first_sample + chunks[-1].samples for word in words)
    assert engine.pid is not None
    assert (loaded(engine.pid, "libtorch"), loaded(model, "libtorch")) == (False, True)
    assert (loaded(engine.pid, "grpc"), loaded(model, "cygrpc")) == (True, False)
    assert "tts_engine.cosyvoice.frontend.normaliser_process" in children(model)
    assert os.getpriority(os.PRIO_PROCESS, model) == os.getpriority(os.PRIO_PROCESS, engine.pid)

    status = await client.status()
    assert (status.ready, status.engine, status.models) == (True, "cosyvoice3", ("cosyvoice3",))
    assert [voice.voice_id for voice in await client.list_voices()] == ["random"]
    with pytest.raises(NotFound, match="no voice 'stranger'"):
        await speak(client, voice="stranger")
    metrics = (await client.metrics()).decode()
    assert re.search(r'text_normaliser_requests_total\{outcome="miss"\} [1-9]', metrics)
    assert re.search(r"engine_batch_size_count [1-9]", metrics)


async def test_the_engine_ends_with_its_model_and_both_come_back(engine: EngineProcess, client: GrpcEngine) -> None:
    first, model = engine.pid, model_of(engine)
    async with client.open(UtteranceRequest(utterance_id="live")) as utterance:
        utterance.feed(TEXT)
        await anext(utterance)
        os.kill(model, signal.SIGKILL)
        with pytest.raises(EngineError):
            async for _ in utterance:
                pass
    await until(lambda: engine.restarts == 1 and engine.ready)
    assert engine.pid != first and model_of(engine) != model
    assert await speak(client)


async def test_a_turn_whose_model_is_killed_is_spoken_to_its_end_by_another_engine(
    engine: EngineProcess, config: EngineConfig
) -> None:
    other = engine_process(config)
    await other.start()
    client = GrpcEngine([engine.target, other.target], config)
    try:
        async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
            known = TEXT.index(" It will")
            utterance.feed(TEXT[:known])
            chunks = [await anext(utterance)]
            (busy,) = (number for number, backend in enumerate(client._backends) if backend.active)
            os.kill(model_of((engine, other)[busy]), signal.SIGKILL)
            utterance.feed(TEXT[known:])  # so the engine cannot have made all of it, however late we come
            utterance.end_text()
            chunks += [chunk async for chunk in utterance]
        ends = [chunk.first_sample + chunk.samples for chunk in chunks]
        assert [chunk.first_sample for chunk in chunks] == [0, *ends[:-1]], "no hole"
        words = [(span.start_char, span.end_char) for chunk in chunks for span in chunk.spans]
        assert len(words) <= len(TEXT.split()) + 1, "a word at most is said again"
        assert [TEXT[begin:end].strip() for begin, end in dict.fromkeys(words)] == TEXT.split()
        assert client.moves == 1
    finally:
        await client.aclose()
        await other.aclose()


async def test_the_model_ends_with_its_engine(engine: EngineProcess) -> None:
    model = model_of(engine)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{model}/maps").exists() or not Path(f"/proc/{model}/maps").read_text())


async def test_a_model_that_cannot_be_loaded_is_one_clear_error(
    config: EngineConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = config.model_copy(update={"model_folder": str(tmp_path), "kind": "cosyvoice3"})
    with pytest.raises(Unavailable, match="ended with code 1"):
        await engine_process(broken).start()
    assert re.search(rf"{tmp_path}.*(lacks|missing|no )", capfd.readouterr().err)
