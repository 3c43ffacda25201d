"""In which order a burst of turns is made: the model's own process on a CPU, with the times of a GPU made up.

    python benchmarks/burst_order.py [--turns 128] [--bursts 20] [--slower 1.25] [--then 30] [--apart-ms 0.3]
        [--text-ms 35] [--out OUT.jsonl]

The clauses, the language model's loop, token-to-wave's thread, its scheduler and admission are the product's. Only
what the device does is not: a step and a batch take what they took on one H200 with CosyVoice3 of full size
(``results/h200_beside.jsonl``; last chunks, prefills and steps of more than 32 clauses roughly), longer while the other
of the two works, and times ``--slower``. Ids are random, and the sound is a constant. So it tells which order is
better, and how often a bad one comes; how long a burst takes on a GPU, with its host's processes, is
``h200_product.py``'s to tell.

Each burst is of new turns, ``--apart-ms`` apart, whose texts are ready 5 to ``--text-ms`` later. First chunks are heard
20 ms after they were made. One JSON line a burst: how soon first chunks are made, how long they waited for
token-to-wave, and the least sound in hand when a later chunk of the first four came. Nobody is refused, so that all
bursts are of as many; with ``--then N`` admission is in force, turns have eight chunks, and N more come two seconds
later.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "codecs")]

import numpy as np
import uvloop

from talkspurt.bench.results import commit, machine
from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.cosyvoice.frontend.words import Wording
from tts_engine.cosyvoice.lm.api import SequencePrefill
from tts_engine.cosyvoice.loading import load_synthesizer
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer
from tts_engine.cosyvoice.token2wav.first_chunk import FirstChunk
from tts_engine.errors import Exhausted
from tts_engine.synthesizer import ClauseRequest, Playhead

SIZES = (1, 2, 4, 8, 16, 32)
CHUNK_MS = {
    11: (8.1, 10.2, 11.0, 12.6, 17.3, 26.7),
    18: (9.8, 10.5, 11.4, 13.7, 20.5, 33.2),
    25: (9.9, 10.9, 12.0, 15.3, 23.8, 40.6),
}
"""Batches by tokens and ``SIZES`` of clauses, on the idle device."""
CHUNK_SPEED = (0.68, 0.69, 0.67, 0.6, 0.575, 0.54)
"""Their speed beside steps of the language model, by ``SIZES``."""
WHOLE_MS, WHOLE_CHUNK_MS, WHOLE_SPEED = 3.0, 1.2, 0.6
STEP_MS = {8: (0.56, 0.75), 16: (0.6, 0.82), 32: (0.78, 0.86), 64: (1.2, 2.6), 96: (1.3, 2.9), 128: (1.4, 3.1)}
"""Steps by clauses: on the idle device, and beside a batch."""
PREFILL_MS = {192: (1.3, 2.0), 384: (1.5, 2.3), 768: (2.2, 3.3), 1536: (3.2, 4.8), 3072: (4.75, 7.1), 4096: (6.2, 9.3)}
"""Prefills by positions, as steps. The last is extrapolated."""
STEP_HOST_MS, BATCH_HOST_MS, PREFILL_HOST_MS = 0.12, 0.5, 0.3
"""What the host does for each, with the interpreter's lock."""
NEARLY_S = 0.0013
"""The rest of a batch when it has nearly ended."""
STAGES = {"chunk": 5, "whole": 10}

TEXT_S, HEARD_S = 0.005, 0.02
"""The soonest text, and how soon a first chunk is heard."""
CHUNKS, CHUNKS_WITH_OTHERS, OTHERS_COME_S = 4, 8, 2.0
_WORDS = "the order left our store this morning and will come on friday with a new lamp for you".split()
TEXTS = [" ".join(random.choices(_WORDS, k=16)).capitalize() + "." for _ in range(40)]


def host(ms: float) -> None:
    """Use the processor."""
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass


class Work:
    """What the device has been given and has not done: seconds of the idle device."""

    def __init__(self, seconds: float, speed: float) -> None:
        self.left_s, self.speed = seconds, speed
        self.ended: float | None = None


