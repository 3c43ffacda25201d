"""A few threads that synthesise step by step, the most urgent step first, for one voice model.

Asyncio on one side, blocking work on the other: ``run`` hands a step over, waits for its sound, and on cancel takes
a waiting step back or ends a running one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tts_engine.embedded.slack_queue import Job, SlackQueue
from tts_engine.errors import EngineError, Exhausted, SynthesisFailed, Unavailable
from tts_engine.synthesizer import PcmChunk, Playhead

log = logging.getLogger(__name__)

Step = Callable[[], PcmChunk | None]
"""Blocking; None: it made no sound."""


class Workers:
    """``start`` them, ``aclose`` them."""

    def __init__(self, name: str, *, threads: int, queue_size: int, guard_s: float = 0.0) -> None:
        """
        Args:
            name: of the voice, for threads and messages.
            queue_size: clauses that may wait for a thread; one more is refused.
            guard_s: see ``SlackQueue``.
        """
        self.name = name
        self.count = threads
        self._queue = SlackQueue(size=queue_size, guard_s=guard_s, clock=time.monotonic)
        self._threads: list[threading.Thread] = []

    @property
    def running(self) -> bool:
        """True between ``start`` and ``aclose``."""
        return bool(self._threads)

    @property
    def waiting(self) -> int:
        """Steps that wait for a thread."""
        return len(self._queue)

    def short_of_sound(self, seconds: float) -> int:
        """Steps that wait whose callers will hear silence in ``seconds``, or do already."""
        return self._queue.short_of_sound(seconds)

    def start(self) -> None:
        """Begin to work."""
        self._threads = [
            threading.Thread(target=self._work, name=f"talkspurt-{self.name}-{i}", daemon=True)
            for i in range(self.count)
        ]
        for thread in self._threads:
            thread.start()

    async def run(
        self,
        step: Step,
        playhead: Playhead,
        *,
        cost_s: float,
        begun: bool = False,
        stop: Callable[[], None] = lambda: None,
    ) -> PcmChunk | None:
        """The sound of a step, with the times it waited and worked.

        Args:
            cost_s: expected seconds of work.
            begun: a later step of a clause, which is never refused.
            stop: called when a step is cancelled that runs already; it should end soon after.

        Raises:
            Exhausted: as many clauses wait as may.
            Unavailable: the threads have ended.
            EngineError: the step raised it; SynthesisFailed stands for anything else.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[PcmChunk | None] = loop.create_future()

        def settle(result: PcmChunk | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def work() -> None:
            started = time.monotonic()
            result, error = None, None
            try:
                result = step()
                if result is not None:
                    result = replace(
                        result,
                        queue_ms=(started - job.queued_at) * 1e3,
                        engine_ms=(time.monotonic() - started) * 1e3,
                    )
            except EngineError as exc:
                error = exc
            except Exception as exc:  # a fault of ours or of the network ends this clause, not the thread
                log.exception("a voice failed", extra={"voice": self.name})
                error = SynthesisFailed(f"the {self.name} voice failed: {type(exc).__name__}")
            loop.call_soon_threadsafe(settle, result, error)

        def drop() -> None:
            loop.call_soon_threadsafe(settle, None, Unavailable(f"the {self.name} voice is closed"))

        job = Job(work, drop, playhead, cost_s)
        if not self._queue.put(job, force=begun):
            raise Exhausted(
                f"{self.waiting} clauses wait for the {self.name} voice, as many as queue_size allows",
                retry_after_s=self.waiting * cost_s / self.count,
            )
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not self._queue.discard(job):
                stop()
                await asyncio.wait([done])  # in a thread's hands: soon over, and then nobody works on it
                done.exception()
            raise

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            job.run()

    async def aclose(self) -> None:
        """End the threads; a running step is finished first, what waits is dropped."""
        self._queue.close()
        threads, self._threads = self._threads, []
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
