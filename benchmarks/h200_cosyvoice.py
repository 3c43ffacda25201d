"""CosyVoice on one GPU, full-size random weights: first chunk, gaps, throughput, stages. Results: one JSON line a row.

    python benchmarks/h200_cosyvoice.py OUT.jsonl [--version 2] [--rows lm,flow,burst:8,...] [--seconds 15]

Rows that OUT already has are skipped, so an interrupted run goes on where it stopped. Random weights never stop by
themselves: each clause is given its length (3 to 10 s, stop ids masked until then); they say nothing of how it sounds.

The client is in this process: times run from the call of ``synthesize`` to the chunk in its hands. It starts to play
at the first chunk, in real time; a later chunk that comes after the sound before it has run out is a gap. Text is
prepared (25 text ids, transcript of 25, voice prompt of 125 speech tokens): no text front end, no network in the times.

``--plain`` takes the networks as they are instead of the fused ones, under the same CUDA graphs: slower, and without
Triton but for the language model. ``--device cpu --tiny`` runs all of it anywhere; its figures mean nothing.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent / "codecs")]

import numpy as np
import torch
from torch import nn

from tts_engine.api import VoiceInfo
from tts_engine.cosyvoice.features import VoiceFeatures
from tts_engine.cosyvoice.frontend import Clause, LmPrompt
from tts_engine.cosyvoice_synthesizer import CosyVoiceSynthesizer
from tts_engine.errors import Exhausted
from tts_engine.lm import Admission, joined_table
from tts_engine.lm_eager import EagerLm
from tts_engine.lm_torch import LmSteps, TorchLm
from tts_engine.model_runner import ModelRunner, RunnerConfig
from tts_engine.models.cfm import Estimator
from tts_engine.models.config import FlowV2Config, FlowV3Config, HiftConfig, LanguageModelConfig, Version
from tts_engine.models.flow import Flow, FlowCache, FlowRows
from tts_engine.models.flow_v2 import FlowV2
from tts_engine.models.flow_v3 import FlowV3
from tts_engine.models.hift import Hift
from tts_engine.models.hift_causal import CausalHift
from tts_engine.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.synthesizer import ClauseRequest, Playhead
from tts_engine.wave_batch import Row, WaveBatch

PROMPT_TOKENS = 125
TEXT_IDS = 25
BANDWIDTH = 4.3e12
"""Bytes per second of a device copy on this chip, read and written."""
FLOPS = 790e12
"""bf16 FLOP per second of a large product on this chip."""
TINY_LLM = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "layers": 2, "heads": 4, "kv_heads": 2}
TINY_FLOW: dict[int, dict[str, int]] = {
    2: {"dim": 64, "encoder_heads": 2, "encoder_ffn": 128, "encoder_layers": 2, "channels": 32, "heads": 2,
        "head_dim": 16, "blocks": 1, "mid_blocks": 2},
    3: {"look_ahead_channels": 64, "dim": 64, "depth": 2, "heads": 4, "head_dim": 16},
}  # fmt: skip
TINY_HIFT = {"base_channels": 32, "f0_channels": 32}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured."""

    version: Version
    device: torch.device
    tiny: bool
    plain: bool
    blocks: int

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"


def build(make: Callable[[], nn.Module], device: torch.device) -> Any:
    """A network with random weights drawn on the device: variance 1/fan-in, norms and alphas 1, biases 0."""
    kinds = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)
    saved = {kind: kind.reset_parameters for kind in kinds}
    for kind in kinds:
        kind.reset_parameters = lambda self: None  # type: ignore[assignment, method-assign]
    try:
        network = make()
    finally:
        for kind, reset in saved.items():
            kind.reset_parameters = reset  # type: ignore[method-assign]
    network = network.to(device).eval()
    for name, p in network.named_parameters():
        if p.ndim > 1:
            p.data.normal_(0, 1 / math.sqrt(p[0].numel()))
        else:
            p.data.fill_(1.0 if "norm" in name and "weight" in name or "alpha" in name else 0.0)
    return network