class Device:
    """Two streams: token-to-wave's work, one after the other, and the language model's, beside which it is slower."""

    def __init__(self, slower: float) -> None:
        self.slower = slower
        self._lock = threading.Lock()
        self._works: list[Work] = []
        self._at = time.monotonic()
        self._steps: list[tuple[float, float]] = []
        self._steps_end = 0.0

    def give(self, ms: float, speed: float) -> Work:
        with self._lock:
            self._go_on()
            self._works.append(work := Work(ms / 1000 * self.slower, speed))
        return work

    def wait(self, work: Work, *, left_s: float = 0.0) -> None:
        """Wait until no more than ``left_s`` of the work is left."""
        while True:
            with self._lock:
                self._go_on()
                begun = work.ended is not None or self._works[0] is work
                if begun and work.left_s <= left_s:
                    return
            time.sleep(min(max(0.9 * (work.left_s - left_s), 0.0001), 0.004))

    def step(self, alone_ms: float, beside_ms: float) -> float:
        """Give a step to the language model's stream. Return the monotonic second at which it ends."""
        with self._lock:
            self._go_on()
            begin = max(self._at, self._steps_end)
            self._steps_end = begin + (beside_ms if self._works else alone_ms) / 1000 * self.slower
            self._steps.append((begin, self._steps_end))
            return self._steps_end

    def _go_on(self) -> None:
        now = time.monotonic()
        while self._at < now and self._works:
            work, end, speed = self._works[0], now, 1.0
            self._steps = [step for step in self._steps if step[1] > self._at]
            if self._steps:
                begin, ends = self._steps[0]
                end, speed = (min(ends, now), work.speed) if begin <= self._at else (min(begin, now), 1.0)
            if (needed_s := work.left_s / speed) <= end - self._at:
                self._at += needed_s
                self._works.pop(0)
                work.left_s, work.ended = 0.0, self._at
            else:
                work.left_s -= (end - self._at) * speed
                self._at = end
        self._at = max(self._at, now) if not self._works else self._at


class MadeUpRun:
    """In place of ``runner.Run``."""

    def __init__(self, device: Device, rows: Sequence[Any], ms: float, speed: float, stages: int) -> None:
        self.stages, self._device, self._rows = stages, device, rows
        self._ms, self._speed, self._begun = ms / stages, speed, time.monotonic()
        self._work = device.give(self._ms, speed)

    def await_nearly_done(self) -> None:
        self._device.wait(self._work, left_s=NEARLY_S * self._device.slower / self.stages)

    def go_on(self, stage: int) -> None:
        self._work = self._device.give(self._ms, self._speed)

    def drop(self, row: int) -> None:
        pass

    def read(self) -> None:
        pass

    def result(self) -> tuple[Any, float]:
        self._device.wait(self._work)
        samples = 480 * max(row.frames for row in self._rows) + 2000
        assert self._work.ended is not None
        return np.full((len(self._rows), samples), 0.1, np.float32), self._work.ended - self._begun


