"""A whole ``talkspurt serve`` with CosyVoice on a GPU, heard from outside. Results: one JSON line a row.

    python benchmarks/h200_product.py OUT.jsonl --model models/cosyvoice3 [--rows call:1,burst:32,http:10,...]
    python benchmarks/h200_product.py OUT.jsonl --model DIR --size tiny --device cpu --rows call:1,http:2 --seconds 2

A model directory that is not there is made with random weights of the full size, by ``make-checkpoint``. Rows that OUT
already has are skipped, so an interrupted run goes on where it stopped. Each row says the model, the GPU, and whether
its weights are random; random weights speak noise at the real speed.

``call:N``   N simulated Twilio callers in conversation (standard load, tokens at 40/s, caller audio on the way in).
``burst:N``  N callers who are all answered in one instant, with whole turns.
``bursts:N`` the same again and again, each burst cut half a second after its last first packet: medians of the bursts'
             p50 and p95, and each of them, since one burst says little.
``http:R``   an HTTP client: ``POST /v1/audio/speech`` (pcm), R whole turns a second that arrive at random (Poisson).
``sentence:R``  the same with single sentences, as published figures are of. Random weights speak a turn for 11 s (half
             of them for more; a twentieth for 20), a sentence for 5 (13).
``held:A:B`` as ``http``, from A requests a second on in steps of B, until the p95 of the first sound is over 100 ms,
             one of 200 has a gap, or one is refused; the rate before that is the one that was held.
``full:N``   N HTTP clients who ask for their next text as soon as they have the one before: the sound made a second.
``capacity:N:W``  N HTTP clients who ask for their next sentence of W words as soon as they have the one before: the
             capacity in seconds of sound a second. With random weights, 28 words are about 8 s of sound, 8 words 5 s.
``beyond:F:W[:S]``  sentences of W words, as many a second that their sound is F times the capacity (the latest
             ``capacity`` row of OUT with the same W), for S seconds.
``cut:N:S``  N callers in conversation for S seconds, who cancel half of all turns in mid-speech.
``kill:N:S`` N callers in conversation for S seconds; after a quarter of them, one engine of several is killed.

Two lists of rows have names: ``beyond`` (capacity, then 1.2, 1.5 and 2 times as much, of both lengths, 60 s each; 8
minutes) and ``below`` (calls in conversation, bursts, HTTP, cuts; 6 minutes). ``--budget-s`` ends the run before a row
that would begin later. Every row has how often the engine had no place, by the resource that was short.

Several GPUs: ``--devices cuda:0,cuda:1``. The row then says so. Every row but ``kill`` says how many processor cores
gateway, engines and load took.

Gateway, engine, text front end and load run on one machine; every text is spoken once. The figures of callers are
those of ``talkspurt bench call``. The HTTP client plays what comes from its first audible sample on, in real time and
without a prebuffer: sound that comes after all before it has been played is a gap. Its first sound counts from before
the request to the arrival of the first sample above -50 dBov.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "codecs")]

import aiohttp
import numpy as np
import uvloop

from talkspurt.bench.calls import ROUTE, Bursts, CallLoad, CallLoadSettings, Conversations, CutBursts
from talkspurt.bench.engine_killed import EngineKilled
from talkspurt.bench.http_load import SAMPLE_RATE, HttpLoad
from talkspurt.bench.load import TurnSupply, read_load, standard_load
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_metrics import Buckets, counted, histograms, quantiles_ms
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.cli import main as talkspurt

ROWS = (
    "call:1,call:8,call:32,call:64,call:128,burst:1,burst:32,burst:128,"
    "http:1,http:10,http:20,sentence:1,sentence:10,sentence:20,sentence:30"
)
LISTS = {
    "beyond": "capacity:128:28,beyond:1.5:28,beyond:1.2:28,beyond:2:28,"
    "capacity:128:8,beyond:1.5:8,beyond:1.2:8,beyond:2:8",
    "below": "call:1,call:32,call:128,call:200,call:300,bursts:32,bursts:128,http:10,http:20,cut:60:15",
}
_BEYOND_S = 60.0
_SHORT = ("places", "memory", "time", "demand")
_WORDS = re.compile(r"[A-Za-z']+")
_CALLS = 400
"""Calls and connections that the server allows."""
_TURNS = 20_000
_HELD_P95_MS = 100.0
_HELD_GAP_FREE = 0.995
_CUT_SHARE = 0.5
_FREED = "talkspurt_engine_freed_seconds"
_RAMP_S = 4.0
"""How long clients ask before the sound is counted that they get."""


# -- the rows ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def http_load(server: ServerUnderTest, source: TurnSupply, answer_s: float) -> AsyncIterator[HttpLoad]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        # The connection, and what is lazy.
        await HttpLoad(session, server.address, source, answer_s).speak(source.next().text)
        yield HttpLoad(session, server.address, source, answer_s)


async def http_row(
    server: ServerUnderTest,
    rate: float,
    source: TurnSupply,
    seconds: float,
    *,
    answer_s: float,
    sentences: bool = False,
) -> dict[str, Any]:
    async with http_load(server, source, answer_s) as load:
        load.sentences = sentences
        wall_s = await load.run(rate, seconds)
    return load.figures(wall_s)


def is_held(figures: dict[str, Any]) -> bool:
    first = figures["first_sound_ms"] or {"n": 0}
    return bool(
        first["n"] == figures["requests"]  # nobody was refused, none failed, none was silent
        and first["p95"] <= _HELD_P95_MS
        and figures["gap_free_share"] >= _HELD_GAP_FREE
    )


async def held_row(
    server: ServerUnderTest, rate: float, step: float, source: TurnSupply, seconds: float, *, answer_s: float
) -> dict[str, Any]:
    held, steps = 0.0, []
    while True:
        figures = await http_row(server, rate, source, seconds, answer_s=answer_s)
        steps.append({"rate": rate, **figures})
        print(json.dumps(steps[-1]), file=sys.stderr, flush=True)
        if not is_held(figures):
            return {"held_per_s": held, "steps": steps}
        held, rate = rate, rate + step


async def full_row(
    server: ServerUnderTest, clients: int, source: TurnSupply, seconds: float, *, answer_s: float
) -> dict[str, Any]:
    async with http_load(server, source, answer_s) as load:
        made = await load.keep_asking(clients, seconds, ramp_s=_RAMP_S)
    return {**load.figures(seconds), "audio_seconds_per_second": round(made, 1)}


class Sentences:
    """Sentences of a number of words, in place of ``TurnSupply``."""

    def __init__(self, source: TurnSupply, words: int) -> None:
        self._source, self._count = source, words
        self._words: list[str] = []

    def next_sentence(self) -> str:
        """Return a sentence without a comma, so that it is spoken as one clause."""
        while len(self._words) < self._count:
            self._words += [word.lower() for word in _WORDS.findall(self._source.next().text)]
        chosen, self._words = self._words[: self._count], self._words[self._count :]
        return " ".join(chosen).capitalize() + "."


def sentence_load(load: HttpLoad, source: TurnSupply, words: int) -> HttpLoad:
    """Return the same load of sentences of so many words."""
    return replace(load, source=Sentences(source, words), sentences=True)  # type: ignore[arg-type]


async def capacity_row(
    server: ServerUnderTest, clients: int, words: int, source: TurnSupply, seconds: float, *, answer_s: float
) -> dict[str, Any]:
    async with http_load(server, source, answer_s) as load:
        load = sentence_load(load, source, words)
        made = await load.keep_asking(clients, seconds, ramp_s=_RAMP_S)
        figures = load.figures(seconds)
    mean_s = float(np.mean([one.samples / SAMPLE_RATE for one in load.heard]))
    return {**figures, "capacity_s_per_s": round(made, 1), "mean_sound_s": round(mean_s, 2)}


async def beyond_row(
    server: ServerUnderTest, capacity: dict[str, Any], factor: float, words: int, source: TurnSupply, seconds: float,
    *, answer_s: float,
) -> dict[str, Any]:  # fmt: skip
    most, length_s = capacity["capacity_s_per_s"], capacity["mean_sound_s"]
    async with http_load(server, source, answer_s) as load:
        load = sentence_load(load, source, words)
        made = asyncio.create_task(middle_of(load, seconds))
        wall_s = await load.run(factor * most / length_s, seconds)
        sound = await made
    heard = [one for one in load.heard if one.samples]
    return {
        "factor": factor,
        **load.figures(wall_s),
        "with_a_gap": sum(bool(one.gaps) for one in heard),
        "sound_made_s_per_s": round(sound, 1),
        "share_of_capacity": round(sound / most, 3),
    }


async def middle_of(load: HttpLoad, seconds: float) -> float:
    """Return the seconds of sound received a second, from a quarter of the time until its end."""
    await asyncio.sleep(seconds / 4)
    samples, begun = load.samples, time.monotonic()
    await asyncio.sleep(seconds * 3 / 4)
    return (load.samples - samples) / SAMPLE_RATE / (time.monotonic() - begun)


async def kill_row(
    server: ServerUnderTest, calls: int, source: TurnSupply, seconds: float, *, answer_s: float
) -> dict[str, Any]:
    settings = CallLoadSettings(calls=calls, seconds=seconds, turn_s=answer_s)
    async with aiohttp.ClientSession() as session:
        pattern = EngineKilled(server, session, seconds / 4)
        load = CallLoad(settings, source, pattern)
        try:
            await load.run(server.address, measured=lambda begins: None)
        finally:
            await pattern.aclose()
    return {**pattern.figures(load), **load.figures()}


async def cut_row(
    server: ServerUnderTest, calls: int, source: TurnSupply, seconds: float, *, answer_s: float
) -> dict[str, Any]:
    settings = CallLoadSettings(calls=calls, seconds=seconds, cancel_share=_CUT_SHARE, turn_s=answer_s)
    load = CallLoad(settings, source, Conversations())
    before = await freed(server)
    await load.run(server.address, measured=lambda begins: None)
    return {"engine_freed_ms": quantiles_ms(before, await freed(server)), **load.figures()}


async def freed(server: ServerUnderTest) -> Buckets:
    """What the engine has counted so far of the time from cancel until it worked on the turn no more."""
    async with aiohttp.request("GET", f"http://{server.address}/metrics") as answer:
        return histograms(await answer.text(), [_FREED])[_FREED]


async def call_row(
    server: ServerUnderTest, calls: int, source: TurnSupply, seconds: float, *, burst: bool, answer_s: float
) -> dict[str, Any]:
    settings = CallLoadSettings(calls=calls, seconds=seconds, tokens_per_s=0.0 if burst else 40.0, turn_s=answer_s)
    load = CallLoad(settings, source, Bursts() if burst else Conversations())
    await load.run(server.address, measured=lambda begins: None)
    return load.figures()


async def bursts_row(
    server: ServerUnderTest, calls: int, source: TurnSupply, seconds: float, *, answer_s: float
) -> dict[str, Any]:
    settings = CallLoadSettings(calls=calls, seconds=seconds, tokens_per_s=0.0, turn_s=answer_s)
    bursts = CutBursts()
    load = CallLoad(settings, source, bursts)
    await load.run(server.address, measured=lambda begins: None)
    each = [np.percentile(heard, (50, 95)) for heard in bursts.first_packets_ms if heard]
    middle = np.median(each, axis=0) if each else (None, None)
    figures = {"bursts": len(each), "first_packet_ms_of_bursts": [np.round(one, 1).tolist() for one in each]}
    return {**load.figures(), **figures, "median_p50_p95_ms": [ms if ms is None else round(ms, 1) for ms in middle]}


async def run_row(
    server: ServerUnderTest,
    row: str,
    source: TurnSupply,
    seconds: float,
    capacities: dict[str, Any],
    *,
    answer_s: float,
) -> dict[str, Any]:
    kind, _, value = row.partition(":")
    if kind in ("call", "burst"):
        return await call_row(server, int(value), source, seconds, burst=kind == "burst", answer_s=answer_s)
    if kind == "bursts":
        return await bursts_row(server, int(value), source, seconds, answer_s=answer_s)
    if kind in ("http", "sentence"):
        sentences = kind == "sentence"
        return await http_row(server, float(value), source, seconds, answer_s=answer_s, sentences=sentences)
    if kind == "held":
        first, step = map(float, value.split(":"))
        return await held_row(server, first, step, source, seconds, answer_s=answer_s)
    if kind == "full":
        return await full_row(server, int(value), source, seconds, answer_s=answer_s)
    if kind == "capacity":
        clients, words = map(int, value.split(":"))
        return await capacity_row(server, clients, words, source, seconds, answer_s=answer_s)
    if kind == "beyond":
        factor, words_of_each, *lasts = value.split(":")
        if words_of_each not in capacities:
            raise SystemExit(f"row {row} needs a row capacity:N:{words_of_each} before it")
        lasts_for = float(lasts[0]) if lasts else _BEYOND_S
        return await beyond_row(
            server, capacities[words_of_each], float(factor), int(words_of_each), source, lasts_for, answer_s=answer_s
        )
    if kind in ("cut", "kill"):
        callers, _, lasts_s = value.partition(":")
        calling = cut_row if kind == "cut" else kill_row
        return await calling(server, int(callers), source, float(lasts_s), answer_s=answer_s)
    raise SystemExit(
        f"row {row!r} is none of call:N, burst:N, bursts:N, http:RATE, sentence:RATE, held:RATE:STEP, full:N, "
        "capacity:N:WORDS, beyond:FACTOR:WORDS[:S], cut:N:S, kill:N:S"
    )


async def with_cores(server: ServerUnderTest, row: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return the row, how many processor cores it took on average, and how often the engine had no place."""
    gateway, engine = server.cpu_s()
    short = await no_place(server)
    load, begun = time.process_time(), time.monotonic()
    result = await row
    wall_s, after = time.monotonic() - begun, server.cpu_s()
    used = {"gateway": after[0] - gateway, "engine": after[1] - engine, "load": time.process_time() - load}
    cores = {name: round(seconds / wall_s, 2) for name, seconds in used.items()}
    more = {name: int(count - short[name]) for name, count in (await no_place(server)).items() if count > short[name]}
    return {**result, "no_place": more, "cores_used": cores}


