"""Processes that write records and are killed: nothing is lost, nothing counted twice."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from tests.gateway.metering.test_store import NOON, found, opened

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