class MadeUpRunner:
    """In place of ``runner.ModelRunner``, whose sizes and vocoder it has."""

    works_ahead = True

    def __init__(self, real: Any, device: Device) -> None:
        self.chunk, self.state, self._device = real.chunk, real.state, device

    def compute_prompt(self, *_: object) -> None:
        pass

    def warm_up(self, calibrated: Callable[[int, int, float], None]) -> None:
        for length in sorted(CHUNK_MS, reverse=True):
            for rows, ms in zip(SIZES, CHUNK_MS[length], strict=True):
                calibrated(length, rows, ms / 1000 * self._device.slower)

    def begin(self, shape: str, rows: Sequence[Any], *, staged: bool) -> MadeUpRun:
        host(BATCH_HOST_MS)
        stages = STAGES[shape] if staged else 1
        if shape == "whole":
            chunks = sum(-(-row.length // self.chunk) for row in rows)
            return MadeUpRun(self._device, rows, WHOLE_MS + WHOLE_CHUNK_MS * chunks, WHOLE_SPEED, stages)
        size = next(place for place, size in enumerate(SIZES) if size >= len(rows))
        length = self.chunk if staged else min(n for n in CHUNK_MS if n >= max(row.length for row in rows))
        return MadeUpRun(self._device, rows, CHUNK_MS[length][size], CHUNK_SPEED[size], stages)


class Drawn:
    """Ids that are known at a monotonic second."""

    def __init__(self, count: int, at: float, ids: int) -> None:
        self._count, self._at, self._ids = count, at, ids

    def ids(self) -> list[int]:
        time.sleep(max(self._at - time.monotonic(), 0))
        return [random.randrange(self._ids) for _ in range(self._count)]


class MadeUpSteps:
    """In place of ``cuda_steps.CudaLm``. No clause ends before it has all its ids."""

    def __init__(self, real: Any, device: Device) -> None:
        self.config, self.slots, self.max_length, self._device = real.config, real.slots, real.max_length, device

    def warm_up(self) -> None:
        pass

    def computed(self, admission: SequencePrefill) -> int:
        return len(admission.ids)

    def filled(self, rows: int) -> int:
        return next(most for most in STEP_MS if rows <= most)

    def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawn:
        host(PREFILL_HOST_MS)
        return self._drawn(len(admissions), sum(self.computed(a) for a in admissions), PREFILL_MS)

    def decode(self, slots: Sequence[int], inputs: Sequence[object] = ()) -> Drawn:
        host(STEP_HOST_MS)
        return self._drawn(len(slots), len(slots), STEP_MS)

    def _drawn(self, rows: int, size: int, table: dict[int, tuple[float, float]]) -> Drawn:
        times = next(ms for most, ms in table.items() if size <= most)
        return Drawn(rows, self._device.step(*times), self.config.speech_token_size)


async def make_engine(slower: float, folder: Path, *, refuses: bool, text_s: float) -> CosyVoiceSynthesizer:
    make(folder, 3)
    settings = CosyVoiceConfig(text_processes=0, **({} if refuses else {"busy_share": 100, "first_chunk_s": 1e6}))
    engine: Any = load_synthesizer(folder, settings, device="cpu")
    device = Device(slower)
    engine._worker.runner = MadeUpRunner(engine._worker.runner, device)
    engine._worker._ahead = True
    engine._lm._steps = MadeUpSteps(engine._lm._steps, device)
    made = {text: engine._frontend.wording(text, "en-US") for text in TEXTS}

    async def wordings(text: str, language: str) -> AsyncGenerator[Wording, None]:
        yield made[text]
        await asyncio.sleep(random.uniform(TEXT_S, text_s))
        yield made[text]

    engine._normaliser.wordings = wordings
    await engine.start()
    return engine  # type: ignore[no-any-return]


async def turn(engine: CosyVoiceSynthesizer, at: float, length: int) -> tuple[float, float, float] | None:
    """Return milliseconds until the first chunk was made, those it waited for token-to-wave, and the least sound in
    hand. None: it was refused."""
    await asyncio.sleep(at - time.monotonic())
    clause = ClauseRequest(text=random.choice(TEXTS), voice="", language="en-US", speed=1.0, instruct="", first=True)
    playhead, first, least_s = Playhead(), (0.0, 0.0), math.inf
    count = 0
    try:
        async with aclosing(engine.synthesize(clause, playhead)) as chunks:
            async for chunk in chunks:
                now = time.monotonic()
                if playhead.played_at is None:
                    first = (now - at) * 1000, chunk.engine_ms
                    playhead.played_at = now + HEARD_S
                elif count < CHUNKS:
                    least_s = min(least_s, playhead.played_at + playhead.delivered_s - now)
                playhead.delivered_s += len(chunk.pcm) / engine.sample_rate
                count += 1
                if count == length:
                    break
    except Exhausted:
        return None
    return *first, least_s * 1000


def quantiles(ms: Any) -> dict[str, float]:
    p50, p95 = np.percentile(ms, (50, 95))
    return {"p50": round(p50, 1), "p95": round(p95, 1), "max": round(ms.max(), 1)}


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine: Any = await make_engine(
            arguments.slower, Path(folder) / "model", refuses=arguments.then > 0, text_s=arguments.text_ms / 1000
        )
    gc.collect()
    gc.freeze()
    facts = {
        "turns": arguments.turns,
        "slower": arguments.slower,
        "apart_ms": arguments.apart_ms,
        "text_ms": arguments.text_ms,
        "commit": commit(),
        **{key: machine()[key] for key in ("cpu", "cores")},
    }
    for number in range(arguments.bursts + 1):
        engine._first_chunk = FirstChunk()  # each burst is the first of its server
        begin = time.monotonic() + 0.05
        turns, others = (8, 0) if number == 0 else (arguments.turns, arguments.then)
        length = CHUNKS_WITH_OTHERS if others else CHUNKS
        apart_s = arguments.apart_ms / 1000
        at = [begin + apart_s * k for k in range(turns)]
        at += [begin + OTHERS_COME_S + apart_s * k for k in range(others)]
        answers = await asyncio.gather(*(turn(engine, when, length) for when in at))
        if number:  # the one before is lazy work
            spoken = [answer for answer in answers[:turns] if answer is not None]
            first, waited, least = (np.asarray(part) for part in zip(*spoken, strict=True))
            figures: dict[str, Any] = {"first_chunk_ms": quantiles(first), "engine_ms": quantiles(waited)}
            figures["least_in_hand_ms"] = round(least.min(), 1)
            if others:
                refused = [answers[begun:].count(None) for begun in (0, turns)]
                figures |= {"then": others, "refused": refused[0] - refused[1], "then_refused": refused[1]}
            text = json.dumps({"burst": number, **facts, **figures})
            print(text, flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(text + "\n")
        await asyncio.sleep(1.0)
    await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=128)
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--slower", type=float, default=1.0, help="all times of the device, times this")
    parser.add_argument("--apart-ms", type=float, default=0.3, help="from one turn of a burst to the next")
    parser.add_argument("--text-ms", type=float, default=35, help="most that a turn's text takes")
    parser.add_argument("--then", type=int, default=0, help="turns that come two seconds behind each burst")
    parser.add_argument("--out", type=Path)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