async def no_place(server: ServerUnderTest) -> dict[str, float]:
    """Return how often the engine has had no place so far, by the resource that was short."""
    async with aiohttp.request("GET", f"http://{server.address}/metrics") as answer:
        exposition = await answer.text()
    counts = {short: counted(exposition, "talkspurt_engine_no_place_total", short=short) for short in _SHORT}
    return {**counts, "recomputed": counted(exposition, "talkspurt_engine_recomputed_chunks_total")}


def model_facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """What is said beside every figure."""
    from tts_engine.cosyvoice.weights import read_config

    config = read_config(arguments.model)
    return {
        "model": f"CosyVoice{config.version}",
        "size": {"hidden_size": config.llm.hidden_size, "layers": config.llm.layers},
        "weights": "random weights" if config.random_weights else "published or own weights",
        "gpu": gpu_name(),
        "device": arguments.devices or arguments.device,
        "settings": arguments.set,
        "commit": arguments.commit or commit(),
        **{key: machine()[key] for key in ("cpu", "cores")},
    }


def gpu_name() -> str:
    """The first GPU. Asked in another process, so that this one takes no memory on it."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "none"


def environment(arguments: argparse.Namespace, facts: dict[str, Any]) -> dict[str, str]:
    """The configuration of the server, as environment variables."""
    more = {
        "engine__kind": facts["model"].lower(),
        "engine__model_folder": str(arguments.model),
        "engine__device": arguments.device,
        "engine__timeouts__start_s": "600",
        **({"engine__devices": f"[{arguments.devices}]"} if arguments.devices else {}),
        **dict(setting.split("=", 1) for setting in arguments.set),
    }
    return overrides(route=ROUTE, calls=_CALLS, **more)


async def measure(arguments: argparse.Namespace, done: dict[str, Any]) -> None:
    facts = model_facts(arguments)
    where = [f"on {arguments.devices}"] if arguments.devices else []
    name: Callable[[str], str] = lambda row: " ".join([row, *where, *arguments.set])  # noqa: E731
    listed = LISTS.get(arguments.rows, arguments.rows)
    rows = [row for row in listed.split(",") if name(row) not in done]
    capacities = {
        row.split(" ")[0].split(":")[-1]: figures
        for row, figures in done.items()
        if row.startswith("capacity:") and row == name(row.split(" ")[0])
    }
    begun = time.monotonic()
    if not rows:
        return
    source = read_load(arguments.load) if arguments.load else standard_load(_TURNS)
    async with serving(None, environment(arguments, facts), start_s=600.0) as server:
        for row in rows:
            if time.monotonic() - begun > arguments.budget_s:
                print(f"the time is over before {row}", file=sys.stderr, flush=True)
                return
            run = run_row(server, row, source, arguments.seconds, capacities, answer_s=arguments.answer_s)
            result = await (run if row.startswith("kill") else with_cores(server, run))
            if row.startswith("capacity:"):
                capacities[row.split(":")[-1]] = result
            text = json.dumps({"row": name(row), **facts, **result})
            print(text, flush=True)
            with arguments.out.open("a") as file:
                file.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="model directory; made if it is not there")
    parser.add_argument("--version", choices=("2", "3"), default="3", help="of a directory that is made")
    parser.add_argument("--size", choices=("tiny", "full"), default="full", help="of a directory that is made")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--devices", default="", metavar="cuda:0,cuda:1", help="several, each with an engine")
    parser.add_argument("--rows", default=ROWS, help=f"with commas between, or one of {sorted(LISTS)} (default {ROWS})")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--budget-s", type=float, default=1e9, help="begin no row later than this, seconds")
    parser.add_argument(
        "--answer-s",
        type=float,
        default=60.0,
        help="an answer or a turn that has not ended so many seconds after its text is an error (default 60)",
    )
    parser.add_argument("--load", type=Path, help="texts (default: the standard load, and more like it)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="configuration, as engine__cosyvoice__first_hop=8",
    )
    parser.add_argument("--commit", help="what is measured, where it is no checkout")
    arguments = parser.parse_args()
    if not arguments.model.exists():
        made = ["engine", "make-checkpoint", str(arguments.model), "--version", arguments.version]
        if code := talkspurt([*made, "--size", arguments.size]):
            raise SystemExit(code)
    out: Path = arguments.out
    done = {row["row"]: row for row in map(json.loads, out.read_text().splitlines())} if out.exists() else {}
    uvloop.run(measure(arguments, done))


if __name__ == "__main__":
    main()
