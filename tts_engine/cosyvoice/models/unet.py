"""The flow's estimator of CosyVoice2: a causal U-Net that never changes the frame rate.

It has residual convolution blocks, each followed by transformer blocks. All convolutions are causal and LayerNorm works
per frame, so under the chunk mask the network is exactly chunk-causal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.cfm import Estimator
from tts_engine.cosyvoice.models.config import MEL_CHANNELS, FlowV2Config
from tts_engine.cosyvoice.models.streaming import CausalConv1d, Span, attend, number_tails, sinusoid

_INPUT_CHANNELS = 4 * MEL_CHANNELS


class TimeMlp(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(_INPUT_CHANNELS, dim)
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, t: Tensor) -> Tensor:
        time = sinusoid(t, _INPUT_CHANNELS).to(self.linear_1.weight.dtype)
        out: Tensor = self.linear_2(F.silu(self.linear_1(time)))
        return out


class CausalBlock(nn.Module):
    """Convolution over three frames, LayerNorm, Mish."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        # The published names count a transposition as a layer: 0 is the convolution, 2 the norm.
        self.block = nn.ModuleList([CausalConv1d(inputs, outputs, 3), nn.Identity(), nn.LayerNorm(outputs)])

    def forward(self, x: Tensor, span: Span) -> Tensor:
        return F.mish(self.block[2](self.block[0](x, span)))


class ResnetBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time, outputs))
        self.block1 = CausalBlock(inputs, outputs)
        self.block2 = CausalBlock(outputs, outputs)
        self.res_conv = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor, shift: Tensor, span: Span) -> Tensor:
        h = self.block2(self.block1(x, span) + shift[:, None], span)
        out: Tensor = h + F.linear(x, self.res_conv.weight[:, :, 0], self.res_conv.bias)
        return out


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, dim)])

    def forward(self, x: Tensor, span: Span, layer: int, mask: Tensor) -> Tensor:
        k, v = span.append(layer, self.to_k(x), self.to_v(x))
        out: Tensor = self.to_out[0](attend(self.to_q(x), k, v, mask, self.heads))
        return out


class GeluProjection(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, inner)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(GeluProjection(dim, 4 * dim), nn.Identity(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class TransformerBlock(nn.Module):
    def __init__(self, config: FlowV2Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.channels)
        self.attn1 = Attention(config.channels, config.heads, config.head_dim)
        self.norm3 = nn.LayerNorm(config.channels)
        self.ff = FeedForward(config.channels)

    def forward(self, x: Tensor, span: Span, layer: int, mask: Tensor) -> Tensor:
        x = x + self.attn1(self.norm1(x), span, layer, mask)
        out: Tensor = x + self.ff(self.norm3(x))
        return out


class CausalUNet(Estimator):
    """The U-Net. Each row has its own time."""

    def __init__(self, config: FlowV2Config) -> None:
        super().__init__()
        self.config = config
        dim, time = config.channels, 4 * config.channels

        def stage(inputs: int, *, last: bool) -> nn.ModuleList:
            parts: list[nn.Module] = [
                ResnetBlock(inputs, dim, time),
                nn.ModuleList(TransformerBlock(config) for _ in range(config.blocks)),
            ]
            return nn.ModuleList([*parts, CausalConv1d(dim, dim, 3)] if last else parts)

        self.time_mlp = TimeMlp(time)
        self.down_blocks = nn.ModuleList([stage(_INPUT_CHANNELS, last=True)])
        self.mid_blocks = nn.ModuleList(stage(dim, last=False) for _ in range(config.mid_blocks))
        self.up_blocks = nn.ModuleList([stage(2 * dim, last=True)])
        self.final_block = CausalBlock(dim, dim)
        self.final_proj = nn.Conv1d(dim, MEL_CHANNELS, 1)
        self.attention_layers = (config.mid_blocks + 2) * config.blocks
        self.key_channels = config.heads * config.head_dim
        self.tail_shapes = number_tails(self)

    @property
    def _stages(self) -> list[Any]:
        return [*self.down_blocks, *self.mid_blocks, *self.up_blocks]

    @torch.inference_mode()
    def modulations(self, t: Tensor) -> Tensor:
        """Turn times ``(n,)`` into ``(n, stages * channels)``."""
        time = self.time_mlp(t)
        return torch.cat([stage[0].mlp(time) for stage in self._stages], dim=-1)

    def drop_time_weights(self) -> None:
        self.time_mlp = None  # type: ignore[assignment]
        for stage in self._stages:
            stage[0].mlp = None

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, modulation: Tensor, span: Span) -> Tensor:
        n = x.shape[1]
        h = torch.cat([x, mu, speaker[:, None].expand(-1, n, -1), cond], dim=-1)
        mask = span.mask(n)
        shifts = torch.split(modulation, self.config.channels, dim=-1)
        skip = h
        for number, stage in enumerate(self._stages):
            up = number == len(self._stages) - 1
            h = stage[0](torch.cat([h, skip], dim=-1) if up else h, shifts[number], span)
            for block, transformer in enumerate(stage[1]):
                h = transformer(h, span, number * self.config.blocks + block, mask)
            if number == 0:
                skip = h
            if len(stage) == 3:
                h = stage[2](h, span)
        h = self.final_block(h, span)
        return F.linear(h, self.final_proj.weight[:, :, 0], self.final_proj.bias)
