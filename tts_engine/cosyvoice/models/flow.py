"""The flow: speech tokens to mel frames. What both versions share, one-shot and in chunks with caches.

``FlowV2`` and ``FlowV3`` differ in ``condition`` (how tokens become ``mu``) and in the estimator. One call's past is a
slot (convolution tails) and a list of blocks; a block is everything that one chunk of 25 tokens leaves behind: encoder
keys, and estimator keys for each Euler step and guidance branch. Blocks are never rewritten once their chunk is full,
so that calls may share the blocks of a voice prompt and own only what comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.cfm import Estimator, schedule, start_noise, velocity
from tts_engine.cosyvoice.models.config import (
    FRAMES_PER_TOKEN,
    LOOK_AHEAD_TOKENS,
    MEL_CHANNELS,
    SPEAKER_CHANNELS,
    SolverConfig,
)
from tts_engine.cosyvoice.models.streaming import ConvTails, PagedKeys, Span

SCRATCH = 0
"""Block and slot that rows of padding use; never given to a call."""
BRANCHES = 2
"""Conditioned and unconditioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRows:
    """Which rows a batch advances. All tensors int64 on the flow's device; rows of padding are all zeros."""

    slots: Tensor
    """Shape ``(rows,)``."""
    blocks: Tensor
    """Shape ``(rows, blocks)``: the row's blocks from the start of the prompt; 0 where it has none yet."""
    start: Tensor
    """Shape ``(rows,)``: tokens fed before, a multiple of the chunk."""
    length: Tensor
    """Shape ``(rows,)``: tokens fed now, without look-ahead. Whole chunks, but for the end of an utterance."""


class FlowCache:
    """The past of many calls. Who owns which slot and block is the caller's business; 0 of each is scratch."""

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
        """The token-rate span for ``Flow.condition``."""
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
        """The frame-rate span of ``2 * rows`` rows for one estimator call; ``step`` ``(rows,)`` may differ by row."""
        branch = torch.arange(BRANCHES, device=step.device)
        offset = (step[None] * BRANCHES + branch[:, None]).flatten()  # conditioned rows first
        blocks = rows.blocks.repeat(BRANCHES, 1)
        # Scratch stays scratch: block 0 owns pages 0 .. per_slot - 1, all of them scratch.
        return Span(
            start=rows.start.repeat(BRANCHES) * FRAMES_PER_TOKEN,
            length=rows.length.repeat(BRANCHES) * FRAMES_PER_TOKEN,
            chunk=self.keys.page_frames,
            keys=self.keys,
            tails=self.tails,
            pages=blocks * self._per_slot + offset[:, None],
            slots=rows.slots.repeat(BRANCHES) * self._per_slot + offset,
        )

    def _all_steps(self, slots: Tensor) -> Tensor:
        return (slots[:, None] * self._per_slot + torch.arange(self._per_slot, device=slots.device)).flatten()

    def reset(self, slots: Tensor) -> None:
        """Begin sequences in these slots."""
        self.condition_tails.reset(slots)
        self.tails.reset(self._all_steps(slots))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Continue from another slot's point, e.g. the end of a voice prompt. Blocks are shared by listing them."""
        self.condition_tails.copy(source, target)
        self.tails.copy(self._all_steps(source), self._all_steps(target))


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePass:
    """A pass over whole rows on its way through the Euler steps."""

    mu: Tensor
    cond: Tensor
    speaker: Tensor
    span: Span
    x: Tensor
    """The state, shape ``(rows, n, 80)``, fp32; each step changes it in place. After the last it is the mel."""