class Prepared:
    """Clauses without a text front end: the text is the number of speech tokens to make."""

    def __init__(self, text_ids: int) -> None:
        self._text_ids = text_ids

    def clause(self, text: str, voice: VoiceFeatures, *, language: str = "", instruct: str = "") -> Clause:
        rng = np.random.default_rng()
        ids = rng.integers(0, self._text_ids, (2, TEXT_IDS)).astype(np.int32)
        count = int(text)
        return Clause(
            lm=LmPrompt(
                prompt_text=ids[0], text=ids[1], prompt_speech=voice.lm_tokens, min_tokens=count, max_tokens=count
            ),
            words=[],
        )


class OneVoice:
    def __init__(self, version: int) -> None:
        self._engine = f"cosyvoice{version}"
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, 6561, PROMPT_TOKENS).astype(np.int32)
        self._voice = VoiceFeatures(
            transcript="reference",
            lm_tokens=tokens,
            flow_tokens=tokens,
            flow_mel=rng.normal(size=(2 * PROMPT_TOKENS, 80)).astype(np.float32),
            speaker=rng.normal(size=192).astype(np.float32),
        )

    def features(self, voice_id: str) -> tuple[object, VoiceFeatures]:
        return "reference", self._voice

    def infos(self) -> Sequence[VoiceInfo]:
        return [VoiceInfo(voice_id="reference", name="reference", languages=("en-US",), engine=self._engine)]


@dataclass
class Engine:
    setup: Setup
    lm: LmSteps
    loop: TorchLm
    runner: ModelRunner
    synthesizer: CosyVoiceSynthesizer
    facts: dict[str, Any] = field(default_factory=dict)


@torch.inference_mode()
def make_engine(setup: Setup) -> Engine:
    begun = time.monotonic()
    torch.manual_seed(0)
    version, device, tiny = setup.version, setup.device, setup.tiny
    facts: dict[str, Any] = {"version": version, "plain": setup.plain, "tiny": tiny}
    torch.backends.cuda.matmul.allow_tf32 = False
    config = LanguageModelConfig(version=version, **(TINY_LLM if tiny else {}))
    llm = build(lambda: SpeechLanguageModel(config), device)
    llm.speech_embedding.weight.data.normal_(0, 1)
    lm: LmSteps
    if setup.gpu:
        from tts_engine.lm_cuda import CudaLm

        lm = CudaLm(llm, slots=200, max_length=1024, device=device)
        facts["lm_logits_relative_error_bf16"] = lm_error(llm, lm, device)
    else:
        lm = EagerLm(llm, slots=8, max_length=512)
    del llm
    flow = make_flow(setup)
    hift = make_hift(setup)
    if setup.gpu and not setup.plain:
        from tts_engine.fused_dit import FusedDiT
        from tts_engine.fused_hift import fuse
        from tts_engine.fused_unet import FusedUNet

        fused = (FusedUNet if version == 2 else FusedDiT)(flow.estimator, device=device)  # type: ignore[arg-type]
        facts["mel_error_bf16"] = flow_error(flow, fused, device)
        flow.decoder.estimator = fused
        fuse(hift)
        torch.cuda.empty_cache()
    dtype = torch.float32 if setup.plain or not setup.gpu else torch.bfloat16
    limits: dict[str, Any] = {} if setup.gpu else {"max_clauses": 8, "max_chunks": 24, "max_voices": 2}
    runner = ModelRunner(flow, hift, device=device, config=RunnerConfig(blocks=setup.blocks, dtype=dtype, **limits))
    loop = TorchLm(lm)
    facts["build_s"] = time.monotonic() - begun
    synthesizer = CosyVoiceSynthesizer(
        name=f"cosyvoice{version}",
        frontend=Prepared(config.vocab_size),
        lm=loop,
        runner=runner,
        voices=OneVoice(version),
        start_lm=loop.start,
    )
    return Engine(setup, lm, loop, runner, synthesizer, facts=facts)


def make_flow(setup: Setup) -> Flow:
    sizes = TINY_FLOW[setup.version] if setup.tiny else {}
    flow: Flow = build(
        lambda: FlowV2(FlowV2Config(**sizes)) if setup.version == 2 else FlowV3(FlowV3Config(**sizes)),  # type: ignore[arg-type]
        setup.device,
    )
    flow.prepare()
    return flow


