"""Token to wave in batches: what a clause sounds like does not depend on batch, cache pressure or neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tts_engine.errors import Exhausted, SynthesisFailed, Unavailable
from tts_engine.model_runner import ModelRunner, RunnerConfig, Voice
from tts_engine.models.config import FlowV3Config, HiftConfig, SolverConfig
from tts_engine.models.flow_v3 import FlowV3
from tts_engine.models.hift_causal import CausalHift, VocoderCache
from tts_engine.synthesizer import Playhead

CODES = 200
SIZES = {"max_clauses": 6, "blocks": 40, "max_chunks": 12, "max_voices": 2}
RNG = np.random.default_rng(0)
CLAUSES = [RNG.integers(0, CODES, n).tolist() for n in (60, 27, 28, 5, 77)]
SPEAKER = RNG.normal(size=192).astype(np.float32)

torch.manual_seed(0)
FLOW = FlowV3(
    FlowV3Config(
        vocab_size=CODES, look_ahead_channels=32, dim=64, depth=2, heads=4, head_dim=16, solver=SolverConfig(steps=2)
    )
).eval()
FLOW.prepare()
HIFT = CausalHift(HiftConfig(causal=True, base_channels=32, f0_channels=16), noise_seconds=10).eval()


class Prompt:
    def __init__(self, tokens: int) -> None:
        self.tokens = np.random.default_rng(tokens).integers(0, CODES, tokens).astype(np.int32)
        self.mel = np.random.default_rng(tokens).normal(size=(2 * tokens, 80)).astype(np.float32)


@asynccontextmanager
async def running(**sizes: int) -> AsyncIterator[ModelRunner]:
    runner = ModelRunner(FLOW, HIFT, device=torch.device("cpu"), config=RunnerConfig(**{**SIZES, **sizes}))
    await runner.start()
    try:
        yield runner
    finally:
        await runner.aclose()


async def voice_of(runner: ModelRunner, prompt: Prompt) -> Voice:
    return await runner.voice(len(prompt.tokens), prompt.tokens, prompt.mel, SPEAKER)


async def say(runner: ModelRunner, voice: Voice, tokens: list[int], *, chunks: int = 99) -> NDArray[np.float32]:
    """Speak as tokens come: each chunk as soon as its look-ahead is there."""
    rendering, out = runner.open(voice, Playhead()), []
    try:
        for token in tokens:
            rendering.tokens.append(token)
            if len(rendering.tokens) - rendering.sounded == 28 and len(out) < chunks:
                out.append(await runner.submit(rendering, final=False))
        while (left := len(tokens) - rendering.sounded) > 0 and len(out) < chunks:
            out.append(await runner.submit(rendering, final=left <= 25))
    finally:
        runner.close(rendering)
    return np.concatenate(out)


@torch.inference_mode()
def one_pass(prompt: Prompt, tokens: list[int]) -> NDArray[np.float32]:
    """The whole clause at once, nothing cached."""
    ids = torch.tensor([[*prompt.tokens.tolist(), *tokens]])
    frames = torch.tensor([len(prompt.mel)])
    mel = FLOW.render(
        ids,
        torch.tensor([ids.shape[1]]),
        torch.from_numpy(prompt.mel)[None],
        frames,
        torch.from_numpy(SPEAKER)[None],
        streaming=True,
        final=True,
    )[:, len(prompt.mel) :]
    length = torch.tensor([mel.shape[1]])
    samples = HIFT(mel, length, torch.tensor([1]), VocoderCache(HIFT, slots=2), torch.tensor([True]))
    begin, end = CausalHift.valid(before=0, frames=mel.shape[1], final=True)
    out: NDArray[np.float32] = samples[0, begin:end].numpy()
    return out


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # changes in another thread
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("prompt_tokens", [0, 25, 75])
async def test_chunks_equal_one_pass_whatever_the_prompt(prompt_tokens: int) -> None:
    prompt = Prompt(prompt_tokens)
    async with running() as runner:
        voice = await voice_of(runner, prompt)
        for tokens in CLAUSES:
            np.testing.assert_allclose(await say(runner, voice, tokens), one_pass(prompt, tokens), atol=1e-5)


async def test_a_clause_in_a_batch_sounds_as_alone() -> None:
    prompt = Prompt(50)
    async with running() as runner:
        voice = await voice_of(runner, prompt)
        together = await asyncio.gather(*(say(runner, voice, tokens) for tokens in CLAUSES))
        assert any(rows > 1 for _, rows in runner.batches_run)
    for tokens, samples in zip(CLAUSES, together, strict=True):
        np.testing.assert_allclose(samples, one_pass(prompt, tokens), atol=1e-5)


async def test_a_clause_that_lost_its_cache_is_computed_again_with_the_same_sound() -> None:
    prompt = Prompt(50)
    async with running(blocks=7) as runner:
        voice = await voice_of(runner, prompt)
        together = await asyncio.gather(*(say(runner, voice, tokens) for tokens in CLAUSES))
        assert runner.recomputed_chunks > 0
    for tokens, samples in zip(CLAUSES, together, strict=True):
        np.testing.assert_allclose(samples, one_pass(prompt, tokens), atol=1e-5)


async def test_everything_is_free_after_clauses_that_were_left_early() -> None:
    async with running() as runner:
        voice = await voice_of(runner, Prompt(50))
        blocks = runner.free_blocks
        for _ in range(5):
            tasks = [asyncio.ensure_future(say(runner, voice, CLAUSES[4])) for _ in range(6)]
            await until(lambda: runner.free_blocks < blocks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: runner.open_clauses == 0 and runner.free_blocks == blocks)
        assert runner.silent == 0
        await say(runner, voice, CLAUSES[0])


async def test_a_full_runner_refuses() -> None:
    async with running() as runner:
        voice = await voice_of(runner, Prompt(25))
        renderings = [runner.open(voice, Playhead()) for _ in range(SIZES["max_clauses"])]
        with pytest.raises(Exhausted, match="6 clauses"):
            runner.open(voice, Playhead())
        runner.close(renderings[0])
        await until(lambda: runner.open_clauses == 5)
        runner.close(runner.open(voice, Playhead()))


async def test_the_voice_not_used_for_longest_makes_room() -> None:
    async with running() as runner:
        for tokens in (25, 50, 75, 25):
            prompt = Prompt(tokens)
            voice = await voice_of(runner, prompt)
            np.testing.assert_allclose(await say(runner, voice, CLAUSES[1]), one_pass(prompt, CLAUSES[1]), atol=1e-5)


async def test_a_clause_that_gives_no_number_fails_alone() -> None:
    async with running() as runner:
        good = await voice_of(runner, Prompt(50))
        broken = await runner.voice("broken", Prompt(25).tokens, Prompt(25).mel, np.full(192, np.nan, np.float32))
        results = await asyncio.gather(
            say(runner, good, CLAUSES[0]), say(runner, broken, CLAUSES[0]), return_exceptions=True
        )
        assert isinstance(results[1], SynthesisFailed)
        np.testing.assert_allclose(results[0], one_pass(Prompt(50), CLAUSES[0]), atol=1e-5)  # type: ignore[arg-type]


async def test_a_device_error_fails_what_runs_and_refuses_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as runner:
        voice = await voice_of(runner, Prompt(25))

        def fail(*arguments: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(runner, "_execute", fail)
        with pytest.raises(SynthesisFailed, match="RuntimeError"):
            await say(runner, voice, CLAUSES[0])
        with pytest.raises(Unavailable):
            await say(runner, voice, CLAUSES[0])


async def test_out_of_memory_fails_one_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as runner:
        voice = await voice_of(runner, Prompt(25))

        def fail(*arguments: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(runner, "_execute", fail)
            with pytest.raises(SynthesisFailed, match="memory"):
                await say(runner, voice, CLAUSES[0])
        np.testing.assert_allclose(await say(runner, voice, CLAUSES[0]), one_pass(Prompt(25), CLAUSES[0]), atol=1e-5)
