"""Models that come and go beside the one that speaks: real engines over real sockets, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from tts_engine.api import ModelToLoad, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, NotFound, Unavailable
from tts_engine.pipeline.engine import Engine
from tts_engine.service.client import GrpcEngine
from tts_engine.service.models import EngineWithModels
from tts_engine.service.server import SpeechServer
from tts_engine.tone import ToneSynthesizer


class ServedHere:
    """An engine of a loaded model that is served in this process, in the place of a child."""

    def __init__(self, config: EngineConfig, target: str, *, fails: bool) -> None:
        self.config, self.target, self.fails = config, target, fails
        self.server = SpeechServer(config)
        self.engine = Engine(ToneSynthesizer(), config.speech)
        self.closed = False

    async def start(self) -> None:
        if self.fails:
            raise Unavailable("engine process ended with code 1 before it was warm")
        await self.engine.start()
        await self.server.start(self.target)
        await self.server.serve(self.engine)

    async def aclose(self) -> None:
        await self.server.drain()
        await self.server.aclose()
        await self.engine.aclose()
        self.closed = True


class House:
    """A served engine with the model ``tone``, a client of it, and the processes of the models that it loads."""

    def __init__(self, folder: Path) -> None:
        self.config = EngineConfig.model_validate(
            {"kind": "tone", "listen": f"unix:{folder}/own.sock", "models_folder": str(folder / "models")}
        )
        self.processes: list[ServedHere] = []
        self.fails = False
        self.engine = EngineWithModels(Engine(ToneSynthesizer(), self.config.speech), self.config, self._process)
        self.server = SpeechServer(self.config)
        self.client = GrpcEngine(self.config.listen, self.config)
        self.failed: list[str] = []
        self.client.on_model_failed = self.failed.append
        self._folder = folder

    def _process(self, config: EngineConfig) -> ServedHere:
        process = ServedHere(config, f"unix:{self._folder}/{len(self.processes)}.sock", fails=self.fails)
        self.processes.append(process)
        return process

    async def models(self) -> tuple[list[str], str]:
        status = await self.client.status()
        return list(status.models), status.model

    async def speak(self, model: str = "") -> list[str]:
        """Speak a word; what made the chunks."""
        async with self.client.open(UtteranceRequest(utterance_id="u", model=model)) as utterance:
            utterance.feed("hello")
            utterance.end_text()
            chunks = [chunk async for chunk in utterance]
        assert np.sum([chunk.samples for chunk in chunks]) > 0
        return sorted({chunk.engine for chunk in chunks})


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    (tmp_path / "models" / "empty").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    house = House(tmp_path)
    await house.server.start()
    await house.server.serve(house.engine)
    yield house
    await house.client.aclose()
    await house.server.aclose()
    await house.engine.aclose()
    assert all(process.closed or process.fails for process in house.processes)


async def test_a_model_is_loaded_speaks_for_who_asks_and_is_unloaded(house: House) -> None:
    await house.client.load_model(ModelToLoad(name="next", kind="tone"))
    assert await house.models() == (["tone", "next"], "tone")
    assert await house.speak() == ["tone"]
    assert await house.speak("next") == ["next"]
    assert b'model="next"' in await house.client.metrics()
    await house.client.unload_model("next")
    assert await house.models() == (["tone"], "tone")
    assert house.processes[0].closed
    assert house.failed == []


async def test_a_loaded_model_can_become_the_active_one_and_then_stays(house: House) -> None:
    await house.client.load_model(ModelToLoad(name="next", kind="tone"))
    await house.client.set_active_model("next")
    assert await house.models() == (["tone", "next"], "next")
    await house.speak()
    assert [voice.voice_id for voice in await house.client.list_voices()]
    with pytest.raises(InvalidRequest, match="is the active one"):
        await house.client.unload_model("next")
    await house.client.set_active_model("tone")
    await house.client.unload_model("next")


async def test_a_turn_of_a_model_that_is_gone_goes_on_with_the_active_one_and_is_counted(house: House) -> None:
    assert await house.speak("gone") == ["tone"]
    assert house.failed == ["gone"]


async def test_a_turn_under_way_finishes_on_the_model_that_is_unloaded(house: House) -> None:
    await house.client.load_model(ModelToLoad(name="next", kind="tone"))
    async with house.client.open(UtteranceRequest(utterance_id="u", model="next")) as utterance:
        utterance.feed("hello there. ")
        assert (await anext(utterance)).engine == "next"
        unloading = asyncio.create_task(house.client.unload_model("next"))
        while "next" in (await house.models())[0]:
            pass
        utterance.feed("good bye")
        utterance.end_text()
        assert {chunk.engine async for chunk in utterance} == {"next"}
        await unloading
    assert house.failed == []


async def test_a_load_that_fails_leaves_everything_as_it_was(house: House) -> None:
    house.fails = True
    with pytest.raises(Unavailable, match="before it was warm"):
        await house.client.load_model(ModelToLoad(name="next", kind="tone"))
    assert await house.models() == (["tone"], "tone")
    assert await house.speak() == ["tone"]
    house.fails = False
    await house.client.load_model(ModelToLoad(name="next", kind="tone"))  # the name is free


@pytest.mark.parametrize(
    ("model", "error", "said"),
    [
        (ModelToLoad(name="Next", kind="tone"), InvalidRequest, "a-z"),
        (ModelToLoad(name="tone", kind="tone"), InvalidRequest, "already"),
        (ModelToLoad(name="next"), InvalidRequest, "neither folder nor kind"),
        (ModelToLoad(name="next", kind="flute"), InvalidRequest, "kind"),
        (ModelToLoad(name="next", kind="cosyvoice3"), InvalidRequest, "needs a folder"),
        (ModelToLoad(name="next", folder="gone"), InvalidRequest, "within engine.models_folder"),
        (ModelToLoad(name="next", folder="../outside"), InvalidRequest, "within engine.models_folder"),
        (ModelToLoad(name="next", folder="empty"), InvalidRequest, "neither cosyvoice2.yaml"),
        (ModelToLoad(name="next", kind="tone", device="gpu"), InvalidRequest, "device"),
        (ModelToLoad(name="next", kind="tone", cosyvoice="[1]"), InvalidRequest, "no JSON object"),
        (ModelToLoad(name="next", kind="tone", cosyvoice="[" * 100_000), InvalidRequest, "no JSON"),
        (ModelToLoad(name="next", kind="tone", cosyvoice='{"first_hop": 99}'), InvalidRequest, "first_hop"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_with_the_reason(
    house: House, model: ModelToLoad, error: type[EngineError], said: str
) -> None:
    with pytest.raises(error, match=said):
        await house.client.load_model(model)
    assert not house.processes
    assert await house.models() == (["tone"], "tone")


async def test_loaded_models_are_bounded_and_those_of_the_configuration_stay(house: House) -> None:
    for name in ("a", "b"):
        await house.client.load_model(ModelToLoad(name=name, kind="tone"))
    with pytest.raises(Exhausted, match="max_loaded_models"):
        await house.client.load_model(ModelToLoad(name="c", kind="tone"))
    with pytest.raises(InvalidRequest, match="stays as long as the engine"):
        await house.client.unload_model("tone")
    with pytest.raises(NotFound):
        await house.client.set_active_model("c")


async def test_when_one_of_several_engines_cannot_load_none_has_the_model(tmp_path: Path) -> None:
    houses = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        house = House(tmp_path / str(number))
        await house.server.start()
        await house.server.serve(house.engine)
        houses.append(house)
    houses[1].fails = True
    both = GrpcEngine([house.config.listen for house in houses], houses[0].config)
    try:
        with pytest.raises(Unavailable):
            await both.load_model(ModelToLoad(name="next", kind="tone"))
        assert [await house.models() for house in houses] == [(["tone"], "tone")] * 2
        assert houses[0].processes[0].closed
    finally:
        await both.aclose()
        for house in houses:
            await house.client.aclose()
            await house.server.aclose()
            await house.engine.aclose()