def make_hift(setup: Setup) -> Any:
    config = HiftConfig(causal=setup.version == 3, **(TINY_HIFT if setup.tiny else {}))  # type: ignore[arg-type]
    seconds = {"noise_seconds": 20} if setup.tiny else {}
    hift = build(lambda: CausalHift(config, **seconds) if config.causal else Hift(config, **seconds), setup.device)
    if config.causal:
        hift.f0_predictor.double()
    return hift


def lm_error(llm: SpeechLanguageModel, lm: Any, device: torch.device) -> float:
    """Relative error of bf16 logits after one prefill against fp32."""
    ids = list(range(25))
    speech = list(range(PROMPT_TOKENS))
    joined = joined_table(llm.config).prompt(*(np.array(part, np.int32) for part in (ids, ids, speech)))
    slots = torch.zeros(1, dtype=torch.long, device=device)
    logits = lm.prefill_logits(torch.tensor([joined], device=device), slots, torch.tensor([len(joined)], device=device))
    cache = KeyValueCache(llm.config, slots=1, max_length=256, device=device)
    want = llm.logits(llm(llm.prompt(ids, ids, speech)[None], slots, cache)[:, -1])
    return float((logits[:, : want.shape[1]] - want).norm() / want.norm())


def flow_error(flow: Flow, fused: Estimator, device: torch.device) -> dict[str, float]:
    """Mel of 50 tokens, fused bf16 against plain fp32 without TF32."""
    plain = flow.estimator
    generator = torch.Generator(device=device).manual_seed(1)
    tokens = torch.randint(0, 6561, (1, 53), generator=generator, device=device)
    speaker = torch.randn(1, 80, generator=generator, device=device)
    one = torch.ones(1, dtype=torch.long, device=device)
    rows = FlowRows(slots=one, blocks=torch.tensor([[1, 2]], device=device), start=0 * one, length=50 * one)
    mels = []
    for estimator, dtype, tf32 in ((plain, torch.float32, False), (fused, torch.bfloat16, True)):
        flow.decoder.estimator = estimator
        torch.backends.cudnn.allow_tf32 = tf32
        cache = FlowCache(flow, slots=2, blocks=3, device=device, dtype=dtype)
        cond = torch.zeros(1, 100, 80, device=device)
        mels.append(flow.advance(tokens, 53 * one, cond, speaker, rows, cache))
    want, got = mels
    return {
        "relative": float((got - want).norm() / want.norm()),
        "max": float((got - want).abs().max()),
        "rms_of_mel": float(want.pow(2).mean().sqrt()),
    }


# -- stages alone ------------------------------------------------------------------------------------------------------


def replay_ms(graph: torch.cuda.CUDAGraph, times: int = 10) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    out = []
    for _ in range(5):
        begin.record()
        for _ in range(times):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        out.append(begin.elapsed_time(end) / times)
    return statistics.median(out)


def batch_ms(batch: WaveBatch) -> float:
    if batch.graph is not None:
        return replay_ms(batch.graph, 4)
    begun = time.perf_counter()
    batch.compute()
    return (time.perf_counter() - begun) * 1000


