"""Threads while the system gives the process no more of them."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading

import pytest

from tests.no_room import needs_seccomp, refused_by_the_kernel
from tests.peers.live_server import child_environment
from tests.waiting import PATIENCE_S
from tts_engine.supervision import SteadyThreads

pytestmark = needs_seccomp


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_a_pool_does_its_work_with_the_threads_that_it_has(error: int) -> None:
    with SteadyThreads(4, "pool") as pool:
        goes_on = threading.Event()
        pool.submit(goes_on.wait, PATIENCE_S)  # while the only thread works, a pool starts another one
        asked = refused_by_the_kernel("process or thread", error, lambda: [pool.submit(int, n) for n in range(5)])
        goes_on.set()
        assert [each.result(PATIENCE_S) for each in asked] == [0, 1, 2, 3, 4]


NAMES = """
import asyncio
import errno
import os
import uvloop
from tests.no_room import _refuse
from tts_engine.supervision import start_threads

async def main():
    await start_threads()
    _refuse("process or thread", errno.EAGAIN)
    loop = asyncio.get_running_loop()
    await loop.getaddrinfo("localhost", 80)
    assert await asyncio.to_thread(int, "5") == 5
    os._exit(0)  # the end of a loop starts a thread

uvloop.run(main())
"""


def test_a_server_that_gets_no_more_threads_still_looks_names_up() -> None:
    """libuv ends the process if it cannot start its threads."""
    subprocess.run([sys.executable, "-c", NAMES], env=child_environment(), check=True, timeout=PATIENCE_S)
