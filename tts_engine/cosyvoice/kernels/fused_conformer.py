"""The encoder of CosyVoice2's flow on a GPU: ``models.conformer.UpsampleConformer`` with fused weights and kernels, for
chunks with caches.

It replaces that network in ``FlowV2.condition`` and takes eight launches per layer. The residual stream is fp32,
products are in the dtype of the weights, and sums are fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.conformer import RelativePositions, norm_look_ahead, relative_attention
from tts_engine.cosyvoice.kernels.product import empty_lines, product
from tts_engine.cosyvoice.models.cfm import NOISE_FRAMES
from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.models.conformer import UpsampleConformer, relative_sinusoids
from tts_engine.cosyvoice.models.streaming import PagedKeys, Span


@dataclass(slots=True)
class _Linear:
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


@dataclass(slots=True)
class _Norm:
    table: Tensor
    """A row of the table of ``gate_add_modulate``: gate 1, shift, scale - 1."""
    eps: float

    def __call__(self, h: Tensor, part: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Add ``part`` to ``h`` ``(rows, n, dim)`` in place and return LayerNorm of the sum, ``(rows * n, dim)``."""
        rows, _, dim = h.shape
        return kernels.gate_add_modulate(
            h, part, self.table.expand(rows, -1), gate=0, shift=dim, scale=2 * dim, eps=self.eps, dtype=dtype
        )


@dataclass(slots=True)
class _Layer:
    norm1: _Norm
    qkv: _Linear
    positions: RelativePositions
    out: _Linear
    norm2: _Norm
    up: _Linear
    down: _Linear


