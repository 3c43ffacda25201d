"""A few threads that synthesise for one voice model, step by step, the most urgent step first.

One side is asyncio, the other is blocking work. ``run`` hands over a step and waits for its sound. When ``run`` is
cancelled, it takes a waiting step back or ends a running one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from tts_engine.embedded.slack_queue import SlackJob, SlackQueue
from tts_engine.errors import EngineError, Exhausted, SynthesisFailed, Unavailable
from tts_engine.supervision import SUPERVISOR, Need, SupervisedThread
from tts_engine.synthesizer import Hearing, PcmChunk

log = logging.getLogger(__name__)

Step = Callable[[], PcmChunk | None]
"""A function that blocks while it works. It returns None if it made no sound."""


class _Work:
    """One step on its way through a thread. It must not know its job, which knows it: such a circle would keep the
    step's sound until a collection of garbage."""

    __slots__ = ("_done", "_loop", "_step", "_voice")

    def __init__(self, step: Step, done: asyncio.Future[PcmChunk | None], voice: str) -> None:
        self._step, self._done, self._voice = step, done, voice
        self._loop = asyncio.get_running_loop()

    def run(self, job: SlackJob) -> None:
        """Run the step in this thread, and settle the future on its own loop."""
        started = time.monotonic()
        result: PcmChunk | None = None
        error: EngineError | None = None
        try:
            result = self._step()
            if result is not None:
                result = replace(
                    result,
                    queue_ms=(started - job.queued_at) * 1e3,
                    engine_ms=(time.monotonic() - started) * 1e3,
                )
        except EngineError as exc:
            error = exc
        except Exception as exc:  # an error ends this clause, not the thread
            log.exception("a voice failed", extra={"voice": self._voice})
            error = SynthesisFailed(f"the {self._voice} voice failed: {type(exc).__name__}")
        self._loop.call_soon_threadsafe(_settle, self._done, result, error)
        del error  # it knows this frame

    def drop(self) -> None:
        """Settle the future of a step that no thread will run."""
        error = Unavailable(f"the {self._voice} voice is closed")
        self._loop.call_soon_threadsafe(_settle, self._done, None, error)


def _settle(done: asyncio.Future[PcmChunk | None], result: PcmChunk | None, error: EngineError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


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
        self._threads: list[SupervisedThread] = []

    @property
    def running(self) -> bool:
        """True between ``start`` and ``aclose``."""
        return bool(self._threads)

    @property
    def waiting(self) -> int:
        """Number of steps that wait for a thread."""
        return len(self._queue)

    def short_of_sound(self, seconds: float) -> int:
        """Return how many waiting steps belong to callers who hear silence in ``seconds`` or earlier."""
        return self._queue.short_of_sound(seconds)

    def start(self) -> None:
        """Start the threads."""
        self._threads = [
            SUPERVISOR.thread(f"talkspurt-{self.name}-{i}", self._work, need=Need.CALLS) for i in range(self.count)
        ]

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
            begun: True for a later step of a clause. Such a step is never refused.
            stop: called if a running step is cancelled. The step should end soon after.

        Raises:
            Exhausted: the queue of clauses is full.
            Unavailable: the threads have ended.
            EngineError: the step raised it. Any other exception of the step becomes SynthesisFailed.
        """
        done: asyncio.Future[PcmChunk | None] = asyncio.get_running_loop().create_future()
        work = _Work(step, done, self.name)
        job = SlackJob(work.run, work.drop, playhead, cost_s)
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
        finally:
            del done, work, job  # an error knows this frame, and would be held by what the frame holds

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            job.run(job)
            del job  # else its sound stays until the next job comes

    async def aclose(self) -> None:
        """End the threads. Running steps are finished first, waiting ones are dropped."""
        self._queue.close()
        threads, self._threads = self._threads, []
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
