"""The flow's estimator of Fun-CosyVoice3: a diffusion transformer (DiT) over mel frames, chunk-causal under its mask.

Parameter names and shapes are those of the published checkpoint, prefix ``decoder.estimator.``. Time enters only
through the adaptive LayerNorm, whose values for the ten times of the schedule are a table (``modulations``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.cfm import Estimator
from tts_engine.cosyvoice.models.config import MEL_CHANNELS, FlowV3Config
from tts_engine.cosyvoice.models.streaming import CausalConv1d, Span, attend, number_tails, sinusoid

_TIME_CHANNELS = 256
_NORM_EPS = 1e-6


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(_TIME_CHANNELS, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        out: Tensor = self.time_mlp(sinusoid(t, _TIME_CHANNELS))
        return out


class ConvPosition(nn.Module):
    """Two causal grouped convolutions of 31 frames each, with 60 frames of left context in total."""

    def __init__(self, dim: int, groups: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(CausalConv1d(dim, dim, 31, groups=groups), nn.Mish())
        self.conv2 = nn.Sequential(CausalConv1d(dim, dim, 31, groups=groups), nn.Mish())

    def forward(self, x: Tensor, span: Span) -> Tensor:
        return F.mish(self.conv2[0](F.mish(self.conv1[0](x, span)), span))


class InputEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(4 * MEL_CHANNELS, dim)
        self.conv_pos_embed = ConvPosition(dim)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        x = self.proj(x)
        out: Tensor = x + self.conv_pos_embed(x, span)
        return out


class RotaryEmbedding(nn.Module):
    """Interleaved rotary positions. As in the published code, they are applied before the heads are split, to the first
    ``head_dim`` channels, so only head 0 has positions."""

    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        with torch.device("cpu"):  # has values even if the parameters are on the meta device
            self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim))

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turn positions ``(rows, n)`` into cosine and sine, each ``(rows, n, head_dim / 2)``, fp32."""
        phase = positions[:, :, None].float() * self.inv_freq.float()
        return phase.cos(), phase.sin()


def rotate_first_head(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (part.to(x.dtype) for part in rotary)
    width = 2 * cos.shape[-1]
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., width:]], dim=-1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.to_q = nn.Linear(dim, inner)
        self.to_k = nn.Linear(dim, inner)
        self.to_v = nn.Linear(dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, dim)])

    def forward(self, x: Tensor, span: Span, layer: int, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q = rotate_first_head(self.to_q(x), rotary)
        k = rotate_first_head(self.to_k(x), rotary)
        k, v = span.append(layer, k, self.to_v(x))
        out: Tensor = self.to_out[0](attend(q, k, v, mask, self.heads))
        return out


class FeedForward(nn.Module):
    def __init__(self, dim: int, mult: int) -> None:
        super().__init__()
        self.ff = nn.Sequential(
            nn.Sequential(nn.Linear(dim, dim * mult), nn.GELU(approximate="tanh")),
            nn.Identity(),  # the place of a dropout
            nn.Linear(dim * mult, dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ff(x)
        return out


class AdaptiveNorm(nn.Module):
    """The linear layer that turns the time embedding into shifts, scales and gates."""

    def __init__(self, dim: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim * parts)

    def forward(self, time: Tensor) -> Tensor:
        out: Tensor = self.linear(F.silu(time))
        return out


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=_NORM_EPS) * (1 + scale) + shift


class Block(nn.Module):
    def __init__(self, config: FlowV3Config) -> None:
        super().__init__()
        self.attn_norm = AdaptiveNorm(config.dim, 6)
        self.attn = Attention(config.dim, config.heads, config.head_dim)
        self.ff = FeedForward(config.dim, config.ff_mult)

    def forward(
        self, x: Tensor, modulation: Tensor, span: Span, layer: int, rotary: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation[:, None].chunk(6, dim=-1)
        x = x + gate_a * self.attn(modulate(x, shift_a, scale_a), span, layer, rotary, mask)
        out: Tensor = x + gate_m * self.ff(modulate(x, shift_m, scale_m))
        return out


class DiT(Estimator):
    """The diffusion transformer. Each row has its own time."""

    def __init__(self, config: FlowV3Config) -> None:
        super().__init__()
        self.config = config
        self.time_embed = TimeEmbedding(config.dim)
        self.input_embed = InputEmbedding(config.dim)
        self.rotary_embed = RotaryEmbedding(config.head_dim)
        self.transformer_blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm_out = AdaptiveNorm(config.dim, 2)
        self.proj_out = nn.Linear(config.dim, MEL_CHANNELS)
        self.attention_layers = config.depth
        self.key_channels = config.heads * config.head_dim
        self.tail_shapes = number_tails(self)

    @torch.inference_mode()
    def modulations(self, t: Tensor) -> Tensor:
        """Turn times ``(n,)`` into ``(n, depth * 6 * dim + 2 * dim)``."""
        time = self.time_embed(t)
        norms: list[Any] = [*(block.attn_norm for block in self.transformer_blocks), self.norm_out]
        return torch.cat([norm(time) for norm in norms], dim=-1)

    def drop_time_weights(self) -> None:
        """Free the weights that depend only on time: over a third of the network."""
        self.time_embed = None  # type: ignore[assignment]
        self.norm_out = None  # type: ignore[assignment]
        for block in self.transformer_blocks:
            block.attn_norm = None  # type: ignore[assignment]

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, modulation: Tensor, span: Span) -> Tensor:
        n = x.shape[1]
        h = torch.cat([x, cond, mu, speaker[:, None].expand(-1, n, -1)], dim=-1)
        h = self.input_embed(h, span)
        rotary = self.rotary_embed(span.positions(n))
        mask = span.mask(n)
        size = 6 * self.config.dim
        for layer, block in enumerate(self.transformer_blocks):
            h = block(h, modulation[:, layer * size : (layer + 1) * size], span, layer, rotary, mask)
        scale, shift = modulation[:, None, -2 * self.config.dim :].chunk(2, dim=-1)
        out: Tensor = self.proj_out(modulate(h, shift, scale))
        return out
