"""How long the language model's prefills take on a CUDA device: CosyVoice3 at full size, random weights, bf16.

Prompts of 215 ids, of which a voice has 50 in common: device time by CUDA events, the host's time to launch, and the
time until the ids are there; then each kernel of a layer alone. One JSON line each; under a minute, no arguments.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "codecs")]

import numpy as np
import torch
from numpy.typing import NDArray

from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.lm import flat_prompts
from tts_engine.cosyvoice.lm.api import Admission
from tts_engine.cosyvoice.lm.cuda_steps import CudaLm
from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel

DEVICE = torch.device("cuda")
ROWS, LENGTH, SHARED, REPLAYS = (1, 4, 8, 12, 16), 215, 50, 30
RNG = np.random.default_rng(1)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def prompts(lengths: Sequence[int], voice: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [np.concatenate([voice, RNG.integers(0, 6561, n - len(voice))]) for n in lengths]


def admitted(some: Sequence[NDArray[np.int64]], shared: int = 0) -> list[Admission]:
    return [
        Admission(slot=slot, ids=ids, seed=slot + 5, min_tokens=10**6, shared=shared) for slot, ids in enumerate(some)
    ]


def median_us(work: Callable[[], object], stream: Any) -> float:
    """Return the device time of ``work``, by events."""
    out = []
    with torch.cuda.stream(stream):
        for _ in range(REPLAYS + 3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            out.append(begin.elapsed_time(end) * 1000)
    return round(statistics.median(out[3:]), 1)


def prefills(fused: CudaLm) -> None:
    voice = RNG.integers(0, 6561, SHARED)
    fused.prefill(admitted(prompts([LENGTH], voice), SHARED)).ids()  # the prefix is known from now on
    for shared in (0, SHARED):
        for rows in ROWS:
            admissions = admitted(prompts([LENGTH] * rows, voice), shared)
            lines = min(n for n in fused._prefill if n >= sum(fused.computed(a) for a in admissions))
            fused.prefill(admissions).ids()
            device_us = median_us(fused._prefill[lines][0].replay, fused.stream)
            host, whole = [], []
            for _ in range(REPLAYS):
                begun = time.perf_counter()
                pending = fused.prefill(admissions)
                host.append((time.perf_counter() - begun) * 1e6)
                pending.ids()
                whole.append((time.perf_counter() - begun) * 1e6)
            say(
                prefill=rows, ids=LENGTH, shared=shared, lines=lines, device_us=device_us,
                host_us=round(statistics.median(host), 1), until_ids_us=round(statistics.median(whole), 1),
            )  # fmt: skip


def in_a_graph(work: Callable[[int], object], stream: Any, count: int) -> torch.cuda.CUDAGraph:
    """Return a graph of ``count`` launches, so that the host's time does not show."""
    torch.cuda.synchronize()  # what the work reads was written on another stream
    with torch.cuda.stream(stream):
        work(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(count):
                work(number)
    return graph


def kernels_alone(fused: CudaLm) -> None:
    """Time each kernel of a layer over all layers' caches; and the copy of prefixes."""
    config, layers, nobody = fused.config, fused.config.layers, np.zeros(0, np.int64)
    for rows, lines in ((1, 256), (4, 896), (16, 3584)):
        packed = fused._packed(lines, admitted(prompts([LENGTH] * rows, nobody)), [-1] * rows, [-1] * rows).to(DEVICE)
        flat = flat_prompts.views(packed, lines)
        qkv = torch.randn(lines, (config.heads + 2 * config.kv_heads) * config.head_dim, device=DEVICE).bfloat16()
        source = torch.full((16,), -1, device=DEVICE)
        target, size = torch.arange(16, device=DEVICE), torch.full((16,), SHARED, device=DEVICE)
        source[:rows] = fused.scratch + 1

        def rotate_store(layer: int, qkv: Any = qkv, flat: Any = flat) -> None:
            kernels.rotate_store(
                qkv, fused.cache[layer], flat.lines[1], flat.lines[2], fused.cos, fused.sin, config.heads
            )

        def attention(layer: int, qkv: Any = qkv, flat: Any = flat) -> None:
            kernels.prompt_attention(qkv, fused.cache[layer], flat.blocks, config.heads)

        def copy(_: int, source: Any = source, target: Any = target, size: Any = size) -> None:
            kernels.copy_positions(fused.cache, source, target, size)

        facts = {}
        for work, count in ((rotate_store, layers), (attention, layers), (copy, 4)):
            graph = in_a_graph(work, fused.stream, count)
            facts[f"{work.__name__}_us"] = round(median_us(graph.replay, fused.stream) / count, 2)
        say(kernels=lines, prompts=rows, ids=LENGTH, **facts)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        plain = SpeechLanguageModel(LanguageModelConfig(version=3)).eval()
    fused = CudaLm(plain, slots=64, max_length=1024, device=DEVICE)
    begun = time.monotonic()
    fused.warm_up(rows=(1, 16))
    warm_up_s = round(time.monotonic() - begun, 1)
    say(gpu=torch.cuda.get_device_name(), torch=torch.__version__, graphs=len(fused._prefill), warm_up_s=warm_up_s)
    prefills(fused)
    kernels_alone(fused)


if __name__ == "__main__":
    main()
