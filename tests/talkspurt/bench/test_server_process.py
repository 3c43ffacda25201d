"""Errors around a server under test."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from talkspurt.bench.server_process import ServerFailed, serving
from tests.waiting import until

READY = "import signal; print('it is ready: http://127.0.0.1:9/', flush=True); signal.pause()"
NEVER = "import signal; signal.pause()"
MEASURES = f"""
import asyncio
from talkspurt.bench.server_process import serving

async def measure():
    async with serving(None, {{}}, program=("-c", {READY!r})) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(measure())
"""


async def test_a_time_out_of_whoever_uses_the_server_stays_one() -> None:
    with pytest.raises(TimeoutError):
        async with serving(None, {}, program=("-c", READY)):
            raise TimeoutError


async def test_a_server_that_is_not_ready_in_time_has_failed() -> None:
    with pytest.raises(ServerFailed, match="not ready within"):
        async with serving(None, {}, program=("-c", NEVER), start_s=0.01):
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_server_ends_with_the_measuring_process_however_that_ends(number: signal.Signals) -> None:
    command = (sys.executable, "-c", MEASURES)
    measuring = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert measuring.stdout is not None
    server = Path(f"/proc/{int(await measuring.stdout.readline())}")
    measuring.send_signal(number)
    await measuring.wait()
    await until(lambda: not (server / "cmdline").exists() or not (server / "cmdline").read_bytes(), "the server's end")
