"""A soak: calls arrive, talk, interrupt, hang up or lose their network for an hour, and nothing may grow or get lost.

    python benchmarks/soak.py --json build/soak.jsonl              an hour (`make soak`)
    python benchmarks/soak.py --seconds 180 --capacity 10          three minutes (`make soak SECONDS=180`)

A real ``talkspurt serve`` with the embedded voice and a database of records runs beside it. As many callers are live as
80 % of ``--capacity``. Without that, what this machine carries is measured first: the most calls whose first packets
are under 300 ms at p95 with a gap in at most 2 % of the turns. A sample a second goes to ``--json``. At the end come a
table, and exit code 1 with what was wrong:

* memory, tasks, file descriptors and sockets of the gateway after the first tenth and in the last quarter,
* tasks, file descriptors and sockets before the first and after the last call,
* first packets after the first tenth and in the last third,
* every turn has ended once; calls and turns are as many in the metrics, and calls in the records, as were made.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from talkspurt.bench import standard_load
from talkspurt.bench.calls import CallLoad, CallLoadSettings, Conversations
from talkspurt.bench.load import LoadTurn, TurnSupply
from talkspurt.bench.server_metrics import counted
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.simulator.peer_socket import PeerSocketError

ROUTE = "bench"
SHARE = 0.8
SETUP_S, TURN_S, SETTLE_S = 30.0, 120.0, 60.0
STEP_S = 15.0
GROWTH = {"rss_mb": (1.10, 8.0), "tasks": (1.10, 10.0), "fds": (1.10, 4.0), "sockets": (1.10, 4.0)}
"""By how much each may be more in the end: a factor, and so much on top."""
DRIFT = (1.5, 30.0)
"""The same of first packets, milliseconds."""
ENDS = ("caller hangs up", "manager ends", "network lost")


def distinct_turns(first_seed: int) -> Iterator[LoadTurn]:
    """Turns without end. Within one seed no clause comes twice."""
    for seed in itertools.count(first_seed):
        for body in standard_load.turns(standard_load.TURNS, seed):
            clauses: Any = body["clauses"]
            yield LoadTurn(tuple(clauses), float(str(body["pause_ms"])) / 1000)


@dataclass
class Soak:
    """The callers, and what became of them."""

    address: str
    turns: Iterator[LoadTurn]
    rng: random.Random
    until: float
    """Monotonic second after which no caller arrives."""
    uplink: SimulatedUplink = field(default_factory=SimulatedUplink)
    calls: list[ManagedCall] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    first_packets: list[tuple[float, float]] = field(default_factory=list)
    """When each came, monotonic seconds, and how long it took, ms."""
    live: int = 0
    _awaited: dict[str, asyncio.Future[ManagedCall]] = field(default_factory=dict)

    def set_up(self, call: ManagedCall) -> None:
        """The gateway has introduced a call to its manager."""
        self.calls.append(call)
        if (awaited := self._awaited.pop(call.call_sid, None)) is not None and not awaited.done():
            awaited.set_result(call)

    async def callers(self) -> None:
        """One place: one caller after another, with a pause between them."""
        await asyncio.sleep(self.rng.uniform(0, 5))
        while time.monotonic() < self.until:
            await self._call()
            await asyncio.sleep(self.rng.uniform(0.1, 1))

    async def _call(self) -> None:
        leg = CarrierLeg(CARRIERS["twilio"](secrets.randbits(127), {}))
        awaited = self._awaited[leg.carrier.call_sid] = asyncio.get_running_loop().create_future()
        try:
            await leg.connect(f"ws://{self.address}/media/twilio/{ROUTE}", timeout_s=SETUP_S)
            self.live += 1
            self.uplink.join(leg)
            call = await asyncio.wait_for(awaited, SETUP_S)
            for _ in range(self.rng.randint(1, 4)):
                if not await self._turn(leg, call):
                    break
            await self._end(leg, call)
        except (PeerSocketError, TimeoutError) as exc:
            self.problems[f"a call failed: {type(exc).__name__}"] += 1
        finally:
            self.live -= 1
            await leg.aclose()

    async def _turn(self, leg: CarrierLeg, call: ManagedCall) -> bool:
        """Speak a turn to its end, or to where somebody interrupts it. False: it did not end."""
        given = next(self.turns)
        await asyncio.sleep(min(given.pause_s, 2.0))
        over = asyncio.Event()
        call.on_turn_end = lambda turn: over.set()
        sent_at = time.monotonic()
        leg.on_audible = lambda now: self.first_packets.append((now, (now - sent_at) * 1000))
        turn = call.speak(given.text)
        match self.rng.choice(["listens"] * 4 + ["presses", "cancels"]):
            case "presses":
                await asyncio.sleep(self.rng.uniform(0.3, 2))
                leg.press("5")
            case "cancels":
                await asyncio.sleep(self.rng.uniform(0.3, 2))
                call.send("cancel")
        try:
            await asyncio.wait_for(over.wait(), TURN_S)
        except TimeoutError:
            self.problems["a turn did not end"] += 1
        finally:
            leg.on_audible = None
        return bool(turn.outcome)

    async def _end(self, leg: CarrierLeg, call: ManagedCall) -> None:
        how = self.rng.choice(ENDS)
        self.ends[how] += 1
        if how == "network lost":
            call.speak(next(self.turns).text)  # it is lost in mid-speech
            await asyncio.sleep(self.rng.uniform(0.1, 1))
            assert leg._transport is not None
            leg._transport.underlying_transport.abort()
        elif how == "caller hangs up":
            leg.hang_up()
        else:
            call.send("end")
            deadline = time.monotonic() + SETUP_S
            while leg.closed_at is None and time.monotonic() < deadline:
                await asyncio.sleep(0.05)


async def exposition(address: str) -> str:
    """Return the gateway's metrics."""
    async with aiohttp.ClientSession() as client, client.get(f"http://{address}/metrics") as answer:
        return await answer.text()


