"""The estimator of Fun-CosyVoice3 on a GPU: ``models.dit.DiT`` with fused weights and kernels, for chunks with caches.

It replaces that network in ``FlowV3``. A block takes seven launches; for a short chunk of a single clause,
``dit_blocks`` computes all blocks in one launch if the GPU can run it. The residual stream is fp32, products are in the
dtype of the weights, and sums are fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.kernels import dit_blocks
from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.product import product
from tts_engine.cosyvoice.models.cfm import NOISE_FRAMES, Estimator, StepTables
from tts_engine.cosyvoice.models.dit import DiT
from tts_engine.cosyvoice.models.streaming import Span

_NORM_EPS = 1e-6
_NEARLY = 0.75


@dataclass(slots=True)
class _Block:
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


class FusedDiT(Estimator):
    """The estimator. ``span`` is one chunk with caches, or whole sequences with full attention and without caches."""

    def __init__(self, dit: DiT, *, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> None:
        """Read ``dit``, which may be dropped afterwards. The modulation table must exist already."""
        super().__init__()
        self.config, self.dtype = dit.config, dtype
        network: Any = dit  # submodules are Tensor | Module to a type checker
        self.attention_layers, self.key_channels, self.tail_shapes = (
            dit.attention_layers,
            dit.key_channels,
            dit.tail_shapes,
        )

        def take(*parts: Tensor) -> Tensor:
            return torch.cat([p.detach().to(device=device, dtype=dtype) for p in parts]).contiguous()

        self.blocks = []
        for block in network.transformer_blocks:
            a, ff = block.attn, block.ff.ff
            self.blocks.append(
                _Block(
                    qkv=take(a.to_q.weight, a.to_k.weight, a.to_v.weight),
                    qkv_bias=take(a.to_q.bias, a.to_k.bias, a.to_v.bias),
                    out=take(a.to_out[0].weight),
                    out_bias=take(a.to_out[0].bias),
                    up=take(ff[0][0].weight),
                    up_bias=take(ff[0][0].bias),
                    down=take(ff[2].weight),
                    down_bias=take(ff[2].bias),
                )
            )
        self.proj, self.proj_bias = take(network.input_embed.proj.weight), take(network.input_embed.proj.bias)
        self.proj_out, self.proj_out_bias = take(network.proj_out.weight), take(network.proj_out.bias)
        convs = (network.input_embed.conv_pos_embed.conv1[0], network.input_embed.conv_pos_embed.conv2[0])
        self.convs = []
        for conv in convs:
            # (out, in / groups, taps) -> (groups, taps, in, out)
            weight = take(conv.weight).view(conv.groups, -1, *conv.weight.shape[1:]).permute(0, 3, 2, 1).contiguous()
            self.convs.append((conv.tail, weight, take(conv.bias)))
        phase = torch.arange(NOISE_FRAMES)[:, None] * network.rotary_embed.inv_freq.detach().float().cpu()
        self.turn = phase.cos().to(device), phase.sin().to(device)
        self.one_launch = dit_blocks.load(dit, device=device, dtype=dtype)

    def modulations(self, t: Tensor) -> Tensor:
        raise NotImplementedError("the table is made by the plain network")

    def drop_time_weights(self) -> None:
        pass

    def begin(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor) -> Tensor:
        """Return the input of the first product, ``(2 * rows, n, 320)``. Each step writes its state into it."""
        return kernels.join_branches(x, cond, mu, speaker[:, None].expand_as(x), dtype=self.dtype)

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
        v = self._velocity(inputs, tables.modulations, step, span, nearly_done)
        kernels.guided_step(v, x, inputs, tables.widths, step, tables.cfg_rate)

    def _velocity(
        self, joined: Tensor, modulations: Tensor, step: Tensor, span: Span, nearly_done: Callable[[], None]
    ) -> Tensor:
        """Return the velocity ``(2 * rows, n, 80)`` of both branches."""
        rows, n, _ = joined.shape
        dim, dtype = self.config.dim, self.dtype
        flat = torch.addmm(self.proj_bias, joined.view(rows * n, -1), self.proj.t()).view(rows, n, dim)
        (tail1, weight1, bias1), (tail2, weight2, bias2) = self.convs
        past1, past2 = (None, None) if span.tails is None else (span.tails.data[tail1], span.tails.data[tail2])
        y = kernels.grouped_conv_mish(flat, past1, span, weight1, bias1, None, dtype)
        h = kernels.grouped_conv_mish(y, past2, span, weight2, bias2, flat, torch.float32)

        part: Tensor | None = None
        if self.one_launch is not None and self.one_launch.fits(span, rows, n):
            nearly_done()
            self.one_launch(h, span, step, modulations, self.turn)
        else:
            part = self._transform(h, modulations, step, span, nearly_done)
        table = len(self.blocks) * 6 * dim
        gate = table - dim
        a = kernels.gate_add_modulate(
            h, part, modulations, gate=gate, shift=table + dim, scale=table, eps=_NORM_EPS, dtype=dtype, entry=step
        )
        return product(a, self.proj_out, self.proj_out_bias).view(rows, n, -1)

    def _transform(
        self, h: Tensor, modulations: Tensor, step: Tensor, span: Span, nearly_done: Callable[[], None]
    ) -> Tensor | None:
        """Apply the blocks to ``h``, in place. Return the output of the last feed-forward part, if it is not added
        yet."""
        rows, n, dim = h.shape
        dtype = self.dtype
        part: Tensor | None = None
        gate = 0
        for layer, block in enumerate(self.blocks):
            if layer == math.ceil(_NEARLY * len(self.blocks)):
                nearly_done()
            table = layer * 6 * dim  # shift, scale, gate of the attention, then of the feed-forward
            a = kernels.gate_add_modulate(
                h, part, modulations, gate=gate, shift=table, scale=table + dim, eps=_NORM_EPS, dtype=dtype, entry=step
            )
            qkv = product(a, block.qkv, block.qkv_bias).view(rows, n, -1)
            a = kernels.span_attention(qkv, span, layer, self.turn, self.config.heads)
            part = product(a, block.out, block.out_bias)
            a = kernels.gate_add_modulate(
                h,
                part,
                modulations,
                gate=table + 2 * dim,
                shift=table + 3 * dim,
                scale=table + 4 * dim,
                eps=_NORM_EPS,
                dtype=dtype,
                entry=step,
            )
            a = product(a, block.up, block.up_bias, gelu="tanh")
            part = product(a, block.down, block.down_bias)
            gate = table + 5 * dim
        return part
