"""The device side of token-to-wave: networks, caches, batches and their CUDA graphs. It takes rows and returns samples.
It knows tensors, but not which caller waits for what.

A batch is a CUDA graph of flow and vocoder. A long batch is several graphs (stages), and other batches may run between
them. On a CPU the same code runs without graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS, MEL_CHANNELS
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows, place_prompt
from tts_engine.cosyvoice.token2wav.batch import Vocoder, WaveBatch, WaveState
from tts_engine.cosyvoice.token2wav.rendering import Voice
from tts_engine.cosyvoice.token2wav.scheduler import CHUNK_ROWS, WHOLE_CHUNKS, BatchRow, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Sizes of the caches and graphs that are not in ``CosyVoiceConfig``."""

    blocks: int = 640
    """Number of cache blocks (one chunk each), including prompts. A block takes 90 MB for CosyVoice3 in bf16. While few
    are free, new turns wait."""
    max_chunks: int = 64
    """Most chunks (seconds) of a clause with its prompt."""
    max_voices: int = 64
    """Most voice prompts on the device. The least recently used one is evicted."""
    dtype: torch.dtype = torch.float32
    """dtype of the flow's caches; bf16 on a GPU."""
    chunk_rows: Sequence[int] = CHUNK_ROWS
    """Batch sizes of the graphs."""
    staged_rows: Sequence[int] = (1, 4, 8, 16)
    """Batch sizes of the graphs in stages, for chunks that no one awaits."""
    whole_rows: Sequence[int] = (1, 2, 3, 4)
    whole_chunks: Sequence[int] = (6, 7, 8, 9, 10, 12, 16, 24)
    """Lengths of the graphs for last chunks with full attention, in chunks of prompt and clause. A longer clause runs
    without a graph. With more than two rows, only the sizes that the scheduler makes (``WHOLE_CHUNKS``) have graphs."""


class Run:
    """A batch in progress. Call ``go_on`` for each further stage, then ``read``, then ``result``."""

    def __init__(self, runner: ModelRunner, batch: WaveBatch, rows: int) -> None:
        self.batch, self._runner, self._rows = batch, runner, rows
        self._out: Tensor | None = None
        self._done: Any = torch.cuda.Event() if runner.works_ahead else None  # type: ignore[no-untyped-call]
        self._times: list[tuple[Any, Any]] = []
        """Start and end of each stage: CUDA events, or monotonic seconds on a CPU."""

    @property
    def stages(self) -> int:
        return len(self.batch.stages)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the device time of the work launched in the ``with`` block to the batch's time."""
        with self._runner.on_stream():
            begun = self._now()
            yield
            self._times.append((begun, self._now()))

    def _now(self) -> Any:
        if not self._runner.works_ahead:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def await_nearly_done(self) -> None:
        """Wait until the last launched stage has nearly ended. Work that is launched then follows without a pause."""
        self.batch.await_nearly_done()

    @torch.inference_mode()
    def go_on(self, stage: int) -> None:
        """Launch the next stage."""
        with self.timed():
            self.batch.run(stage)

    @torch.inference_mode()
    def drop(self, row: int) -> None:
        """Turn a row whose clause was closed into padding, between two stages."""
        with self._runner.on_stream():
            self.batch.drop(row)

    @torch.inference_mode()
    def read(self) -> None:
        """Launch the copy of the samples to the host, after the last stage."""
        samples = self.batch.samples[: self._rows]
        with self._runner.on_stream():
            if self._done is None:
                self._out = samples.clone()
                return
            self._out = torch.empty(samples.shape, pin_memory=True)
            self._out.copy_(samples, non_blocking=True)
            self._done.record()

    def result(self) -> tuple[NDArray[np.float32], float]:
        """Wait for the end of the batch.

        Returns:
            Samples at 24 kHz, one line per row (``vocoder.valid`` says which are heard), and the device time of the
            batch in seconds, without other work between its stages.
        """
        assert self._out is not None, "call read first"
        if self._done is not None:
            self._done.synchronize()
        seconds = sum(a.elapsed_time(b) / 1000 if self._done is not None else b - a for a, b in self._times)
        self._runner.count(self.batch)
        return self._out.numpy(), seconds


