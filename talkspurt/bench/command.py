"""``talkspurt bench`` puts load on a real server and measures it from outside.

The result is one object of ``commit machine settings steps``. The server is a child process on a free port, or a
running server with ``--server``. This process is the load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from gateway.config import RouteConfig
from talkspurt.bench.calls import (
    ROUTE,
    Arrivals,
    Bursts,
    CallLoad,
    CallLoadSettings,
    Conversations,
    Pattern,
    Silent,
    Talking,
)
from talkspurt.bench.engine import EngineLoad, engine_step
from talkspurt.bench.load import LoadError, TurnSupply, read_load, standard_load
from talkspurt.bench.results import write
from talkspurt.bench.search import MOST_PACING_ERROR_MS, passes, search
from talkspurt.bench.server_metrics import Buckets, counted, histograms, quantiles_ms
from talkspurt.bench.server_process import ServerFailed, ServerUnderTest, machine_cpu_s, overrides, serving
from talkspurt.cli import JobError, UsageError
from talkspurt.config.settings import load as load_config
from talkspurt.engines import engine_for_gateway
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.peer_socket import PeerSocketError
from tts_engine.errors import EngineError
from tts_engine.service.client import GrpcEngine

_HISTOGRAMS = {
    "talkspurt_pacing_error_seconds": "server_pacing_error_ms",
    "talkspurt_tick_lateness_seconds": "server_tick_lateness_ms",
    "talkspurt_cut_seconds": "server_cut_ms",
    "talkspurt_engine_freed_seconds": "engine_freed_ms",
}
"""Metric of the server -> figure of a step."""

_TEXTS = 40
"""Number of texts that `bench gateway` speaks: five minutes of speech, 30 MB in the engine's cache."""
_TEXT_CHARS = 120

_CALLS = {"call": "1,10,50", "gateway": "300", "engine": "1,8,32"}
_SECONDS = {"call": 30.0, "gateway": 20.0, "engine": 20.0}

Step = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run. The result repeats them."""

    what: str
    load: str
    seconds: float
    rate: float | None
    tokens_per_s: float
    cancel_share: float
    burst: bool
    idle: bool
    search: bool
    uplink: bool
    config: str
    server: str
    pinned: bool
    """True: the gateway is pinned to core 0, and engine and load to core 1."""


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt bench``.

    Raises:
        UsageError: the options contradict each other.
        JobError: the server or the load failed.
    """
    if args.transport == "webrtc":
        from talkspurt.bench import webrtc as bench_webrtc  # importing aiortc takes long

        return bench_webrtc.run(args)
    settings, calls, load = settings_of(args)
    try:
        steps = uvloop.run(_steps(settings, calls, load, args.config))
    except (ServerFailed, PeerSocketError, LoadError, EngineError) as exc:
        raise JobError(str(exc)) from exc
    figures: dict[str, Any] = {"settings": asdict(settings), "steps": steps}
    told = table(steps)
    if not settings.search:
        write(figures, args.json, told)
        return 1 if any(step["errors"] for step in steps) else 0
    most = max((step["calls"] for step in steps if passes(step)), default=0)
    told += f"\nMost calls without a gap or an error, pacing error p99 within {MOST_PACING_ERROR_MS:g} ms: {most}"
    write({**figures, "most_calls": most}, args.json, told)
    return 0 if most else 1


def settings_of(args: argparse.Namespace) -> tuple[Settings, list[int], TurnSupply]:
    """Return the settings, the calls of each step, and the load that the options name.

    Raises:
        UsageError: the options contradict each other.
    """
    what = args.what
    if args.idle and what != "gateway" or args.burst and what != "call":
        raise UsageError("--idle belongs to `bench gateway`, --burst to `bench call`")
    if args.search and (what != "gateway" or args.idle):
        raise UsageError("--search belongs to `bench gateway` with calls that speak")
    if args.rate is not None and (args.rate <= 0 or what == "gateway"):
        raise UsageError("--rate has to be above 0, and belongs to `bench call` and `bench engine`")
    try:
        calls = [int(number) for number in (args.calls or _CALLS[what]).split(",")]
        if min(calls) < 1:
            raise ValueError
    except ValueError as exc:
        raise UsageError(f"--calls has to be whole numbers above 0 with commas, got {args.calls!r}") from exc
    if args.search and len(calls) > 1:
        raise UsageError(f"--search begins with one number of --calls, got {args.calls!r}")
    try:
        load = read_load(args.load) if args.load else standard_load()
    except LoadError as exc:
        raise UsageError(str(exc)) from exc
    settings = Settings(
        what=what,
        load=load.name,
        seconds=args.seconds or _SECONDS[what],
        rate=args.rate,
        tokens_per_s=0.0 if args.burst else args.tokens_per_s,
        cancel_share=args.cancel_share,
        burst=args.burst,
        idle=args.idle,
        search=args.search,
        # Carriers always send the caller's audio, but `bench gateway` measures the sending side alone.
        uplink=args.uplink if args.uplink is not None else what == "call",
        config=str(args.config or ""),
        server=args.server or "",
        pinned=what == "gateway" and not args.server and (os.cpu_count() or 1) > 1,
    )
    return settings, calls, load


