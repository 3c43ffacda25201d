"""The estimator of CosyVoice2 on a GPU: ``models.unet.CausalUNet`` with fused weights and kernels, for chunks with
caches.

It replaces that network in ``FlowV2.advance`` and ``whole``, and takes six launches a residual block and eight a
transformer block. The residual stream is fp32, products are in the dtype of the weights, sums are fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.product import product
from tts_engine.cosyvoice.models.cfm import Estimator
from tts_engine.cosyvoice.models.streaming import Span
from tts_engine.cosyvoice.models.unet import CausalUNet

_NORM_EPS = 1e-5


@dataclass(slots=True)
class _Conv:
    """A causal convolution of three frames as a product over three frames side by side."""

    tail: int
    weight: Tensor
    """Shape ``(outputs, 3 * inputs)``. The first one of a residual block also has the block's 1x1 convolution, as
    further outputs."""
    bias: Tensor


@dataclass(slots=True)
class _Norm:
    weight: Tensor
    bias: Tensor


@dataclass(slots=True)
class _Transformer:
    norm1: Tensor
    """A row for the table of ``gate_add_modulate``: gate 1, shift, scale - 1."""
    qkv: Tensor
    out: Tensor
    out_bias: Tensor
    norm2: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


@dataclass(slots=True)
class _Stage:
    conv1: _Conv
    norm1: _Norm
    conv2: _Conv
    norm2: _Norm
    transformers: list[_Transformer]
    last: _Conv | None


class FusedUNet(Estimator):
    """The estimator. ``span`` feeds one chunk with its caches or, without caches, a whole sequence by full
    attention."""

    def __init__(self, unet: CausalUNet, *, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> None:
        """Read ``unet``, which may be dropped afterwards. Its time table must have been made before."""
        super().__init__()
        self.config, self.dtype = unet.config, dtype
        network: Any = unet  # submodules are Tensor | Module to a type checker
        self.attention_layers, self.key_channels = unet.attention_layers, unet.key_channels
        self.tail_shapes = unet.tail_shapes

        def take(*parts: Tensor) -> Tensor:
            return torch.cat([p.detach().to(device=device, dtype=dtype) for p in parts]).contiguous()

        def exact(value: Tensor) -> Tensor:
            return value.detach().to(device=device, dtype=torch.float32).contiguous()

        def convolution(conv: Any, beside: Any = None) -> _Conv:
            weight, bias = conv.weight.permute(0, 2, 1).flatten(1), conv.bias
            if beside is None:
                return _Conv(conv.tail, take(weight), take(bias))
            now = F.pad(beside.weight[:, :, 0], (2 * conv.in_channels, 0))  # sees the last of the three frames
            return _Conv(conv.tail, take(weight, now), take(bias, beside.bias))

        def norm(layer: Any) -> _Norm:
            return _Norm(exact(layer.weight), exact(layer.bias))

        def table(layer: Any) -> Tensor:
            return exact(torch.cat([torch.ones_like(layer.weight), layer.bias, layer.weight - 1]))[None]

        def transformer(block: Any) -> _Transformer:
            a, ff = block.attn1, block.ff.net
            return _Transformer(
                norm1=table(block.norm1),
                qkv=take(a.to_q.weight, a.to_k.weight, a.to_v.weight),
                out=take(a.to_out[0].weight),
                out_bias=take(a.to_out[0].bias),
                norm2=table(block.norm3),
                up=take(ff[0].proj.weight),
                up_bias=take(ff[0].proj.bias),
                down=take(ff[2].weight),
                down_bias=take(ff[2].bias),
            )

        self.stages = [
            _Stage(
                conv1=convolution(stage[0].block1.block[0], stage[0].res_conv),
                norm1=norm(stage[0].block1.block[2]),
                conv2=convolution(stage[0].block2.block[0]),
                norm2=norm(stage[0].block2.block[2]),
                transformers=[transformer(block) for block in stage[1]],
                last=convolution(stage[2]) if len(stage) == 3 else None,
            )
            for stage in (*network.down_blocks, *network.mid_blocks, *network.up_blocks)
        ]
        self.final_conv = convolution(network.final_block.block[0])
        self.final_norm = norm(network.final_block.block[2])
        self.proj, self.proj_bias = take(network.final_proj.weight[:, :, 0]), take(network.final_proj.bias)

    def modulations(self, t: Tensor) -> Tensor:
        raise NotImplementedError("the table is made by the plain network")

    def drop_time_weights(self) -> None:
        pass

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, modulation: Tensor, span: Span) -> Tensor:
        rows, n, _ = x.shape
        dim = self.config.channels
        h = torch.cat([x, mu, speaker[:, None].expand(-1, n, -1), cond], dim=-1).float()
        part: Tensor | None = None
        skip = h
        layer = 0
        for number, stage in enumerate(self.stages):
            if number == len(self.stages) - 1:
                h, part = torch.cat([h if part is None else h + part.view_as(h), skip], dim=-1), None
            # The first product also has the 1x1 convolution of the residual path.
            both = self._convolve(stage.conv1, h, part, span)
            y = kernels.norm_mish(
                both[:, :dim], stage.norm1.weight, stage.norm1.bias, _NORM_EPS, self.dtype,
                shift=modulation[:, number * dim : (number + 1) * dim], n=n,
            )  # fmt: skip
            y = self._convolve(stage.conv2, y.view(rows, n, dim), None, span)
            h = kernels.norm_mish(
                y, stage.norm2.weight, stage.norm2.bias, _NORM_EPS, torch.float32, residual=both[:, dim:]
            ).view(rows, n, dim)
            part = None
            for block in stage.transformers:
                part = self._transform(block, h, part, span, layer)
                layer += 1
            if number == 0:
                skip = h if part is None else h + part.view_as(h)
            if stage.last is not None:
                h, part = self._convolve(stage.last, h, part, span).view(rows, n, dim).float(), None
        y = self._convolve(self.final_conv, h, part, span)
        y = kernels.norm_mish(y, self.final_norm.weight, self.final_norm.bias, _NORM_EPS, self.dtype)
        return torch.addmm(self.proj_bias, y, self.proj.t()).view(rows, n, -1)

    def _convolve(self, conv: _Conv, x: Tensor, y: Tensor | None, span: Span) -> Tensor:
        """Convolve ``x + y`` ``(rows, n, inputs)``; return ``(rows * n, outputs)``."""
        tail = None if span.tails is None else span.tails.data[conv.tail]
        three = kernels.unfold_three(x, y, tail, span, self.dtype)
        return product(three, conv.weight, conv.bias)

    def _transform(self, block: _Transformer, h: Tensor, part: Tensor | None, span: Span, layer: int) -> Tensor:
        """Add ``part`` and then the attention to ``h``, in place. Return what the feed-forward part adds."""
        rows, n, dim = h.shape

        def add_norm(part: Tensor | None, table: Tensor) -> Tensor:
            return kernels.gate_add_modulate(
                h, part, table.expand(rows, -1), gate=0, shift=dim, scale=2 * dim, eps=_NORM_EPS, dtype=self.dtype
            )

        qkv = product(add_norm(part, block.norm1), block.qkv, None).view(rows, n, -1)
        a = kernels.span_attention(qkv, span, layer, None, self.config.heads)
        part = product(a, block.out, block.out_bias)
        a = product(add_norm(part, block.norm2), block.up, block.up_bias, gelu="none")
        return product(a, block.down, block.down_bias)
