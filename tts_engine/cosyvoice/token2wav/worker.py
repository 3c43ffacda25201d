"""The token-to-wave thread of one device, and its interface to the event loop.

Clauses open, submit and close on the event loop. The thread takes the next batch from the scheduler, has the runner
compute it, and delivers the audio. Both threads use the scheduler and the block manager under one lock, which is never
held while the device works.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.device_thread import DeviceThread
from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.models.flow import Flow
from tts_engine.cosyvoice.token2wav.admission import ClauseLoad
from tts_engine.cosyvoice.token2wav.batch import Vocoder
from tts_engine.cosyvoice.token2wav.block_manager import BlockManager
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.cosyvoice.token2wav.runner import ModelRunner, Run, RunnerConfig
from tts_engine.cosyvoice.token2wav.scheduler import Batch, Job, Scheduler, SchedulerConfig
from tts_engine.errors import EngineError, SynthesisFailed
from tts_engine.synthesizer import Hearing

log = logging.getLogger(__name__)

Result = NDArray[np.float32] | EngineError


@dataclass(frozen=True, slots=True)
class _Task:
    """Work for the thread other than a batch, and the callback for its result."""

    work: Callable[[], object]
    deliver: Callable[[object], None]

    def run(self) -> None:
        """Do the work and deliver its result. An error of one request fails only that request; any other fault, such as
        a CUDA error, is also raised."""
        try:
            self.deliver(self.work())
        except EngineError as exc:
            self.deliver(exc)
        except torch.OutOfMemoryError:
            self.deliver(_out_of_memory())
        except Exception as exc:
            self.deliver(SynthesisFailed(f"token-to-wave failed: {type(exc).__name__}"))
            raise


class WaveWorker(DeviceThread):
    """Turns speech tokens into audio for all clauses of a model."""

    def __init__(
        self,
        flow: Flow,
        vocoder: Vocoder,
        *,
        device: torch.device,
        settings: CosyVoiceConfig,
        config: RunnerConfig | None = None,
        scheduler: SchedulerConfig | None = None,
    ) -> None:
        """``flow`` and ``vocoder`` must be prepared and on the device."""
        super().__init__("token2wav", "token-to-wave")
        self.config = config or RunnerConfig()
        self.runner = ModelRunner(flow, vocoder, device=device, settings=settings, config=self.config)
        self.blocks = BlockManager(
            clauses=settings.max_clauses,
            voices=self.config.max_voices,
            blocks=self.config.blocks,
            chunk_tokens=self.runner.chunk,
            max_chunks=self.config.max_chunks,
            room=max(self.runner.chunk - LOOK_AHEAD_TOKENS, *settings.first_hops),
        )
        scheduler = scheduler or SchedulerConfig(sizes=self.config.chunk_rows)
        self.scheduler = Scheduler(scheduler, self.blocks, finalize=settings.finalize, first_hops=settings.first_hops)
        self._tasks: list[_Task] = []
        self._event_loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which clauses wait."""
        self._given: tuple[Batch, Run] | None = None
        """The batch that has nearly ended. Its audio is not delivered yet."""
        self._ahead = self.runner.works_ahead
        """True if a batch is launched before the previous one has ended."""
        self.on_batch: Callable[[Batch, float], None] = lambda batch, seconds: None
        """Called in the worker's thread with each batch and its device time in seconds."""
        self.on_calibrated: Callable[[int, int, float], None] = lambda length, rows, seconds: None
        """Called during the warm-up, see ``ModelRunner.warm_up``. Not called on a CPU."""

    # -- from the event loop

    async def voice(
        self, key: object, tokens: NDArray[np.int32], mel: NDArray[np.float32], speaker: NDArray[np.float32]
    ) -> Voice:
        """Return a voice's prompt on the device. It is computed on first use.

        Args:
            key: the voice and its revision.
            tokens: shape ``(n,)``; mel: ``(2 n, 80)``; speaker: ``(192,)``. The prompt is cut at its beginning, see
                ``BlockManager``.

        Raises:
            Exhausted: all places for voice prompts are in use.
        """
        if (voice := self.blocks.voices.get(key)) is not None:
            return voice
        future: asyncio.Future[Voice]
        future, settle = _promise()
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._closing:
                raise self._closed()
            make = partial(self._make_voice, key, tokens, mel, speaker)
            self._tasks.append(_Task(make, lambda result: _call_soon(loop, partial(settle, result))))
            self._changed.notify()
        return await future

    def open(self, voice: Voice, playhead: Hearing) -> Rendering:
        """Begin a clause. The caller must ``close`` it.

        Raises:
            Exhausted: the engine is full, or the voice's prompt was evicted since ``voice`` returned it.
        """
        with self._changed:
            return self.scheduler.open(voice, playhead, now=time.monotonic())

    def load(self, *, waiting: int = 0) -> ClauseLoad:
        """Return the open clauses and the free blocks, see ``Scheduler.load``."""
        with self._changed:
            return self.scheduler.load(time.monotonic(), waiting=waiting)

    def submit(self, rendering: Rendering, *, final: bool) -> asyncio.Future[NDArray[np.float32]]:
        """Ask for the clause's next chunk, see ``Scheduler.submit``.

        Returns:
            The samples at 24 kHz. The future's exception is an ``EngineError``.

        Raises:
            InvalidRequest: voice prompt and clause together are too long.
        """
        future: asyncio.Future[NDArray[np.float32]]
        future, settle = _promise()
        with self._changed:
            if self._closing:
                raise rendering.error or self._closed()
            self._event_loop = asyncio.get_running_loop()
            self.scheduler.submit(rendering, final=final, now=time.monotonic(), deliver=settle)
        self._notify_soon()  # deferred, so that all clauses that were woken together are in one batch
        return future

    def close(self, rendering: Rendering) -> None:
        """Give up a clause. Its slot and blocks are freed before the next batch. Idempotent."""
        with self._changed:
            self.scheduler.close(rendering)
            self._changed.notify()

    # -- the thread

    def _warm_up(self) -> None:
        self.runner.warm_up(self.on_calibrated)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self._closing or self._tasks or self._given) and self.scheduler.idle:
                    self._changed.wait()
                if self._closing:
                    return
                self.scheduler.sweep()
                task = self._tasks.pop(0) if self._tasks else None
                jobs = [job for job in self.scheduler.jobs if job not in self._running]
            if task is not None:
                self._hand_out()
                task.run()
            if jobs:
                self._round(jobs)
            else:
                self._hand_out()

    @property
    def _running(self) -> Sequence[Job]:
        """The jobs of the batch that has nearly ended."""
        return self._given[0].jobs if self._given else ()

    def _round(self, jobs: Sequence[Job], running: Sequence[Job] = ()) -> bool:
        """Launch a batch of these jobs and wait until it has nearly ended. ``running``: see ``Scheduler.next_batch``.
        Return False if there is no room for any of the jobs."""
        with self._changed:
            batch = self.scheduler.next_batch(jobs, now=time.monotonic(), running=[*running, *self._running])
        if batch is None:
            if not self._given:
                time.sleep(0.001)
            self._hand_out()
            return False
        try:
            self._execute(batch)
        except torch.OutOfMemoryError:
            error = _out_of_memory()
            self._settle([(job, error) for job in batch.jobs])
        return True

    def _execute(self, batch: Batch) -> None:
        """Run a batch until it has nearly ended. The next one can then be launched without a pause of the device, while
        this one's audio is delivered."""
        run = self.runner.begin(batch.shape, batch.rows, staged=batch.staged)
        self._hand_out()
        for stage in range(1, run.stages):
            run.await_nearly_done()
            if not self._interlude(batch, run.drop):
                return
            run.go_on(stage)
            self._hand_out()
        run.read()
        self._given = batch, run
        run.await_nearly_done()
        if not self._ahead:
            self._hand_out()

    def _hand_out(self) -> None:
        """Wait for the end of the batch that has nearly ended, if there is one, and deliver its audio."""
        if self._given is None:
            return
        (batch, run), self._given = self._given, None
        samples, seconds = run.result()
        self.on_batch(batch, seconds)
        sounds: list[tuple[Job, NDArray[np.float32]]] = []
        with self._changed:
            for line, job, row in zip(samples, batch.jobs, batch.rows, strict=True):
                before = job.rendering.sounded * FRAMES_PER_TOKEN
                if self.scheduler.advance(job, row):
                    begin, end = self.runner.state.vocoder.valid(before=before, frames=row.frames, final=row.final)
                    sounds.append((job, line[begin:end].copy()))
        not_finite = SynthesisFailed("the flow or the vocoder returned NaN or infinity for this clause")
        self._settle([(job, pcm if np.isfinite(pcm).all() else not_finite) for job, pcm in sounds])

    def _interlude(self, batch: Batch, drop: Callable[[int], None]) -> bool:
        """Between two stages of a long batch, free closed clauses and run the urgent ones.

        Returns:
            False if no clause waits for the long batch any more.
        """
        again = False
        while True:
            with self._changed:
                if self._closing:
                    return False
                gone = self.scheduler.sweep()
                left = [job for job in batch.jobs if job.rendering in self.scheduler.renderings]
            for row, job in enumerate(batch.jobs):
                if job.rendering in gone:
                    drop(row)
            if not left:
                return False
            with self._changed:
                urgent = self.scheduler.urgent(left, now=time.monotonic(), again=again, ending=self._running)
            # Urgent batches run in sequence: a stage between two of them would leave the device idle while audio is
            # delivered. Tasks need the end of the long batch, so they end this loop.
            if not urgent or not self._round(urgent, left) or self._tasks:
                return True
            again = True

    def _settle(self, results: Sequence[tuple[Job, Result]]) -> None:
        """Deliver results in one turn of the event loop, so that the clauses woken by them are in one batch."""
        with self._changed:
            for job, _ in results:
                self.scheduler.done(job)
        if self._event_loop is not None:
            _call_soon(self._event_loop, partial(_deliver, results))

    def _fail(self, error: EngineError) -> None:
        with self._changed:
            jobs, tasks, self._tasks = list(self.scheduler.jobs), self._tasks, []
        for job in jobs:
            job.rendering.error = error
        self._settle([(job, error) for job in jobs])
        for task in tasks:
            task.deliver(error)

    def _make_voice(
        self, key: object, tokens: NDArray[np.int32], mel: NDArray[np.float32], speaker: NDArray[np.float32]
    ) -> Voice:
        """Allocate a prompt's slot and blocks and compute its shared chunks."""
        if (voice := self.blocks.voices.get(key)) is not None:
            return voice  # another request has made it meanwhile
        with self._changed:
            voice = self.blocks.place([int(t) for t in tokens], now=time.monotonic())
        try:
            cut = len(tokens) - len(voice.prompt_tokens)
            self.runner.compute_prompt(voice, mel[cut * FRAMES_PER_TOKEN :], speaker)
        except BaseException:
            with self._changed:
                self.blocks.release(voice)
            raise
        with self._changed:
            self.blocks.keep(key, voice)
        return voice


def _promise() -> tuple[asyncio.Future[Any], Callable[[object], None]]:
    """Return a future, and a function that settles it with a value or an error, to be called on the running loop."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(result: object) -> None:
        if future.done():
            return
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)

    return future, settle


def _deliver(results: Sequence[tuple[Job, Result]]) -> None:
    for job, result in results:
        job.deliver(result)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Schedule a call on the event loop from another thread. Does nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        log.debug("the event loop of a waiting request is closed")


def _out_of_memory() -> EngineError:
    log.exception("out of device memory")
    return SynthesisFailed("out of device memory")