class ModelRunner:
    """Runs batches and computes prompts on one device. After ``warm_up``, only one thread may use it."""

    def __init__(
        self,
        flow: Flow,
        vocoder: Vocoder,
        *,
        device: torch.device,
        settings: CosyVoiceConfig,
        config: RunnerConfig,
    ) -> None:
        """``flow`` and ``vocoder`` must be prepared and on the device."""
        self.device, self.config, self._settings = device, config, settings
        self.chunk = flow.solver.chunk_tokens
        slots = 1 + settings.max_clauses + config.max_voices
        # A first chunk also has the last ``LOOK_AHEAD_TOKENS`` of the prompt. The longest one is a whole chunk.
        short = [hop + LOOK_AHEAD_TOKENS for hop in settings.first_hops]
        self._lengths = [*(length for length in short if length < self.chunk), self.chunk]
        frames = config.max_chunks * self.chunk * FRAMES_PER_TOKEN
        self.state = WaveState(
            flow=flow,
            vocoder=vocoder,
            device=device,
            max_chunks=config.max_chunks,
            flow_cache=FlowCache(flow, slots=slots, blocks=1 + config.blocks, device=device, dtype=config.dtype),
            vocoder_cache=vocoder.new_cache(slots=1 + settings.max_clauses, device=device),
            prompt_mels=torch.zeros(config.max_voices, frames, MEL_CHANNELS, device=device),
            prompt_frames=torch.zeros(config.max_voices, dtype=torch.long, device=device),
            speakers=torch.zeros(config.max_voices, MEL_CHANNELS, device=device),
        )
        self.batches: dict[tuple[Shape, int, int], WaveBatch] = {}
        """Batches by shape, rows, and tokens per row."""
        self.staged_batches: dict[int, WaveBatch] = {}
        """Batches of chunks that run in stages, by rows. They have their own buffers, because other batches may run
        between their stages."""
        self.batches_run: dict[tuple[Shape, int], int] = {}
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def works_ahead(self) -> bool:
        """True if the device runs asynchronously to the host (a GPU)."""
        return self._stream is not None

    # -- prompts

    @torch.inference_mode()
    def compute_prompt(self, voice: Voice, mel: NDArray[np.float32], speaker: NDArray[np.float32]) -> None:
        """Fill a voice's slot and blocks, chunk by chunk.

        Args:
            mel: mel of the voice's ``prompt_tokens``, shape ``(2 n, 80)``; speaker: ``(192,)``.
        """
        with self.on_stream():
            state, chunk, device, slot = self.state, self.chunk, self.device, voice.slot
            vector = state.flow.speaker(torch.from_numpy(np.array(speaker, np.float32)).to(device)[None])
            state.speakers[voice.index] = vector[0]
            frames = torch.from_numpy(np.array(mel, np.float32)).to(device)
            state.prompt_mels[voice.index, : len(frames)] = frames
            state.prompt_frames[voice.index] = len(frames)
            state.flow_cache.reset(torch.tensor([slot], device=device))
            ids = torch.tensor([voice.prompt_tokens], dtype=torch.long, device=device)
            for start in range(0, voice.shared, chunk):
                filled = voice.blocks[: start // chunk + 1]
                blocks = torch.zeros(1, self.config.max_chunks, dtype=torch.long, device=device)
                blocks[0, : len(filled)] = torch.tensor(filled, device=device)
                at = torch.tensor([start], device=device)
                length = torch.tensor([chunk], device=device)
                rows = FlowRows(slots=torch.tensor([slot], device=device), blocks=blocks, start=at, length=length)
                n = chunk * FRAMES_PER_TOKEN
                cond = place_prompt(frames[None], torch.tensor([len(frames)], device=device), at, n)
                part = ids[:, start : start + chunk + LOOK_AHEAD_TOKENS]
                valid = torch.tensor([part.shape[1]], device=device)
                state.flow.advance(part, valid, cond, vector, rows, state.flow_cache)
            self.synchronize()

    # -- batches

    @torch.inference_mode()
    def begin(self, shape: Shape, rows: Sequence[BatchRow], *, staged: bool) -> Run:
        """Launch a batch, or its first stage, after all work launched so far.

        Args:
            staged: run a ``chunk`` batch in stages. ``whole`` batches always do.
        """
        with self.on_stream():  # the zeroing of a new batch's buffers must precede the rows
            batch = self._batch_for(shape, rows, staged=staged)
        host = self._host_zeros(batch.packed.shape)
        batch.fill(host.numpy(), rows)
        fresh = [row.slot for row in rows if shape == "chunk" and row.start == 0]
        copies = [(row.source, row.slot) for row in rows if row.source]
        run = Run(self, batch, len(rows))
        with run.timed():
            cache = self.state.flow_cache
            if copies:
                sources, targets = (self._to_device(part) for part in zip(*copies, strict=True))
                cache.copy(sources, targets)
            if fresh:
                cache.reset(self._to_device(fresh))
            batch.packed.copy_(host, non_blocking=True)
            batch.run(0)
        return run

    def _host_zeros(self, shape: Sequence[int]) -> Tensor:
        """Return int64 zeros in host memory (pinned on a GPU, for asynchronous copies)."""
        return torch.zeros(shape, dtype=torch.long, pin_memory=self.works_ahead)

    def _to_device(self, numbers: Sequence[int]) -> Tensor:
        """Copy numbers to the device asynchronously. ``torch.tensor`` would wait for all earlier work."""
        host = self._host_zeros((len(numbers),))
        host.numpy()[:] = numbers
        return host.to(self.device, non_blocking=True)

    def on_stream(self) -> Any:
        return torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """Wait for all work launched here."""
        if self._stream is not None:
            self._stream.synchronize()

    def count(self, batch: WaveBatch) -> None:
        """Count a finished batch."""
        key = batch.shape, batch.rows
        self.batches_run[key] = self.batches_run.get(key, 0) + 1

    def _batch_for(self, shape: Shape, rows: Sequence[BatchRow], *, staged: bool) -> WaveBatch:
        """Return the smallest batch that holds these rows."""
        config, longest = self.config, max(row.length for row in rows)
        if shape == "chunk" and staged:
            return self._staged(min((s for s in config.staged_rows if s >= len(rows)), default=len(rows)))
        if shape == "chunk":
            sizes, length = config.chunk_rows, min(n for n in self._lengths if n >= longest)
        else:
            sizes, length = config.whole_rows, -(-longest // self.chunk) * self.chunk
            if self._stream is not None:
                length = min((c * self.chunk for c in config.whole_chunks if c * self.chunk >= length), default=length)
        return self._batch(shape, min((s for s in sizes if s >= len(rows)), default=len(rows)), length)

    def _batch(self, shape: Shape, rows: int, length: int) -> WaveBatch:
        key = (shape, rows, length)
        if key not in self.batches:
            self.batches[key] = WaveBatch(self.state, shape, rows, length=length)
        return self.batches[key]

    def _staged(self, rows: int) -> WaveBatch:
        if rows not in self.staged_batches:
            self.staged_batches[rows] = WaveBatch(self.state, "chunk", rows, length=self.chunk, staged=True)
        return self.staged_batches[rows]

    # -- graphs

    def _graphs(self) -> list[tuple[Shape, int, int]]:
        """Return shape, rows and tokens per row of every graph, the largest of a shape first."""
        config = self.config
        graphs: list[tuple[Shape, int, int]] = [
            ("chunk", rows, length)
            for length in reversed(self._lengths)
            for rows in sorted(config.chunk_rows, reverse=True)
        ]
        if self._settings.finalize == "upstream":
            graphs += [
                ("whole", rows, chunks * self.chunk)
                for chunks in sorted(config.whole_chunks, reverse=True)
                for rows in sorted(config.whole_rows, reverse=True)
                if rows <= 2 or rows * chunks <= WHOLE_CHUNKS
            ]
        return graphs

    @torch.inference_mode()
    def warm_up(self, calibrated: Callable[[int, int, float], None]) -> None:
        """Capture the graphs. Does nothing on a CPU.

        Args:
            calibrated: called with tokens per row, rows, and seconds of such a batch on the idle device, the longest
                rows first.
        """
        if self._stream is None:
            return
        # Graphs of a pool share memory, so graphs that run between the stages of others need another pool.
        pools: dict[bool, Any] = {}
        batches = [self._batch(*key) for key in self._graphs()]
        batches += [self._staged(rows) for rows in sorted(self.config.staged_rows, reverse=True)]
        for batch in batches:
            with self.on_stream():
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
            if not staged:
                calibrated(batch.length, batch.rows, self._replay_s(batch))
        self._stream.synchronize()

    def _replay_s(self, batch: WaveBatch) -> float:
        batch.run(0)
        torch.cuda.synchronize()
        begun = time.monotonic()
        batch.run(0)
        torch.cuda.synchronize()
        return time.monotonic() - begun
