"""Speech tokens to sound on one device: one thread owns flow, vocoder and all their caches, and batches across clauses.

A clause holds a slot (tails of convolutions), blocks (keys and values of each chunk at each Euler step) and a slot of
the vocoder. It starts where its voice's prompt ends: the prompt's chunks but the last are computed once per voice and
shared. Each batch is one CUDA graph: copy of the inputs, flow, vocoder. On a CPU the same code runs without graphs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_engine.errors import EngineError, Exhausted, SynthesisFailed, Unavailable
from tts_engine.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS, MEL_CHANNELS
from tts_engine.models.flow import Flow, FlowCache, FlowRows, place_prompt
from tts_engine.models.hift_causal import CausalHift, VocoderCache
from tts_engine.scheduler import Candidate, SchedulerConfig, Shape, choose, victim
from tts_engine.synthesizer import Playhead

log = logging.getLogger(__name__)

_HEADER = 7  # slot, start, length, valid, voice, frames for the vocoder, final


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Sizes of the caches and graphs."""

    max_clauses: int = 200
    """Slots for clauses."""
    blocks: int = 640
    """Chunks whose keys are kept, prompts included; 90 MB each for CosyVoice3 in bf16. When none is free, the clause
    with most sound in hand gives up its own and is computed again when its turn comes."""
    max_chunks: int = 64
    """Chunks of one clause with its prompt: 64 s."""
    max_voices: int = 64
    """Voices whose prompt is kept on the device; the one not used for longest makes room."""
    dtype: torch.dtype = torch.float32
    """Of the flow's caches; bf16 on a GPU."""
    first_rows: Sequence[int] = (1, 2, 4, 8)
    next_rows: Sequence[int] = (1, 2, 4, 8, 16)
    """Batch sizes of the graphs."""


@dataclass(slots=True, eq=False)
class Voice:
    """A prompt on the device."""

    index: int
    prompt_tokens: Sequence[int]
    slot: int
    blocks: list[int]
    clauses: int = 0
    used: float = 0.0

    @property
    def shared(self) -> int:
        """Tokens of the prompt that are computed once: all but its last chunk, which looks into the new speech."""
        return max(len(self.prompt_tokens) - 25, 0)


@dataclass(slots=True, eq=False)
class Rendering:
    """A clause on its way from tokens to sound. ``tokens`` is appended to by the clause's own task."""

    voice: Voice
    playhead: Playhead
    tokens: list[int] = field(default_factory=list)
    sounded: int = 0
    """Tokens of the clause that the vocoder has been fed."""
    closed: bool = False
    order: int = 0
    """Clauses are numbered as they come; of two equally urgent ones the older keeps its cache."""
    # The runner's thread alone:
    slot: int = 0
    blocks: list[int] = field(default_factory=list)
    fed: int = 0
    """Tokens in the caches, from the start of the prompt."""


@dataclass(slots=True, eq=False)
class _Job:
    rendering: Rendering
    count: int
    final: bool
    since: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[NDArray[np.float32]]
    started: float = 0.0
    ended: float = 0.0


class _Batch:
    """Static buffers of one shape and size, and the graph over them."""

    def __init__(self, runner: ModelRunner, shape: Shape, rows: int) -> None:
        chunk = runner.chunk
        self.shape, self.rows = shape, rows
        self.width = chunk * (2 if shape == "first" else 1) + LOOK_AHEAD_TOKENS
        self.packed = torch.zeros(
            rows, _HEADER + runner.config.max_chunks + self.width, dtype=torch.long, device=runner.device
        )
        self.samples: Tensor = torch.empty(0)
        self.graph: torch.cuda.CUDAGraph | None = None
        self._runner = runner

    def compute(self) -> None:
        """Packed inputs to samples ``(rows, n)``."""
        runner, first, chunks = self._runner, self.shape == "first", self._runner.config.max_chunks
        slots, start, length, valid, voices, frames, final = self.packed[:, :_HEADER].T.contiguous().unbind(0)
        blocks = self.packed[:, _HEADER : _HEADER + chunks].contiguous()
        tokens = self.packed[:, _HEADER + chunks :].contiguous()
        n = runner.chunk * FRAMES_PER_TOKEN
        cond = torch.zeros(
            self.rows, (self.width - LOOK_AHEAD_TOKENS) * FRAMES_PER_TOKEN, MEL_CHANNELS, device=runner.device
        )
        if first:
            cond[:, :n] = runner.voice_mels.index_select(0, voices)
            # Rows of padding and clauses computed again pass slot 0 to the vocoder.
            runner.vocoder_cache.reset(torch.where(frames > 0, slots, 0))
        rows = FlowRows(slots=slots, blocks=blocks, start=start, length=length)
        mel = runner.flow.advance(
            tokens, valid, cond, runner.voice_speakers.index_select(0, voices), rows, runner.flow_cache
        )
        mel = mel[:, n:] if first else mel
        self.samples = runner.hift(mel, frames, torch.where(frames > 0, slots, 0), runner.vocoder_cache, final.bool())


