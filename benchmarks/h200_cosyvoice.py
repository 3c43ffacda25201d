"""CosyVoice on one GPU, full-size random weights: first chunk, gaps, throughput, stages. Results: one JSON line a row.

    python benchmarks/h200_cosyvoice.py OUT.jsonl [--version 2] [--rows lm,flow,burst:8,...] [--seconds 15]
    python benchmarks/h200_cosyvoice.py OUT.jsonl --lm vllm --rows burst:1,burst:32,burst:128,poisson:20
    python benchmarks/h200_cosyvoice.py OUT.jsonl --grpc --rows burst:1,burst:32,poisson:20
    python benchmarks/h200_cosyvoice.py OUT.jsonl --tiny --rows burst:1        # a CPU will do: is the path whole?

Rows that OUT already has are skipped, so an interrupted run goes on where it stopped; with ``--version 2``, ``--lm
vllm``, ``--grpc`` and others their names say so. ``--plain`` takes the networks of token to wave as they are and
not the fused ones, under the same CUDA graphs: slower, and without Triton. Random weights never stop by themselves:
each clause is given its length (3 to 10 s, stop ids masked until then); they say nothing of how it sounds.

The client is in this process: times run from the call of ``synthesize`` to the chunk in its hands. With ``--grpc`` the
engine is another process, as users have it: times run from ``open`` of the gRPC client to the first frames of PCMU, and
no more than ``speech.ahead_s`` of sound is made ahead of the phone. The client starts to play at the first chunk, in
real time; a later chunk that comes after the sound before it has run out is a gap. Text is prepared (25 text ids,
transcript of 25, voice prompt of 128 speech tokens): no text front end in the times. With ``--text-processes N`` each
clause is a new sentence with numbers, which wetext turns into words in N processes, or on the event loop with 0.

vLLM (the version that the extra [vllm] names) runs in a process of its own on the same GPU: 4 GB of keys and values,
and what its weights and graphs take. It has to be importable here; talkspurt need not be installed. ``--vllm
'{"extra": {"attention_backend": "TRITON_ATTN"}}'`` sets what ``VllmConfig`` has.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import random
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from h200_engine import Engine, Line, Sound, clause_text, first_hop, make_engine, used_gib

from talkspurt.bench.results import commit
from tts_engine.cosyvoice.lm.api import SequencePrefill
from tts_engine.cosyvoice.token2wav.batch import WaveBatch
from tts_engine.cosyvoice.token2wav.scheduler import BatchRow
from tts_engine.errors import Exhausted
from tts_engine.synthesizer import ClauseRequest, Playhead

BANDWIDTH = 4.3e12
"""Bytes per second of a device copy on this chip, read and written."""
FLOPS = 790e12
"""bf16 FLOP per second of a large product on this chip."""


# -- stages alone ------------------------------------------------------------------------------------------------------


def replay_ms(*graphs: torch.cuda.CUDAGraph, times: int = 10) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    out = []
    for _ in range(6):
        begin.record()
        for graph in graphs * times:
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        out.append(begin.elapsed_time(end) / times)
    return statistics.median(out[1:])


def batch_ms(batch: WaveBatch) -> float:
    if batch.graphs:
        return replay_ms(*batch.graphs, times=4)
    begun = time.perf_counter()
    batch.compute()
    return (time.perf_counter() - begun) * 1000


def weight_bytes(weight: Any) -> int:
    return int(weight.numel() * weight.element_size())


@torch.inference_mode()
def lm_row(engine: Engine) -> dict[str, Any]:
    """Decode step and prefill per batch size at 250 positions, beside the time to read the weights once."""
    steps, ids = engine.steps, np.ones(177, np.int64)
    if engine.worker.runner.device.type == "cpu":
        begun = time.perf_counter()
        steps.prefill([SequencePrefill(slot=0, ids=ids, seed=1, min_tokens=10)])
        prefill_ms = (time.perf_counter() - begun) * 1000
        begun = time.perf_counter()
        for _ in range(10):
            steps.decode([0])
        return {"step_ms": {1: (time.perf_counter() - begun) * 100}, "prefill_ms": {"1x177": prefill_ms}}
    floor = sum(weight_bytes(w) for layer in steps.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down))
    floor = (floor + weight_bytes(steps.head)) / BANDWIDTH * 1000
    decode = {}
    for rows, (graph, slots, _) in sorted(steps._decode.items()):
        slots.copy_(torch.arange(rows, device=slots.device))
        steps.state.positions.fill_(250)
        steps.state.least.fill_(10**6)
        decode[rows] = round(replay_ms(graph), 3)
    prefill = {}
    for rows in (1, 2, 4, 8, 16):
        steps.prefill([SequencePrefill(slot=slot, ids=ids, seed=1, min_tokens=10) for slot in range(rows)]).ids()
        graph, *_ = steps._prefill[min(lines for lines in steps._prefill if lines >= rows * len(ids))]
        prefill[f"{rows}x{len(ids)}"] = round(replay_ms(graph), 3)
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
        steps.prefill([SequencePrefill(slot=0, ids=ids, seed=1, min_tokens=10)]).ids()
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


def fill(batch: WaveBatch, history: int) -> None:
    """Let each row be a full one behind so many tokens."""
    fed, blocks = batch.length, history // 25 + 2
    plan = [
        BatchRow(
            slot=1 + row,
            start=history,
            length=fed,
            valid=fed + 3,
            frames=min(batch.sounding_frames, 50),
            blocks=[] if batch.shape == "whole" else list(range(10 + row * blocks, 10 + (row + 1) * blocks)),
            tokens=np.random.default_rng(row).integers(0, 6561, fed + 3).tolist(),
        )
        for row in range(batch.rows)
    ]
    host = torch.zeros(batch.packed.shape, dtype=torch.long)
    batch.fill(host.numpy(), plan)
    batch.packed.copy_(host)


@torch.inference_mode()
def flow_row(engine: Engine) -> dict[str, Any]:
    """Token-to-wave batches, alone: each shape at each size, at 125 and 350 tokens of history."""
    out: dict[str, Any] = {}
    linear, attention, encoder, vocoder, weights = WORK[engine.version]
    runner = engine.worker.runner
    batches = [(shape, rows, batch) for (shape, rows, _), batch in sorted(runner.batches.items())]
    batches += [("staged chunk", rows, batch) for rows, batch in sorted(runner.staged_batches.items())]
    for shape, rows, batch in batches:
        fed, sounding = batch.length, min(batch.sounding_frames, 50)
        for history in (0,) if shape == "whole" else (125, 350):
            fill(batch, history)
            frames = 2 * fed * rows
            flop = frames * (linear + attention * (history * 2 + fed) + encoder) + rows * sounding * vocoder
            ms = batch_ms(batch)
            name = f"{shape} {rows} rows, "
            name += f"{fed // 25} chunks" if shape == "whole" else f"{fed} tokens behind {history}"
            out[name] = {
                "ms": round(ms, 2),
                "floor_ms": round(max(flop / FLOPS, 20 * weights / BANDWIDTH) * 1000, 2),
                "tflops": round(flop / ms / 1e9, 1),
            }
    return out


def timed_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@torch.inference_mode()
def beside_row(engine: Engine) -> dict[str, Any]:
    """Batches of chunks alone, and beside steps of the language model for eight clauses, one after the other without a
    pause, and what such a step takes meanwhile."""
    runner, lm, out = engine.worker.runner, engine.steps, {}
    if runner.device.type == "cpu":
        raise ValueError("row beside needs a GPU, on which two streams run beside each other; this engine is on a CPU")
    step, slots, _ = lm._decode[min(rows for rows in lm._decode if rows >= 8)]
    for (shape, rows, length), batch in sorted(runner.batches.items()):
        if shape != "chunk":
            continue
        fill(batch, 125)
        alone = batch_ms(batch)
        slots.copy_(torch.arange(len(slots), device=slots.device))
        lm.state.positions.fill_(250)
        lm.state.least.fill_(10**6)
        torch.cuda.synchronize()
        with torch.cuda.stream(lm.stream):
            for _ in range(20):
                step.replay()
            begin = timed_event()
            steps = []
            for _ in range(400):
                step.replay()
                steps.append(timed_event())
        with runner.on_stream():
            torch.cuda.current_stream().wait_event(begin)
            chunks = [timed_event()]
            for _ in range(6):
                batch.run(0)
                chunks.append(timed_event())
        torch.cuda.synchronize()
        step_ends, chunk_ends = ([begin.elapsed_time(event) for event in events] for events in (steps, chunks))
        took = [end - start for start, end in pairwise(chunk_ends) if end <= step_ends[-1]]
        meanwhile = [end for end in step_ends if chunk_ends[0] <= end <= chunk_ends[-1]]
        out[f"{rows} rows, {length} tokens behind 125"] = {
            "ms": round(alone, 2),
            "beside_ms": round(statistics.median(took), 2),
            "step_ms": round((meanwhile[-1] - meanwhile[0]) / (len(meanwhile) - 1), 3),
        }
    return out


# -- clients -----------------------------------------------------------------------------------------------------------


class Here:
    """The engine in this process."""

    def __init__(self, engine: Engine, *, words: bool) -> None:
        self.engine, self.tiny, self.words = engine, engine.tiny, words

    async def speak(self, tokens: int, playhead: Playhead) -> AsyncGenerator[Sound, None]:
        request = ClauseRequest(
            text=clause_text(tokens, words=self.words),
            voice="reference",
            language="en-US",
            speed=1.0,
            instruct="",
            first=True,
        )
        async with aclosing(self.engine.synthesizer.synthesize(request, playhead)) as chunks:
            async for chunk in chunks:
                broken = not (np.abs(chunk.pcm) <= 1).all()
                yield Sound(len(chunk.pcm) / 24000, chunk.queue_ms, chunk.engine_ms, bool(broken))

    def counts(self) -> dict[str, Any]:
        worker = self.engine.worker
        gpu = {"gpu_gib": used_gib()} if worker.runner.device.type == "cuda" else {}
        recomputed = worker.scheduler.recomputed_chunks
        return {"recomputed_chunks": recomputed, "free_blocks_after": worker.blocks.free_blocks, **gpu}


def answer_tokens(rng: random.Random, *, short: bool) -> int:
    return rng.randint(30, 60) if short else rng.randint(75, 250)


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


async def speak(line: Line, rng: random.Random, *, cancel_after_s: float | None = None) -> Turn:
    turn = Turn()
    playhead = Playhead()
    asked = time.monotonic()
    run_dry = math.inf

    async def listen() -> None:
        """Take chunks as they come; the engine reads from the playhead how much is in hand."""
        nonlocal run_dry
        async with aclosing(line.speak(answer_tokens(rng, short=line.tiny), playhead)) as sounds:
            async for sound in sounds:
                now = time.monotonic()
                if math.isnan(turn.first_ms):
                    turn.first_ms = (now - asked) * 1000
                    turn.lm_ms, turn.wave_ms = sound.lm_ms, sound.wave_ms
                    playhead.played_at, run_dry = now, now
                elif now > run_dry:
                    turn.gaps += 1
                    turn.silence_s += now - run_dry
                    run_dry = now
                run_dry += sound.seconds
                playhead.delivered_s += sound.seconds
                turn.audio_s += sound.seconds
                turn.bad |= sound.broken
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
                if isinstance(line, Here):  # measured from outside
                    while line.engine.freeing():
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


def report(turns: Sequence[Turn], wall_s: float, line: Line) -> dict[str, Any]:
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
        **line.counts(),
    }


async def burst_row(line: Line, calls: int, repeats: int) -> dict[str, Any]:
    """All calls ask at the same instant; the worst case. Wall time is that of making the sound, not of playing it."""
    rng = random.Random(calls)
    turns: list[Turn] = []
    wall = 0.0
    for _ in range(repeats):
        begun = time.monotonic()
        turns += await asyncio.gather(*(speak(line, rng) for _ in range(calls)))
        wall += time.monotonic() - begun
        await asyncio.sleep(0.1)
    return report(turns, wall, line)


async def calls_row(line: Line, calls: int, seconds: float) -> dict[str, Any]:
    """Each call: an answer is asked for, heard to its end, 0.2 to 1.2 s pass, and again."""
    rng = random.Random(calls)
    begun = time.monotonic()
    turns: list[Turn] = []

    async def call() -> None:
        await asyncio.sleep(rng.uniform(0, min(3, seconds / 5)))
        while time.monotonic() - begun < seconds:
            turn = await speak(line, rng)
            turns.append(turn)
            await asyncio.sleep(max(turn.end - time.monotonic(), 0) + rng.uniform(0.2, 1.2))

    await asyncio.gather(*(call() for _ in range(calls)))
    return report(turns, seconds, line)


async def poisson_row(line: Line, rate: float, seconds: float, cancelled: float) -> dict[str, Any]:
    """Turns arrive at random; a share of them is cancelled at a random moment before the sound is all made."""
    rng = random.Random(int(rate * 10))
    begun = time.monotonic()
    tasks = []
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(rng.expovariate(rate))
        after = rng.uniform(0.0, 0.4) if rng.random() < cancelled else None
        tasks.append(asyncio.create_task(speak(line, rng, cancel_after_s=after)))
    turns = await asyncio.gather(*tasks)
    return report(turns, time.monotonic() - begun, line)


# -- the rows ----------------------------------------------------------------------------------------------------------

ROWS = (
    "burst:1", "burst:8", "burst:32", "burst:64", "burst:128",
    "calls:8", "calls:32", "calls:64", "calls:128",
    "poisson:5", "poisson:10", "poisson:20", "cancel:10", "poisson:25", "poisson:30", "lm", "flow",
)  # fmt: skip
ROWS_V2 = ("burst:1", "burst:32", "calls:1", "calls:32", "flow", "lm")


async def run_row(line: Line, row: str, seconds: float) -> dict[str, Any]:
    kind, _, value = row.partition(":")
    if kind == "burst":
        calls = int(value)
        repeats = 1 if line.tiny else {1: 40, 8: 8, 32: 4}.get(calls, 3)
        return await burst_row(line, calls, repeats)
    if kind == "calls":
        return await calls_row(line, int(value), seconds)
    if kind in ("poisson", "cancel"):
        return await poisson_row(line, float(value), seconds, 1 / 3 if kind == "cancel" else 0.0)
    stages = {"lm": lm_row, "flow": flow_row, "beside": beside_row}
    if kind in stages and isinstance(line, Here):
        return stages[kind](line.engine)
    raise ValueError(
        f"row {row!r} is not one of {', '.join(ROWS)}, beside; {', '.join(stages)} need the engine in this process"
    )


@asynccontextmanager
async def here(arguments: argparse.Namespace) -> AsyncIterator[tuple[Here, dict[str, Any]]]:
    engine = await make_engine(arguments)
    try:
        yield Here(engine, words=arguments.text_processes is not None), engine.facts
    finally:
        await engine.synthesizer.aclose()


async def measure(arguments: argparse.Namespace, done: set[str]) -> None:
    out: Path = arguments.out
    how = " v2" if arguments.version == 2 else ""
    how += " plain" if arguments.plain else ""
    how += " causal" if arguments.finalize == "causal" else ""
    how += f" hop {arguments.first_hop}" if arguments.first_hop != 22 else ""
    how += f" steps {arguments.euler_steps}" if arguments.euler_steps != 10 else ""
    how += f" text {arguments.text_processes}" if arguments.text_processes is not None else ""
    how += (" vllm" if arguments.lm == "vllm" else "") + (" grpc" if arguments.grpc else "")

    beside = {"model": f"CosyVoice{arguments.version}", "weights": "random weights", "size": "full"}
    if arguments.tiny:
        beside["size"] = "tiny"
    beside["commit"] = arguments.commit or commit()

    def write(row: str, result: dict[str, Any]) -> None:
        text = json.dumps({"row": row, **beside, **result})
        print(text, flush=True)
        with out.open("a") as file:
            file.write(text + "\n")

    if arguments.grpc:
        from h200_grpc import remote as reach  # with it come gRPC, pydantic and the codecs
    else:
        reach = here
    async with reach(arguments) as (line, facts):
        beside["gpu"] = facts.get("gpu", "none")
        write("start" + how, facts)
        rng = random.Random(0)
        await asyncio.gather(*(speak(line, rng) for _ in range(1 if line.tiny else 8)))
        gc.collect()
        gc.freeze()
        for row in arguments.rows.split(",") if arguments.rows else ROWS_V2 if arguments.version == 2 else ROWS:
            if row + how not in done:
                write(row + how, await run_row(line, row, arguments.seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", type=int, choices=(2, 3), default=3)
    parser.add_argument("--rows", help="with commas between (default: all of the version's)")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--lm", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--vllm", type=json.loads, default={}, metavar="JSON", help="fields of VllmConfig")
    parser.add_argument("--grpc", action="store_true", help="the engine in another process")
    parser.add_argument("--plain", action="store_true", help="no fused networks")
    parser.add_argument("--finalize", choices=("upstream", "causal"), default="upstream")
    parser.add_argument("--first-hop", type=first_hop, default="auto", metavar="TOKENS|auto")
    parser.add_argument("--euler-steps", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="small networks: for a look at the path on a CPU")
    parser.add_argument("--text-processes", type=int, metavar="N", help="with the text front end, in N processes")
    parser.add_argument("--device", type=torch.device)
    parser.add_argument("--commit", help="what is measured, where it is no checkout")
    arguments = parser.parse_args()
    arguments.device = arguments.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out: Path = arguments.out
    done = {json.loads(line)["row"] for line in out.read_text().splitlines()} if out.exists() else set()
    asyncio.run(measure(arguments, done))


if __name__ == "__main__":
    main()
