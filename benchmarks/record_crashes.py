"""Does each call have one record, whenever the gateway is killed? And is a crashed call as long in it as it was?

    python benchmarks/record_crashes.py --kills 50 --calls 500 --json benchmarks/results/record_crashes.json

A real server plays a clip to simulated Twilio callers. In each round some callers begin one after the other, and the
gateway is killed (SIGKILL) at a random moment; then the next one starts on the same file of records. A real receiver of
the webhook notes what it gets, and answers every third message with 500. At the end the records of `/v1/records` and
those of the receiver are compared with what the callers know: each says a number of its own, and when it was connected,
first heard sound, and lost its socket. With `--postgres` (an empty database) the gateway moves its records
there, and is killed while it does.

No call is answered or heard before the beginning of its record is in the file. So a caller whose stream was not heard
from before the kill had no call yet, and may have no record: `never_answered` counts these, and `without_record` all
others. Exit code 1: a call has no record, a record is doubled or still open, the webhook lacks one, the days do not add
up with the records, or a length is wrong by more than the interval at which records are written ahead and a second.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import random
import secrets
import signal
import statistics
import sys
import tempfile
import time
import wave
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from talkspurt.bench.results import write
from talkspurt.bench.server_process import ServerFailed, ServerUnderTest, serving
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.peer_socket import PeerSocketError

WRITE_AHEAD_S = 0.5
OPEN_S = 60.0
"""When a caller's socket is open for longer, something is wrong. The kernel closes those of a killed process when its
last thread is out of the disk."""
SLACK_S = 1.0
"""How far a length may be off beside the interval: the machine may let a process wait."""

CONFIG = """
server: {{drain_s: 5}}
engine: {{kind: tone}}
carriers: {{twilio: {{verify: false}}}}
clips: {{folder: {folder}}}
routes: {{default: {{dialogue: {{script: script.yaml}}}}}}
records:
  database_url: sqlite:///{folder}/records.sqlite3
  numbers: true
  webhook_url: {webhook}
  webhook_secret: {secret}
log: {{level: error}}
"""
SCRIPT = "steps: {clip: [{play: clip.wav}, hang_up]}\n"


@dataclass(slots=True, kw_only=True)
class Caller:
    """What a caller knows of its call. Times are monotonic."""

    number: str
    connected_at: float
    heard_at: float | None = None
    """When the first sound came; silence is none."""
    answered: bool = False
    """Whether the server sent any frame or message after the upgrade."""
    closed_at: float | None = None
    was_killed: bool = False
    left_open: bool = False

    @property
    def length_s(self) -> float:
        assert self.closed_at is not None
        return self.closed_at - self.connected_at


@dataclass(slots=True)
class Receiver:
    """Takes records, and refuses every third message."""

    got: Counter[str] = field(default_factory=Counter)
    """Number of deliveries by the record's id, refused ones left out."""
    asked: int = 0

    async def take(self, request: web.Request) -> web.Response:
        await request.read()
        self.asked += 1
        if self.asked % 3 == 0:
            return web.Response(status=500)
        self.got[request.headers["webhook-id"]] += 1
        return web.Response()


def prepare(folder: Path, port: int, *, clip_s: float, postgres: str) -> Path:
    """Write clip, script and configuration. Return the configuration's path."""
    tone = 8000 * np.sin(np.arange(int(8000 * clip_s)) * (2 * np.pi * 440 / 8000))
    with contextlib.closing(wave.open(str(folder / "clip.wav"), "wb")) as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(8000)
        clip.writeframes(tone.astype("<i2").tobytes())
    (folder / "script.yaml").write_text(SCRIPT)
    config = folder / "talkspurt.yaml"
    config.write_text(
        CONFIG.format(
            folder=folder,
            webhook=f"http://127.0.0.1:{port}/",
            secret="whsec_" + base64.b64encode(secrets.token_bytes(32)).decode(),
        )
        + (f"postgres: {{url: '{postgres}'}}\n" if postgres else "")
    )
    return config


async def call(server: ServerUnderTest, number: int, callers: list[Caller]) -> None:
    """Call, listen until the socket is closed, and note what the caller knows. A server that is gone takes no call."""
    leg = CarrierLeg(TwilioCarrier(number, {"talkspurt.From": f"+4930{number}"}))
    closed = asyncio.Event()
    leg.on_closed = closed.set
    try:
        await leg.connect(f"ws://{server.address}/media/twilio/default")
    except PeerSocketError:
        return
    caller = Caller(number=f"+4930{number}", connected_at=time.monotonic())
    callers.append(caller)

    def heard(at: float) -> None:
        caller.heard_at = at

    leg.on_audible = heard
    try:
        await asyncio.wait_for(closed.wait(), OPEN_S)
    except TimeoutError:
        caller.left_open = True
    finally:
        caller.closed_at = leg.closed_at or time.monotonic()
        caller.was_killed = not leg.close_reason
        caller.answered = leg.messages > 0 or bool(leg.close_reason)
        await leg.aclose()


async def killed_round(config: Path, numbers: range, callers: list[Caller], chance: random.Random) -> None:
    """Let callers begin within two seconds, and kill the gateway at some moment between the first and shortly after the
    last."""
    try:
        async with serving(config, {}) as server:
            begun = time.monotonic()
            tasks = []
            kill_at = begun + chance.uniform(0.05, 2.5)
            for at, number in sorted((begun + chance.uniform(0, 2.0), number) for number in numbers):
                if at >= kill_at:
                    break
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                tasks.append(asyncio.create_task(call(server, number, callers)))
            await asyncio.sleep(max(0.0, kill_at - time.monotonic()))
            engines = server.engine_pids()
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.gather(*tasks)
            for pid in engines:  # an engine without its gateway ends by itself; the next round needs the processor
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    except ServerFailed:
        pass  # that is what a kill looks like


