"""Conditional flow matching: the Euler solver of both versions.

A batch of R rows is evaluated as 2 R rows: first the conditioned ones, then the unconditioned ones, whose mu, speaker
and prompt mel are zero. Classifier-free guidance combines them: ``v = (1 + rate) * v_cond - rate * v_uncond``. Rows may
be at different steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tts_engine.cosyvoice.models.config import MEL_CHANNELS
from tts_engine.cosyvoice.models.streaming import Span

NOISE_FRAMES = 15000
"""Frames of the fixed noise: the longest sequence, prompt included (300 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """Values that depend only on the index of the Euler step."""

    modulations: Tensor
    """Shape ``(steps, ...)``, from ``Estimator.modulations``."""
    widths: Tensor
    """Shape ``(steps,)``."""
    cfg_rate: float
    """Rate of classifier-free guidance."""


class Estimator(nn.Module):
    """Base of the networks that estimate the velocity: ``dit.DiT`` and ``unet.CausalUNet``."""

    attention_layers: int
    key_channels: int
    """Channels of a key, over all heads."""
    tail_shapes: Sequence[tuple[int, int]]
    """Shapes of the convolutions' tails, for ``ConvTails``."""
    rows_at_once: int | None = None
    """Most rows that take about as long as one. None: no such number."""

    def modulations(self, t: Tensor) -> Tensor:
        """Compute the values that depend only on the times ``(n,)``: ``(n, ...)``."""
        raise NotImplementedError

    def drop_time_weights(self) -> None:
        """Free the weights that only ``modulations`` needs."""
        raise NotImplementedError

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, modulation: Tensor, span: Span) -> Tensor:
        """Return the velocity, shape ``(rows, n, 80)``.

        Args:
            x, mu, cond: shape ``(rows, n, 80)``: state, condition from the tokens, prompt mel (zeros after it).
            speaker: shape ``(rows, 80)``.
            modulation: shape ``(rows, ...)``, rows of ``modulations``.
        """
        raise NotImplementedError

    def begin(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor) -> Any:
        """Return the inputs that all Euler steps of a pass share, for ``euler_step``.

        Args:
            x, mu, cond: ``(rows, n, 80)``: state at time 0, condition from the tokens, prompt mel; speaker:
                ``(rows, 80)``.
        """
        return tuple(torch.cat([part, torch.zeros_like(part)]) for part in (mu, speaker, cond))

    def euler_step(
        self,
        x: Tensor,
        inputs: Any,
        step: Tensor,
        tables: StepTables,
        span: Span,
        *,
        nearly_done: Callable[[], None] = lambda: None,
    ) -> None:
        """Take one Euler step of the guided velocity, in place. Rows may be at different steps.

        Args:
            x: state ``(rows, n, 80)``, fp32.
            inputs: from ``begin``.
            step: ``(rows,)``, int64, 0 to ``steps - 1``.
            span: the span of ``2 * rows`` rows, conditioned ones first.
            nearly_done: called once after at least three quarters of the work has been launched.
        """
        mu, speaker, cond = inputs
        state, rate = x.to(mu.dtype), tables.cfg_rate
        modulation = tables.modulations.index_select(0, step).to(mu.dtype).repeat(2, 1)
        v: Tensor = self(torch.cat([state, state]), mu, speaker, cond, modulation, span)
        conditioned, unconditioned = v.chunk(2)
        v = (1 + rate) * conditioned - rate * unconditioned
        x += tables.widths.index_select(0, step)[:, None, None] * v.float()
        nearly_done()


def start_noise() -> Tensor:
    """Return the state at time 0 for every frame, counted from the start of the prompt; shape ``(15000, 80)``.

    It is the same in every request: ``torch.randn(1, 80, 15000)`` of seed 0, drawn on the CPU.
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, MEL_CHANNELS, NOISE_FRAMES, generator=generator)[0].T.contiguous()


def schedule(steps: int) -> tuple[Tensor, Tensor]:
    """Return times and widths of the Euler steps, ``(steps,)`` each: ``t = 1 - cos(u pi / 2)`` at evenly spaced ``u``.

    As in the published solver, the time is the sum of the widths so far, not the grid value.
    """
    grid = 1 - torch.cos(torch.linspace(0, 1, steps + 1) * 0.5 * math.pi)
    times, widths = [], []
    t = grid[0]
    for k in range(steps):
        width = grid[k + 1] - t
        times.append(t)
        widths.append(width)
        t = t + width
    return torch.stack(times), torch.stack(widths)