class EstimatorHolder(nn.Module):
    """Gives the estimator its published name, ``decoder.estimator``."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator


class Flow(nn.Module):
    """Base of the two flows. Weights under the names of the published checkpoints."""

    solver: SolverConfig
    decoder: EstimatorHolder
    encoder_layers: tuple[int, int] = (0, 0)
    """Attention layers of the encoder at token rate and at frame rate."""
    encoder_channels = 0
    condition_tail_shapes: Sequence[tuple[int, int]] = ()
    noise: Tensor
    """Shape ``(15000, 80)``."""
    times: Tensor
    widths: Tensor
    modulations: Tensor
    """Shape ``(steps, ...)``: row ``k`` is what step ``k`` needs to know of its time."""

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
        """After the weights are loaded (fp32): make the tables that depend on them alone."""
        self.modulations = self.estimator.modulations(self.times)

    def speaker(self, embedding: Tensor) -> Tensor:
        """Speaker vectors ``(rows, 192)`` as the CAM++ network makes them, to ``(rows, 80)``."""
        out: Tensor = self.spk_embed_affine_layer(F.normalize(embedding, dim=1))
        return out

    def condition(self, tokens: Tensor, valid: Tensor, span: Span, frame_keys: PagedKeys | None = None) -> Tensor:
        """Speech tokens to ``mu``.

        Args:
            tokens: shape ``(rows, n + 3)``, int64; ``n`` to be rendered, the others look-ahead.
            valid: shape ``(rows,)``, int64: real tokens from the left; beyond them the look-ahead is zeros (the end).
            span: at token rate; its ``length`` counts what is rendered.
            frame_keys: the keys at frame rate that belong to ``span``'s, of a cache.

        Returns:
            shape ``(rows, 2 n, 80)``.
        """
        raise NotImplementedError

    def step(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, step: Tensor, span: Span) -> Tensor:
        """One Euler step of rows that may be at different steps: ``(rows, n, 80)`` to the same, fp32.

        Args:
            x: fp32 state. mu, cond: ``(rows, n, 80)``. speaker: ``(rows, 80)``.
            step: shape ``(rows,)``, int64, 0 to ``steps - 1``.
            span: of ``2 * rows`` rows at frame rate.
        """
        dtype = mu.dtype
        modulation = self.modulations.index_select(0, step).to(dtype)
        v = velocity(self.estimator, x.to(dtype), mu, speaker, cond, modulation, span, self.solver.cfg_rate)
        return x + self.widths.index_select(0, step)[:, None, None] * v.float()

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
        """Whole sequences in one pass, nothing cached. This is also how upstream makes an utterance's last chunk.

        Args:
            tokens: shape ``(rows, n)``, int64: prompt and speech tokens, padded on the right.
            length: shape ``(rows,)``, int64: real tokens.
            prompt_mel: shape ``(rows, p, 80)``; prompt_frames: shape ``(rows,)``, real frames of it.
            embedding: shape ``(rows, 192)``.
            streaming: chunk mask; False is full attention.
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
        x = self.noise[:frames].expand(len(mu), -1, -1)
        span = Span.whole(
            rendered.repeat(BRANCHES) * FRAMES_PER_TOKEN, chunk=self.solver.chunk_frames if streaming else None
        )
        for k in range(self.solver.steps):
            x = self.step(x, mu, speaker, cond, torch.full_like(length, k), span)
        return x

    @torch.inference_mode()
    def advance(
        self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, rows: FlowRows, cache: FlowCache
    ) -> Tensor:
        """Feed the next chunk or chunks of each row through all steps; exact against ``render(streaming=True)``.

        Args:
            tokens: shape ``(rows, n + 3)``; valid: shape ``(rows,)``, as in ``condition``.
            cond: shape ``(rows, 2 n, 80)``: prompt mel at these frames, zeros after the prompt.
            speaker: shape ``(rows, 80)``, from ``speaker``.

        Returns:
            mel, shape ``(rows, 2 n, 80)``, fp32; real up to ``2 * rows.length``.
        """
        mu = self.condition(tokens, valid, cache.condition_span(rows), cache.frame_keys)
        x = self.start_state(rows.start, mu.shape[1])
        for k in range(self.solver.steps):
            step = torch.full_like(rows.start, k)
            x = self.step(x, mu, speaker, cond, step, cache.estimator_span(rows, step))
        return x

    @torch.inference_mode()
    def whole(self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, length: Tensor) -> Tensor:
        """All of each row under full attention: ``render(streaming=False, final=True)`` with fixed shapes.

        Args:
            tokens: shape ``(rows, n + 3)``, and the others, as for ``advance``.
            length: shape ``(rows,)``, int64: tokens of each row, without look-ahead; 0: a row of padding.

        Returns:
            mel, shape ``(rows, 2 n, 80)``, fp32; real up to ``2 * length``.
        """
        whole = self.begin_whole(tokens, valid, cond, speaker, length)
        for k in range(self.solver.steps):
            self.step_whole(whole, k)
        return whole.x

    @torch.inference_mode()
    def begin_whole(self, tokens: Tensor, valid: Tensor, cond: Tensor, speaker: Tensor, length: Tensor) -> WholePass:
        """What ``whole`` does before the first Euler step."""
        mu = self.condition(tokens, valid, Span.whole(length, chunk=None))
        span = Span.whole(length.repeat(BRANCHES) * FRAMES_PER_TOKEN, chunk=None)
        x = self.start_state(torch.zeros_like(length), mu.shape[1])
        return WholePass(mu=mu, cond=cond, speaker=speaker, span=span, x=x)

    @torch.inference_mode()
    def step_whole(self, whole: WholePass, k: int) -> None:
        """Euler step ``k`` of ``whole``."""
        step = torch.full((len(whole.x),), k, device=whole.x.device)
        whole.x.copy_(self.step(whole.x, whole.mu, whole.speaker, whole.cond, step, whole.span))

    def start_state(self, start: Tensor, frames: int) -> Tensor:
        """The noise of ``frames`` frames from token ``start`` ``(rows,)`` on: ``(rows, frames, 80)``."""
        index = start[:, None] * FRAMES_PER_TOKEN + torch.arange(frames, device=start.device)
        return self.noise[index.clamp(max=len(self.noise) - 1)]


def place_prompt(prompt_mel: Tensor, prompt_frames: Tensor, start: Tensor, frames: int) -> Tensor:
    """The condition for ``frames`` frames from token ``start``: prompt mel where there is one, else zeros.

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
