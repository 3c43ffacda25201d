"""Conditional flow matching: the Euler solver that both versions share, over any estimator.

A batch of R rows is evaluated as 2 R rows, the conditioned ones first, then the unconditioned ones (mu, speaker and
prompt mel zero), and guided: ``v = (1 + rate) * v_cond - rate * v_uncond``. Rows need not be at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tts_engine.cosyvoice.models.config import MEL_CHANNELS
from tts_engine.cosyvoice.models.streaming import Span

NOISE_FRAMES = 15000
"""Frames of the fixed noise: 300 s with the prompt, the longest sequence that a flow can make."""


class Estimator(nn.Module):
    """What the solver asks of a network; ``dit.DiT`` and ``unet.CausalUNet`` are the two."""

    attention_layers: int
    key_channels: int
    """Channels of a key, all heads together."""
    tail_shapes: Sequence[tuple[int, int]]
    """For ``ConvTails``."""

    def modulations(self, t: Tensor) -> Tensor:
        """Everything that depends on time alone: ``(n,)`` to ``(n, ...)``."""
        raise NotImplementedError

    def drop_time_weights(self) -> None:
        """Free what ``modulations`` needs, once the table is made."""
        raise NotImplementedError

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, modulation: Tensor, span: Span) -> Tensor:
        """Velocity ``(rows, n, 80)``.

        Args:
            x, mu, cond: shape ``(rows, n, 80)``: state, condition from the tokens, prompt mel (zeros after it).
            speaker: shape ``(rows, 80)``.
            modulation: shape ``(rows, ...)``, rows of ``modulations``.
        """
        raise NotImplementedError


def start_noise() -> Tensor:
    """The state at time 0 for every frame, indexed from the start of the prompt; shape ``(15000, 80)``.

    The same in every request: ``torch.randn(1, 80, 15000)`` of seed 0, drawn on the CPU.
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, MEL_CHANNELS, NOISE_FRAMES, generator=generator)[0].T.contiguous()


def schedule(steps: int) -> tuple[Tensor, Tensor]:
    """Times and widths of the Euler steps, ``(steps,)`` each: ``t = 1 - cos(u pi / 2)`` at even ``u``.

    The time is the sum of the widths so far, as the published solver has it, not the grid value.
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


def velocity(
    estimator: Estimator,
    x: Tensor,
    mu: Tensor,
    speaker: Tensor,
    cond: Tensor,
    modulation: Tensor,
    span: Span,
    cfg_rate: float,
) -> Tensor:
    """Guided velocity ``(rows, n, 80)``.

    Args:
        x, mu, cond: ``(rows, n, 80)``; speaker ``(rows, 80)``; modulation ``(rows, ...)``.
        span: of ``2 * rows`` rows, conditioned first.
    """
    inputs = (torch.cat([part, torch.zeros_like(part)]) for part in (mu, speaker, cond))
    v: Tensor = estimator(torch.cat([x, x]), *inputs, modulation.repeat(2, 1), span)
    conditioned, unconditioned = v.chunk(2)
    return (1 + cfg_rate) * conditioned - cfg_rate * unconditioned
