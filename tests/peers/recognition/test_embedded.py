"""The embedded recogniser as calls meet it, in its own process, and its network in the place of an external one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from gateway.config import RecogniserConfig
from gateway.recognition.moonshine import Moonshine
from gateway.recognition.process import EmbeddedRecogniser
from gateway.seams.recogniser import RecognitionError, RecognitionStream
from tests.gateway.recognition.ear import Ear
from tests.gateway.recognition.test_client import config, serving, ws
from tests.gateway.recognition.test_client import stream as external
from tests.peers.ears import understood
from tests.peers.recognition.heard import frames, speech
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = RecogniserConfig(final_timeout_ms=30_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recogniser() -> AsyncIterator[EmbeddedRecogniser]:
    made = EmbeddedRecogniser("talkspurt.recognisers", CONFIG)
    made.begin()
    yield made
    pid = made.pid
    await made.aclose()
    assert pid is not None and not os.path.exists(f"/proc/{pid}")


def opened(recogniser: EmbeddedRecogniser, ear: Ear, *, partials: bool = False) -> RecognitionStream:
    return recogniser.open(ear, language="en-US", hints=(), partials=partials)


async def say(stream: RecognitionStream, pcm: NDArray[np.float32]) -> None:
    for frame in frames(pcm):
        stream.push(frame)
        await asyncio.sleep(0)


async def test_speech_becomes_words_in_another_process(recogniser: EmbeddedRecogniser) -> None:
    ear = Ear()
    stream = opened(recogniser, ear)
    await say(stream, speech("What are your opening hours?", rate=16000))
    stream.finish()
    await ear.until_finals(1)
    await stream.aclose()
    assert recogniser.pid not in (None, os.getpid())
    assert understood("What are your opening hours", ear.finals[0]), ear.finals


async def test_partial_results_grow_to_the_final_one(recogniser: EmbeddedRecogniser) -> None:
    ear = Ear()
    stream = opened(recogniser, ear, partials=True)
    text = "I would like to speak to a person, please."
    pcm = speech(text, rate=16000)
    await say(stream, pcm[: len(pcm) // 2])
    await until(lambda: ear.partials, "a partial result")
    await say(stream, pcm[len(pcm) // 2 :])
    stream.finish()
    await ear.until_finals(1)
    await stream.aclose()
    assert understood(text, ear.finals[0]), ear.finals
    # How much of the first half had come by the first result depends on the machine, and so do its words.
    early = ear.partials[0]
    assert early and not understood("a person", early), ear.partials
    assert len(early.split()) < len(ear.finals[0].split()), (early, ear.finals)


async def test_calls_are_heard_side_by_side(recogniser: EmbeddedRecogniser) -> None:
    texts = {"time": "What time is it?", "story": "Please tell me a story.", "person": "Give me a person, please."}
    ears = {word: Ear() for word in texts}
    streams = {word: opened(recogniser, ear) for word, ear in ears.items()}
    for word, text in texts.items():
        await say(streams[word], speech(text, rate=16000))
    for stream in streams.values():
        stream.finish()
    for word, ear in ears.items():
        await ear.until_finals(1)
        assert understood(texts[word], ear.finals[0]), ear.finals
        await streams[word].aclose()


async def test_silence_and_noise_have_no_words(recogniser: EmbeddedRecogniser) -> None:
    noise = np.random.default_rng(7).normal(0, 0.03, 16000).astype(np.float32)
    ear = Ear()
    stream = opened(recogniser, ear)
    for pcm in (np.zeros(16000, np.float32), noise, noise[:320]):
        await say(stream, pcm)
        stream.finish()
    await ear.until_finals(3)
    await stream.aclose()
    assert ear.finals == ["", "", ""]


async def test_process_that_dies_in_mid_utterance_is_started_anew_and_no_word_is_lost(
    recogniser: EmbeddedRecogniser,
) -> None:
    ear, restarts, pid = Ear(), recogniser.restarts, recogniser.pid
    stream = opened(recogniser, ear)
    pcm = speech("What are your opening hours?", rate=16000)
    await say(stream, pcm[: len(pcm) // 2])
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await say(stream, pcm[len(pcm) // 2 :])
    stream.finish()
    await ear.until_finals(1)
    await stream.aclose()
    assert recogniser.restarts == restarts + 1 and recogniser.pid != pid
    assert understood("What are your opening hours", ear.finals[0]), ear.finals


async def test_process_that_hangs_is_killed_and_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.recognition.process.HANG_S", 3.0)
    made = EmbeddedRecogniser("talkspurt.recognisers", CONFIG)
    made.begin()
    ear = Ear()
    stream = opened(made, ear)
    try:
        await say(stream, speech("What time is it?", rate=16000))
        stream.finish()
        await ear.until_finals(1)  # it works
        await until(lambda: made.ready, "the first health check")  # else it has the minute that a start may take
        pid = made.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: made.pid not in (pid, None), "another process")
        await say(stream, speech("What time is it?", rate=16000))
        stream.finish()
        await ear.until_finals(2)
        assert all(understood("What time is it", text) for text in ear.finals), ear.finals
    finally:
        await stream.aclose()
        await made.aclose()


async def test_other_languages_are_refused(recogniser: EmbeddedRecogniser) -> None:
    with pytest.raises(RecognitionError, match="English only, not 'de-DE'"):
        recogniser.open(Ear(), language="de-DE", hints=(), partials=False)


async def test_external_recogniser_with_the_real_network_understands_telephone_speech() -> None:
    network = await asyncio.to_thread(Moonshine)
    ear = Ear()
    settings = config(headers={"Authorization": "Token secret"})
    async with serving(network, key="secret") as server, external(ws(server), settings, ear, partials=True) as made:
        for text in ("What are your opening hours?", "I would like to speak to a person."):
            for frame in frames(speech(text, rate=16000)):
                made.push(frame)
                await asyncio.sleep(0)
            made.finish()
        await ear.until_finals(2)
    assert understood("What are your opening hours", ear.finals[0]), ear.finals
    assert understood("speak to a person", ear.finals[1]), ear.finals
