"""Processes that write records and are killed: nothing is lost, nothing counted twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

from talkspurt.bench.server_process import ServerFailed, serving
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from tests.gateway.metering.test_store import NOON, found, opened
from tests.waiting import PATIENCE_S

WRITER = """
import asyncio, sys
from tests.gateway.metering.test_store import begun, call, ended, found, opened
from pathlib import Path

async def main(folder, first):
    async with opened(Path(folder)) as records:
        for number in range(first, first + 1000):
            begun(records, call(number))
            await found(records)
            print("begun", number, flush=True)
            records.end(ended(call(number)))
            if number % 3:
                await found(records)
                print("ended", number, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_killed_at_any_moment_each_call_has_one_record_and_each_is_in_its_day(tmp_path: Path) -> None:
    chance, kept = random.Random(3), dict[int, str]()
    for round_ in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(tmp_path), str(round_ * 1000),
            stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(chance.randint(5, 60)):  # lines, not seconds
            await process.stdout.readline()
        process.kill()
        await process.communicate()
        async with opened(tmp_path) as records:
            there = await found(records)
            kept = {round(record.startedAt - NOON): record.outcome for record in there}
            assert len(there) == len(kept)
            assert set(kept.values()) <= {"completed", "crashed"}, "a dead process has open records"
            (day,) = await records.usage("shop")
            assert day.calls == len(kept), "a crashed call is counted too"
    assert {0, 1000, 2000} <= kept.keys()


CONFIG = """
engine: {kind: tone}
carriers: {twilio: {verify: false}}
routes: {default: {welcome_greeting: Good morning.}}
records: {database_url: "sqlite:///new/records.sqlite3", numbers: true}
log: {level: error}
"""


async def test_a_gateway_killed_with_the_first_frame_leaves_a_record(tmp_path: Path) -> None:
    config = tmp_path / "talkspurt.yaml"
    config.write_text(CONFIG)
    for number in range(3):
        closed = asyncio.Event()
        leg = CarrierLeg(TwilioCarrier(number, {"talkspurt.From": f"+4930{number}"}))
        leg.on_closed = closed.set
        with suppress(ServerFailed):  # that is what a kill looks like
            async with serving(config, {}) as server:

                def kill(leg: CarrierLeg = leg, pid: int = server.pid) -> None:
                    leg.on_change = lambda: None  # the end of the stream is a change, too
                    os.kill(pid, signal.SIGKILL)

                leg.on_change = kill
                await leg.connect(f"ws://{server.address}/media/twilio/default")
                await asyncio.wait_for(closed.wait(), PATIENCE_S)
        assert leg.messages > 0
    async with opened(tmp_path) as records:
        there = await found(records, "default")
        assert [(record.from_, record.outcome) for record in there] == [(f"+4930{n}", "crashed") for n in range(3)]