async def all_records(http: aiohttp.ClientSession) -> list[dict[str, Any]]:
    """Return all records, in pages."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        async with http.get("/v1/records", params={"limit": "100", "after": after}) as answer:
            page = await answer.json()
        found += page["records"]
        after = page["next"]
        if not after:
            return found


async def last_round(
    config: Path, numbers: range, callers: list[Caller], receiver: Receiver
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Serve some calls to their end, wait until the webhook has everything, and return records and days."""
    async with serving(config, {}) as server, aiohttp.ClientSession(f"http://{server.address}") as http:
        await asyncio.gather(*(call(server, number, callers) for number in numbers))
        deadline = time.monotonic() + 60
        found = await all_records(http)
        while not all(r["outcome"] != "open" and r["id"] in receiver.got for r in found):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
            found = await all_records(http)
        async with http.get("/v1/usage") as answer:
            days = (await answer.json())["days"]
        return found, days


def judged(
    callers: list[Caller], found: list[dict[str, Any]], days: list[dict[str, Any]], receiver: Receiver, *, kills: int
) -> dict[str, Any]:
    """Compare what callers, records, days and the webhook say."""
    by_number: dict[str, list[dict[str, Any]]] = {}
    for record in found:
        by_number.setdefault(record["from"], []).append(record)
    unrecorded = [caller for caller in callers if caller.number not in by_number]
    missing = [caller for caller in unrecorded if caller.answered]
    off_s = []
    for caller in callers:
        for record in by_number.get(caller.number, []):
            length_s = (record["endedAt"] or 0.0) - record["startedAt"]
            off_s.append((record["outcome"], caller.length_s - length_s))
    crashed = [off for outcome, off in off_s if outcome == "crashed"]
    completed = [abs(off) for outcome, off in off_s if outcome == "completed"]
    return {
        "kills": kills,
        "calls": len(callers),
        "killed": sum(caller.was_killed for caller in callers),
        "records": len(found),
        "outcomes": dict(Counter(record["outcome"] for record in found)),
        "left_open": sum(caller.left_open for caller in callers),
        "doubled": sum(len(records) - 1 for records in by_number.values()),
        "never_answered": len(unrecorded) - len(missing),
        "without_record": len(missing),
        "without_record_that_heard": sum(caller.heard_at is not None for caller in missing),
        "write_ahead_s": WRITE_AHEAD_S,
        "crashed_short_s_median": round(statistics.median(crashed), 3) if crashed else None,
        "crashed_short_s_most": round(max(crashed), 3) if crashed else None,
        "crashed_long_s_most": round(max(0.0, -min(crashed)), 3) if crashed else None,
        "completed_off_s_most": round(max(completed), 3) if completed else None,
        "calls_of_days": sum(day["calls"] for day in days),
        "seconds_of_days_off": round(
            abs(sum(day["callSeconds"] for day in days) - sum((r["endedAt"] or 0.0) - r["startedAt"] for r in found)), 2
        ),
        "webhook_lacks": len({record["id"] for record in found} - receiver.got.keys()),
        "webhook_deliveries": sum(receiver.got.values()),
        "webhook_refused": receiver.asked - sum(receiver.got.values()),
    }


def faults(figures: dict[str, Any]) -> list[str]:
    """Return what is wrong with the figures."""
    bound_s = WRITE_AHEAD_S + SLACK_S
    checks = {
        "a record is doubled": figures["doubled"] > 0,
        "a call has no record": figures["without_record"] > 0,
        "a socket stayed open": figures["left_open"] > 0,
        "the webhook lacks a record": figures["webhook_lacks"] > 0,
        "the days do not add up": figures["calls_of_days"] != figures["records"] or figures["seconds_of_days_off"] > 1,
        "a length is wrong": any(
            (figures[name] or 0.0) > bound_s
            for name in ("crashed_short_s_most", "crashed_long_s_most", "completed_off_s_most")
        ),
        "a record is still open": bool(figures["outcomes"].get("open")),
        "nothing crashed": not figures["outcomes"].get("crashed"),
    }
    return [what for what, is_wrong in checks.items() if is_wrong]


async def run(folder: Path, *, kills: int, calls: int, clip_s: float, seed: int, postgres: str) -> dict[str, Any]:
    """Run all rounds. Return the figures.

    Args:
        calls: over all rounds; the last one, which is not killed, has as many as any other.
    """
    chance, callers, receiver = random.Random(seed), list[Caller](), Receiver()
    app = web.Application()
    app.add_routes([web.post("/", receiver.take)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        config = prepare(folder, runner.addresses[0][1], clip_s=clip_s, postgres=postgres)
        number, rounds = 0, 0
        each = max(1, calls // (kills + 1))
        while rounds < kills:
            await killed_round(config, range(number, number + each + each // 2), callers, chance)
            number += each + each // 2
            rounds += 1
        rest = max(each, calls - len(callers))
        found, days = await last_round(config, range(number, number + rest), callers, receiver)
    finally:
        await runner.cleanup()
    return {"store": "postgresql" if postgres else "sqlite", **judged(callers, found, days, receiver, kills=kills)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--clip-s", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--postgres", default="", help="postgresql://USER:PASSWORD@HOST/EMPTY_DATABASE")
    parser.add_argument("--json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(
            run(
                Path(folder),
                kills=asked.kills,
                calls=asked.calls,
                clip_s=asked.clip_s,
                seed=asked.seed,
                postgres=asked.postgres,
            )
        )
    wrong = faults(figures)
    write(figures, asked.json, "\n".join([*(f"{name:28} {value}" for name, value in figures.items()), *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
