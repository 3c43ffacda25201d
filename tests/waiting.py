"""Waiting for events outside the tests: for the event itself, never for a duration."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0
"""The longest wait for anything. It bounds a hang and says nothing about speed: a machine that does much else may need
many times as long as this one."""


async def until(condition: Callable[[], Any | Awaitable[Any]], what: str = "") -> Any:
    """Wait until a function, plain or async, returns something true; that value.

    Raises:
        AssertionError: after ``PATIENCE_S``, naming ``what`` was waited for.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s in vain for {what or condition}"
        await asyncio.sleep(0.005)


async def stand_still(pid: int) -> None:
    """Stop a child process, and wait until it stands still: until then it may take what comes first. SIGCONT lets it go
    on."""
    os.kill(pid, signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
