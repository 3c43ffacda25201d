"""Token to wave in batches: what a clause sounds like does not depend on batch, cache pressure or neighbours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.waiting import until
from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.models.config import FlowV2Config, FlowV3Config, HiftConfig, SolverConfig
from tts_engine.cosyvoice.models.flow import Flow
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.flow_v3 import FlowV3
from tts_engine.cosyvoice.models.hift import Hift
from tts_engine.cosyvoice.models.hift_causal import CausalHift
from tts_engine.cosyvoice.token2wav import batch as wave_batch
from tts_engine.cosyvoice.token2wav.batch import Vocoder, WaveBatch
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.cosyvoice.token2wav.runner import RunnerConfig
from tts_engine.cosyvoice.token2wav.scheduler import SchedulerConfig
from tts_engine.cosyvoice.token2wav.worker import WaveWorker
from tts_engine.errors import Exhausted, InvalidRequest, SynthesisFailed, Unavailable
from tts_engine.synthesizer import Playhead

CODES = 200
SIZES: dict[str, Any] = {
    "max_clauses": 6,
    "blocks": 40,
    "max_chunks": 12,
    "max_voices": 2,
    "finalize": "causal",
    "first_hop": 22,
}
RNG = np.random.default_rng(0)
CLAUSES = [RNG.integers(0, CODES, n).tolist() for n in (60, 27, 28, 5, 77)]
SHORT = CLAUSES[1][:24]
"""Its only chunk is its last."""
SPEAKER = RNG.normal(size=192).astype(np.float32)

torch.set_num_threads(1)  # networks this small only wait for each other
TWO_STEPS = SolverConfig(steps=2)


def networks(version: int) -> tuple[Flow, Vocoder]:
    torch.manual_seed(0)
    flow: Flow
    if version == 2:
        flow = FlowV2(
            FlowV2Config(
                vocab_size=CODES, dim=32, encoder_heads=2, encoder_ffn=64, encoder_layers=2, up_layers=1,
                channels=32, heads=2, head_dim=16, blocks=1, mid_blocks=1, solver=TWO_STEPS,
            )
        )  # fmt: skip
    else:
        flow = FlowV3(
            FlowV3Config(
                vocab_size=CODES, look_ahead_channels=32, dim=64, depth=2, heads=4, head_dim=16, solver=TWO_STEPS
            )
        )
    flow.eval().prepare()
    kind = Hift if version == 2 else CausalHift
    return flow, kind(HiftConfig(causal=version == 3, base_channels=32, f0_channels=16), noise_seconds=10).eval()


NETWORKS = {version: networks(version) for version in (2, 3)}


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


class Prompt:
    def __init__(self, tokens: int) -> None:
        self.tokens = np.random.default_rng(tokens).integers(0, CODES, tokens).astype(np.int32)
        self.mel = np.random.default_rng(tokens).normal(size=(2 * tokens, 80)).astype(np.float32)

    def cut(self, first_hop: int) -> Prompt:
        """Return the end that leaves ``first_hop`` tokens of a chunk; nothing if the prompt is shorter."""
        end = Prompt(len(self.tokens))
        left, n = 25 - first_hop, len(self.tokens)
        kept = n - (n - left) % 25 if n >= left else 0
        end.tokens, end.mel = self.tokens[n - kept :], self.mel[2 * (n - kept) :]
        return end

    @property
    def first_hop(self) -> int:
        return 25 - len(self.tokens) % 25


@asynccontextmanager
async def running(
    version: int = 3, scheduler: SchedulerConfig | None = None, *, ahead: bool = False, **sizes: Any
) -> AsyncIterator[WaveWorker]:
    """``ahead``: the sound of a batch is handed out behind the begin of the next one, as with a GPU."""
    sizes = {**SIZES, **sizes}
    settings = CosyVoiceConfig(**{name: sizes.pop(name) for name in sizes.keys() & CosyVoiceConfig.model_fields.keys()})
    worker = WaveWorker(
        *NETWORKS[version],
        device=torch.device("cpu"),
        settings=settings,
        config=RunnerConfig(**sizes),
        scheduler=scheduler,
    )
    worker._ahead = ahead
    await worker.start()
    try:
        yield worker
    finally:
        await worker.aclose()


async def voice_of(worker: WaveWorker, prompt: Prompt) -> Voice:
    return await worker.voice(len(prompt.tokens), prompt.tokens, prompt.mel, SPEAKER)


async def say(worker: WaveWorker, voice: Voice, tokens: list[int], *, chunks: int = 99) -> NDArray[np.float32]:
    """Speak as tokens come: each chunk as soon as its look-ahead is there."""
    rendering = worker.open(voice, Playhead())
    out: list[NDArray[np.float32]] = []
    try:
        for token in tokens:
            rendering.tokens.append(token)
            ready = len(rendering.tokens) - rendering.sounded >= worker.scheduler.hop(rendering) + 3
            if ready and len(out) < chunks:
                out.append(await worker.submit(rendering, final=False))
        while len(tokens) > rendering.sounded and len(out) < chunks:
            out.append(await worker.submit(rendering, final=worker.scheduler.is_last(rendering)))
    finally:
        worker.close(rendering)
    return np.concatenate(out)


@torch.inference_mode()
def mel_of(prompt: Prompt, tokens: list[int], version: int, *, streaming: bool, final: bool = True) -> torch.Tensor:
    """Mel of the whole clause at once, nothing cached: ``(1, frames, 80)``."""
    ids = torch.tensor([[*prompt.tokens.tolist(), *tokens]])
    mel = NETWORKS[version][0].render(
        ids,
        torch.tensor([ids.shape[1]]),
        torch.from_numpy(prompt.mel)[None],
        torch.tensor([len(prompt.mel)]),
        torch.from_numpy(SPEAKER)[None],
        streaming=streaming,
        final=final,
    )
    return mel[:, len(prompt.mel) :]


@torch.inference_mode()
def vocode(mel: torch.Tensor, cuts: list[int], version: int) -> NDArray[np.float32]:
    """Sound of mel fed in pieces that end at these frames."""
    hift = NETWORKS[version][1]
    cache, out = hift.new_cache(slots=2), []
    for begin, stop in zip([0, *cuts], cuts, strict=False):
        last = torch.tensor([stop == cuts[-1]])
        samples = hift(mel[:, begin:stop], torch.tensor([stop - begin]), torch.tensor([1]), cache, last)
        first, end = hift.valid(before=begin, frames=stop - begin, final=bool(last))
        out.append(samples[0, first:end].numpy())
    return np.concatenate(out)


def as_upstream(prompt: Prompt, tokens: list[int], version: int) -> NDArray[np.float32]:
    """The same, but the last chunk by full attention; it is up to two tokens longer."""
    prompt = prompt.cut(22)
    chunked, whole = (mel_of(prompt, tokens, version, streaming=streaming) for streaming in (True, False))
    cuts = list(range(prompt.first_hop * 2, 2 * len(tokens) - 5, 50))
    last = cuts[-1] if cuts else 0
    return vocode(torch.cat([chunked[:, :last], whole[:, last:]], dim=1), [*cuts, 2 * len(tokens)], version)


def one_pass(prompt: Prompt, tokens: list[int], version: int = 3, *, first_hop: int = 22) -> NDArray[np.float32]:
    """The whole clause's mel at once; CosyVoice2's vocoder makes different sound of other pieces, so it gets these. A
    first chunk of fewer than 22 tokens is of a pass over what it has been given."""
    prompt = prompt.cut(max(first_hop, 22))
    mel = mel_of(prompt, tokens, version, streaming=True)
    frames = mel.shape[1]
    cuts = [*range(prompt.first_hop * 2, frames, 50), frames]
    if first_hop < 22:
        cuts = [first_hop * 2, *cuts]
        short = mel_of(prompt, tokens[: first_hop + 3], version, streaming=True, final=False)
        mel = torch.cat([short[:, : first_hop * 2], mel[:, first_hop * 2 :]], dim=1)
    return vocode(mel, cuts, version)


def assert_same(got: NDArray[np.float32], want: NDArray[np.float32], version: int = 3) -> None:
    # CosyVoice2's f0 is fp32: another batch size rounds otherwise, and the phase integrates that.
    np.testing.assert_allclose(got, want, atol=1e-3 if version == 2 else 1e-5)


@pytest.mark.parametrize("prompt_tokens", [0, 2, 25, 53, 75])
async def test_chunks_equal_one_pass_whatever_the_prompt(prompt_tokens: int, version: int) -> None:
    prompt = Prompt(prompt_tokens)
    async with running(version) as worker:
        voice = await voice_of(worker, prompt)
        for tokens in CLAUSES:
            assert_same(await say(worker, voice, tokens), one_pass(prompt, tokens, version), version)


async def test_a_clause_in_a_batch_sounds_as_alone(version: int) -> None:
    prompt = Prompt(50)
    async with running(version) as worker:
        voice = await voice_of(worker, prompt)
        together = await asyncio.gather(*(say(worker, voice, tokens) for tokens in CLAUSES))
        assert any(rows > 1 for _, rows in worker.runner.batches_run)
    for tokens, samples in zip(CLAUSES, together, strict=True):
        assert_same(samples, one_pass(prompt, tokens, version), version)


@pytest.mark.parametrize("ahead", [False, True], ids=["as it ends", "behind the next"])
async def test_a_clause_sounds_the_same_among_sixteen_that_join_and_leave(version: int, *, ahead: bool) -> None:
    prompt = Prompt(25)
    rng = np.random.default_rng(1)
    others = [(n, rng.integers(0, CODES, length).tolist()) for n, length in enumerate(rng.integers(5, 80, 16))]
    wide = SchedulerConfig(chunk_rows=17)
    async with running(version, wide, ahead=ahead, max_clauses=40, blocks=120) as worker:
        voice = await voice_of(worker, prompt)
        mine = asyncio.ensure_future(say(worker, voice, CLAUSES[4]))
        for wave in range(2):  # they leave after one to three chunks, most of them before their end
            await asyncio.gather(*(say(worker, voice, other, chunks=1 + (n + wave) % 3) for n, other in others))
        assert max(rows for _, rows in worker.runner.batches_run) >= 12
        assert_same(await mine, one_pass(prompt, CLAUSES[4], version), version)


async def test_last_chunks_handed_out_behind_the_next_batch_sound_as_alone(version: int) -> None:
    prompt = Prompt(50)
    async with running(version, ahead=True, finalize="upstream") as worker:
        voice = await voice_of(worker, prompt)
        together = await asyncio.gather(*(say(worker, voice, tokens) for tokens in CLAUSES))
        assert worker.scheduler.silent == 0
    for tokens, samples in zip(CLAUSES, together, strict=True):
        assert_same(samples, as_upstream(prompt, tokens, version), version)


async def test_a_batch_that_is_not_handed_out_yet_keeps_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = SchedulerConfig(chunk_rows=2, burst_rows=2)  # so a batch always follows one with others
    async with running(3, pairs, ahead=True) as worker:
        kept: list[bool] = []
        next_batch = worker.scheduler.next_batch

        def spy(jobs: Any, *, now: float, running: Any) -> Any:
            if worker._running:
                kept.append(set(worker._running) <= set(running) and not set(worker._running) & set(jobs))
            return next_batch(jobs, now=now, running=running)

        monkeypatch.setattr(worker.scheduler, "next_batch", spy)
        voice = await voice_of(worker, Prompt(50))
        await asyncio.gather(*(say(worker, voice, tokens) for tokens in CLAUSES))
        assert kept and all(kept)


@pytest.mark.parametrize("prompt_tokens", [0, 50])
async def test_a_last_chunk_as_upstream_makes_it(prompt_tokens: int, version: int) -> None:
    prompt = Prompt(prompt_tokens)
    async with running(version, finalize="upstream") as worker:
        voice = await voice_of(worker, prompt)
        alone = [await say(worker, voice, tokens) for tokens in CLAUSES]
        together = await asyncio.gather(*(say(worker, voice, tokens) for tokens in CLAUSES))
        assert worker.runner.batches_run["whole", 1] >= len(CLAUSES)
        assert any(shape == "whole" and rows > 1 for shape, rows in worker.runner.batches_run)
    for tokens, one, samples in zip(CLAUSES, alone, together, strict=True):
        want = as_upstream(prompt, tokens, version)
        assert_same(one, want, version)
        assert_same(samples, want, version)


@pytest.mark.parametrize("first_hop", [8, 15, 25])
async def test_a_first_chunk_of_any_length_sounds_as_one_pass_over_its_tokens(version: int, first_hop: int) -> None:
    prompt, tokens = Prompt(60), CLAUSES[4]
    async with running(version, first_hop=first_hop) as worker:
        voice = await voice_of(worker, prompt)
        assert (len(voice.prompt_tokens) + max(first_hop, 22)) % 25 == 0
        first = await say(worker, voice, tokens[: first_hop + 3], chunks=1)
        whole = await say(worker, voice, tokens)
        assert worker.scheduler.recomputed_chunks == 2 * (first_hop > 22), (
            "the prompt's last chunk looks into the clause"
        )
        await until(lambda: worker.blocks.free_blocks == SIZES["blocks"] - len(voice.blocks))
    want = one_pass(prompt, tokens, version, first_hop=first_hop)
    assert_same(whole, want, version)
    assert_same(first, want[: len(first)], version)
    assert len(first) < first_hop * 960


async def test_all_of_a_prompt_that_ends_three_tokens_into_a_chunk_is_computed_once(version: int) -> None:
    async with running(version) as worker:
        voice = await voice_of(worker, Prompt(53))
        assert (len(voice.prompt_tokens), voice.shared, len(voice.blocks)) == (53, 50, 2)
        await say(worker, voice, CLAUSES[0], chunks=1)
        assert worker.runner.batches_run == {("chunk", 1): 1}


@pytest.mark.parametrize("ahead", [False, True], ids=["as it ends", "behind the next"])
async def test_clauses_that_a_small_cache_does_not_hold_together_are_spoken_in_turn(
    version: int, *, ahead: bool
) -> None:
    prompt = Prompt(50)
    async with running(version, ahead=ahead, blocks=7, max_chunks=7) as worker:
        voice = await voice_of(worker, prompt)
        together = await asyncio.gather(*(say(worker, voice, tokens) for tokens in CLAUSES))
        assert worker.scheduler.recomputed_chunks == 0
    for tokens, samples in zip(CLAUSES, together, strict=True):
        assert_same(samples, one_pass(prompt, tokens, version), version)


async def test_sound_made_ahead_that_lost_its_cache_is_computed_again_with_the_same_sound(version: int) -> None:
    prompt = Prompt(50)
    async with running(version, blocks=7, max_chunks=7) as worker:
        voice = await voice_of(worker, prompt)
        rendering = worker.open(voice, Playhead(ahead=True))
        rendering.tokens += CLAUSES[4]
        out = [await worker.submit(rendering, final=False)]
        await say(worker, voice, CLAUSES[4])  # it needs all blocks
        while rendering.sounded < len(rendering.tokens):
            out.append(await worker.submit(rendering, final=worker.scheduler.is_last(rendering)))
        worker.close(rendering)
        assert worker.scheduler.recomputed_chunks > 0
    assert_same(np.concatenate(out), one_pass(prompt, CLAUSES[4], version), version)


async def test_everything_is_free_after_clauses_that_were_left_early(version: int) -> None:
    async with running(version) as worker:
        voice = await voice_of(worker, Prompt(50))
        blocks = worker.blocks.free_blocks
        for _ in range(5):
            tasks = [asyncio.ensure_future(say(worker, voice, CLAUSES[4])) for _ in range(6)]
            await until(lambda: worker.blocks.free_blocks < blocks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: worker.scheduler.open_clauses == 0 and worker.blocks.free_blocks == blocks)
        assert worker.scheduler.silent == 0
        await say(worker, voice, CLAUSES[0])


class Staged:
    """Batches that run in stages have stages of one Euler step, and wait after the first until they are told to go
    on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(wave_batch, "_STEPS_PER_STAGE", {"chunk": 1, "whole": 1})
        run = WaveBatch.run

        def staged(batch: WaveBatch, stage: int) -> None:
            run(batch, stage)
            if len(batch.stages) > 1 and stage == 0:
                self.begun.set()
                assert self.go_on.wait(10)

        monkeypatch.setattr(WaveBatch, "run", staged)


