"""Errors around a server under test."""

from __future__ import annotations

import pytest

from talkspurt.bench.server_process import ServerFailed, serving

READY = "import signal; print('it is ready: http://127.0.0.1:9/', flush=True); signal.pause()"
NEVER = "import signal; signal.pause()"


async def test_a_time_out_of_whoever_uses_the_server_stays_one() -> None:
    with pytest.raises(TimeoutError):
        async with serving(None, {}, program=("-c", READY)):
            raise TimeoutError


async def test_a_server_that_is_not_ready_in_time_has_failed() -> None:
    with pytest.raises(ServerFailed, match="not ready within"):
        async with serving(None, {}, program=("-c", NEVER), start_s=0.01):
            pass
