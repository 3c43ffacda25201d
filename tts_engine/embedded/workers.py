"""A few threads that synthesise for one voice model, step by step, the most urgent step first.

One side is asyncio, the other is blocking work. ``run`` hands over a step and waits for its sound. When ``run`` is
cancelled, it takes a waiting step back or ends a running one.
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
from tts_engine.synthesizer import Hearing, PcmChunk

log = logging.getLogger(__name__)

Step = Callable[[], PcmChunk | None]
"""A function that blocks while it works. It returns None if it made no sound."""


class Workers:
    """The threads. Call ``start`` before use and ``aclose`` at the end."""

    def __init__(self, name: str, *, threads: int, queue_size: int, guard_s: float = 0.0) -> None:
        """
        Args:
            name: the voice's name, for threads and messages.
            queue_size: how many clauses may wait for a thread; one more is refused.
            guard_s: see ``SlackQueue``.
        """
        self.name = name
        self.count = threads
        self._queue = SlackQueue(size=queue_size, guard_s=guard_s, clock=time.monotonic)
        self._threads: list[threading.Thread] = []

    @property
    def running(self) -> bool:
        """Have the threads been started and not been closed?"""
        return bool(self._threads)

    @property
    def waiting(self) -> int:
        """Number of steps that wait for a thread."""
        return len(self._queue)

    def short_of_sound(self, seconds: float) -> int:
        """Return how many waiting steps belong to callers who hear silence in ``seconds`` or earlier."""
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
        playhead: Hearing,
        *,
        cost_s: float,
        begun: bool = False,
        stop: Callable[[], None] = lambda: None,
    ) -> PcmChunk | None:
        """Run a step and return its sound, with the times for which it waited and worked.

        Args:
            cost_s: expected work, seconds.
            begun: is this a later step of a clause? Such a step is never refused.
            stop: called if a running step is cancelled. The step should end soon after.

        Raises:
            Exhausted: the queue of clauses is full.
            Unavailable: the threads have ended.
            EngineError: the step raised it. Any other exception of the step becomes SynthesisFailed.
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
            except Exception as exc:  # an error ends this clause, not the thread
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
                await asyncio.wait([done])  # a thread still works on the step; it ends soon
                done.exception()
            raise

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            job.run()

    async def aclose(self) -> None:
        """End the threads. Running steps are finished first, waiting ones are dropped."""
        self._queue.close()
        threads, self._threads = self._threads, []
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