@torch.inference_mode()
def lm_row(engine: Engine) -> dict[str, Any]:
    """Decode step and prefill per batch size at 250 positions, beside the time to read the weights once."""
    steps: Any = engine.lm
    if not engine.setup.gpu:
        begun = time.perf_counter()
        steps.prefill([Admission(slot=0, ids=[1] * 177, seed=1, min_tokens=10)])
        prefill_ms = (time.perf_counter() - begun) * 1000
        begun = time.perf_counter()
        for _ in range(10):
            steps.decode([0])
        return {"step_ms": {1: (time.perf_counter() - begun) * 100}, "prefill_ms": {"1x177": prefill_ms}}
    weights = sum(t.numel() for layer in steps.layers for t in (layer.qkv, layer.o, layer.gate_up, layer.down))
    floor = (weights + steps.head.numel()) * 2 / BANDWIDTH * 1000
    decode = {}
    for rows, (graph, slots, _) in sorted(steps._decode.items()):
        slots.copy_(torch.arange(rows, device=slots.device))
        steps.state.positions.fill_(250)
        steps.state.least.fill_(10**6)
        decode[rows] = round(replay_ms(graph), 3)
    prefill = {}
    for (rows, n), (graph, packed, _) in sorted(steps._prefill.items()):
        if n in (192, 256):
            packed.zero_()
            packed[:, 0] = torch.arange(rows, device=packed.device)
            packed[:, 1] = 177
            prefill[f"{rows}x{n}"] = round(replay_ms(graph), 3)
    host = {}
    for rows in (1, 8, 32, 128):
        steps.state.positions.fill_(250)
        pending, begun = None, time.perf_counter()
        for _ in range(100):
            now = steps.decode(range(rows))
            if pending is not None:
                pending.ids()
            pending = now
        host[rows] = round((time.perf_counter() - begun) * 10, 3)
    begun = time.perf_counter()
    for _ in range(10):
        steps.prefill([Admission(slot=0, ids=[1] * 177, seed=1, min_tokens=10)]).ids()
    return {
        "step_ms": decode,
        "floor_step_ms": round(floor, 3),
        "prefill_ms": prefill,
        "step_ms_seen_by_the_loop": host,
        "first_id_ms": round((time.perf_counter() - begun) * 100, 2),
    }


WORK = {
    # FLOP a frame: linear parts of the estimator (two rows, ten steps), its attention by key, encoder, vocoder; and
    # the estimator's weights.
    2: (2.64e9, 20 * 115e3, 0.06e9, 0.61e9, 66e6),
    3: (7.4e9, 20 * 90e3, 0.0, 0.67e9, 185e6),
}


@torch.inference_mode()
def flow_row(engine: Engine) -> dict[str, Any]:
    """Token-to-wave batches, alone: each shape at each size, at 150 and 350 tokens of history."""
    out: dict[str, Any] = {}
    linear, attention, encoder, vocoder, weights = WORK[engine.setup.version]
    for (shape, rows, chunks), batch in sorted(engine.runner._batches.items()):
        fed = batch.width - 3
        for history in (0,) if shape == "whole" else (100,) if shape == "first" else (150, 350):
            blocks = history // 25 + 2
            plan = [
                Row(
                    slot=1 + row,
                    start=history,
                    length=fed,
                    valid=fed + 3,
                    frames=50,
                    blocks=[] if shape == "whole" else list(range(10 + row * blocks, 10 + (row + 1) * blocks)),
                    tokens=np.random.default_rng(row).integers(0, 6561, fed + 3).tolist(),
                )
                for row in range(rows)
            ]
            host = torch.zeros(batch.packed.shape, dtype=torch.long)
            batch.fill(host.numpy(), plan)
            batch.packed.copy_(host)
            frames = 2 * fed * rows
            flop = frames * (linear + attention * (history * 2 + fed) + encoder) + rows * 50 * vocoder
            ms = batch_ms(batch)
            name = f"{shape} {rows} rows, " + (f"{chunks} chunks" if chunks else f"{history} tokens before")
            out[name] = {
                "ms": round(ms, 2),
                "floor_ms": round(max(flop / FLOPS, 20 * weights / BANDWIDTH) * 1000, 2),
                "tflops": round(flop / ms / 1e9, 1),
            }
    return out


# -- clients -----------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    first_ms: float = math.nan
    lm_ms: float = math.nan
    wave_ms: float = math.nan
    gaps: int = 0
    silence_s: float = 0.0
    audio_s: float = 0.0
    end: float = 0.0
    cancelled: bool = False
    freed_ms: float = math.nan
    refused: bool = False
    bad: bool = False


def answer_tokens(rng: random.Random, tiny: bool) -> int:
    return rng.randint(30, 60) if tiny else rng.randint(75, 250)


