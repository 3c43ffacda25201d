"""Registered voices of CosyVoice: two engines with one folder behind one client; tiny checkpoint, CPU."""

from __future__ import annotations

import io
import shutil
import wave
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from talkspurt.engines import make_engine
from tts_engine.api import UtteranceRequest
from tts_engine.config import CosyVoiceConfig, EngineConfig
from tts_engine.cosyvoice.checkpoint import VOICE, make
from tts_engine.cosyvoice.frontend.frontend import Frontend
from tts_engine.cosyvoice.loading import DirectoryVoices
from tts_engine.errors import InvalidRequest, NotFound
from tts_engine.service.client import GrpcEngine
from tts_engine.service.server import SpeechServer

TEXT = "Your order left."


def recording(hz: float) -> bytes:
    """Two seconds of a hum."""
    pcm = 0.3 * np.sin(2 * np.pi * hz * np.arange(32_000) / 16_000)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((pcm * 32767).astype("<i2").tobytes())
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny3"
    make(path, 3)
    return path


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> EngineConfig:
    """A small engine: the room for many clauses alone takes seconds to make."""
    return EngineConfig(
        kind="cosyvoice3",
        model_folder=str(folder),
        device="cpu",
        voices_folder=str(tmp_path / "voices"),
        cosyvoice=CosyVoiceConfig(max_clauses=4, first_chunk_s=1e6, euler_steps=2),
    )


@pytest.fixture
async def targets(config: EngineConfig, tmp_path: Path) -> AsyncIterator[list[str]]:
    """Two engines with one folder of voices."""
    async with AsyncExitStack() as stack:
        targets = []
        for number in range(2):
            engine = await make_engine(config)
            stack.push_async_callback(engine.aclose)
            server = SpeechServer(config)
            await server.start(f"unix:{tmp_path}/{number}.sock")
            stack.push_async_callback(server.aclose)
            await server.serve(engine)
            targets.append(server.address)
        yield targets


async def speak(engine: GrpcEngine, voice: str) -> int:
    """Samples of an utterance."""
    async with engine.open(UtteranceRequest(utterance_id="u", voice=voice)) as utterance:
        utterance.feed(TEXT)
        utterance.end_text()
        return sum([chunk.samples async for chunk in utterance])


async def test_a_registered_voice_speaks_on_every_engine_until_it_is_removed(targets: list[str]) -> None:
    client = GrpcEngine(targets, EngineConfig())
    added = await client.add_voice(voice_id="amy", name="Amy", wav=recording(200), transcript="mmm", language="en-US")
    assert (added.voice_id, added.registered, added.engine) == ("amy", True, "cosyvoice3")
    for target in targets:
        one = GrpcEngine(target, EngineConfig())
        assert [voice.voice_id for voice in await one.list_voices()] == [VOICE, "amy"]
        assert await speak(one, "amy") > 0
        await one.aclose()
    with pytest.raises(InvalidRequest, match="exists already"):
        await client.add_voice(voice_id="amy", name="", wav=recording(200), transcript="mmm", language="")
    await client.remove_voice("amy")
    for _ in range(2):
        with pytest.raises(NotFound, match="amy"):
            await speak(client, "amy")
    with pytest.raises(NotFound):
        await client.remove_voice("amy")
    with pytest.raises(InvalidRequest, match="built in"):
        await client.remove_voice(VOICE)
    await client.aclose()


async def test_a_new_recording_under_the_same_id_is_not_spoken_from_memory(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine(config)
    lookups: list[str] = []
    monkeypatch.setattr(engine.observer, "text_cache", lambda outcome, cache_bytes: lookups.append(outcome))  # type: ignore[attr-defined]
    for hz in (200, 300):
        await engine.add_voice(voice_id="amy", name="", wav=recording(hz), transcript="mmm", language="")
        for _ in range(2):
            async with engine.open(UtteranceRequest(utterance_id="u", voice="amy")) as utterance:
                utterance.feed(TEXT)
                utterance.end_text()
                assert [chunk async for chunk in utterance]
        await engine.remove_voice("amy")
    assert lookups == ["miss", "hit", "miss", "hit"]
    await engine.aclose()


async def test_registered_voices_outlive_the_engine(config: EngineConfig) -> None:
    engine = await make_engine(config)
    await engine.add_voice(voice_id="amy", name="Amy", wav=recording(200), transcript="mmm", language="")
    await engine.aclose()
    engine = await make_engine(config)
    assert [voice.name for voice in await engine.list_voices()] == [VOICE, "Amy"]
    await engine.aclose()


def test_without_a_voice_of_its_own_a_model_has_the_first_registered_one(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("spk2info.pt", "*.pt"))
    voices = DirectoryVoices(bare, Frontend(bare, version=3), tmp_path / "voices")
    with pytest.raises(NotFound, match="no spk2info.pt.*talkspurt voices add"):
        voices.features("")
    for voice_id in ("zoe", "amy"):
        voices.add(voice_id=voice_id, name="", wav=recording(200), transcript="mmm", language="")
    key, _ = voices.features("")
    assert key == ("amy", voices.revision("")) == ("amy", voices.revision("amy"))


def test_the_folder_alone_says_which_engine_it_is(folder: Path, tmp_path: Path) -> None:
    assert EngineConfig(model_folder=str(folder)).kind == "cosyvoice3"
    assert EngineConfig(more_models={"two": {"model_folder": str(folder)}}).more_models["two"].kind == "cosyvoice3"
    assert EngineConfig(kind="cosyvoice2", model_folder="elsewhere").kind == "cosyvoice2"
    with pytest.raises(ValueError, match=f"model_folder {tmp_path} holds neither cosyvoice2.yaml nor cosyvoice3.yaml"):
        EngineConfig(model_folder=str(tmp_path))
