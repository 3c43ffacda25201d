"""Reads from the disk of recordings in its own threads, so that a hanging disk blocks nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from gateway.errors import Rejected
from tts_engine.supervision import SteadyThreads

HANG_S = 10.0
"""Time after which a disk that does not answer is given up, seconds."""

THREADS = 4
"""Concurrent reads. Further ones wait, or are refused if all of these hang."""

T = TypeVar("T")


class RecordingsDisk:
    """A few threads with a time limit for each read.

    Args:
        hang_s: seconds after which a read is given up. Its thread is free again when the disk answers.
    """

    def __init__(self, *, hang_s: float) -> None:
        self._hang_s = hang_s
        self._threads = SteadyThreads(THREADS, "recordings reader")
        self._hung = set[Future[Any]]()
        """Reads that were given up and have not returned."""

    async def read(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``.

        Raises:
            Rejected: 503, the disk does not answer.
        """
        self._hung = {future for future in self._hung if not future.done()}
        if len(self._hung) >= THREADS:
            raise self._no_answer()
        future = self._threads.submit(work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._hang_s)
        except TimeoutError:
            if not future.cancelled():  # the read is running; one that waited for a thread was cancelled
                self._hung.add(future)
            raise self._no_answer() from None

    def _no_answer(self) -> Rejected:
        message = f"the disk of recordings has not answered for {self._hang_s:g} s"
        return Rejected(message, status=503, code="recordings_unavailable", retry_after_s=self._hang_s)