class ModelRunner:
    """Token to wave for all clauses of a model. ``start`` it, ``aclose`` it."""

    def __init__(
        self,
        flow: Flow,
        hift: CausalHift,
        *,
        device: torch.device,
        config: RunnerConfig | None = None,
        scheduler: SchedulerConfig | None = None,
    ) -> None:
        """``flow`` and ``hift`` are prepared and on the device."""
        self.flow, self.hift, self.device = flow, hift, device
        self.config, self._policy = config or RunnerConfig(), scheduler or SchedulerConfig()
        config = self.config
        self.chunk = flow.solver.chunk_tokens
        slots = 1 + config.max_clauses + config.max_voices
        self.flow_cache = FlowCache(flow, slots=slots, blocks=1 + config.blocks, device=device, dtype=config.dtype)
        self.vocoder_cache = VocoderCache(hift, slots=1 + config.max_clauses, device=device)
        self.voice_mels = torch.zeros(config.max_voices, self.chunk * FRAMES_PER_TOKEN, MEL_CHANNELS, device=device)
        self.voice_speakers = torch.zeros(config.max_voices, MEL_CHANNELS, device=device)
        self._free_slots = list(range(1, 1 + config.max_clauses))[::-1]
        self._voice_slots = list(range(1 + config.max_clauses, slots))
        self._free_blocks = list(range(1, 1 + config.blocks))[::-1]
        self._voices: dict[object, Voice] = {}
        self._batches: dict[tuple[Shape, int], _Batch] = {}
        self._jobs: list[_Job] = []
        self._renderings: set[Rendering] = set()
        self._closed: list[Rendering] = []
        self._tasks: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._opened = 0
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._run, name="token2wav", daemon=True)
        self.batches_run: dict[tuple[Shape, int], int] = {}
        self.recomputed_chunks = 0
        self.silent = 0
        """Open clauses that have made no sound yet."""
        self.on_batch: Callable[[Shape, int, float], None] = lambda shape, rows, seconds: None
        """Told of every batch in the runner's thread: shape, clauses in it, seconds."""

    # -- from the event loop ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Warm up (graphs on a GPU) and begin."""
        await asyncio.to_thread(self._warm_up)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False before ``start``, and after a fault that ended the thread."""
        return self._thread.is_alive()

    @property
    def open_clauses(self) -> int:
        return len(self._renderings)

    @property
    def free_blocks(self) -> int:
        return len(self._free_blocks)

    async def voice(
        self, key: object, tokens: NDArray[np.int32], mel: NDArray[np.float32], speaker: NDArray[np.float32]
    ) -> Voice:
        """A voice's prompt on the device, computed at first use.

        Args:
            key: names voice and revision.
            tokens: shape ``(25 k,)``; mel: ``(50 k, 80)``; speaker: ``(192,)``.

        Raises:
            Exhausted: every place for a voice is in use.
        """
        if (voice := self._voices.get(key)) is not None:
            return voice
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Voice] = loop.create_future()

        def task() -> None:
            try:
                voice = self._voices.get(key) or self._make_voice(key, tokens, mel, speaker)
            except EngineError as exc:
                loop.call_soon_threadsafe(_reject, future, exc)
            else:
                loop.call_soon_threadsafe(_resolve, future, voice)

        with self._changed:
            if self._closing:
                raise Unavailable("the model is shut down")
            self._tasks.append(task)
            self._changed.notify()
        return await future

    def open(self, voice: Voice, playhead: Playhead) -> Rendering:
        """Begin a clause. ``close`` it.

        Raises:
            Exhausted: the engine is full.
        """
        limit = min(self._policy.max_clauses, self.config.max_clauses)
        if len(self._renderings) >= limit:
            raise Exhausted(f"{limit} clauses are being spoken", retry_after_s=0.5)
        self._opened += 1
        rendering = Rendering(voice=voice, playhead=playhead, order=self._opened, fed=voice.shared)
        voice.clauses += 1
        voice.used = time.monotonic()
        with self._changed:
            self._renderings.add(rendering)
            self.silent += 1
        return rendering

    def submit(self, rendering: Rendering, *, final: bool) -> asyncio.Future[NDArray[np.float32]]:
        """Ask for the clause's next chunk: 25 tokens, or what is left of them when ``final``.

        ``rendering.tokens`` must hold the chunk, and its three tokens of look-ahead unless no more will come.

        Returns:
            samples at 24 kHz; its exception is an ``EngineError``.
        """
        loop = asyncio.get_running_loop()
        count = min(self.chunk, len(rendering.tokens) - rendering.sounded)
        job = _Job(rendering, count, final, time.monotonic(), loop, loop.create_future())
        with self._changed:
            if self._closing:
                raise Unavailable("the model is shut down")
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def close(self, rendering: Rendering) -> None:
        """Leave: everything of the clause is free before the next batch. Idempotent."""
        if not rendering.closed:
            rendering.closed = True
            rendering.voice.clauses -= 1
            with self._changed:
                self._closed.append(rendering)
                self._changed.notify()

    async def aclose(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    # -- the thread ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._closing or self._jobs or self._closed or self._tasks):
                        self._changed.wait()
                    if self._closing:
                        break
                    tasks, self._tasks = self._tasks, []
                    self._sweep()
                    jobs = list(self._jobs)
                for task in tasks:
                    with self._on_stream():
                        task()
                if jobs:
                    self._round(jobs)
            self._fail(Unavailable("the model is shut down"))
        except Exception as exc:  # a CUDA error leaves the device unusable: the worker must be started again
            log.exception("the token-to-wave thread failed")
            with self._changed:
                self._closing = True
            self._fail(SynthesisFailed(f"token to wave failed: {type(exc).__name__}"))

    def _sweep(self) -> None:
        """Free what was closed. Under the lock."""
        for rendering in self._closed:
            self._renderings.discard(rendering)
            self.silent -= not rendering.sounded
            self._forget(rendering)
        if self._closed:
            self._jobs = [job for job in self._jobs if not job.rendering.closed]
            self._closed = []

    def _forget(self, rendering: Rendering) -> None:
        self._free_blocks += rendering.blocks
        rendering.blocks = []
        if rendering.slot:
            self._free_slots.append(rendering.slot)
            rendering.slot = 0

    def _shape(self, r: Rendering) -> Shape:
        return "first" if r.voice.prompt_tokens and r.fed == r.voice.shared else "next"

    def _round(self, jobs: Sequence[_Job]) -> None:
        now = time.monotonic()
        candidates = [
            Candidate(
                owner=job,
                shape=self._shape(job.rendering),
                slack_s=job.rendering.playhead.slack_s(now),
                since=job.since,
            )
            for job in jobs
        ]
        ready: list[_Job] = []
        while not ready:
            chosen = choose(candidates, self._policy)
            if not chosen:
                time.sleep(0.001)  # all caches belong to clauses that wait for their own next tokens
                return
            for candidate in chosen:
                r = candidate.owner.rendering
                # One that lost its blocks to a more urgent one of this very round starts over another time.
                if self._shape(r) == candidate.shape and self._make_room(r, [job.rendering for job in ready], now):
                    ready.append(candidate.owner)
            # Those without room must not keep the ones who hold it, and go on by another shape, from running.
            candidates = [c for c in candidates if c not in chosen]
        try:
            results = self._execute(chosen[0].shape, ready)
        except torch.OutOfMemoryError:
            log.exception("out of device memory")
            for job in ready:
                self._settle(job, SynthesisFailed("out of device memory"))
            return
        for job, samples in results:
            if samples is not None:
                self._settle(job, samples)

    def _make_room(self, r: Rendering, running: Sequence[Rendering], now: float) -> bool:
        """Give the clause a slot and the blocks that it writes next; False: not now."""
        needed = 1 + (self._shape(r) == "first")
        while len(self._free_blocks) < needed:
            holders = [
                (o, (o.playhead.slack_s(now), o.order))
                for o in list(self._renderings)
                if o.blocks and o is not r and o not in running
            ]
            loser = victim(holders, (r.playhead.slack_s(now), r.order))
            if loser is None:
                return False
            self._free_blocks += loser.blocks
            loser.blocks, loser.fed = [], loser.voice.shared
        if not r.slot:
            r.slot = self._free_slots.pop()
        r.blocks += [self._free_blocks.pop() for _ in range(needed)]
        return True

    def _execute(
        self, shape: Shape, jobs: Sequence[_Job]
    ) -> list[tuple[_Job, NDArray[np.float32] | EngineError | None]]:
        """Run one batch and read it; None for a clause that only caught up."""
        config, chunk = self.config, self.chunk
        sizes = config.first_rows if shape == "first" else config.next_rows
        batch = self._batch(shape, min((s for s in sizes if s >= len(jobs)), default=len(jobs)))
        host = torch.zeros(batch.packed.shape, dtype=torch.long, pin_memory=self._stream is not None)
        view = host.numpy()
        copies: list[tuple[int, int]] = []
        fresh: list[int] = []
        silent: list[int] = []
        plans = []
        for line, job in zip(view, jobs, strict=False):
            r = job.rendering
            prompt = r.voice.prompt_tokens
            lead = chunk if shape == "first" else 0
            done = max(r.fed + lead - len(prompt), 0)  # clause tokens in the caches
            catching_up = done < r.sounded
            count = chunk if catching_up else job.count
            rest = [*prompt[r.fed : r.fed + lead], *r.tokens[done : done + batch.width - lead]]
            final = job.final and not catching_up
            line[:_HEADER] = (
                r.slot,
                r.fed,
                lead + count,
                len(rest),
                r.voice.index,
                0 if catching_up else count * FRAMES_PER_TOKEN,
                final,
            )
            blocks = r.voice.blocks + r.blocks
            line[_HEADER : _HEADER + len(blocks)] = blocks
            line[_HEADER + config.max_chunks : _HEADER + config.max_chunks + len(rest)] = rest
            if r.fed == 0:
                fresh.append(r.slot)
                if not r.sounded:
                    silent.append(r.slot)
            elif shape == "first":
                copies.append((r.voice.slot, r.slot))
            plans.append((job, lead + count, catching_up, final))
        now = time.monotonic()
        with self._on_stream():
            if copies:
                sources, targets = (torch.tensor(part, device=self.device) for part in zip(*copies, strict=True))
                self.flow_cache.copy(sources, targets)
            if fresh:
                self.flow_cache.reset(torch.tensor(fresh, device=self.device))
            if silent:
                self.vocoder_cache.reset(torch.tensor(silent, device=self.device))
            batch.packed.copy_(host, non_blocking=True)
            if batch.graph is None:
                batch.compute()
            else:
                batch.graph.replay()
            out = batch.samples[: len(jobs)].to("cpu", non_blocking=True) if self._stream is None else None
            if out is None:
                out = torch.empty(len(jobs), batch.samples.shape[1], pin_memory=True)
                out.copy_(batch.samples[: len(jobs)], non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        samples = out.numpy()
        self.batches_run[shape, batch.rows] = self.batches_run.get((shape, batch.rows), 0) + 1
        ended = time.monotonic()
        self.on_batch(shape, len(jobs), ended - now)
        results: list[tuple[_Job, NDArray[np.float32] | EngineError | None]] = []
        for line, (job, advanced, catching_up, final) in zip(samples, plans, strict=True):
            r = job.rendering
            r.fed += advanced
            if catching_up:
                self.recomputed_chunks += 1
                results.append((job, None))
                continue
            begin, end = CausalHift.valid(
                before=r.sounded * FRAMES_PER_TOKEN, frames=job.count * FRAMES_PER_TOKEN, final=final
            )
            with self._changed:
                self.silent -= not r.sounded
                r.sounded += job.count
            job.started, job.ended = now, ended
            pcm = line[begin:end].copy()
            if np.isfinite(pcm).all():
                results.append((job, pcm))
            else:
                results.append((job, SynthesisFailed("the flow or the vocoder gave no number for this clause")))
        return results

    def _settle(self, job: _Job, result: NDArray[np.float32] | EngineError) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
        try:
            if isinstance(result, EngineError):
                job.loop.call_soon_threadsafe(_reject, job.future, result)
            else:
                job.loop.call_soon_threadsafe(_resolve, job.future, result)
        except RuntimeError:
            log.debug("a clause's event loop is closed")

    def _fail(self, error: EngineError) -> None:
        with self._changed:
            jobs = list(self._jobs)
        for job in jobs:
            self._settle(job, error)

    def _make_voice(
        self, key: object, tokens: NDArray[np.int32], mel: NDArray[np.float32], speaker: NDArray[np.float32]
    ) -> Voice:
        """Compute the shared part of a prompt, chunk by chunk."""
        chunk, device = self.chunk, self.device
        count = len(tokens) // chunk
        if len(self._voices) >= self.config.max_voices or len(self._free_blocks) < count:
            idle = [(voice.used, k) for k, voice in self._voices.items() if not voice.clauses]
            if not idle:
                raise Exhausted("every place for a voice prompt is in use", retry_after_s=1.0)
            gone = self._voices.pop(min(idle, key=lambda pair: pair[0])[1])
            self._free_blocks += gone.blocks
            self._voice_slots.append(gone.slot)
        slot = self._voice_slots.pop()
        voice = Voice(
            index=slot - 1 - self.config.max_clauses,
            prompt_tokens=[int(t) for t in tokens[: count * chunk]],
            slot=slot,
            blocks=[],
            used=time.monotonic(),
        )
        vector = self.flow.speaker(torch.from_numpy(np.array(speaker, np.float32)).to(device)[None])
        self.voice_speakers[voice.index] = vector[0]
        frames = torch.from_numpy(np.array(mel[: count * chunk * FRAMES_PER_TOKEN], np.float32)).to(device)
        if count:
            self.voice_mels[voice.index] = frames[-chunk * FRAMES_PER_TOKEN :]
        self.flow_cache.reset(torch.tensor([slot], device=device))
        ids = torch.tensor([voice.prompt_tokens], dtype=torch.long, device=device)
        for start in range(0, voice.shared, chunk):
            voice.blocks.append(self._free_blocks.pop())
            blocks = torch.zeros(1, self.config.max_chunks, dtype=torch.long, device=device)
            blocks[0, : len(voice.blocks)] = torch.tensor(voice.blocks, device=device)
            at = torch.tensor([start], device=device)
            length = torch.tensor([chunk], device=device)
            rows = FlowRows(slots=torch.tensor([slot], device=device), blocks=blocks, start=at, length=length)
            n = chunk * FRAMES_PER_TOKEN
            cond = place_prompt(frames[None], torch.tensor([len(frames)], device=device), at, n)
            part = ids[:, start : start + chunk + LOOK_AHEAD_TOKENS]
            valid = torch.tensor([part.shape[1]], device=device)
            self.flow.advance(part, valid, cond, vector, rows, self.flow_cache)
        if self._stream is not None:
            self._stream.synchronize()
        self._voices[key] = voice
        return voice

    # -- graphs ----------------------------------------------------------------------------------------------------

    def _on_stream(self) -> Any:
        return torch.cuda.stream(self._stream)

    def _batch(self, shape: Shape, rows: int) -> _Batch:
        key = (shape, rows)
        if key not in self._batches:
            self._batches[key] = _Batch(self, shape, rows)
        return self._batches[key]

    @torch.inference_mode()
    def _warm_up(self) -> None:
        if self._stream is None:
            return
        pool = None
        for shape, sizes in (("first", self.config.first_rows), ("next", self.config.next_rows)):
            for rows in sorted(sizes, reverse=True):
                batch = self._batch(shape, rows)  # type: ignore[arg-type]
                with self._on_stream():
                    for _ in range(2):
                        batch.compute()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                    batch.compute()
                batch.graph, pool = graph, pool or graph.pool()
        self._stream.synchronize()


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: EngineError) -> None:
    if not future.done():
        future.set_exception(error)