async def speak(engine: Engine, rng: random.Random, *, cancel_after_s: float | None = None) -> Turn:
    turn = Turn()
    playhead = Playhead()
    tokens = answer_tokens(rng, engine.setup.tiny)
    request = ClauseRequest(text=str(tokens), voice="reference", language="en-US", speed=1.0, instruct="", first=True)
    asked = time.monotonic()
    run_dry = math.inf

    async def listen() -> None:
        """Take chunks as they come; the engine reads from the playhead how much is in hand."""
        nonlocal run_dry
        async with aclosing(engine.synthesizer.synthesize(request, playhead)) as chunks:
            async for chunk in chunks:
                now = time.monotonic()
                if math.isnan(turn.first_ms):
                    turn.first_ms = (now - asked) * 1000
                    turn.lm_ms, turn.wave_ms = chunk.queue_ms, chunk.engine_ms
                    playhead.played_at, run_dry = now, now
                elif now > run_dry:
                    turn.gaps += 1
                    turn.silence_s += now - run_dry
                    run_dry = now
                seconds = len(chunk.pcm) / 24000
                run_dry += seconds
                playhead.delivered_s += seconds
                turn.audio_s += seconds
                turn.bad |= not (np.abs(chunk.pcm) <= 1).all()
        turn.end = run_dry

    try:
        if cancel_after_s is None:
            await listen()
        else:
            task = asyncio.create_task(listen())
            await asyncio.wait([task], timeout=cancel_after_s)
            if not task.done():
                turn.cancelled = True
                began = time.monotonic()
                task.cancel()
                await asyncio.wait([task])
                while any(  # noqa: ASYNC110  # measured from outside
                    r.closed for r in list(engine.runner._renderings)
                ) or any(s.cancelled for s in list(engine.loop._live)):
                    await asyncio.sleep(0.0005)
                turn.freed_ms = (time.monotonic() - began) * 1000
            else:
                task.result()
    except Exhausted:
        turn.refused = True
    return turn


def quantile(values: Sequence[float], q: float) -> float | None:
    values = sorted(v for v in values if not math.isnan(v))
    return round(values[min(len(values) - 1, int(q * len(values)))], 1) if values else None


def report(turns: Sequence[Turn], wall_s: float, engine: Engine) -> dict[str, Any]:
    heard = [t for t in turns if not math.isnan(t.first_ms)]
    whole = [t for t in heard if not t.cancelled]
    return {
        "turns": len(turns),
        "refused": sum(t.refused for t in turns),
        "broken": sum(t.bad for t in turns),
        "first_ms": {f"p{int(q * 100)}": quantile([t.first_ms for t in heard], q) for q in (0.5, 0.95, 0.99)},
        "of_it_lm_ms_p50": quantile([t.lm_ms for t in heard], 0.5),
        "of_it_token_to_wave_ms_p50": quantile([t.wave_ms for t in heard], 0.5),
        "gap_free": round(sum(t.gaps == 0 for t in whole) / max(len(whole), 1), 4),
        "silence_s": round(sum(t.silence_s for t in whole), 3),
        "audio_s": round(sum(t.audio_s for t in turns), 1),
        "wall_s": round(wall_s, 2),
        "audio_s_per_s": round(sum(t.audio_s for t in turns) / wall_s, 1),
        "cancelled_in_the_making": sum(t.cancelled for t in turns),
        "freed_ms_p50": quantile([t.freed_ms for t in turns], 0.5),
        "freed_ms_p99": quantile([t.freed_ms for t in turns], 0.99),
        "recomputed_chunks": engine.runner.recomputed_chunks,
        "free_blocks_after": engine.runner.free_blocks,
        "gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if engine.setup.gpu else 0,
    }


async def burst_row(engine: Engine, calls: int, repeats: int) -> dict[str, Any]:
    """All calls ask at the same instant; the worst case. Wall time is that of making the sound, not of playing it."""
    rng = random.Random(calls)
    turns: list[Turn] = []
    wall = 0.0
    for _ in range(repeats):
        begun = time.monotonic()
        turns += await asyncio.gather(*(speak(engine, rng) for _ in range(calls)))
        wall += time.monotonic() - begun
        await asyncio.sleep(0.1)
    return report(turns, wall, engine)


