"""Sentences that arrive at random at the edge of what a device makes: the model's own process on a CPU, with the times
of a GPU made up as in ``burst_order.py``.

    python benchmarks/edge_order.py [--rate 30] [--seconds 20] [--runs 4] [--slower 1.3] [--seed 1] [--out OUT.jsonl]

It tells which way of scheduling and admission is better, and how much luck is in a row; what a GPU does is
``h200_product.py``'s to tell (``sentence:R``). A sentence ends by chance, after 5.4 s on average and 13 at most, as
random weights end theirs. Its text is ready 5 to 12 ms after it came. Who is refused asks again every 10 ms for half a
second, where the engine's service has them wait in line. Runs of the same seed have the same arrivals. One JSON line a
run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import random
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import burst_order  # first: it finds the product
import numpy as np
import uvloop

from talkspurt.bench.results import commit, machine
from tts_engine.errors import Exhausted, SynthesisFailed
from tts_engine.synthesizer import ClauseRequest, Playhead

MEAN_IDS = 135
TEXT_S, WAIT_S, AGAIN_S = 0.012, 0.5, 0.01
AWAY_S = 0.003
"""From the engine to who hears."""
REST_S = 12.0
"""Behind it admission and first chunks remember nothing of the run before."""


class Ending(burst_order.Drawn):
    """Ids of sentences that end by chance."""

    def ids(self) -> list[int]:
        return [self._ids if random.random() < 1 / MEAN_IDS else one for one in super().ids()]


async def sentence(engine: Any, at: float) -> tuple[float, float, float] | None:
    """Return milliseconds until the first chunk was made, the least sound in hand later, ms, and the seconds of sound.
    None: it was refused. A sentence that ended before its first chunk has no sound."""
    await asyncio.sleep(at - time.monotonic())
    text = random.choice(burst_order.TEXTS)
    clause = ClauseRequest(text=text, voice="", language="en-US", speed=1.0, instruct="", first=True)
    while True:
        playhead, first_ms, least_s = Playhead(), 0.0, math.inf
        try:
            async with aclosing(engine.synthesize(clause, playhead)) as chunks:
                async for chunk in chunks:
                    now = time.monotonic()
                    if playhead.played_at is None:
                        first_ms, playhead.played_at = (now - at) * 1000, now + AWAY_S
                    else:
                        least_s = min(least_s, playhead.played_at + playhead.delivered_s - now)
                    playhead.delivered_s += len(chunk.pcm) / engine.sample_rate
        except SynthesisFailed:
            return 0.0, math.inf, 0.0
        except Exhausted:
            if time.monotonic() - at > WAIT_S:
                return None
            await asyncio.sleep(AGAIN_S)
            continue
        return first_ms, least_s * 1000, playhead.delivered_s


async def run(engine: Any, rate: float, seconds: float) -> dict[str, Any]:
    begin = time.monotonic() + 0.1
    at = [begin + random.expovariate(rate)]
    while at[-1] < begin + seconds:
        at.append(at[-1] + random.expovariate(rate))
    answers = await asyncio.gather(*(sentence(engine, when) for when in at))
    heard = [answer for answer in answers if answer is not None and answer[2]]
    first_ms, least_ms, sound_s = (np.asarray(part) for part in zip(*heard, strict=True))
    return {
        "sentences": len(at),
        "refused": answers.count(None),
        "first_chunk_ms": {**burst_order.quantiles(first_ms), "p99": round(np.percentile(first_ms, 99), 1)},
        "with_a_gap": int((least_ms < 0).sum()),
        "audio_seconds_per_second": round(sound_s.sum() / seconds, 1),
    }


async def measure(arguments: argparse.Namespace) -> None:
    burst_order.Drawn = Ending  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        engine = await burst_order.make_engine(arguments.slower, Path(folder) / "model", refuses=True, text_s=TEXT_S)
    gc.collect()
    gc.freeze()
    facts = {"rate": arguments.rate, "seconds": arguments.seconds, "slower": arguments.slower, "commit": commit()}
    facts |= {key: machine()[key] for key in ("cpu", "cores")}
    await run(engine, 5.0, 1.0)  # what is lazy
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        if seed > arguments.seed:
            await asyncio.sleep(REST_S)
        random.seed(seed)
        text = json.dumps({"seed": seed, **facts, **await run(engine, arguments.rate, arguments.seconds)})
        print(text, flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(text + "\n")
    await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rate", type=float, default=30.0, help="sentences a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--slower", type=float, default=1.3, help="all times of the device, times this")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next one has the next")
    parser.add_argument("--out", type=Path)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
