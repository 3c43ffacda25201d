"""Speech tokens to sound on one device: one thread owns flow, vocoder and all their caches, and batches across clauses.

A clause holds a slot (tails of convolutions), blocks (keys and values of each chunk at each Euler step) and a slot of
the vocoder. It starts where its voice's prompt ends. The prompt's chunks are computed once per voice and shared; what
is left of it behind the last whole one begins the clause's first chunk. That it is three tokens or more is what makes
sharing exact: each chunk looks three tokens ahead, and those must not be the clause's.

Each batch is a CUDA graph: copy of the inputs, flow, vocoder; a long one is several, and between them those go whose
sound is awaited. On a CPU the same code runs without graphs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS, MEL_CHANNELS
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows, place_prompt
from tts_engine.cosyvoice.token2wav.batch import Row, Vocoder, WaveBatch, WaveState
from tts_engine.cosyvoice.token2wav.scheduler import Candidate, SchedulerConfig, Shape, choose, victim
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, SynthesisFailed, Unavailable
from tts_engine.synthesizer import Playhead

log = logging.getLogger(__name__)


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
    chunk_rows: Sequence[int] = (1, 2, 4, 8, 16, 32)
    """Batch sizes of the graphs."""
    whole_rows: Sequence[int] = (1, 2)
    whole_chunks: Sequence[int] = (8, 12, 16, 24)
    """The same of last chunks under full attention, and chunks of prompt and clause; a longer one runs without."""
    finalize: Literal["upstream", "causal"] = "upstream"
    """How a clause's last chunk is made: ``upstream``: by full attention over everything, as upstream does, at the cost
    of all of it again; ``causal``: as the chunks before it go on."""
    first_hop: int = 22
    """Tokens of a clause's first chunk, 1 to 25: the voice prompt is cut at its head until so many are left of a chunk
    behind it. Exact whatever it is. Less sounds sooner and leaves less time for the second chunk. Above 22 a chunk of
    the prompt looks into the clause and is computed for each clause anew."""


@dataclass(slots=True, eq=False)
class Voice:
    """A prompt on the device."""

    index: int
    prompt_tokens: Sequence[int]
    slot: int
    blocks: list[int]
    shared: int
    """Tokens of the prompt that are computed once: its whole chunks, as far as they do not look beyond it."""
    clauses: int = 0
    used: float = 0.0
    gone: bool = False
    """It has made room for another."""


@dataclass(slots=True, eq=False)
class Rendering:
    """A clause on its way from tokens to sound. ``tokens`` is appended to by the clause's own task."""

    voice: Voice
    playhead: Playhead
    tokens: list[int] = field(default_factory=list)
    sounded: int = 0
    """Tokens of the clause that the vocoder has been fed."""
    closed: bool = False
    error: EngineError | None = None
    """The fault that ended the runner while this clause was in it."""
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


