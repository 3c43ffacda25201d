"""The flow, which turns speech tokens into mel frames: the base of both versions, for one pass and for chunks with
caches.

``FlowV2`` and ``FlowV3`` differ in ``condition`` (from tokens to ``mu``) and in the estimator. The state of a sequence
is a slot (convolution tails) and a list of blocks. A block has the keys and values of one chunk of 25 tokens: those of
the encoder, and those of the estimator for each Euler step and guidance branch. A block is never rewritten once its
chunk is complete, so sequences may share the blocks of a voice prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.cfm import Estimator, StepTables, schedule, start_noise
from tts_engine.cosyvoice.models.config import (
    FRAMES_PER_TOKEN,
    LOOK_AHEAD_TOKENS,
    MEL_CHANNELS,
    SPEAKER_CHANNELS,
    SolverConfig,
)
from tts_engine.cosyvoice.models.streaming import ConvTails, PagedKeys, Span

BRANCHES = 2
"""Branches of classifier-free guidance: conditioned and unconditioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRows:
    """The rows of a batch. All tensors are int64 on the flow's device; rows of padding are all zeros."""

    slots: Tensor
    """Slot of each row, shape ``(rows,)``."""
    blocks: Tensor
    """Blocks of each row from the start of the prompt, shape ``(rows, blocks)``; 0 where it has none yet."""
    start: Tensor
    """Number of tokens fed before, a multiple of the chunk; shape ``(rows,)``."""
    length: Tensor
    """Number of tokens fed now, without look-ahead; shape ``(rows,)``. Whole chunks, except at an utterance's end."""


