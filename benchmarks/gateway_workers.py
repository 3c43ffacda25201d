"""How many talking calls do gateway workers carry, each on a core of its own? Results: one JSON line a step.

    python benchmarks/gateway_workers.py OUT.jsonl --calls 300,350,400,450 --cores 4 --engine 6,7 --load 8,9,10
    python benchmarks/gateway_workers.py OUT.jsonl --workers 2 --calls 600,700,800 --cores 4,5,6 --engine 7,8 \
        --load 9,10,11,12,13

``--cores``: a core for each worker, and behind them one for the supervisor of several. ``--load``: each of these cores
has a process with its share of the calls, which dials in as a manager for them, and has a clock of its own.

Calls are those of ``talkspurt bench gateway``: Twilio media streams without caller audio that speak all the time, from
40 texts that the embedded voice has made before. It ends when p99 of the pacing error is over 8 ms, or at 50 errors.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "codecs")]

import numpy as np
import uvloop

from talkspurt.bench import calls as bench
from talkspurt.bench.command import render
from talkspurt.bench.load import standard_load
from talkspurt.bench.results import commit
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator.figures import pacing_errors_ms

_TEXTS, _TEXT_CHARS, _SAMPLE_RATE = 40, 120, 8000
_BIN_MS = 0.02
_BINS = np.arange(0, 500 + _BIN_MS, _BIN_MS)
_SETTLED_S = 12.0
"""When processor time is first read, after a step has begun: connected, and the ramp is over."""


def texts() -> list[str]:
    source = standard_load()
    return [source.long_text(_TEXT_CHARS) for _ in range(_TEXTS)]


# -- a process of the load ---------------------------------------------------------------------------------------------


def load_process(arguments: argparse.Namespace) -> None:
    """Run a share of the calls on one core, and print what they met."""
    os.sched_setaffinity(0, {arguments.core})
    bench.ROUTE = arguments.route
    settings = bench.CallLoadSettings(
        calls=int(arguments.calls), seconds=arguments.seconds, tokens_per_s=0.0, uplink=False, seed=arguments.core
    )
    load = bench.CallLoad(settings, standard_load(), bench.Talking(texts()))
    uvloop.run(load.run(arguments.address, measured=lambda begins: None))
    figures = load.figures()
    rate = load.calls[0].leg.playout.sample_rate
    errors = [pacing_errors_ms(spurt, rate) for call in load.calls for spurt in call.leg.spurts]
    figures["pacing_counts"] = np.histogram(np.concatenate([np.zeros(0), *errors]), _BINS)[0].tolist()
    print(json.dumps(figures))


# -- the server, and the steps -----------------------------------------------------------------------------------------


def pin(pid: int, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def place(server: ServerUnderTest, arguments: argparse.Namespace) -> None:
    """Give each process its cores."""
    supervisor, *workers = server.gateway_pids()
    if workers:
        pin(supervisor, {arguments.cores[arguments.workers]})
    for pid, core in zip(workers or [supervisor], arguments.cores, strict=False):
        pin(pid, {core})
    for pid in server.engine_pids():
        pin(pid, set(arguments.engine))


def quantile_ms(counts: Sequence[int], share: float) -> float:
    """Return the upper bound of the bin in which the quantile is."""
    total = np.cumsum(counts)
    return round(float(_BINS[np.searchsorted(total, share * total[-1]) + 1]), 2)


async def step(server: ServerUnderTest, calls: int, arguments: argparse.Namespace) -> dict[str, Any]:
    cores, loads = arguments.load, []
    for number, core in enumerate(cores):
        share = calls // len(cores) + (number < calls % len(cores))
        command = [__file__, str(arguments.out), "--address", server.address, "--route", f"bench{number}"]
        command += ["--calls", str(share), "--core", str(core), "--seconds", str(arguments.seconds)]
        loads.append(await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE))
    answers = asyncio.gather(*(load.communicate() for load in loads))
    await asyncio.sleep(_SETTLED_S + calls / 300)
    before, begun = server.cpu_s(), time.monotonic()
    await asyncio.sleep(arguments.seconds / 2)
    after, took_s = server.cpu_s(), time.monotonic() - begun
    figures = [json.loads(text) for text, _ in await answers]
    frames, counts = sum(one["frames"] for one in figures), np.sum([one["pacing_counts"] for one in figures], axis=0)
    gateway, engine = ((new - old) / took_s for new, old in zip(after, before, strict=True))
    return {
        "workers": arguments.workers,
        "calls": calls,
        "commit": arguments.commit or commit(),
        "gateway_cores": round(gateway, 3),
        "engine_cores": round(engine, 3),
        "us": round(gateway * arguments.seconds / frames * 1e6, 1),
        "frames": frames,
        "pacing_error_ms": {f"p{q}": quantile_ms(counts, q / 100) for q in (50, 95, 99)} | {"n": int(counts.sum())},
        "gaps": sum(one["gaps"] for one in figures),
        "errors": sum(one["errors"] for one in figures),
        "clock": figures[0]["arrival_clock"],
    }


async def measure(arguments: argparse.Namespace) -> None:
    routes = {f"routes__bench{number}": "{}" for number in range(1, len(arguments.load))}
    most = max(arguments.steps)
    more = {"engine__kind": "embedded", "server__workers": str(arguments.workers), **routes}
    # Two turns of each call are open, and one thread serves 500 calls.
    more |= {"engine__speech__max_utterances": str(2 * most + 100), "engine__speech__codec_threads": "3"}
    async with serving(None, overrides(route="bench0", calls=2 * most, **more)) as server:
        place(server, arguments)
        await asyncio.to_thread(render, server.address, texts(), _SAMPLE_RATE)
        for calls in arguments.steps:
            result = json.dumps(row := await step(server, calls, arguments))
            print(result, flush=True)
            with arguments.out.open("a") as file:
                file.write(result + "\n")
            if row["pacing_error_ms"]["p99"] > 8 or row["errors"] > 50:
                return


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--calls", default="300,350,400,450,500", help="numbers of calls, with commas between")
    parser.add_argument("--cores", type=numbers, default=[0])
    parser.add_argument("--engine", type=numbers, default=[1])
    parser.add_argument("--load", type=numbers, default=[2])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--commit", help="what is measured, where it is no checkout")
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--route", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.address:
        load_process(arguments)
        return
    arguments.steps = numbers(arguments.calls)
    uvloop.run(measure(arguments))


if __name__ == "__main__":
    main()
