"""One batch of token to wave: static buffers of one shape and size, and the CUDA graphs over them.

Two shapes: ``chunk`` feeds one chunk on top of the caches; ``whole`` computes voice prompt and clause at once under
full attention, as upstream makes a last chunk. That takes several times as long, so it runs in stages, between which
others may go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS, MEL_CHANNELS
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows, WholePass, place_prompt
from tts_engine.cosyvoice.models.hift import Hift, SpliceCache
from tts_engine.cosyvoice.models.hift_causal import CausalHift, VocoderCache
from tts_engine.cosyvoice.token2wav.scheduler import Row, Shape

Vocoder = Hift | CausalHift


@dataclass(slots=True, kw_only=True)
class WaveState:
    """What all batches of a runner share: networks, caches, prompts on the device."""

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
_STEPS_PER_STAGE = 2


class WaveBatch:
    """``fill`` rows into a host copy of ``packed``, copy it there, ``run`` all ``stages``; then ``samples``."""

    def __init__(self, state: WaveState, shape: Shape, rows: int, *, chunks: int = 0) -> None:
        """``chunks``: of prompt and clause together, for ``whole``."""
        chunk = state.flow.solver.chunk_tokens
        self.shape, self.rows = shape, rows
        self.width = chunk * (chunks if shape == "whole" else 1) + LOOK_AHEAD_TOKENS
        # Upstream's last chunk has up to two tokens more: what is left when a chunk's look-ahead does not come.
        tokens = chunk + LOOK_AHEAD_TOKENS - 1 if shape == "whole" else chunk
        self.sounding_frames = tokens * FRAMES_PER_TOKEN
        self._blocks = 0 if shape == "whole" else state.max_chunks
        self.packed = torch.zeros(rows, _HEADER + self._blocks + self.width, dtype=torch.long, device=state.device)
        self.samples = torch.empty(rows, 0, device=state.device)
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._state = state
        self.stages: Sequence[Callable[[], None]] = [self._advance]
        if shape == "whole":
            starts = range(0, state.flow.solver.steps, _STEPS_PER_STAGE)
            self.stages = [partial(self._advance_whole, start) for start in starts]
        self._whole: WholePass | None = None
        """Kept from stage to stage, so that none of them takes its memory for anything else."""

    def fill(self, lines: Any, rows: Sequence[Row]) -> None:
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
        """Make padding of a row, between two stages: it touches the clause's slot no more."""
        self.packed[row, :_HEADER] = 0

    def run(self, stage: int) -> None:
        """One of ``stages``, from its graph if there is one."""
        if self.graphs:
            self.graphs[stage].replay()
        else:
            self.stages[stage]()

    def compute(self) -> None:
        """Packed inputs to samples ``(rows, n)``, without graphs."""
        for stage in self.stages:
            stage()

    def _header(self) -> Sequence[Tensor]:
        return self.packed[:, :_HEADER].T.contiguous().unbind(0)

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, how many are valid, prompt mel at the fed frames, speakers."""
        state = self._state
        _, start, _, valid, voices, *_ = self._header()
        frames = (self.width - LOOK_AHEAD_TOKENS) * FRAMES_PER_TOKEN
        mels, ends = (part.index_select(0, voices) for part in (state.prompt_mels, state.prompt_frames))
        cond = place_prompt(mels, ends, start, frames)
        tokens = self.packed[:, _HEADER + self._blocks :].contiguous()
        return tokens, valid, cond, state.speakers.index_select(0, voices)

    def _advance(self) -> None:
        state = self._state
        slots, start, length, *_ = self._header()
        blocks = self.packed[:, _HEADER : _HEADER + self._blocks].contiguous()
        rows = FlowRows(slots=slots, blocks=blocks, start=start, length=length)
        mel = state.flow.advance(*self._inputs(), rows, state.flow_cache)
        self._sound(mel)

    def _advance_whole(self, first_step: int) -> None:
        flow = self._state.flow
        if first_step == 0:
            _, _, length, *_ = self._header()
            self._whole = flow.begin_whole(*self._inputs(), length)
        assert self._whole is not None
        end = min(first_step + _STEPS_PER_STAGE, flow.solver.steps)
        for k in range(first_step, end):
            flow.step_whole(self._whole, k)
        if end == flow.solver.steps:
            self._sound(self._whole.x)

    def _sound(self, mel: Tensor) -> None:
        state = self._state
        slots, _, _, _, _, frames, final, skip, begins = self._header()
        # Rows of padding and clauses computed again pass slot 0 to the vocoder.
        streams = torch.where(frames > 0, slots, 0)
        state.vocoder_cache.reset(torch.where(begins > 0, streams, 0))
        index = skip[:, None] + torch.arange(self.sounding_frames, device=state.device)
        index = index.clamp(max=mel.shape[1] - 1)[:, :, None].expand(-1, -1, MEL_CHANNELS)
        self.samples = state.vocoder(mel.gather(1, index), frames, streams, state.vocoder_cache, final.bool())