async def held(server: ServerUnderTest) -> dict[str, float]:
    """Return what the gateway holds now."""
    fds = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in _fds(server.pid)]
    return {
        "rss_mb": round(server.gateway_rss_mb(), 1),
        "tasks": counted(await exposition(server.address), "talkspurt_tasks"),
        "fds": float(len(fds)),
        "sockets": float(sum(fd.startswith("socket:") for fd in fds)),
    }


def _fds(pid: int) -> Iterator[str]:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.path.lexists(f"/proc/{pid}/fd/{fd}"):
            yield fd


async def capacity(server: ServerUnderTest) -> int:
    """Measure the most calls that this machine carries."""
    carried, calls = 1, 2
    source = TurnSupply(distinct_turns(1_000_000), "soak")
    while calls <= 2048:
        load = CallLoad(CallLoadSettings(calls=calls, seconds=STEP_S), source, Conversations())
        await load.run(server.address, measured=lambda on: None)
        first = (
            statistics.quantiles(load.first_packets_ms, n=20)[-1] if len(load.first_packets_ms) > 1 else float("inf")
        )
        gaps = sum(gaps > 0 for _, gaps in load.turns) / max(1, len(load.turns))
        print(f"{calls} calls: first packet {first:.0f} ms at p95, {gaps:.1%} of the turns with a gap", flush=True)
        if first > 300 or gaps > 0.02:
            break
        carried, calls = calls, calls * 2
    return carried


