"""Parts that the processes of ``serve`` share: they run on uvloop until a signal, greet when they are ready, and keep
their background tasks at work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine

import uvloop

from talkspurt.config.settings import Config
from talkspurt.greeting import greeting
from tts_engine.api import SpeechEngine
from tts_engine.errors import EngineError

log = logging.getLogger(__name__)

_AT_ONCE_S = 1.0  # a background task that returns sooner had nothing to do
_EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}


def run(serving: Coroutine[object, object, int]) -> int:
    """Run a server to its end. Return its exit code."""
    if sys.version_info >= (3, 12):
        return uvloop.run(serving)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving)


class StopSignal:
    """Catches SIGTERM and SIGINT. ``exit_code`` belongs to the first signal."""

    def __init__(self) -> None:
        self._came = asyncio.Event()
        self.exit_code = 0
        for number, code in _EXIT_CODES.items():
            asyncio.get_running_loop().add_signal_handler(number, self._stop, code)

    def _stop(self, code: int) -> None:
        if not self._came.is_set():
            self.exit_code = code
        self._came.set()

    async def wait(self) -> None:
        """Return when a signal has come."""
        await self._came.wait()

    async def wait_or(self, ready: Callable[[], bool], *, look_s: float) -> None:
        """Return when ``ready()`` is true, or when a signal has come. ``ready`` is checked every ``look_s`` seconds."""
        while not ready() and not self._came.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), look_s)


async def greet(
    config: Config, engine: SpeechEngine, port: int, *, audiosocket: int | None, sip: tuple[int, int] | None
) -> None:
    """Print that the server is ready. The ports are the bound ones."""
    voices: list[str] | None = None
    with contextlib.suppress(EngineError):
        voices = [voice.voice_id for voice in await engine.list_voices()]
    print("\n".join(greeting(config, port, voices, audiosocket=audiosocket, sip=sip)), flush=True)


async def kept(
    name: str, work: Callable[[], Awaitable[None]], *, pause_s: float = 1.0, longest_pause_s: float = 60.0
) -> None:
    """Run ``work`` until cancelled, and restart it after each failure. Each end is logged.

    Args:
        name: the task's name in the log.
        work: makes the coroutine. It normally runs until cancelled. If it returns, it has nothing to do, and is not
        restarted. pause_s: the pause after the first failure, seconds. It doubles with each failure in a row.
    """
    next_pause_s = pause_s
    while True:
        begun = time.monotonic()
        try:
            await work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("background task was cancelled from within", extra={"task": name, "next_try_s": next_pause_s})
        except Exception:
            log.exception("background task failed", extra={"task": name, "next_try_s": next_pause_s})
        else:
            at_once = time.monotonic() - begun < _AT_ONCE_S
            log.log(logging.DEBUG if at_once else logging.WARNING, "background task ended", extra={"task": name})
            return
        if time.monotonic() - begun > longest_pause_s:
            next_pause_s = pause_s  # it ran well, so this failure begins a new row
        await asyncio.sleep(next_pause_s)
        next_pause_s = min(2 * next_pause_s, longest_pause_s)