async def _steps(settings: Settings, calls: Sequence[int], load: TurnSupply, config: Path | None) -> list[Step]:
    steps: list[Step] = []

    def done(step: Step) -> None:
        steps.append(step)
        print(f"{step['calls']} calls: done", file=sys.stderr, flush=True)

    if settings.what == "engine":
        async with _engine(settings, config) as engine:
            for number in calls:
                done(
                    await engine_step(
                        EngineLoad(engine, load, number, settings.seconds, settings.rate, settings.cancel_share)
                    )
                )
        return steps
    for number in search(calls[0], steps) if settings.search else calls:
        async with _server(settings, number, config) as server:
            done(await _call_step(settings, number, load, server))
    return steps


@asynccontextmanager
async def _engine(settings: Settings, config: Path | None) -> AsyncIterator[GrpcEngine]:
    """Open the engine that ``--server`` or the configuration names, else start one."""
    engine = load_config(config).engine
    if settings.server:
        engine = engine.model_copy(update={"targets": (settings.server,)})
    async with engine_for_gateway(engine) as grpc_engine:
        yield grpc_engine


def prepared(config: Path | None, calls: int) -> dict[str, str]:
    """Return the overrides for a load of ``calls``. The route ``bench`` of a configuration stays as it is."""
    environment = overrides(route=ROUTE, calls=calls)
    if ROUTE in load_config(config).routes:
        del environment[f"TALKSPURT__ROUTES__{ROUTE.upper()}"]
    return environment


@asynccontextmanager
async def _server(settings: Settings, calls: int, config: Path | None) -> AsyncIterator[ServerUnderTest]:
    if settings.server:
        yield ServerUnderTest(settings.server, 0)
        return
    async with serving(config, prepared(config, calls)) as server:
        if not settings.pinned:
            yield server
            return
        before = os.sched_getaffinity(0)
        server.pin(gateway={0}, engine={1})
        os.sched_setaffinity(0, {1})
        try:
            yield server
        finally:
            os.sched_setaffinity(0, before)


async def _call_step(settings: Settings, calls: int, load: TurnSupply, server: ServerUnderTest) -> Step:
    marks: list[tuple[float, float, float]] = []
    step = CallLoad(
        CallLoadSettings(
            calls=calls,
            seconds=settings.seconds,
            tokens_per_s=settings.tokens_per_s if settings.what == "call" else 0.0,
            cancel_share=settings.cancel_share,
            uplink=settings.uplink,
        ),
        load,
        pattern := _pattern(settings, load),
    )
    if isinstance(pattern, Talking):
        rate = CARRIERS[step.settings.dialect](0, {}).format.sample_rate
        await asyncio.to_thread(render, server.address, pattern.texts, rate)
    made_before = await asyncio.to_thread(_made, server.address)
    before = await asyncio.to_thread(_histograms, server.address)
    await step.run(server.address, measured=lambda begins: marks.append((*server.cpu_s(), machine_cpu_s())))
    after = await asyncio.to_thread(_histograms, server.address)
    figures = {"calls": calls, **step.figures()}
    figures |= {name: quantiles_ms(before[metric], after[metric]) for metric, name in _HISTOGRAMS.items()}
    figures["clauses_made"] = await asyncio.to_thread(_made, server.address) - made_before
    if isinstance(pattern, Talking) and figures["clauses_made"]:
        # A voice at work would be measured together with the gateway, and might refuse turns.
        figures["errors"] += 1
        figures["errors_by_kind"]["the engine had to make clauses; all should have been in its cache"] = 1
    gateway_s, engine_s, machine_s = (end - start for start, end in zip(*marks, strict=True))
    others_s = machine_s - gateway_s - engine_s - step.own_cpu_s
    figures |= {
        "cpu_seconds_per_call_second": round((gateway_s + engine_s) / (calls * settings.seconds), 5),
        "gateway_core_share": round(gateway_s / settings.seconds, 4),
        "engine_core_share": round(engine_s / settings.seconds, 4),
        "gateway_us_per_frame": round(gateway_s / figures["frames"] * 1e6, 2) if figures["frames"] else None,
        # Share of cores that other programs used, so that a reader knows what competed with the measurement.
        "others_core_share": round(max(0.0, others_s) / settings.seconds, 4) if server.pid else None,
        "rss_mb": round(server.rss_mb(), 1),
    }
    return figures