async def calls_row(engine: Engine, calls: int, seconds: float) -> dict[str, Any]:
    """Each call: an answer is asked for, heard to its end, 0.2 to 1.2 s pass, and again."""
    rng = random.Random(calls)
    begun = time.monotonic()
    turns: list[Turn] = []

    async def call() -> None:
        await asyncio.sleep(rng.uniform(0, min(3, seconds / 5)))
        while time.monotonic() - begun < seconds:
            turn = await speak(engine, rng)
            turns.append(turn)
            await asyncio.sleep(max(turn.end - time.monotonic(), 0) + rng.uniform(0.2, 1.2))

    await asyncio.gather(*(call() for _ in range(calls)))
    return report(turns, seconds, engine)


async def poisson_row(engine: Engine, rate: float, seconds: float, cancelled: float) -> dict[str, Any]:
    """Turns arrive at random; a share of them is cancelled at a random moment before the sound is all made."""
    rng = random.Random(int(rate * 10))
    begun = time.monotonic()
    tasks = []
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(rng.expovariate(rate))
        after = rng.uniform(0.0, 0.4) if rng.random() < cancelled else None
        tasks.append(asyncio.create_task(speak(engine, rng, cancel_after_s=after)))
    turns = await asyncio.gather(*tasks)
    return report(turns, time.monotonic() - begun, engine)


# -- the rows ----------------------------------------------------------------------------------------------------------

ROWS = (
    "burst:1", "burst:8", "burst:32", "burst:64", "burst:128",
    "calls:8", "calls:32", "calls:64", "calls:128",
    "poisson:5", "poisson:10", "poisson:20", "cancel:10", "poisson:25", "poisson:30", "lm", "flow",
)  # fmt: skip
ROWS_V2 = ("burst:1", "burst:32", "calls:1", "calls:32", "flow", "lm")


async def run_row(engine: Engine, row: str, seconds: float) -> dict[str, Any]:
    kind, _, value = row.partition(":")
    if kind == "burst":
        calls = int(value)
        repeats = {1: 40, 8: 8, 32: 4}.get(calls, 3)
        return await burst_row(engine, calls, 1 if engine.setup.tiny else repeats)
    if kind == "calls":
        return await calls_row(engine, int(value), seconds)
    if kind in ("poisson", "cancel"):
        return await poisson_row(engine, float(value), seconds, 1 / 3 if kind == "cancel" else 0.0)
    if kind == "lm":
        return lm_row(engine)
    if kind == "flow":
        return flow_row(engine)
    raise ValueError(f"row {row!r} is not one of {', '.join(ROWS)}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", type=int, choices=(2, 3), default=3)
    parser.add_argument("--rows", help="default: every row of the version")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    rows = arguments.rows.split(",") if arguments.rows else ROWS_V2 if arguments.version == 2 else ROWS
    done = (
        {json.loads(line)["row"] for line in arguments.out.read_text().splitlines()}
        if arguments.out.exists()
        else set()
    )

    def write(row: str, result: dict[str, Any]) -> None:
        line = json.dumps({"row": row, **result})
        print(line, flush=True)
        with arguments.out.open("a") as file:
            file.write(line + "\n")

    setup = Setup(
        version=arguments.version,
        device=torch.device(arguments.device),
        tiny=arguments.tiny,
        plain=arguments.plain,
        blocks=arguments.blocks,
    )
    engine = make_engine(setup)
    begun = time.monotonic()
    await engine.synthesizer.start()
    write(
        "start",
        {
            **engine.facts,
            "warm_up_s": round(time.monotonic() - begun, 1),
            "gpu_gib": round(torch.cuda.memory_allocated() / 2**30, 1) if setup.gpu else 0,
            "gpu": torch.cuda.get_device_name() if setup.gpu else "",
            "torch": torch.__version__,
        },
    )
    rng = random.Random(0)
    await asyncio.gather(*(speak(engine, rng) for _ in range(8)))
    gc.collect()
    gc.freeze()
    for row in rows:
        if row not in done:
            write(row, await run_row(engine, row, arguments.seconds))
    await engine.synthesizer.aclose()


if __name__ == "__main__":
    asyncio.run(main())
