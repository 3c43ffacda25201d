"""What the processes of ``serve`` have in common: they run on uvloop until a signal, and greet when they are ready."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine

import uvloop

from talkspurt.config.settings import Config
from talkspurt.greeting import greeting
from tts_engine.api import SpeechEngine
from tts_engine.errors import EngineError

_EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}


def run(serving: Coroutine[object, object, int]) -> int:
    """Run a server to its end. Return its exit code."""
    if sys.version_info >= (3, 12):
        return uvloop.run(serving)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving)


class StopSignal:
    """SIGTERM or SIGINT, from now on. ``exit_code`` is that of the first one."""

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
        """Return when one has come."""
        await self._came.wait()

    async def wait_or(self, ready: Callable[[], bool], *, look_s: float) -> None:
        """Return when ``ready()``, which is looked at every ``look_s`` seconds, or when a signal has come."""
        while not ready() and not self._came.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), look_s)


async def greet(
    config: Config, engine: SpeechEngine, port: int, *, audiosocket: int | None, sip: tuple[int, int] | None
) -> None:
    """Print that the server is ready. The ports are those that were bound."""
    voices: list[str] | None = None
    with contextlib.suppress(EngineError):
        voices = [voice.voice_id for voice in await engine.list_voices()]
    print("\n".join(greeting(config, port, voices, audiosocket=audiosocket, sip=sip)), flush=True)