class FusedConformer(nn.Module):
    """The encoder. ``span`` is one chunk with caches, or whole sequences with full attention and without caches."""

    def __init__(
        self, conformer: UpsampleConformer, *, device: torch.device, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Read ``conformer``, which may be dropped afterwards."""
        super().__init__()
        network: Any = conformer  # submodules are Tensor | Module to a type checker
        self.dtype = dtype
        self.heads = network.encoders[0].self_attn.heads
        dim = network.after_norm.normalized_shape[0]

        def exact(value: Tensor) -> Tensor:
            return value.detach().to(device=device, dtype=torch.float32).contiguous()

        def linear(*layers: Any) -> _Linear:
            return stored(torch.cat([part.weight for part in layers]), torch.cat([part.bias for part in layers]))

        def stored(weight: Tensor, bias: Tensor) -> _Linear:
            return _Linear(exact(weight).to(dtype), exact(bias).to(dtype))

        def norm(layer: Any, factor: float = 1.0) -> _Norm:
            weight, bias = factor * layer.weight, factor * layer.bias
            return _Norm(exact(torch.cat([torch.ones_like(weight), bias, weight - 1]))[None], layer.eps)

        def layers(plain: Any, positions: int) -> list[_Layer]:
            sinusoids = relative_sinusoids(torch.arange(1 - positions, positions, device=device), dim)
            return [
                _Layer(
                    norm1=norm(layer.norm_mha),
                    qkv=linear(layer.self_attn.linear_q, layer.self_attn.linear_k, layer.self_attn.linear_v),
                    positions=RelativePositions(
                        r=(sinusoids @ exact(layer.self_attn.linear_pos.weight).t()).to(dtype),
                        biases=exact(torch.stack([layer.self_attn.pos_bias_u, layer.self_attn.pos_bias_v])),
                    ),
                    out=linear(layer.self_attn.linear_out),
                    norm2=norm(layer.norm_ff),
                    up=linear(layer.feed_forward.w_1),
                    down=linear(layer.feed_forward.w_2),
                )
                for layer in plain
            ]

        root = math.sqrt(dim)
        linear_in, norm_in = network.embed.out
        self.embed = linear(linear_in)
        self.embed_norm = exact(root * norm_in.weight), exact(root * norm_in.bias), norm_in.eps
        ahead, behind = network.pre_lookahead_layer.conv1, network.pre_lookahead_layer.conv2
        self.look_ahead = stored(ahead.weight.permute(0, 2, 1).flatten(1), ahead.bias)
        self.look_behind = stored(behind.weight.permute(0, 2, 1).flatten(1), behind.bias)
        self.upsample = stored(*_upsampling(network.up_layer.conv, network.up_embed.out[0]))
        self.upsample_norm = norm(network.up_embed.out[1], root)
        self.tails = behind.tail, network.up_layer.conv.tail
        # The tables of ``r`` cover the longest sequence. They take 215 MB in bf16.
        self.layers = layers(network.encoders, NOISE_FRAMES // FRAMES_PER_TOKEN)
        self.up_layers = layers(network.up_encoders, NOISE_FRAMES)
        self.after_norm = norm(network.after_norm)

    def forward(self, x: Tensor, valid: Tensor, span: Span, frame_keys: PagedKeys | None) -> Tensor:
        """Turn token embeddings ``(rows, n + 3, dim)`` into ``(rows, 2 n, dim)``, fp32; arguments as in
        ``Flow.condition``."""
        assert span.keys is not None or span.chunk is None, "the chunk mask needs caches"
        rows, fed, dim = x.shape
        n = fed - LOOK_AHEAD_TOKENS
        y = empty_lines(rows * fed, dim, device=x.device, dtype=self.dtype)
        y.copy_(x.reshape(rows * fed, dim))
        y = self.embed(y).view(rows, fed, dim)
        y, h = norm_look_ahead(y, *self.embed_norm, valid, LOOK_AHEAD_TOKENS, self.dtype)
        y = F.leaky_relu(self.look_ahead(y), 0.01, inplace=True)
        part: Tensor | None = self.look_behind(self._unfold(y.view(rows, n, dim), None, span, self.tails[0]))
        part = self._run(self.layers, h, part, span)
        # The first half of the columns are even frames, the second half odd ones.
        y = self.upsample(self._unfold(h, part, span, self.tails[1])).view(rows, FRAMES_PER_TOKEN * n, dim)
        h = self.upsample_norm(y, None, torch.float32).view_as(y)
        part = self._run(self.up_layers, h, None, span.scaled(FRAMES_PER_TOKEN, frame_keys))
        return self.after_norm(h, part, torch.float32).view_as(h)

    def _unfold(self, x: Tensor, y: Tensor | None, span: Span, tail: int) -> Tensor:
        # The tail of the upsampling has places for four frames (each token twice). Two of them keep the two tokens.
        kept = None if span.tails is None else span.tails.data[tail][:, :2]
        return kernels.unfold_three(x, y, kept, span, self.dtype)

    def _run(self, layers: list[_Layer], h: Tensor, part: Tensor | None, span: Span) -> Tensor | None:
        """Add ``part`` and the outputs of the layers to ``h``, in place, except the last output, which is returned."""
        rows, n, _ = h.shape
        for number, layer in enumerate(layers):
            qkv = layer.qkv(layer.norm1(h, part, self.dtype)).view(rows, n, -1)
            part = layer.out(relative_attention(qkv, span, number, layer.positions, self.heads))
            inner = layer.up(layer.norm2(h, part, self.dtype))
            part = layer.down(F.silu(inner, inplace=True))
        return part


def _upsampling(conv: Any, linear: Any) -> tuple[Tensor, Tensor]:
    """Join the upsampling's causal convolution over five frames (each token twice) and the linear layer after it into
    one product over three concatenated tokens. The first half of its outputs is the even frame.

    Returns:
        weight, shape ``(2 * dim, 3 * dim)``, and bias.
    """
    frames = torch.einsum("oi,ijt->otj", linear.weight.float(), conv.weight.float())
    w = frames.unbind(1)
    even = torch.cat([w[0] + w[1], w[2] + w[3], w[4]], 1)
    odd = torch.cat([w[0], w[1] + w[2], w[3] + w[4]], 1)
    bias = linear.weight @ conv.bias + linear.bias
    return torch.cat([even, odd]), bias.repeat(2)