def _histograms(address: str) -> dict[str, Buckets]:
    """Return the server's own histograms, empty if the server shows none."""
    return histograms(_exposition(address), _HISTOGRAMS)


def _exposition(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
            return str(response.read().decode())
    except OSError:
        return ""


def _made(address: str) -> int:
    """Return the number of clauses that the engine has really made, without those from its cache or shared ones."""
    return int(counted(_exposition(address), "talkspurt_text_cache_requests_total", outcome="miss"))


def render(address: str, texts: Sequence[str], sample_rate: int) -> None:
    """Let the engine speak every text once, at the line's rate, since its cache keeps sound by rate. A text from the
    cache costs this machine no more than a remote model would, so the measurement shows the gateway's own core."""
    for text in texts:
        order = {"text": text, "format": "pcm", "sample_rate": sample_rate, "language": RouteConfig().language}
        body = json.dumps(order).encode()
        request = urllib.request.Request(
            f"http://{address}/v1/tts", body, {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
        except OSError as exc:
            raise PeerSocketError(f"the server at {address} does not speak a text over /v1/tts: {exc}") from exc


def _pattern(settings: Settings, load: TurnSupply) -> Pattern:
    if settings.what == "gateway":
        return Silent() if settings.idle else Talking([load.long_text(_TEXT_CHARS) for _ in range(_TEXTS)])
    if settings.burst:
        return Bursts()
    return Arrivals(settings.rate) if settings.rate is not None else Conversations()


# --- the result ---


_COLUMNS: tuple[tuple[str, Callable[[Step], Any]], ...] = (
    ("calls", lambda s: s["calls"]),
    ("turns", lambda s: s.get("turns")),
    ("first p50", lambda s: _of(s, "first_packet_ms", "p50") or _of(s, "first_chunk_ms", "p50")),
    ("p95", lambda s: _of(s, "first_packet_ms", "p95") or _of(s, "first_chunk_ms", "p95")),
    ("p99 ms", lambda s: _of(s, "first_packet_ms", "p99") or _of(s, "first_chunk_ms", "p99")),
    ("pacing p50", lambda s: _of(s, "pacing_error_ms", "p50")),
    ("p99 ms", lambda s: _of(s, "pacing_error_ms", "p99")),
    ("gaps", lambda s: s.get("gaps")),
    ("gap-free", lambda s: s.get("gap_free_share")),
    ("cut p99 ms", lambda s: _of(s, "cut_ms", "p99")),
    ("audio s/s", lambda s: s.get("audio_seconds_per_second")),
    ("us/frame", lambda s: s.get("gateway_us_per_frame")),
    ("gw core", lambda s: s.get("gateway_core_share")),
    ("engine core", lambda s: s.get("engine_core_share")),
    ("rss MB", lambda s: s.get("rss_mb")),
    ("load core", lambda s: s.get("load_core_share")),
    ("others", lambda s: s.get("others_core_share")),
    ("made", lambda s: s.get("clauses_made")),
    ("errors", lambda s: s["errors"]),
)


def _of(step: Step, figure: str, name: str) -> Any:
    return (step.get(figure) or {}).get(name)


def table(steps: Sequence[Step]) -> str:
    """Return the steps as a readable table. Columns without any value are left out."""
    rows = [[column(step) for _, column in _COLUMNS] for step in steps]
    used = [index for index in range(len(_COLUMNS)) if any(row[index] is not None for row in rows)]
    cells = [[_COLUMNS[index][0] for index in used]]
    cells += [["-" if row[index] is None else str(row[index]) for index in used] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(used))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