def speaking() -> Playhead:
    """Return the playhead of a caller with seconds of sound in hand."""
    playhead = Playhead()
    playhead.played_at, playhead.delivered_s = time.monotonic(), 10.0
    return playhead


def shapes_run(worker: WaveWorker) -> list[str]:
    """Return the shapes of the batches from now on, in the order in which they ended."""
    order: list[str] = []
    worker.on_batch = lambda batch, seconds: order.append(batch.shape)
    return order


def last_chunk(worker: WaveWorker, voice: Voice, tokens: list[int]) -> tuple[Rendering, Any]:
    rendering = worker.open(voice, speaking())
    rendering.tokens += tokens
    return rendering, worker.submit(rendering, final=True)


async def test_a_first_chunk_goes_between_the_stages_of_a_last_one(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, prompt = Staged(monkeypatch), Prompt(50)
    async with running(version, finalize="upstream") as worker:
        voice = await voice_of(worker, prompt)
        order = shapes_run(worker)
        rendering, last = last_chunk(worker, voice, SHORT)
        await asyncio.to_thread(staged.begun.wait, 10)
        awaited = asyncio.ensure_future(say(worker, voice, CLAUSES[0], chunks=1))
        await until(lambda: len(worker.scheduler.jobs) == 2)
        staged.go_on.set()
        first = await awaited
        assert_same(await last, as_upstream(prompt, SHORT, version), version)
        worker.close(rendering)
        assert order == ["chunk", "whole"]
    assert_same(first, as_upstream(prompt, CLAUSES[0], version)[: len(first)], version)


async def test_a_first_chunk_goes_between_the_stages_of_chunks_that_nobody_awaits(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, prompt = Staged(monkeypatch), Prompt(50)
    async with running(version) as worker:
        voice = await voice_of(worker, prompt)
        with worker._changed:  # both in one batch
            calm, gone = (worker.open(voice, speaking()) for _ in range(2))
            for rendering in (calm, gone):
                rendering.tokens += CLAUSES[0]
            pending = worker.submit(calm, final=False)
            worker.submit(gone, final=False)
        await asyncio.to_thread(staged.begun.wait, 10)
        worker.close(gone)  # its slot goes to the newcomer while its row is under way
        slot, newcomer = gone.slot, worker.open(voice, Playhead())
        newcomer.tokens += CLAUSES[4]
        order = []
        first = worker.submit(newcomer, final=False)
        first.add_done_callback(lambda future: order.append("awaited"))
        pending.add_done_callback(lambda future: order.append("calm"))
        staged.go_on.set()
        sound, other = await first, await pending
        assert order == ["awaited", "calm"]
        assert newcomer.slot == slot
        second = np.concatenate([sound, await worker.submit(newcomer, final=False)])
        rest = np.concatenate([other, await worker.submit(calm, final=False)])
        for rendering in (calm, newcomer):
            worker.close(rendering)
    assert_same(rest, one_pass(prompt, CLAUSES[0], version)[: len(rest)], version)
    assert_same(second, one_pass(prompt, CLAUSES[4], version)[: len(second)], version)


@pytest.mark.parametrize("ahead", [False, True])
async def test_no_stage_goes_between_two_batches_that_are_awaited(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    """Else the device would stand still while the sound of the first of them is handed out."""
    staged, prompt = Staged(monkeypatch), Prompt(50)
    alone = SchedulerConfig(chunk_rows=1, burst_rows=1)
    async with running(3, alone, ahead=ahead) as worker:
        voice, order = await voice_of(worker, prompt), []
        run = WaveBatch.run

        def spy(batch: WaveBatch, stage: int) -> None:
            order.append(stage if len(batch.stages) > 1 else "awaited")
            run(batch, stage)

        monkeypatch.setattr(WaveBatch, "run", spy)
        calm = worker.open(voice, speaking())
        calm.tokens += CLAUSES[0]
        pending = worker.submit(calm, final=False)
        await asyncio.to_thread(staged.begun.wait, 10)
        awaited = [asyncio.ensure_future(say(worker, voice, tokens, chunks=1)) for tokens in (CLAUSES[0], CLAUSES[4])]
        await until(lambda: len(worker.scheduler.jobs) == 3)
        staged.go_on.set()
        for tokens, sound in zip((CLAUSES[0], CLAUSES[4]), await asyncio.gather(*awaited), strict=True):
            assert_same(sound, one_pass(prompt, tokens)[: len(sound)])
        sound = await pending
        worker.close(calm)
        assert_same(sound, one_pass(prompt, CLAUSES[0])[: len(sound)])
        stages = len(worker.runner.staged_batches[1].stages)
        assert order == [0, "awaited", "awaited", *range(1, stages)]


@pytest.mark.parametrize("longer", [0, 1, 2])
async def test_a_first_chunk_sounds_as_its_length_says_whichever_of_the_prepared_ones_it_is(
    version: int, longer: int
) -> None:
    prompt, tokens = Prompt(60), CLAUSES[4]
    async with running(version, first_hop="auto") as worker:
        rendering = worker.open(await voice_of(worker, prompt), Playhead())
        rendering.tokens += tokens
        hop = rendering.first_hop = worker.scheduler.first_hops(rendering.voice)[longer]
        out = []
        while rendering.sounded < len(tokens):
            out.append(await worker.submit(rendering, final=worker.scheduler.is_last(rendering)))
        worker.close(rendering)
        assert worker.scheduler.recomputed_chunks == 0
    assert_same(np.concatenate(out), one_pass(prompt, tokens, version, first_hop=hop), version)


async def test_a_last_chunk_that_is_awaited_itself_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    staged, prompt = Staged(monkeypatch), Prompt(50)
    async with running(finalize="upstream") as worker:
        voice = await voice_of(worker, prompt)
        order = shapes_run(worker)
        short = asyncio.ensure_future(say(worker, voice, CLAUSES[3]))
        await asyncio.to_thread(staged.begun.wait, 10)
        other = asyncio.ensure_future(say(worker, voice, CLAUSES[0], chunks=1))
        await until(lambda: len(worker.scheduler.jobs) == 2)
        staged.go_on.set()
        await asyncio.gather(short, other)
        assert order == ["whole", "chunk"]


async def test_who_leaves_in_the_middle_of_a_last_chunk_is_free_at_once_and_harms_nobody(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, prompt = Staged(monkeypatch), Prompt(50)
    async with running(version, finalize="upstream") as worker:
        voice = await voice_of(worker, prompt)
        with worker._changed:  # both in one batch
            (gone, _), (stays, last) = (last_chunk(worker, voice, tokens) for tokens in (CLAUSES[4][:24], SHORT))
        await asyncio.to_thread(staged.begun.wait, 10)
        slot = gone.slot
        worker.close(gone)
        newcomer = worker.open(voice, Playhead())
        newcomer.tokens += CLAUSES[0]
        awaited = worker.submit(newcomer, final=False)
        staged.go_on.set()
        first = await awaited
        assert newcomer.slot == slot
        assert_same(await last, as_upstream(prompt, SHORT, version), version)
        assert worker.runner.batches_run == {("chunk", 1): 1, ("whole", 2): 1}
        # What the vocoder keeps of the newcomer is not what the one who left would have left behind.
        second = await worker.submit(newcomer, final=False)
        worker.close(stays)
        worker.close(newcomer)
    both = np.concatenate([first, second])
    assert_same(both, as_upstream(prompt, CLAUSES[0], version)[: len(both)], version)


async def test_a_last_chunk_that_all_have_left_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Staged(monkeypatch)
    async with running(finalize="upstream") as worker:
        voice = await voice_of(worker, Prompt(50))
        rendering, _ = last_chunk(worker, voice, SHORT)
        await asyncio.to_thread(staged.begun.wait, 10)
        worker.close(rendering)
        staged.go_on.set()
        await until(lambda: worker.scheduler.open_clauses == 0)
        assert worker.runner.batches_run == {}
        assert worker.scheduler.silent == 0
        await say(worker, voice, CLAUSES[0])


async def test_a_full_runner_refuses() -> None:
    async with running() as worker:
        voice = await voice_of(worker, Prompt(25))
        renderings = [worker.open(voice, Playhead()) for _ in range(SIZES["max_clauses"])]
        with pytest.raises(Exhausted, match="6 clauses"):
            worker.open(voice, Playhead())
        worker.close(renderings[0])
        await until(lambda: worker.scheduler.open_clauses == 5)
        worker.close(worker.open(voice, Playhead()))


async def test_the_voice_not_used_for_longest_makes_room() -> None:
    async with running() as worker:
        for tokens in (25, 50, 75, 25):
            prompt = Prompt(tokens)
            voice = await voice_of(worker, prompt)
            np.testing.assert_allclose(await say(worker, voice, CLAUSES[1]), one_pass(prompt, CLAUSES[1]), atol=1e-5)


async def test_a_clause_that_gives_no_number_fails_alone() -> None:
    async with running() as worker:
        good = await voice_of(worker, Prompt(50))
        broken = await worker.voice("broken", Prompt(25).tokens, Prompt(25).mel, np.full(192, np.nan, np.float32))
        results = await asyncio.gather(
            say(worker, good, CLAUSES[0]), say(worker, broken, CLAUSES[0]), return_exceptions=True
        )
        assert isinstance(results[1], SynthesisFailed)
        np.testing.assert_allclose(results[0], one_pass(Prompt(50), CLAUSES[0]), atol=1e-5)  # type: ignore[arg-type]


async def test_a_device_error_fails_what_runs_and_refuses_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as worker:
        voice = await voice_of(worker, Prompt(25))

        def fail(*arguments: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(worker, "_execute", fail)
        with pytest.raises(SynthesisFailed, match="RuntimeError"):
            await say(worker, voice, CLAUSES[0])
        with pytest.raises(Unavailable):
            await say(worker, voice, CLAUSES[0])


async def test_out_of_memory_fails_one_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as worker:
        voice = await voice_of(worker, Prompt(25))

        def fail(*arguments: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(worker, "_execute", fail)
            with pytest.raises(SynthesisFailed, match="memory"):
                await say(worker, voice, CLAUSES[0])
        np.testing.assert_allclose(await say(worker, voice, CLAUSES[0]), one_pass(Prompt(25), CLAUSES[0]), atol=1e-5)


async def test_without_memory_for_a_voice_its_request_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as worker:
        blocks = worker.blocks.free_blocks

        def fail(*arguments: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(worker.runner.state.flow, "advance", fail)
            with pytest.raises(SynthesisFailed, match="memory"):
                await voice_of(worker, Prompt(75))
        assert worker.blocks.free_blocks == blocks
        assert worker.alive
        voice = await voice_of(worker, Prompt(75))
        assert_same(await say(worker, voice, CLAUSES[1]), one_pass(Prompt(75), CLAUSES[1]))


async def test_a_device_error_while_a_voice_is_made_reaches_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as worker:

        def fail(*arguments: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(worker.runner.state.flow, "speaker", fail)
        waiting = (voice_of(worker, Prompt(tokens)) for tokens in (25, 50))
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, (SynthesisFailed, Unavailable))
        await until(lambda: not worker.alive)


async def test_a_voice_that_made_room_is_asked_for_again() -> None:
    async with running(max_voices=1) as worker:
        old = await voice_of(worker, Prompt(25))
        await voice_of(worker, Prompt(50))
        with pytest.raises(Exhausted, match="again"):
            worker.open(old, Playhead())


async def test_what_does_not_fit_the_caches_is_refused() -> None:
    async with running() as worker:
        with pytest.raises(InvalidRequest, match="278 tokens, expected fewer: prompt and clause may have 300"):
            await voice_of(worker, Prompt(12 * 25))
        voice = await voice_of(worker, Prompt(11 * 25))
        with pytest.raises(InvalidRequest, match="313 speech tokens; 300"):
            await say(worker, voice, CLAUSES[0])
