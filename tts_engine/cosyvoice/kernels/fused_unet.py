"""The estimator of CosyVoice2 on a GPU: ``models.unet.CausalUNet`` with fused weights and kernels, for chunks with
caches.

It replaces that network in ``FlowV2``. For chunks with caches, ``unet_blocks`` computes the twelve middle stages in one
launch if the GPU can run it. Otherwise a residual block takes six launches and a transformer block seven. The residual
stream is fp32, products are in the dtype of the weights, and sums are fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels import unet_blocks
from tts_engine.cosyvoice.kernels.product import product
from tts_engine.cosyvoice.kernels.unet_blocks import UNetBlocks
from tts_engine.cosyvoice.models.cfm import Estimator, StepTables
from tts_engine.cosyvoice.models.streaming import Span
from tts_engine.cosyvoice.models.unet import CausalUNet

_NORM_EPS = 1e-5


@dataclass(slots=True)
class _Conv:
    """A causal convolution over three frames, as a product over three concatenated frames."""

    tail: int
    weight: Tensor
    """Shape ``(outputs, 3 * inputs)``. The first one of a residual block has the outputs of the block's 1x1
    convolution, too."""
    bias: Tensor


@dataclass(slots=True)
class _Norm:
    weight: Tensor
    bias: Tensor


@dataclass(slots=True)
class _Transformer:
    norm1: Tensor
    """A row of the table of ``gate_add_modulate``: gate 1, shift, scale - 1."""
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
    """The estimator. ``span`` is one chunk with caches, or whole sequences with full attention and without caches."""

    def __init__(self, unet: CausalUNet, *, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> None:
        """Read ``unet``, which may be dropped afterwards. The modulation table must exist already."""
        super().__init__()
        self.config, self.dtype = unet.config, dtype
        network: Any = unet  # submodules are Tensor | Module to a type checker
        self.attention_layers, self.key_channels = unet.attention_layers, unet.key_channels
        self.tail_shapes = unet.tail_shapes
        self.blocks = unet_blocks.load(unet, device=device, dtype=dtype)
        self.rows_at_once = None if self.blocks is None else self.blocks.most_rows

        def take(*parts: Tensor) -> Tensor:
            return torch.cat([p.detach().to(device=device, dtype=dtype) for p in parts]).contiguous()

        def exact(value: Tensor) -> Tensor:
            return value.detach().to(device=device, dtype=torch.float32).contiguous()

        def convolution(conv: Any, beside: Any = None) -> _Conv:
            weight, bias = conv.weight.permute(0, 2, 1).flatten(1), conv.bias
            if beside is None:
                return _Conv(conv.tail, take(weight), take(bias))
            now = F.pad(beside.weight[:, :, 0], (2 * conv.in_channels, 0))  # applies to the last of the three frames
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

    def begin(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor) -> Tensor:
        """Return the input of the first convolution, ``(2 * rows, n, 320)``. Each step writes its state into it."""
        return kernels.join_branches(x, mu, speaker[:, None].expand_as(x), cond, dtype=self.dtype)

    def euler_step(
        self,
        x: Tensor,
        inputs: Tensor,
        step: Tensor,
        tables: StepTables,
        span: Span,
        *,
        nearly_done: Callable[[], None] = lambda: None,
    ) -> None:
        shifts = tables.modulations.index_select(0, step).repeat(2, 1)
        v = self._velocity(inputs, shifts, span, nearly_done)
        kernels.guided_step(v, x, inputs, tables.widths, step, tables.cfg_rate)

    def _velocity(self, joined: Tensor, shifts: Tensor, span: Span, nearly_done: Callable[[], None]) -> Tensor:
        """Return the velocity ``(2 * rows, n, 80)`` of both branches."""
        rows, n, _ = joined.shape
        one_launch = self.blocks if self.blocks is not None and self.blocks.fits(span, rows, n) else None
        first, *middle, last = range(len(self.stages))
        h = self._residual(first, joined, None, shifts, span)
        h, skip = self._finish(first, h, self._transform(first, h, span, one_launch), span)
        part: Tensor | None = None
        if one_launch is not None:
            one_launch.middle(h, span, shifts)
        else:
            for number in middle:
                h = self._residual(number, h, part, shifts, span)
                part = self._transform(number, h, span, None)
        nearly_done()
        h = torch.cat([h if part is None else h + part.view_as(h), skip], dim=-1)
        h = self._residual(last, h, None, shifts, span)
        h, _ = self._finish(last, h, self._transform(last, h, span, one_launch), span)
        y = self._convolve(self.final_conv, h, None, span)
        y = kernels.norm_mish(y, self.final_norm.weight, self.final_norm.bias, _NORM_EPS, self.dtype)
        return torch.addmm(self.proj_bias, y, self.proj.t()).view(rows, n, -1)

    def _residual(self, number: int, x: Tensor, y: Tensor | None, shifts: Tensor, span: Span) -> Tensor:
        """Apply the residual block of a stage to ``x + y``. Return ``(rows, n, channels)``, fp32."""
        stage, dim = self.stages[number], self.config.channels
        rows, n, _ = x.shape
        # The first product includes the 1x1 convolution of the residual path.
        both = self._convolve(stage.conv1, x, y, span)
        h = kernels.norm_mish(
            both[:, :dim], stage.norm1.weight, stage.norm1.bias, _NORM_EPS, self.dtype,
            shift=shifts[:, number * dim : (number + 1) * dim], n=n,
        )  # fmt: skip
        h = self._convolve(stage.conv2, h.view(rows, n, dim), None, span)
        return kernels.norm_mish(
            h, stage.norm2.weight, stage.norm2.bias, _NORM_EPS, torch.float32, residual=both[:, dim:]
        ).view(rows, n, dim)

    def _transform(self, number: int, h: Tensor, span: Span, one_launch: UNetBlocks | None) -> Tensor | None:
        """Apply the transformer blocks of a stage to ``h``, in place. Return the output of the last feed-forward part,
        if it is not added yet."""
        if one_launch is not None:
            one_launch.transform(h, span, number)
            return None
        part: Tensor | None = None
        blocks = self.stages[number].transformers
        for layer, block in enumerate(blocks, number * len(blocks)):
            part = self._transform_one(block, h, part, span, layer)
        return part

    def _finish(self, number: int, h: Tensor, part: Tensor | None, span: Span) -> tuple[Tensor, Tensor]:
        """Apply the last convolution of a stage to ``h + part``. Return its output, fp32, and its input."""
        conv = self.stages[number].last
        assert conv is not None
        h = h if part is None else h + part.view_as(h)
        return self._convolve(conv, h, None, span).view(h.shape).float(), h

    def _convolve(self, conv: _Conv, x: Tensor, y: Tensor | None, span: Span) -> Tensor:
        """Convolve ``x + y`` ``(rows, n, inputs)``. Return ``(rows * n, outputs)``."""
        tail = None if span.tails is None else span.tails.data[conv.tail]
        three = kernels.unfold_three(x, y, tail, span, self.dtype)
        return product(three, conv.weight, conv.bias)

    def _transform_one(self, block: _Transformer, h: Tensor, part: Tensor | None, span: Span, layer: int) -> Tensor:
        """Add ``part`` and then the attention to ``h``, in place. Return the output of the feed-forward part."""
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
