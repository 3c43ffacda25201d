"""The thread that queries the turn model for all calls. The network releases the interpreter lock."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.recognition.smart_turn import SECONDS, SmartTurn
from gateway.seams.recogniser import FRAME_BYTES, SAMPLE_RATE
from voicecodecs.pcm import to_float32

log = logging.getLogger(__name__)

_MAX_WAITING = 8  # most waiting queries; one more gets no answer, and its call waits as without a model
_FRAMES = SECONDS * SAMPLE_RATE * 2 // FRAME_BYTES

Judge = Callable[[NDArray[np.float32]], float]


class _Look:
    """Implements ``gateway.seams.turn_model.Look``."""

    def __init__(self) -> None:
        self.cancelled = False
        self.answer: Future[float] | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.answer is not None:
            self.answer.cancel()


class TurnModelThread:
    """Implements ``gateway.seams.turn_model.TurnModel``.

    Args:
        nice: niceness of the thread relative to the gateway, where threads have priorities (Linux).
    """

    def __init__(self, *, nice: int) -> None:
        self._thread = ThreadPoolExecutor(1, "turn model", initializer=_lower_priority, initargs=(nice,))
        self._judge: Judge | None = None
        self._waiting = 0
        self._loop = asyncio.get_running_loop()
        self.dropped: Counter[str] = Counter()

    async def load(self, file: Path) -> None:
        """Load the network. Until then, ``look`` gives no answers.

        Raises:
            TurnModelError: the file is not this network.
        """
        self.use(await self._loop.run_in_executor(self._thread, SmartTurn, file))

    def use(self, judge: Judge) -> None:
        """Use this function for answers from now on."""
        self._judge = judge

    def look(self, sound: Sequence[bytes], tell: Callable[[float], None]) -> _Look:
        look = _Look()
        judge = self._judge
        if judge is None or self._waiting >= _MAX_WAITING:
            self.dropped["busy"] += 1
            return look
        frames = tuple(sound[-_FRAMES:])
        self._waiting += 1
        look.answer = self._thread.submit(lambda: judge(to_float32(np.frombuffer(b"".join(frames), "<i2"))))
        look.answer.add_done_callback(lambda done: self._post(look, done, tell))
        return look

    def _post(self, look: _Look, done: Future[float], tell: Callable[[float], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._answer, look, done, tell)

    def _answer(self, look: _Look, done: Future[float], tell: Callable[[float], None]) -> None:
        self._waiting -= 1
        if look.cancelled or done.cancelled():
            self.dropped["late"] += 1
            return
        if (why := done.exception()) is not None:
            self.dropped["failed"] += 1
            log.error("turn model failed", exc_info=why)
        else:
            tell(done.result())

    def close(self) -> None:
        """End the thread without waiting for a query that is running."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _lower_priority(nice: int) -> None:
    if sys.platform == "linux":  # elsewhere niceness applies to the whole process
        os.nice(nice)