def grown(samples: Sequence[dict[str, float]], name: str) -> tuple[float, float]:
    """Return what a figure was after the first tenth and in the last quarter: the medians."""
    n = len(samples)
    early = [each[name] for each in samples[n // 10 : n // 10 + max(1, n // 4)]]
    return statistics.median(early), statistics.median([each[name] for each in samples[-max(1, n // 4) :]])


def beyond(before: float, after: float, allowed: tuple[float, float]) -> bool:
    """Return whether a figure has grown by more than is allowed."""
    return after > before * allowed[0] + allowed[1]


async def soak(args: argparse.Namespace, server: ServerUnderTest) -> list[str]:
    """Run the soak. Return what was wrong."""
    most = args.capacity or await capacity(server)
    places = max(1, round(SHARE * most))
    before = Counter(
        calls=_ended(await exposition(server.address), "talkspurt_calls_total"),
        turns=_ended(await exposition(server.address), "talkspurt_turns_total"),
        records=await recorded(server.address),
    )
    print(f"{places} callers at once for {args.seconds:g} s", flush=True)
    run = Soak(server.address, distinct_turns(args.seed), random.Random(args.seed), time.monotonic() + args.seconds)
    manager = SimulatedManager(run.set_up)
    await manager.dial_in(f"ws://{server.address}/v1/dialogue?route={ROUTE}")
    idle = await held(server)
    samples = []
    callers = [asyncio.create_task(run.callers()) for _ in range(places)]
    started = time.monotonic()
    with args.json.open("w") as out:
        while time.monotonic() < run.until:
            await asyncio.sleep(1)
            now = time.monotonic()
            recent = [ms for at, ms in run.first_packets if at > now - 10]
            sample = await held(server) | {"t": round(now - started, 1), "live": run.live, "calls": len(run.calls)}
            sample["first_packet_ms"] = round(statistics.median(recent), 1) if recent else 0.0
            samples.append(sample)
            out.write(json.dumps(sample) + "\n")
    await asyncio.gather(*callers)
    wrong = [f"{what}: {count} times" for what, count in run.problems.items()]
    wrong += await _settled(run, server, idle, before)
    await manager.aclose()
    run.uplink.stop()
    table(samples)
    print(f"{len(run.calls)} calls, {sum(len(call.turns) for call in run.calls)} turns, {dict(run.ends)}")
    for name, allowed in GROWTH.items():
        early, late = grown(samples, name)
        print(f"{name:<12} {early:g} after the first tenth, {late:g} in the last quarter")
        if beyond(early, late, allowed):
            wrong.append(f"{name} grew from {early:g} to {late:g}")
    first = [ms for at, ms in run.first_packets if at > started + args.seconds / 10]
    if len(first) < 6:
        return [*wrong, f"{len(first)} first packets, expected more"]
    third = len(first) // 3
    early, late = statistics.median(first[:third]), statistics.median(first[-third:])
    print(f"first packet {early:.0f} ms after the first tenth, {late:.0f} ms in the last third (median)")
    if beyond(early, late, DRIFT):
        wrong.append(f"first packets drifted from {early:.0f} to {late:.0f} ms")
    return wrong


async def _settled(run: Soak, server: ServerUnderTest, idle: dict[str, float], before: Counter[str]) -> list[str]:
    """Wait until all is accounted for and given back. Return what is not."""
    wrong: list[str] = []
    deadline = time.monotonic() + SETTLE_S
    while True:
        wrong.clear()
        turns = [turn for call in run.calls for turn in call.turns.values()]
        errors = Counter(error for call in run.calls for error in call.errors)
        wrong += [f"an error of the gateway, {count} times: {error}" for error, count in errors.items()]
        if unfinished := sum(not turn.outcome for turn in turns):
            wrong.append(f"{unfinished} turns have no end")
        if unended := sum(not call.ended for call in run.calls):
            wrong.append(f"{unended} calls have no end")
        shown = await exposition(server.address)
        for name, made, seen in (
            ("calls in the metrics", len(run.calls), _ended(shown, "talkspurt_calls_total") - before["calls"]),
            ("turns in the metrics", len(turns), _ended(shown, "talkspurt_turns_total") - before["turns"]),
            ("calls in the records", len(run.calls), await recorded(server.address) - before["records"]),
        ):
            if made != seen:
                wrong.append(f"{name}: {seen}, expected {made}")
        now = await held(server)
        wrong += [
            f"{name} after the last call: {now[name]:g}, expected about {idle[name]:g} as before the first"
            for name in ("tasks", "fds", "sockets")
            if now[name] > idle[name] + 4
        ]
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(1)


def _ended(shown: str, name: str) -> int:
    return int(counted(shown, name))


async def recorded(address: str) -> int:
    """Return how many calls the usage has, from the records on disk."""
    async with aiohttp.ClientSession() as client, client.get(f"http://{address}/v1/usage") as answer:
        days = (await answer.json())["days"]
        return sum(day["calls"] for day in days)


def table(samples: Sequence[dict[str, float]]) -> None:
    """Print about twenty lines of what was held over time."""
    names = ("t", "live", "calls", "rss_mb", "tasks", "fds", "sockets", "first_packet_ms")
    print("  ".join(f"{name:>8}" for name in names))
    for sample in samples[:: max(1, len(samples) // 20)]:
        print("  ".join(f"{sample[name]:>8g}" for name in names))


async def main(args: argparse.Namespace) -> int:
    """Run server and soak. Return the exit code."""
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="talkspurt-soak-") as folder:
        environment = overrides(
            route=ROUTE,
            calls=max(2048, 2 * args.capacity),
            engine__kind=args.engine,
            records__database_url=f"sqlite:///{Path(folder, 'records.sqlite3')}",
        )
        async with serving(None, environment) as server:
            wrong = await soak(args, server)
    for each in wrong:
        print(f"wrong: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="default 3600")
    parser.add_argument("--capacity", type=int, default=0, help="calls that this machine carries (default: measured)")
    parser.add_argument("--engine", default="embedded", help="engine.kind of the server (default embedded)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("build/soak.jsonl"), help="default build/soak.jsonl")
    sys.exit(uvloop.run(main(parser.parse_args())))
