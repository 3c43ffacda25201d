"""Parts that the processes of ``serve`` share: they run on uvloop until a signal, and greet when they are ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial

import uvloop

from talkspurt.config.settings import Config
from talkspurt.greeting import greeting
from talkspurt.log import print_line
from tts_engine.api import SpeechEngine
from tts_engine.errors import EngineError
from tts_engine.supervision import SUPERVISOR, start_threads

log = logging.getLogger(__name__)

_EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}


def run(serving: Coroutine[object, object, int]) -> int:
    """Run a server to its end. Return its exit code."""

    async def main() -> int:
        await start_threads()
        return await serving

    if sys.version_info >= (3, 12):
        return uvloop.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


class StopSignal:
    """Catches SIGTERM and SIGINT, and the end of a background task without which the process is useless. ``exit_code``
    belongs to what came first."""

    def __init__(self) -> None:
        self._came = asyncio.Event()
        self.exit_code = 0
        for number, code in _EXIT_CODES.items():
            asyncio.get_running_loop().add_signal_handler(number, self._stop, code)
        SUPERVISOR.on_fatal = partial(self._failed, asyncio.get_running_loop())

    def _failed(self, loop: asyncio.AbstractEventLoop, task: str) -> None:
        print_line(f"talkspurt: the {task} has ended, so the server ends", sys.stderr)
        loop.call_soon_threadsafe(self._stop, 1)

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
    for line in greeting(config, port, voices, audiosocket=audiosocket, sip=sip):
        print_line(line, sys.stdout)
