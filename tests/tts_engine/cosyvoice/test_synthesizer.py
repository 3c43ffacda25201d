"""A tiny random checkpoint through front end, language model, flow and vocoder, on the CPU."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from talkspurt.engines import make_synthesizer
from tests.tts_engine.garbage import leaving_no_circles
from tests.waiting import stand_still, until
from tts_engine.config import CosyVoiceConfig, EngineConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.cosyvoice.loading import load_synthesizer
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer
from tts_engine.errors import InvalidRequest, NotFound, Unavailable
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead

TEXT = "Your order left the warehouse this morning and it will arrive on Friday."


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / f"tiny{request.param}"
    make(path, request.param)
    return path


@pytest.fixture
async def synthesizer(folder: Path) -> AsyncIterator[CosyVoiceSynthesizer]:
    settings = CosyVoiceConfig(max_clauses=3, first_chunk_s=1e6, first_hop=22, euler_steps=2)
    engine = load_synthesizer(folder, settings, device="cpu")
    await engine.start()
    yield engine
    await engine.aclose()


def request(text: str = TEXT, *, voice: str = "", speed: float = 1.0) -> ClauseRequest:
    return ClauseRequest(text=text, voice=voice, language="en-US", speed=speed, instruct="", first=True)


async def speak(engine: CosyVoiceSynthesizer, clause: ClauseRequest) -> list[PcmChunk]:
    return [chunk async for chunk in engine.synthesize(clause, Playhead())]


async def nobody_speaks(engine: CosyVoiceSynthesizer) -> None:
    await until(lambda: not engine.status().active)


async def test_a_clause_is_spoken_in_chunks_with_its_words(synthesizer: CosyVoiceSynthesizer) -> None:
    chunks = await speak(synthesizer, request())
    assert len(chunks) > 1
    held_back = {"cosyvoice2": 8 * 480, "cosyvoice3": 4 * 480 + 8}[synthesizer.name]
    assert len(chunks[0].pcm) == 22 * 960 - held_back  # by the vocoder
    total = sum(len(chunk.pcm) for chunk in chunks)
    assert total % 960 == 0  # whole tokens
    assert all(chunk.pcm.dtype == np.float32 and np.abs(chunk.pcm).max() <= 1 for chunk in chunks)
    words = [word for chunk in chunks for word in chunk.words]
    assert [TEXT[w.start_char : w.end_char] for w in words] == TEXT.split()
    assert all(a.end_sample == b.first_sample for a, b in zip(words, words[1:], strict=False))
    heard = 0
    for chunk in chunks[:-1]:
        heard += len(chunk.pcm)
        assert all(word.first_sample < heard for word in chunk.words)


async def test_several_clauses_at_once_are_all_spoken(synthesizer: CosyVoiceSynthesizer) -> None:
    spoken = await asyncio.gather(*(speak(synthesizer, request(f"This is caller {n}.")) for n in ("one", "two")))
    assert all(spoken)
    await nobody_speaks(synthesizer)


async def test_closing_a_clause_frees_everything_of_it(synthesizer: CosyVoiceSynthesizer) -> None:
    async with aclosing(synthesizer.synthesize(request(), Playhead())) as chunks:
        await anext(chunks)
        assert synthesizer.status().active == 1
    await nobody_speaks(synthesizer)


async def test_clauses_are_freed_without_a_collection_of_garbage(synthesizer: CosyVoiceSynthesizer) -> None:
    async with leaving_no_circles():
        await speak(synthesizer, request())
        async with aclosing(synthesizer.synthesize(request(), Playhead())) as chunks:
            await anext(chunks)
        await nobody_speaks(synthesizer)


async def test_bad_requests_are_named(synthesizer: CosyVoiceSynthesizer) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await speak(synthesizer, request(voice="nobody"))
    with pytest.raises(InvalidRequest):
        await speak(synthesizer, request("..."))


async def test_a_speed_stretches_sound_and_words_alike(
    synthesizer: CosyVoiceSynthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.getrandbits", lambda _: 7)  # the clauses' seed, so that all say the same
    text = "It leaves today."
    own, slow, fast = [await speak(synthesizer, request(text, speed=speed)) for speed in (1.0, 0.25, 4.0)]
    samples = sum(len(chunk.pcm) for chunk in own)
    before = [word for chunk in own for word in chunk.words]
    for speed, chunks in ((0.25, slow), (4.0, fast)):
        assert sum(len(chunk.pcm) for chunk in chunks) == round(samples / speed)
        # The first chunk is sent with the sound that it brings, but for what the stretching holds back.
        assert len(own[0].pcm) / speed - len(chunks[0].pcm) < max(0.03 / speed, 0.012) * 24000
        after = [word for chunk in chunks for word in chunk.words]
        assert [text[word.start_char : word.end_char] for word in after] == text.split()
        for word, moved in zip(before, after, strict=True):
            assert moved.first_sample == pytest.approx(word.first_sample / speed, abs=1)
            assert moved.end_sample == pytest.approx(word.end_sample / speed, abs=1)


def test_a_directory_without_weights_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (name,) = (path.name for path in folder.glob("cosyvoice?.yaml"))
    (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(Unavailable, match="flow"):
        load_synthesizer(tmp_path, CosyVoiceConfig(), device="cpu")


def test_the_configuration_reaches_the_engine(folder: Path) -> None:
    kind = "cosyvoice2" if folder.name == "tiny2" else "cosyvoice3"
    settings = {"finalize": "causal", "first_hop": 15, "euler_steps": 5, "text_streaming": True, "max_positions": 256,
                "max_clauses": 3}  # fmt: skip
    config = EngineConfig(kind=kind, model_folder=str(folder), device="cpu", cosyvoice=settings)
    model = make_synthesizer(config, config)
    assert isinstance(model, CosyVoiceSynthesizer)
    worker = model._worker
    voice = worker.blocks.place(list(range(60)), now=0.0)
    assert worker.scheduler.first_hops(voice) == [15] and (len(voice.prompt_tokens) + 22) % 25 == 0
    assert not worker.scheduler._last_is_whole and worker.runner.state.flow.solver.steps == 5
    assert model.streams_text
    other = config.model_copy(update={"kind": "cosyvoice3" if kind == "cosyvoice2" else "cosyvoice2"})
    with pytest.raises(Unavailable, match=f"is {kind}"):
        make_synthesizer(other, other)


async def test_a_clause_begins_with_one_of_the_prepared_first_chunks(folder: Path) -> None:
    settings = CosyVoiceConfig(max_clauses=3, first_chunk_s=1e6, euler_steps=2)
    engine = load_synthesizer(folder, settings, device="cpu")
    await engine.start()
    held_back = {"cosyvoice2": 8 * 480, "cosyvoice3": 4 * 480 + 8}[engine.name]
    try:
        spoken = await asyncio.gather(*(speak(engine, request()) for _ in range(3)))
        for chunks in spoken:
            assert len(chunks[0].pcm) + held_back in {hop * 960 for hop in (8, 15, 22)}
            assert sum(len(chunk.pcm) for chunk in chunks) % 960 == 0
        engine._admission.calibrate("chunk", 1, 10.0)  # as if a chunk took ten seconds
        chunks = await speak(engine, request())
        assert len(chunks[0].pcm) == 22 * 960 - held_back
        await nobody_speaks(engine)
    finally:
        await engine.aclose()


async def test_a_draft_begins_with_as_short_a_chunk_as_a_clause_that_is_awaited(folder: Path) -> None:
    settings = CosyVoiceConfig(max_clauses=3, first_chunk_s=1e6, euler_steps=2)
    engine = load_synthesizer(folder, settings, device="cpu")
    await engine.start()
    try:
        draft = Playhead()
        draft.tentative = True
        async with aclosing(engine.synthesize(request(), draft)) as chunks:
            chunk = await anext(chunks)
        assert len(chunk.pcm) < 15 * 960
        await nobody_speaks(engine)
    finally:
        await engine.aclose()


async def test_a_clause_cancelled_before_its_wording_is_known_leaves_nothing(tmp_path: Path) -> None:
    make(tmp_path / "tiny", 3)
    settings = CosyVoiceConfig(max_clauses=3, first_chunk_s=1e6, first_hop=22, euler_steps=2, text_processes=1)
    engine = load_synthesizer(tmp_path / "tiny", settings, device="cpu")
    await engine.start()
    try:
        (child,) = engine._normaliser._processes
        assert child.pid is not None
        await stand_still(child.pid)
        cancelled = asyncio.create_task(speak(engine, request()))
        await until(lambda: engine._normaliser._asked)
        async with leaving_no_circles():
            cancelled.cancel()
            await asyncio.wait({cancelled})
            del cancelled
            await nobody_speaks(engine)
        os.kill(child.pid, signal.SIGCONT)
        assert await speak(engine, request())
        await nobody_speaks(engine)
    finally:
        await engine.aclose()


async def test_a_short_first_chunk_and_a_causal_end_are_heard_whole(folder: Path) -> None:
    settings = CosyVoiceConfig(max_clauses=3, finalize="causal", first_hop=15, first_chunk_s=1e6, euler_steps=2)
    engine = load_synthesizer(folder, settings, device="cpu")
    await engine.start()
    try:
        chunks = await speak(engine, request())
        assert len(chunks[0].pcm) < 15 * 960
        assert sum(len(chunk.pcm) for chunk in chunks) % 960 == 0
    finally:
        await engine.aclose()
