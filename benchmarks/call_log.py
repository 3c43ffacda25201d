"""What does a log of ended calls cost the calls that speak, while a console lists and searches it once a second?

    python benchmarks/call_log.py --json benchmarks/results/call_log.json

Two real servers, one whose log is empty at first, one with a thousand ended calls of twenty turns each. `--calls` calls
speak the hummed voice of the `tone` engine all the time, at one server after the other, in turns. Once a second the log
is asked for its newest hundred calls, for those with a word, for a thousand calls as CSV, and for one whole call.
Pacing errors are those of the packets as the callers' kernel got them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from gateway.call_log.log import CallLog
from gateway.config import CallsConfig
from gateway.seams.call_record import CallRecord, HeardWords, Said
from talkspurt.bench.calls import ROUTE, CallLoad, CallLoadSettings, Talking
from talkspurt.bench.load import STANDARD, read_load
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import overrides, serving

TEXT = "Your order was sent yesterday, and it should arrive on Friday before noon. "


def ended(number: int) -> CallRecord:
    """A call of three minutes."""
    entries: list[Said | HeardWords] = []
    for turn in range(20):
        at = turn * 9000
        entries += [
            Said(
                atMs=at, turn=f"t{turn}", what="text", text=TEXT * 2, heardChars=len(TEXT), startedMs=at + 90,
                endedMs=at + 4000, outcome="interrupted", reason="speech", firstPacketMs=90.0,
                stagesMs={"queue": 30.0, "engine": 50.0, "send": 10.0}, gaps=0, gapMs=0,
            ),
            HeardWords(atMs=at + 6000, text=f"And where is number {number * turn}?", lang="en-US"),
        ]  # fmt: skip
    return CallRecord(
        callId=f"VX{number:032x}", callSid=f"CA{number:032x}", route=ROUTE, transport="twilio", direction="inbound",
        from_=f"+4930{number:07}", to="+49891", startedAt=time.time() - 60 * number, durationMs=180_000,
        reason="hangup", outcome="completed", turns=20, gaps=0, gapMs=0, firstPacketMs=90.0, entries=list(entries),
        entriesLost=0,
    )  # fmt: skip


async def fill(folder: Path, calls: int) -> None:
    log = CallLog(CallsConfig(folder=str(folder), keep_text=True), on_lost=print)
    log.start()
    for number in range(calls):
        log.add(ended(number))
    await log.aclose()


async def look(address: str, calls: int, waits_ms: list[float]) -> None:
    """Look at the log once a second, as a console does, until cancelled."""
    kept = "/v1/calls?ended=true"
    paths = [
        kept,
        f"{kept}&text=number+42",
        f"{kept}&limit=1000&format=csv",
        *([f"/v1/calls/VX{1:032x}"] * (calls > 0)),
    ]
    async with aiohttp.ClientSession(f"http://{address}") as http:
        while True:
            for path in paths:
                begun = time.monotonic()
                async with http.get(path) as response:
                    assert response.status == 200, (path, response.status)
                    await response.read()
                waits_ms.append((time.monotonic() - begun) * 1000)
            await asyncio.sleep(1.0)


async def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    load = read_load(STANDARD)
    texts = [load.long_text(120) for _ in range(20)]
    steps = []
    async with AsyncExitStack() as stack:
        servers = {}
        for ended_calls in (0, 1000):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if ended_calls:
                await fill(folder, ended_calls)
            keys = {"engine__kind": "tone", "calls__folder": str(folder), "calls__keep_text": "true"}
            environment = overrides(route=ROUTE, calls=given.calls, **keys)
            servers[ended_calls] = await stack.enter_async_context(serving(None, environment))
        for number in range(given.rounds):
            for ended_calls, server in servers.items():
                settings = CallLoadSettings(calls=given.calls, seconds=given.seconds, tokens_per_s=0, uplink=False)
                step = CallLoad(settings, load, Talking(texts))
                waits_ms: list[float] = []
                looking = asyncio.create_task(look(server.address, ended_calls, waits_ms))
                cpu: list[float] = []
                try:
                    await step.run(server.address, measured=lambda _, s=server, c=cpu: c.append(s.cpu_s()[0]))  # type: ignore[misc]
                finally:
                    looking.cancel()
                    (why,) = await asyncio.gather(looking, return_exceptions=True)
                if not isinstance(why, asyncio.CancelledError):
                    raise RuntimeError("the log could not be read") from why
                figures = step.figures()
                steps.append(
                    {
                        "round": number,
                        "ended_calls": ended_calls,
                        "pacing_error_ms": figures["pacing_error_ms"],
                        "gaps": figures["gaps"],
                        "errors": figures["errors"],
                        "gateway_core_share": round((cpu[1] - cpu[0]) / given.seconds, 3),
                        "longest_answer_ms": round(max(waits_ms), 1),
                    }
                )
                print(json.dumps(steps[-1]), flush=True)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    steps = uvloop.run(measure(given))
    result = {"commit": commit(), "machine": machine(), "calls": given.calls, "seconds": given.seconds, "steps": steps}
    if given.json is not None:
        given.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