class _Task:
    """Something for the runner's thread to do, and whoever waits for it."""

    def __init__(self, work: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop = work, loop
        self.future: asyncio.Future[object] = loop.create_future()

    def run(self) -> None:
        """A fault of one request fails that alone; another one, CUDA's say, is raised here as well."""
        try:
            result = self._work()
        except EngineError as exc:
            self.fail(exc)
        except torch.OutOfMemoryError:
            log.exception("out of device memory")
            self.fail(SynthesisFailed("out of device memory"))
        except Exception as exc:
            self.fail(SynthesisFailed(f"token to wave failed: {type(exc).__name__}"))
            raise
        else:
            self._call(_resolve, result)

    def fail(self, error: EngineError) -> None:
        self._call(_reject, error)

    def _call(self, settle: Callable[..., None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, self.future, value)
        except RuntimeError:
            log.debug("the event loop of who waits is closed")


class ModelRunner:
    """Token to wave for all clauses of a model. ``start`` it, ``aclose`` it."""

    def __init__(
        self,
        flow: Flow,
        vocoder: Vocoder,
        *,
        device: torch.device,
        config: RunnerConfig | None = None,
        scheduler: SchedulerConfig | None = None,
    ) -> None:
        """``flow`` and ``vocoder`` are prepared and on the device."""
        self.device = device
        self.config, self._policy = config or RunnerConfig(), scheduler or SchedulerConfig()
        config = self.config
        self.chunk = flow.solver.chunk_tokens
        slots = 1 + config.max_clauses + config.max_voices
        frames = config.max_chunks * self.chunk * FRAMES_PER_TOKEN
        self.state = WaveState(
            flow=flow,
            vocoder=vocoder,
            device=device,
            max_chunks=config.max_chunks,
            flow_cache=FlowCache(flow, slots=slots, blocks=1 + config.blocks, device=device, dtype=config.dtype),
            vocoder_cache=vocoder.new_cache(slots=1 + config.max_clauses, device=device),
            prompt_mels=torch.zeros(config.max_voices, frames, MEL_CHANNELS, device=device),
            prompt_frames=torch.zeros(config.max_voices, dtype=torch.long, device=device),
            speakers=torch.zeros(config.max_voices, MEL_CHANNELS, device=device),
        )
        self._free_slots = list(range(1, 1 + config.max_clauses))[::-1]
        self._voice_slots = list(range(1 + config.max_clauses, slots))
        self._free_blocks = list(range(1, 1 + config.blocks))[::-1]
        self._voices: dict[object, Voice] = {}
        self._batches: dict[tuple[Shape, int, int], WaveBatch] = {}
        self._jobs: list[_Job] = []
        self._renderings: set[Rendering] = set()
        self._closed: list[Rendering] = []
        self._tasks: list[_Task] = []
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
        self.on_calibrated: Callable[[Shape, int, float], None] = lambda shape, rows, seconds: None
        """Told in the warm-up what a batch of so many clauses takes on the idle device; not on a CPU."""

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
            tokens: shape ``(n,)``; mel: ``(2 n, 80)``; speaker: ``(192,)``. Cut at the head, see ``first_hop``.

        Raises:
            Exhausted: every place for a voice is in use.
        """
        if (voice := self._voices.get(key)) is not None:
            return voice
        loop = asyncio.get_running_loop()
        task = _Task(lambda: self._voices.get(key) or self._make_voice(key, tokens, mel, speaker), loop)
        with self._changed:
            if self._closing:
                raise Unavailable("the model is shut down")
            self._tasks.append(task)
            self._changed.notify()
        made = await task.future
        assert isinstance(made, Voice)
        return made

    def open(self, voice: Voice, playhead: Playhead) -> Rendering:
        """Begin a clause. ``close`` it.

        Raises:
            Exhausted: the engine is full, or the voice has made room for another since it was asked for.
        """
        limit = min(self._policy.max_clauses, self.config.max_clauses)
        if len(self._renderings) >= limit:
            raise Exhausted(f"{limit} clauses are being spoken", retry_after_s=0.5)
        self._opened += 1
        rendering = Rendering(voice=voice, playhead=playhead, order=self._opened, fed=voice.shared)
        with self._changed:
            if voice.gone:
                raise Exhausted("the voice made room for another; ask again", retry_after_s=0.1)
            voice.clauses += 1
            voice.used = time.monotonic()
            self._renderings.add(rendering)
            self.silent += 1
        return rendering

    def hop(self, rendering: Rendering) -> int:
        """Tokens of the clause's next chunk, if it is not the last; three more must be there."""
        return self.chunk - (len(rendering.voice.prompt_tokens) + rendering.sounded) % self.chunk

    def missing(self, rendering: Rendering) -> int:
        """Tokens that the clause's next chunk lacks, if it is not the last; none or less: it can be submitted."""
        return self.hop(rendering) + LOOK_AHEAD_TOKENS - (len(rendering.tokens) - rendering.sounded)

    def busy(self) -> bool:
        """Whether a full batch waits beside the one that runs."""
        jobs = list(self._jobs)
        whole = sum(self._shape(job) == "whole" for job in jobs)
        return (len(jobs) - whole) / self._policy.chunk_rows + whole / self._policy.whole_rows >= 2

    def is_last(self, rendering: Rendering) -> bool:
        """Whether all that is left, of a clause that gets no more tokens, goes into one chunk."""
        left = len(rendering.tokens) - rendering.sounded
        return left < self.hop(rendering) + (LOOK_AHEAD_TOKENS if self.config.finalize == "upstream" else 1)

    def submit(self, rendering: Rendering, *, final: bool) -> asyncio.Future[NDArray[np.float32]]:
        """Ask for the clause's next chunk: ``hop`` tokens, or what is left of them when ``final``.

        ``rendering.tokens`` must hold the chunk, and its three tokens of look-ahead unless no more will come.

        Returns:
            samples at 24 kHz; its exception is an ``EngineError``.

        Raises:
            InvalidRequest: voice prompt and clause are longer than the engine was made for.
        """
        loop = asyncio.get_running_loop()
        hop, most = self.hop(rendering), self.config.max_chunks * self.chunk
        count = len(rendering.tokens) - rendering.sounded if final else hop
        if (length := len(rendering.voice.prompt_tokens) + rendering.sounded + count) > most:
            raise InvalidRequest(f"voice prompt and clause have {length} speech tokens; {most} are the most")
        future: asyncio.Future[NDArray[np.float32]] = loop.create_future()
        job = _Job(rendering, count, final, time.monotonic(), loop, future)
        with self._changed:
            if self._closing:
                raise rendering.error or Unavailable("the model is shut down")
            self._jobs.append(job)
        loop.call_soon(self._notify)  # after all those who were woken together: they make one batch
        return future

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def close(self, rendering: Rendering) -> None:
        """Leave: everything of the clause is free before the next batch. Idempotent."""
        if not rendering.closed:
            rendering.closed = True
            with self._changed:
                rendering.voice.clauses -= 1
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
                    self._sweep()
                    task = self._tasks.pop(0) if self._tasks else None
                    jobs = list(self._jobs)
                if task is not None:
                    with self._on_stream():
                        task.run()
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

    def _shape(self, job: _Job) -> Shape:
        return "whole" if job.final and self.config.finalize == "upstream" else "chunk"

    def _candidate(self, job: _Job, now: float) -> Candidate[_Job]:
        slack_s = job.rendering.playhead.slack_s(now)
        return Candidate(owner=job, shape=self._shape(job), slack_s=slack_s, since=job.since)

    def _round(self, jobs: Sequence[_Job]) -> None:
        now = time.monotonic()
        candidates = [self._candidate(job, now) for job in jobs]
        ready: list[_Job] = []
        while not ready:
            chosen = choose(candidates, self._policy)
            if not chosen:
                time.sleep(0.001)  # all caches belong to clauses that wait for their own next tokens
                return
            for candidate in chosen:
                if self._make_room(candidate.owner, [j.rendering for j in ready], now):
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

    def _make_room(self, job: _Job, running: Sequence[Rendering], now: float) -> bool:
        """Give the clause a slot and the blocks that it writes next; False: not now."""
        r, needed = job.rendering, 0
        if self._shape(job) == "chunk":
            needed = max(r.fed // self.chunk + 1 - len(r.voice.blocks) - len(r.blocks), 0)
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

    def _plan(self, job: _Job, shape: Shape, width: int) -> Row:
        """What the batch feeds of this clause; ``width``: tokens and look-ahead that it takes of one."""
        r = job.rendering
        prompt = r.voice.prompt_tokens
        sounded = len(prompt) + r.sounded
        if shape == "whole":
            tokens = [*prompt, *r.tokens[: r.sounded + job.count]]
            return Row(
                slot=r.slot,
                voice=r.voice.index,
                begins=not r.sounded,
                length=len(tokens),
                valid=len(tokens),
                frames=job.count * FRAMES_PER_TOKEN,
                final=True,
                skip=sounded * FRAMES_PER_TOKEN,
                tokens=tokens,
            )
        catching_up = r.fed + self.chunk <= sounded
        skip = 0 if catching_up else sounded - r.fed
        begin = r.fed - len(prompt)
        tokens = [*prompt[r.fed : r.fed + width], *r.tokens[max(begin, 0) : max(begin + width, 0)]]
        return Row(
            slot=r.slot,
            voice=r.voice.index,
            begins=not r.sounded,
            start=r.fed,
            length=self.chunk if catching_up else skip + job.count,
            valid=len(tokens),
            frames=0 if catching_up else job.count * FRAMES_PER_TOKEN,
            final=job.final and not catching_up,
            skip=skip * FRAMES_PER_TOKEN,
            blocks=[*r.voice.blocks, *r.blocks],
            tokens=tokens,
        )

    def _execute(
        self, shape: Shape, jobs: Sequence[_Job]
    ) -> list[tuple[_Job, NDArray[np.float32] | EngineError | None]]:
        """Run one batch and read it; None for a clause that only fed its caches. Who left meanwhile is not in it."""
        batch = self._batch_for(shape, jobs)
        plans = [self._plan(job, shape, batch.width) for job in jobs]
        host = torch.zeros(batch.packed.shape, dtype=torch.long, pin_memory=self._stream is not None)
        batch.fill(host.numpy(), plans)
        fresh: list[int] = []
        copies: list[tuple[int, int]] = []
        for job, plan in zip(jobs, plans, strict=True):
            if shape == "chunk" and plan.start == 0:
                fresh.append(plan.slot)
            elif shape == "chunk" and plan.start == job.rendering.voice.shared:
                copies.append((job.rendering.voice.slot, plan.slot))
        begun = time.monotonic()
        lent_s = 0.0
        with self._on_stream():
            cache = self.state.flow_cache
            if copies:
                sources, targets = (torch.tensor(part, device=self.device) for part in zip(*copies, strict=True))
                cache.copy(sources, targets)
            if fresh:
                cache.reset(torch.tensor(fresh, device=self.device))
            batch.packed.copy_(host, non_blocking=True)
            batch.run(0)
        for stage in range(1, len(batch.stages)):
            self._synchronize()
            before = time.monotonic()
            if not self._interlude(batch, jobs):
                return []
            lent_s += time.monotonic() - before
            with self._on_stream():
                batch.run(stage)
        with self._on_stream():
            out = batch.samples[: len(jobs)].to("cpu", non_blocking=True) if self._stream is None else None
            if out is None:
                out = torch.empty(len(jobs), batch.samples.shape[1], pin_memory=True)
                out.copy_(batch.samples[: len(jobs)], non_blocking=True)
        self._synchronize()
        samples = out.numpy()
        self.batches_run[shape, batch.rows] = self.batches_run.get((shape, batch.rows), 0) + 1
        self.on_batch(shape, len(jobs), time.monotonic() - begun - lent_s)
        results: list[tuple[_Job, NDArray[np.float32] | EngineError | None]] = []
        for line, job, plan in zip(samples, jobs, plans, strict=False):
            r = job.rendering
            if r not in self._renderings:
                continue
            if shape == "chunk" and plan.length == self.chunk:
                r.fed += self.chunk
            if not plan.frames:
                self.recomputed_chunks += 1
                results.append((job, None))
                continue
            begin, end = self.state.vocoder.valid(
                before=r.sounded * FRAMES_PER_TOKEN, frames=plan.frames, final=plan.final
            )
            with self._changed:
                self.silent -= not r.sounded
                r.sounded += job.count
            pcm = line[begin:end].copy()
            if np.isfinite(pcm).all():
                results.append((job, pcm))
            else:
                results.append((job, SynthesisFailed("the flow or the vocoder gave no number for this clause")))
        return results

    def _interlude(self, batch: WaveBatch, jobs: Sequence[_Job]) -> bool:
        """Between two stages of a long batch: free what was closed, and let those go whose sound is awaited.

        Returns:
            False: nobody waits for the batch any more.
        """
        with self._changed:
            if self._closing:
                return False
            gone = set(self._closed)
            self._sweep()
            others = [job for job in self._jobs if job not in jobs]
        for row, job in enumerate(jobs):
            if job.rendering in gone:
                with self._on_stream():
                    batch.drop(row)
        left = [job for job in jobs if job.rendering not in gone]
        now, policy = time.monotonic(), self._policy
        if left and min(job.rendering.playhead.slack_s(now) for job in left) > policy.patient_s:
            awaited = [c for job in others if (c := self._candidate(job, now)).slack_s <= policy.tight_s]
            if short := [c.owner for c in awaited if c.shape == "chunk"]:
                self._round(short)
        return bool(left)

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

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
            jobs, tasks, self._tasks = list(self._jobs), self._tasks, []
        for job in jobs:
            job.rendering.error = error
            self._settle(job, error)
        for task in tasks:
            task.fail(error)

    def _make_voice(
        self, key: object, tokens: NDArray[np.int32], mel: NDArray[np.float32], speaker: NDArray[np.float32]
    ) -> Voice:
        """Find a place for a prompt and compute its shared part."""
        # Without a prompt of that length the first chunk is a whole one.
        left = self.chunk - self.config.first_hop
        cut = (len(tokens) - left) % self.chunk if len(tokens) >= left else len(tokens)
        tokens, mel = tokens[cut:], mel[cut * FRAMES_PER_TOKEN :]
        shared = max(len(tokens) - LOOK_AHEAD_TOKENS, 0) // self.chunk * self.chunk
        if shared >= (self.config.max_chunks - 1) * self.chunk:
            raise InvalidRequest(
                f"the voice prompt has {len(tokens)} tokens; "
                f"the engine keeps {self.config.max_chunks * self.chunk} of prompt and clause"
            )
        while not self._voice_slots or len(self._free_blocks) < shared // self.chunk:
            with self._changed:
                idle = [(voice.used, k) for k, voice in self._voices.items() if not voice.clauses]
                if not idle:
                    raise Exhausted("every place for a voice prompt is in use", retry_after_s=1.0)
                gone = self._voices.pop(min(idle, key=lambda pair: pair[0])[1])
                gone.gone = True
            self._release(gone)
        slot = self._voice_slots.pop()
        voice = Voice(
            index=slot - 1 - self.config.max_clauses,
            prompt_tokens=[int(t) for t in tokens],
            slot=slot,
            blocks=[],
            shared=shared,
            used=time.monotonic(),
        )
        try:
            self._compute_prompt(voice, mel, speaker)
        except BaseException:
            self._release(voice)
            raise
        self._voices[key] = voice
        return voice

    def _release(self, voice: Voice) -> None:
        self._free_blocks += voice.blocks
        self._voice_slots.append(voice.slot)

    def _compute_prompt(self, voice: Voice, mel: NDArray[np.float32], speaker: NDArray[np.float32]) -> None:
        """Fill the voice's slot and blocks, chunk by chunk."""
        state, chunk, device, slot = self.state, self.chunk, self.device, voice.slot
        vector = state.flow.speaker(torch.from_numpy(np.array(speaker, np.float32)).to(device)[None])
        state.speakers[voice.index] = vector[0]
        frames = torch.from_numpy(np.array(mel, np.float32)).to(device)
        state.prompt_mels[voice.index, : len(frames)] = frames
        state.prompt_frames[voice.index] = len(frames)
        state.flow_cache.reset(torch.tensor([slot], device=device))
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
            state.flow.advance(part, valid, cond, vector, rows, state.flow_cache)
        self._synchronize()

    # -- graphs ----------------------------------------------------------------------------------------------------

    def _on_stream(self) -> Any:
        return torch.cuda.stream(self._stream)

    def _batch_for(self, shape: Shape, jobs: Sequence[_Job]) -> WaveBatch:
        """The smallest prepared batch that holds these jobs, or one of their own."""
        config = self.config
        sizes = config.whole_rows if shape == "whole" else config.chunk_rows
        chunks = 0
        if shape == "whole":
            longest = max(len(j.rendering.voice.prompt_tokens) + j.rendering.sounded + j.count for j in jobs)
            chunks = -(-longest // self.chunk)
            if self._stream is not None:
                chunks = min((c for c in config.whole_chunks if c >= chunks), default=chunks)
        return self._batch(shape, min((s for s in sizes if s >= len(jobs)), default=len(jobs)), chunks)

    def _batch(self, shape: Shape, rows: int, chunks: int = 0) -> WaveBatch:
        key = (shape, rows, chunks)
        if key not in self._batches:
            self._batches[key] = WaveBatch(self.state, shape, rows, chunks=chunks)
        return self._batches[key]

    def _graphs(self) -> list[tuple[Shape, int, int]]:
        """Shape, rows and chunks of every graph, the largest of a shape first."""
        config = self.config
        graphs: list[tuple[Shape, int, int]] = [("chunk", rows, 0) for rows in sorted(config.chunk_rows, reverse=True)]
        if config.finalize == "upstream":
            graphs += [
                ("whole", rows, chunks)
                for chunks in sorted(config.whole_chunks, reverse=True)
                for rows in sorted(config.whole_rows, reverse=True)
            ]
        return graphs

    @torch.inference_mode()
    def _warm_up(self) -> None:
        if self._stream is None:
            return
        # Graphs of a pool use the same memory, so what runs between the stages of another must have a pool of its own.
        pools: dict[bool, Any] = {}
        for shape, rows, chunks in self._graphs():
            batch = self._batch(shape, rows, chunks)
            with self._on_stream():
                for _ in range(2):
                    batch.compute()
            torch.cuda.synchronize()
            staged, graphs = len(batch.stages) > 1, []
            for stage in batch.stages:
                graphs.append(graph := torch.cuda.CUDAGraph())
                pool = pools.get(staged)
                with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                    stage()
                pools.setdefault(staged, graph.pool())
            batch.graphs = graphs
            if not chunks:
                self.on_calibrated(shape, rows, self._replay_s(batch))
        self._stream.synchronize()

    def _replay_s(self, batch: WaveBatch) -> float:
        batch.run(0)
        torch.cuda.synchronize()
        begun = time.monotonic()
        batch.run(0)
        torch.cuda.synchronize()
        return time.monotonic() - begun


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: EngineError) -> None:
    if not future.done():
        future.set_exception(error)
