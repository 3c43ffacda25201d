"""One batch of token-to-wave: static buffers of one shape and size, and the CUDA graphs over them.

There are two shapes. ``chunk`` feeds one chunk per row on top of the caches. ``whole`` computes voice prompt and clause
at once with full attention, as upstream does for a last chunk. It takes several times as long, so it runs in stages,
and other batches may run between its stages. Chunks that no one awaits run in stages too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS, MEL_CHANNELS
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowPass, FlowRows, WholePass, place_prompt
from tts_engine.cosyvoice.models.hift import Hift, SpliceCache
from tts_engine.cosyvoice.models.hift_causal import CausalHift, VocoderCache
from tts_engine.cosyvoice.token2wav.scheduler import BatchRow, Shape

Vocoder = Hift | CausalHift


@dataclass(slots=True, kw_only=True)
class WaveState:
    """The networks, caches and prompts on the device, which all batches of a runner share."""

    flow: Flow
    vocoder: Vocoder
    device: torch.device
    max_chunks: int
    flow_cache: FlowCache
    vocoder_cache: SpliceCache | VocoderCache
    prompt_mels: Tensor
    """Shape ``(voices, 50 max_chunks, 80)``."""
    prompt_frames: Tensor
    """Shape ``(voices,)``, int64."""
    speakers: Tensor
    """Shape ``(voices, 80)``."""


_HEADER = 9
_STEPS_PER_STAGE: dict[Shape, int] = {"chunk": 2, "whole": 1}
"""Euler steps of a stage, so that it takes 5 ms or less on an H200: two for 16 rows of chunks, one for two of whole
clauses of 10 s."""


class WaveBatch:
    """One batch. ``fill`` a host copy of ``packed``, copy it to ``packed``, ``run`` all ``stages``, then read
    ``samples``.
    """

    def __init__(self, state: WaveState, shape: Shape, rows: int, *, length: int, staged: bool = False) -> None:
        """
        Args:
            length: the number of tokens that a row can be fed, without look-ahead; with the prompt's for ``whole``.
            staged: does a batch of chunks run in stages? ``whole`` always does.
        """
        self.shape, self.rows, self.length = shape, rows, length
        self.width = length + LOOK_AHEAD_TOKENS
        # Upstream's last chunk has up to two tokens more: those left when the look-ahead of a chunk does not come.
        sounding = state.flow.solver.chunk_tokens + LOOK_AHEAD_TOKENS - 1 if shape == "whole" else length
        self.sounding_frames = sounding * FRAMES_PER_TOKEN
        self._blocks = 0 if shape == "whole" else state.max_chunks
        self.packed = torch.zeros(rows, _HEADER + self._blocks + self.width, dtype=torch.long, device=state.device)
        self.samples = torch.empty(rows, 0, device=state.device)
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._state = state
        self.stages: Sequence[Callable[[], None]] = [self._advance]
        if staged or shape == "whole":
            starts = range(0, state.flow.solver.steps, _STEPS_PER_STAGE[shape])
            self.stages = [partial(self._advance_from, start) for start in starts]
        # Recorded in the graph of each stage, so that the host knows it before the stage has ended. In the last one the
        # vocoder is left then, a twelfth of the batch.
        self._nearly_done: Any = None
        if state.device.type == "cuda":
            self._nearly_done = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]
        self._pass: FlowPass | None = None
        """The pass under way. It is kept between stages, so that its memory is not used for anything else."""

    def fill(self, lines: Any, rows: Sequence[BatchRow]) -> None:
        """Write rows to a zeroed host array of ``packed``'s shape."""
        for line, row in zip(lines, rows, strict=False):
            line[:_HEADER] = (
                row.slot,
                row.start,
                row.length,
                row.valid,
                row.voice,
                row.frames,
                row.final,
                row.skip,
                row.begins,
            )
            line[_HEADER : _HEADER + len(row.blocks)] = row.blocks
            line[_HEADER + self._blocks : _HEADER + self._blocks + len(row.tokens)] = row.tokens

    def drop(self, row: int) -> None:
        """Turn a row into padding between two stages, so that it no longer touches the clause's slot and blocks."""
        self.packed[row, : _HEADER + self._blocks] = 0

    def run(self, stage: int) -> None:
        """Run one of ``stages``, by its graph if there is one."""
        if self.graphs:
            self.graphs[stage].replay()
        else:
            self.stages[stage]()

    def await_nearly_done(self) -> None:
        """Wait until the stage that was run last has nearly ended, so that what follows can be given to the device
        while it works."""
        if self._nearly_done is not None:
            self._nearly_done.synchronize()

    def _say_nearly_done(self) -> None:
        if self._nearly_done is not None:
            self._nearly_done.record()

    def compute(self) -> None:
        """Compute samples ``(rows, n)`` from the packed inputs, without graphs."""
        for stage in self.stages:
            stage()

    def _header(self) -> Sequence[Tensor]:
        return self.packed[:, :_HEADER].T.contiguous().unbind(0)

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens, number of valid tokens, prompt mel at the fed frames, and speakers."""
        state = self._state
        _, start, _, valid, voices, *_ = self._header()
        frames = (self.width - LOOK_AHEAD_TOKENS) * FRAMES_PER_TOKEN
        mels, ends = (part.index_select(0, voices) for part in (state.prompt_mels, state.prompt_frames))
        cond = place_prompt(mels, ends, start, frames)
        tokens = self.packed[:, _HEADER + self._blocks :].contiguous()
        return tokens, valid, cond, state.speakers.index_select(0, voices)

    def _rows(self) -> FlowRows:
        slots, start, length, *_ = self._header()
        blocks = self.packed[:, _HEADER : _HEADER + self._blocks].contiguous()
        return FlowRows(slots=slots, blocks=blocks, start=start, length=length)

    def _advance(self) -> None:
        state = self._state
        self._sound(state.flow.advance(*self._inputs(), self._rows(), state.flow_cache))

    def _advance_from(self, first_step: int) -> None:
        """Run the stage that begins with this Euler step."""
        flow, cache = self._state.flow, self._state.flow_cache
        rows = self._rows()  # anew in each stage, because a clause may have left
        if first_step == 0:
            if self.shape == "whole":
                self._pass = flow.begin_whole(*self._inputs(), rows.length)
            else:
                self._pass = flow.begin_chunk(*self._inputs(), rows, cache)
        assert self._pass is not None
        end = min(first_step + _STEPS_PER_STAGE[self.shape], flow.solver.steps)
        steps = range(first_step, end)
        told = self._say_nearly_done if end < flow.solver.steps else lambda: None
        if isinstance(self._pass, WholePass):
            for k in steps:
                flow.step_whole(self._pass, k, told)
        else:
            flow.steps_of_chunk(self._pass, steps, rows, cache, told)
        if end == flow.solver.steps:
            self._sound(self._pass.x)

    def _sound(self, mel: Tensor) -> None:
        self._say_nearly_done()
        state = self._state
        slots, _, _, _, _, frames, final, skip, begins = self._header()
        # For rows of padding and clauses that are computed again, the vocoder gets slot 0.
        streams = torch.where(frames > 0, slots, 0)
        state.vocoder_cache.reset(torch.where(begins > 0, streams, 0))
        index = skip[:, None] + torch.arange(self.sounding_frames, device=state.device)
        index = index.clamp(max=mel.shape[1] - 1)[:, :, None].expand(-1, -1, MEL_CHANNELS)
        self.samples = state.vocoder(mel.gather(1, index), frames, streams, state.vocoder_cache, final.bool())