class FlowCache:
    """The state of many sequences. The caller allocates slots and blocks; number 0 of each is scratch."""

    def __init__(
        self,
        flow: Flow,
        *,
        slots: int,
        blocks: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._per_slot = flow.solver.steps * BRANCHES
        chunk = flow.solver.chunk_tokens
        estimator = flow.estimator
        self.token_keys, self.frame_keys = (
            PagedKeys(
                layers=layers,
                pages=blocks,
                page_frames=chunk * rate,
                channels=flow.encoder_channels,
                device=device,
                dtype=dtype,
            )
            for layers, rate in zip(flow.encoder_layers, (1, FRAMES_PER_TOKEN), strict=True)
        )
        self.condition_tails = ConvTails(flow.condition_tail_shapes, slots=slots, device=device, dtype=dtype)
        self.keys = PagedKeys(
            layers=estimator.attention_layers,
            pages=blocks * self._per_slot,
            page_frames=chunk * FRAMES_PER_TOKEN,
            channels=estimator.key_channels,
            device=device,
            dtype=dtype,
        )
        self.tails = ConvTails(estimator.tail_shapes, slots=slots * self._per_slot, device=device, dtype=dtype)

    def condition_span(self, rows: FlowRows) -> Span:
        """Return the span at token rate for ``Flow.condition``."""
        return Span(
            start=rows.start,
            length=rows.length,
            chunk=self.token_keys.page_frames,
            keys=self.token_keys,
            tails=self.condition_tails,
            pages=rows.blocks,
            slots=rows.slots,
        )

    def estimator_span(self, rows: FlowRows, step: Tensor) -> Span:
        """Return the span at frame rate, ``2 * rows`` rows, for one call of the estimator.

        ``step``, shape ``(rows,)``, may differ by row.
        """
        branch = torch.arange(BRANCHES, device=step.device)
        offset = (step[None] * BRANCHES + branch[:, None]).flatten()  # conditioned rows first
        blocks = rows.blocks.repeat(BRANCHES, 1)
        # Block 0 has pages 0 to per_slot - 1, so all of these are scratch too.
        return Span(
            start=rows.start.repeat(BRANCHES) * FRAMES_PER_TOKEN,
            length=rows.length.repeat(BRANCHES) * FRAMES_PER_TOKEN,
            chunk=self.keys.page_frames,
            keys=self.keys,
            tails=self.tails,
            pages=blocks * self._per_slot + offset[:, None],
            slots=rows.slots.repeat(BRANCHES) * self._per_slot + offset,
        )

    def estimator_spans(self, rows: FlowRows, steps: range) -> Iterator[Span]:
        """Yield the spans of these steps, with all rows at the same step."""
        first = self.estimator_span(rows, torch.full_like(rows.start, steps.start))
        for k in steps:
            later = (k - steps.start) * BRANCHES
            assert first.pages is not None
            assert first.slots is not None
            yield replace(first, pages=first.pages + later, slots=first.slots + later) if later else first

    def _all_steps(self, slots: Tensor) -> Tensor:
        return (slots[:, None] * self._per_slot + torch.arange(self._per_slot, device=slots.device)).flatten()

    def reset(self, slots: Tensor) -> None:
        """Start sequences in these slots."""
        self.condition_tails.reset(slots)
        self.tails.reset(self._all_steps(slots))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy the slots ``source`` to ``target``, for example at the end of a voice prompt. Blocks are shared by
        listing them."""
        self.condition_tails.copy(source, target)
        self.tails.copy(self._all_steps(source), self._all_steps(target))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPass:
    """A pass between two Euler steps."""

    x: Tensor
    """The state, shape ``(rows, n, 80)``, fp32. Each step changes it in place; after the last step it is the mel."""
    inputs: Any
    """The result of ``Estimator.begin``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePass(FlowPass):
    """A pass over whole sequences."""

    span: Span


class EstimatorHolder(nn.Module):
    """Gives the estimator its published name, ``decoder.estimator``."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator


class Flow(nn.Module):
    """Base of the two flows. Weights have the names of the published checkpoints."""

    solver: SolverConfig
    decoder: EstimatorHolder
    encoder_layers: tuple[int, int] = (0, 0)
    """Number of the encoder's attention layers at token rate and at frame rate."""
    encoder_channels = 0
    condition_tail_shapes: Sequence[tuple[int, int]] = ()
    noise: Tensor
    """State at time 0, shape ``(15000, 80)``."""
    times: Tensor
    widths: Tensor
    modulations: Tensor
    """Shape ``(steps, ...)``: ``Estimator.modulations`` of the time of each step."""

    def __init__(self, solver: SolverConfig, *, vocab_size: int, token_channels: int) -> None:
        super().__init__()
        self.solver = solver
        self.input_embedding = nn.Embedding(vocab_size, token_channels)
        self.spk_embed_affine_layer = nn.Linear(SPEAKER_CHANNELS, MEL_CHANNELS)
        with torch.device("cpu"):  # real also where the parameters are made without values
            times, widths = schedule(solver.steps)
            self.register_buffer("noise", start_noise(), persistent=False)
            self.register_buffer("times", times, persistent=False)
            self.register_buffer("widths", widths, persistent=False)
            self.register_buffer("modulations", torch.empty(0), persistent=False)

    @property
    def estimator(self) -> Estimator:
        return self.decoder.estimator

    def prepare(self) -> None:
        """Compute the tables that depend only on weights. Call this after loading, with fp32 weights."""
        self.modulations = self.estimator.modulations(self.times)

    def speaker(self, embedding: Tensor) -> Tensor:
        """Turn speaker vectors ``(rows, 192)`` of the CAM++ network into ``(rows, 80)``."""
        out: Tensor = self.spk_embed_affine_layer(F.normalize(embedding, dim=1))
        return out

    def condition(self, tokens: Tensor, valid: Tensor, span: Span, frame_keys: PagedKeys | None = None) -> Tensor:
        """Turn speech tokens into ``mu``.

        Args:
            tokens: shape ``(rows, n + 3)``, int64: ``n`` tokens to render, and three of look-ahead.
            valid: shape ``(rows,)``, int64: number of real tokens. After them (at the end of the utterance), the
                look-ahead is zeros.
            span: the span at token rate; its ``length`` counts the tokens to render.
            frame_keys: the cache's keys at frame rate that belong to the keys of ``span``.

        Returns:
            shape ``(rows, 2 n, 80)``.
        """
        raise NotImplementedError

    def step(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, step: Tensor, span: Span) -> Tensor:
        """Take one Euler step; rows may be at different steps. Return the new state ``(rows, n, 80)``, fp32.

        Args:
            x: state, fp32. mu, cond: ``(rows, n, 80)``. speaker: ``(rows, 80)``.
            step: shape ``(rows,)``, int64, 0 to ``steps - 1``.
            span: the span of ``2 * rows`` rows at frame rate.
        """
        x = x.clone()
        self._step(x, self.estimator.begin(x, mu, speaker, cond), step, span)
        return x

    def _step(
        self, x: Tensor, inputs: Any, step: Tensor, span: Span, nearly_done: Callable[[], None] = lambda: None
    ) -> None:
        tables = StepTables(modulations=self.modulations, widths=self.widths, cfg_rate=self.solver.cfg_rate)
        self.estimator.euler_step(x, inputs, step, tables, span, nearly_done=nearly_done)

    @torch.inference_mode()
    def render(
        self,
        tokens: Tensor,
        length: Tensor,
        prompt_mel: Tensor,
        prompt_frames: Tensor,
        embedding: Tensor,
        *,
        streaming: bool,
        final: bool,
    ) -> Tensor:
        """Render whole sequences in one pass, without a cache.

        Args:
            tokens: shape ``(rows, n)``, int64: prompt and speech tokens, padded on the right.
            length: shape ``(rows,)``, int64: number of real tokens.
            prompt_mel: shape ``(rows, p, 80)``; prompt_frames: shape ``(rows,)``, number of its real frames.
            embedding: shape ``(rows, 192)``.
            streaming: True: chunk mask. False: full attention.
            final: False: the last three tokens are look-ahead only.

        Returns:
            mel, shape ``(rows, 2 n, 80)`` (prompt included), fp32; real up to ``2 * (length - (0 if final else 3))``.
        """
        rendered = length if final else length - LOOK_AHEAD_TOKENS
        n = int(rendered.max())
        tokens = F.pad(tokens, (0, n + LOOK_AHEAD_TOKENS - tokens.shape[1]))
        chunk = self.solver.chunk_tokens if streaming else None
        mu = self.condition(tokens, length, Span.whole(rendered, chunk=chunk))
        frames = mu.shape[1]
        speaker = self.speaker(embedding.to(mu.dtype))
        cond = place_prompt(prompt_mel, prompt_frames, torch.zeros_like(rendered), frames).to(mu.dtype)
        x = self.noise[:frames].repeat(len(mu), 1, 1)
        inputs = self.estimator.begin(x, mu, speaker, cond)
        span = Span.whole(
            rendered.repeat(BRANCHES) * FRAMES_PER_TOKEN, chunk=self.solver.chunk_frames if streaming else None
        )
        for k in range(self.solver.steps):
            self._step(x, inputs, torch.full_like(length, k), span)
        return x

    @torch.inference_mode()
    def advance(
        self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, rows: FlowRows, cache: FlowCache
    ) -> Tensor:
        """Run the next chunk or chunks of each row through all Euler steps. The result equals
        ``render(streaming=True)``.

        Args:
            tokens: shape ``(rows, n + 3)``; valid: shape ``(rows,)``, as in ``condition``.
            cond: shape ``(rows, 2 n, 80)``: the prompt's mel at these frames, zeros after the prompt.
            speaker: shape ``(rows, 80)``, from the method ``speaker``.

        Returns:
            mel, shape ``(rows, 2 n, 80)``, fp32; real up to ``2 * rows.length``.
        """
        chunk = self.begin_chunk(tokens, valid, cond, speaker, rows, cache)
        self.steps_of_chunk(chunk, range(self.solver.steps), rows, cache)
        return chunk.x

    @torch.inference_mode()
    def begin_chunk(
        self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, rows: FlowRows, cache: FlowCache
    ) -> FlowPass:
        """Run the part of ``advance`` before the first Euler step."""
        mu = self.condition(tokens, valid, cache.condition_span(rows), cache.frame_keys)
        x = self.start_state(rows.start, mu.shape[1])
        return FlowPass(x=x, inputs=self.estimator.begin(x, mu, speaker, cond))

    @torch.inference_mode()
    def steps_of_chunk(
        self,
        chunk: FlowPass,
        steps: range,
        rows: FlowRows,
        cache: FlowCache,
        nearly_done: Callable[[], None] = lambda: None,
    ) -> None:
        """Run these Euler steps of ``advance``. A row that has become padding since ``begin_chunk`` uses only scratch
        pages. ``nearly_done``: passed to the last ``Estimator.euler_step``."""
        spans = cache.estimator_spans(rows, steps)
        for k, span in zip(steps, spans, strict=True):
            told = nearly_done if k == steps[-1] else lambda: None
            self._step(chunk.x, chunk.inputs, torch.full_like(rows.start, k), span, told)

    @torch.inference_mode()
    def whole(self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, length: Tensor) -> Tensor:
        """Render whole rows under full attention: ``render(streaming=False, final=True)`` with fixed shapes.

        Args:
            tokens, valid, cond, speaker: as in ``advance``.
            length: shape ``(rows,)``, int64: number of tokens without look-ahead. 0: a row of padding.

        Returns:
            mel, shape ``(rows, 2 n, 80)``, fp32; real up to ``2 * length``.
        """
        whole = self.begin_whole(tokens, valid, cond, speaker, length)
        for k in range(self.solver.steps):
            self.step_whole(whole, k)
        return whole.x

    @torch.inference_mode()
    def begin_whole(self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, length: Tensor) -> WholePass:
        """Run the part of ``whole`` before the first Euler step."""
        mu = self.condition(tokens, valid, Span.whole(length, chunk=None))
        span = Span.whole(length.repeat(BRANCHES) * FRAMES_PER_TOKEN, chunk=None)
        x = self.start_state(torch.zeros_like(length), mu.shape[1])
        return WholePass(x=x, inputs=self.estimator.begin(x, mu, speaker, cond), span=span)

    @torch.inference_mode()
    def step_whole(self, whole: WholePass, k: int, nearly_done: Callable[[], None] = lambda: None) -> None:
        """Run Euler step ``k`` of ``whole``. ``nearly_done``: see ``Estimator.euler_step``."""
        step = torch.full((len(whole.x),), k, device=whole.x.device)
        self._step(whole.x, whole.inputs, step, whole.span, nearly_done)

    def start_state(self, start: Tensor, frames: int) -> Tensor:
        """Return the noise of ``frames`` frames from token ``start``, shape ``(rows,)``, on: shape ``(rows, frames,
        80)``."""
        index = start[:, None] * FRAMES_PER_TOKEN + torch.arange(frames, device=start.device)
        return self.noise[index.clamp(max=len(self.noise) - 1)]


def place_prompt(prompt_mel: Tensor, prompt_frames: Tensor, start: Tensor, frames: int) -> Tensor:
    """Return the condition for ``frames`` frames from token ``start`` on: the prompt's mel, and zeros after it.

    Args:
        prompt_mel: shape ``(rows, p, 80)``; prompt_frames, start: shape ``(rows,)``.

    Returns:
        shape ``(rows, frames, 80)``.
    """
    index = start[:, None] * FRAMES_PER_TOKEN + torch.arange(frames, device=start.device)
    inside = (index < prompt_frames[:, None])[:, :, None]
    if prompt_mel.shape[1] == 0:
        return prompt_mel.new_zeros(len(prompt_mel), frames, MEL_CHANNELS)
    index = index.clamp(max=prompt_mel.shape[1] - 1)[:, :, None].expand(-1, -1, MEL_CHANNELS)
    return torch.where(inside, prompt_mel.gather(1, index), torch.zeros_like(prompt_mel[:1, :1]))
