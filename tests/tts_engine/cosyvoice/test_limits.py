"""The requests that a CosyVoice engine refuses or lets wait, and the signs that it is broken: tiny checkpoint, CPU."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until
from tts_engine.config import CosyVoiceConfig, EngineConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.cosyvoice.loading import _cache_blocks, _cache_bytes, few_clauses, load_synthesizer
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer
from tts_engine.errors import EngineError, Exhausted, SynthesisFailed, Unavailable
from tts_engine.metrics import BATCH_SIZE, CACHE_BYTES, PrometheusObserver
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead

TEXT = "Your order left the warehouse this morning and it will arrive on Friday."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny3"
    make(path, 3)
    return path


async def started(folder: Path, **fields: float) -> CosyVoiceSynthesizer:
    # This machine may be too slow for two: only what a test sets refuses.
    settings = CosyVoiceConfig(**{"max_clauses": 3, "first_chunk_s": 1e6, "euler_steps": 2} | fields)  # type: ignore[arg-type]
    engine = load_synthesizer(folder, settings, device="cpu", observer=PrometheusObserver())
    await engine.start()
    return engine


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[CosyVoiceSynthesizer]:
    made = await started(folder)
    yield made
    await made.aclose()


def clause(*, first: bool = True) -> ClauseRequest:
    return ClauseRequest(text=TEXT, voice="", language="en-US", speed=1.0, instruct="", first=first)


async def whole(engine: CosyVoiceSynthesizer, playhead: Playhead, *, first: bool = True) -> Sequence[PcmChunk]:
    return [chunk async for chunk in engine.synthesize(clause(first=first), playhead)]


async def test_an_engine_of_one_clause_with_first_chunks_of_any_length_speaks(folder: Path) -> None:
    """Its few cache blocks once went to three copies of the voice prompt, and the clause waited for more for ever."""
    engine = await started(folder, max_clauses=1)
    try:
        chunks = await asyncio.wait_for(whole(engine, Playhead()), PATIENCE_S)
        assert sum(len(chunk.pcm) for chunk in chunks) > 0
    finally:
        await engine.aclose()


def test_a_cache_too_small_for_the_longest_clause_is_refused_at_start() -> None:
    with pytest.raises(
        Unavailable, match=r"cache_gb is 1, enough for 11 s of audio, expected at least 5.8, for the 64 s"
    ):
        _cache_blocks(CosyVoiceConfig(), 1_000_000_000, block_bytes=90_000_000, max_chunks=64, gpu=True)
    assert _cache_blocks(CosyVoiceConfig(), 5_800_000_000, block_bytes=90_000_000, max_chunks=64, gpu=True) == 64
    assert _cache_blocks(CosyVoiceConfig(max_clauses=1), 0, block_bytes=1, max_chunks=48, gpu=False) == 48 + 10 + 32


@pytest.mark.parametrize(
    ("fields", "share", "free_gb", "cache_gb"),
    [
        ({}, 1.0, 145, 115),  # 150 less 5 of its own, less a fifth of the card
        ({}, 0.5, 145, 75 - 5 - 15),
        ({}, 0.5, 75, 55),  # another model is in place
        ({}, 1.0, 40, 10),  # another program takes the rest
        ({"language_model": "vllm"}, 1.0, 145, 107),
        ({"language_model": "vllm", "vllm": {"kv_cache_memory_bytes": 14_000_000_000}}, 1.0, 145, 97),
        ({"language_model": "vllm", "vllm": {"gpu_memory_utilization": 0.3}}, 1.0, 145, 70),
        ({"cache_gb": 3.5}, 0.5, 1, 3.5),
    ],
)
def test_the_cache_takes_what_is_free_beside_weights_graphs_vllm_and_other_models(
    fields: dict[str, object], share: float, free_gb: float, cache_gb: float
) -> None:
    settings, giga = CosyVoiceConfig.model_validate(fields), 10**9
    got = _cache_bytes(settings, free=int(free_gb * giga), total=150 * giga, own=5 * giga, share=share)
    assert got == pytest.approx(cache_gb * giga)


def test_models_of_an_engine_share_its_memory_with_those_that_may_be_loaded() -> None:
    one = {"kind": "cosyvoice3", "model_folder": "three"}
    assert EngineConfig.model_validate(one).memory_share == 1
    assert EngineConfig.model_validate({**one, "more_models": {"two": one}}).memory_share == 1 / 2
    assert EngineConfig.model_validate({**one, "models_folder": "/m", "max_loaded_models": 3}).memory_share == 1 / 4
    assert EngineConfig(kind="tone").memory_share == 1


async def test_a_full_engine_refuses_a_new_turn_and_lets_one_that_speaks_go_on(engine: CosyVoiceSynthesizer) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            chunks = await stack.enter_async_context(aclosing(engine.synthesize(clause(), Playhead())))
            await anext(chunks)
        with pytest.raises(Exhausted, match="3 clauses are being spoken") as refused:
            await whole(engine, Playhead())
        assert 0.1 <= refused.value.retry_after_s <= 10
        going_on = asyncio.create_task(whole(engine, Playhead(), first=False))
        await until(lambda: engine.status().queued == 1)
    assert await going_on
    assert engine.status().queued == 0


async def test_a_turn_nobody_waits_for_waits_itself_until_somebody_does(engine: CosyVoiceSynthesizer) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            chunks = await stack.enter_async_context(aclosing(engine.synthesize(clause(), Playhead())))
            await anext(chunks)
        playhead = Playhead(ahead=True)
        ahead = asyncio.create_task(whole(engine, playhead))
        await until(lambda: engine.status().queued == 1)
        playhead.ahead = False  # its turn has come, and the engine is as full as before
        with pytest.raises(Exhausted):
            await ahead
    assert engine.status().queued == 0


async def test_admission_hears_of_each_clause_whether_it_was_cut(
    engine: CosyVoiceSynthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[bool] = []
    monkeypatch.setattr(engine._admission, "departed", lambda now, sound_s, cut: gone.append(cut))
    await whole(engine, Playhead())
    assert gone == [False]
    async with aclosing(engine.synthesize(clause(), Playhead())) as chunks:
        await anext(chunks)
    assert gone == [False, True]


async def test_measured_steps_close_the_door(folder: Path) -> None:
    # No machine makes a chunk in so short a time: after the first batch no other turn fits.
    engine = await started(folder, max_clauses=50, first_chunk_s=1e-6)
    async with aclosing(engine.synthesize(clause(), Playhead())) as chunks:
        await anext(chunks)
        await anext(chunks)
        # On a very slow machine the long run is short as well, and is tested first.
        with pytest.raises(Exhausted, match="within 5e-07 s|in real time"):
            await whole(engine, Playhead())
        assert await whole(engine, Playhead(), first=False)
    await engine.aclose()


async def test_steps_are_counted_with_what_the_caches_hold(engine: CosyVoiceSynthesizer) -> None:
    def batches() -> float:
        return next(s.value for m in BATCH_SIZE.collect() for s in m.samples if s.name.endswith("_count"))

    before = batches()
    await whole(engine, Playhead())
    assert batches() > before
    assert CACHE_BYTES.labels("flow")._value.get() > 0


async def test_a_fault_of_the_device_fails_the_clause_and_the_engine_says_that_it_is_broken(folder: Path) -> None:
    engine = await started(folder)
    assert engine.status().ready

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine._worker._round = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(SynthesisFailed, match="token-to-wave failed"):
        await whole(engine, Playhead())
    await until(lambda: not engine.status().ready, "the thread's end")
    with pytest.raises(EngineError):
        await whole(engine, Playhead())
    await engine.aclose()


def test_batches_have_the_size_that_an_estimator_feeds_at_once() -> None:
    assert few_clauses(14) == 7  # the U-Net on an H100
    assert few_clauses(None) == few_clauses(6) == few_clauses(40) == 8
