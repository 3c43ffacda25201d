"""Stages of CosyVoice2's U-Net as one kernel launch (``unet_blocks.cu``): packed weights and the kernel.

Otherwise the 56 transformer blocks of an Euler step are 392 small kernels, and a single clause waits for the latency of
each. In this kernel a cluster of eight multiprocessors computes one row of the batch through all stages, and clusters
do not wait for each other. It supports the released sizes, bf16, chunks with caches, and GPUs with clusters and 170 KB
of shared memory per block (Hopper, data-centre Blackwell).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.kernels.cuda_source import compile_kernel, if_compiled
from tts_engine.cosyvoice.models.config import FlowV2Config
from tts_engine.cosyvoice.models.streaming import Span

CTAS = 8
"""Thread blocks of a cluster, one for each head."""
TILES = (2, 3, 4)
"""Numbers of 16-frame tiles for which the kernel is compiled. Other lengths use the next larger one."""
_CHANNELS, _HEAD_CHANNELS, _PAGE_FRAMES = 256, 64, 50
_THREADS = 256
_MOST_PAGES = 512


def load(network: Any, *, device: torch.device, dtype: torch.dtype) -> UNetBlocks | None:
    """Return the kernel with the weights of ``network``, a ``CausalUNet``, which may be dropped afterwards. None: sizes
    or device are not supported, or it could not be compiled."""
    if not _supported(network.config, device, dtype):
        return None
    return if_compiled(
        lambda: UNetBlocks(network, device=device),
        "the fused kernel is not available: CosyVoice2's flow takes many launches a step",
    )


def _supported(config: FlowV2Config, device: torch.device, dtype: torch.dtype) -> bool:
    sizes = (config.channels, config.heads, config.head_dim) == (_CHANNELS, CTAS, _HEAD_CHANNELS)
    if not (sizes and dtype == torch.bfloat16 and device.type == "cuda"):
        return False
    properties: Any = torch.cuda.get_device_properties(device)
    return bool(
        properties.major >= 9 and properties.shared_memory_per_block_optin >= _shared_bytes(max(TILES), _MOST_PAGES)
    )


def _shared_bytes(tiles: int, pages: int) -> int:
    """Return the shared memory of a block (see ``unet_blocks.cu``): lines, partial sums, queries, keys and values, four
    pages, page numbers."""
    lines = 16 * tiles
    own = (2 + lines) * (_CHANNELS + 8) + lines * _CHANNELS + 3 * lines * (_HEAD_CHANNELS + 8)
    return 2 * (own + 4 * 2 * 64 * (_HEAD_CHANNELS + 8)) + 4 * pages


def pack(weight: Tensor) -> Tensor:
    """Reorder a weight ``(n, k)`` for the registers of the second factor of two ``mma.m16n8k16`` (PTX ISA, "Matrix
    Fragments for mma.m16n8k16"): ``(n / 8, k / 32, 32 threads, 8)``."""
    n, k = weight.shape
    tile, line, step, product, half, thread, one = range(7)
    parts = weight.reshape(n // 8, 8, k // 32, 2, 2, 4, 2)
    return parts.permute(tile, step, line, thread, product, half, one).reshape(n // 8, k // 32, 32, 8)


def neighbours(outputs: int) -> Tensor:
    """Return an order of the outputs in which a thread has eight neighbouring outputs in four tiles of eight."""
    return torch.arange(outputs).view(-1, 4, 4, 2).transpose(1, 2).reshape(-1)


class UNetBlocks:
    """The packed weights of a network and its kernels."""

    def __init__(self, network: Any, *, device: torch.device) -> None:
        """See ``load``."""
        stages = [*network.down_blocks, *network.mid_blocks, *network.up_blocks]
        self._blocks = network.config.blocks
        order = neighbours(_CHANNELS).to(device)

        def narrow(weight: Tensor) -> Tensor:
            return weight.detach().to(device=device, dtype=torch.bfloat16)

        def outputs(layer: Any) -> Sequence[Tensor]:
            """Split a weight by outputs, one part for each thread block."""
            return narrow(layer.weight).chunk(CTAS)

        def sums(layer: Any) -> Sequence[Tensor]:
            """Split a weight by inputs, one part for each thread block; the outputs are partial sums."""
            return narrow(layer.weight)[order].chunk(CTAS, dim=1)

        def exact(*values: Tensor) -> Tensor:
            return torch.cat([v.detach().to(device=device, dtype=torch.float32) for v in values])

        weights, values = [], []
        for block in (block for stage in stages for block in stage[1]):
            a, ff = block.attn1, block.ff.net
            qkv = (outputs(layer) for layer in (a.to_q, a.to_k, a.to_v))
            for q, k, v, out, up, down in zip(*qkv, sums(a.to_out[0]), outputs(ff[0].proj), sums(ff[2]), strict=True):
                weights += [pack(part) for part in (torch.cat([q, k, v]), out, up, down)]
            values.append(
                exact(
                    block.norm1.weight, block.norm1.bias, a.to_out[0].bias, block.norm3.weight, block.norm3.bias,
                    ff[2].bias, ff[0].proj.bias,
                )
            )  # fmt: skip
        self._weights, self._values = _joined(weights), torch.stack(values)
        self._block_weights = len(self._weights) // len(values)

        weights, values = [], []
        for resnet, *_ in network.mid_blocks:
            first, second = (block.block for block in (resnet.block1, resnet.block2))
            convs = [narrow(conv.weight.permute(0, 2, 1).flatten(1)).chunk(CTAS) for conv in (first[0], second[0])]
            beside = narrow(resnet.res_conv.weight[:, :, 0]).chunk(CTAS)
            for share in zip(convs[0], beside, convs[1], strict=True):
                weights += [pack(part) for part in share]
            parts = [part for conv, _, norm in (first, second) for part in (conv.bias, norm.weight, norm.bias)]
            values.append(exact(*parts, resnet.res_conv.bias))
        self._conv_weights, self._conv_values = _joined(weights), torch.stack(values)
        self._middle = len(network.down_blocks)
        # The tails of the middle stages' convolutions are adjacent, starting at this one (``ConvTails``).
        self._first_tail = network.mid_blocks[0][0].block1.block[0].tail
        # A cluster needs neighbouring multiprocessors, so some stay unused: an H100 runs 14 clusters at once, not 16.
        # More rows would take two rounds, which is slower than many small launches.
        processors: int = torch.cuda.get_device_properties(device).multi_processor_count
        self.most_rows = processors // (CTAS + 1)
        self._kernels = {tiles: self._compile(tiles) for tiles in TILES}

    def _compile(self, tiles: int) -> Any:
        kernel = compile_kernel(
            "unet_blocks", {"TILES": tiles, "BLOCKS": self._blocks, "EPS": "1e-5f"}, "chunk_attention"
        )
        kernel.set_shared_memory_config(_shared_bytes(tiles, _MOST_PAGES))
        return kernel

    def fits(self, span: Span, rows: int, frames: int) -> bool:
        """Return True if the kernel can compute this chunk, with all rows at once."""
        if span.keys is None or span.pages is None or span.tails is None:
            return False
        small = rows <= self.most_rows and frames <= _PAGE_FRAMES and span.pages.shape[1] <= _MOST_PAGES
        return small and span.keys.page_frames == _PAGE_FRAMES

    def transform(self, h: Tensor, span: Span, stage: int) -> None:
        """Apply a stage's transformer blocks to ``h`` ``(rows, n, 256)``, fp32, in place. ``fits`` must be True for the
        chunk."""
        self._launch(h, span, stage, 1, None)

    def middle(self, h: Tensor, span: Span, shifts: Tensor) -> None:
        """Apply all middle stages to ``h``, in place. ``shifts``: time shifts of all stages of the network, ``(rows,
        stages * 256)``, fp32."""
        self._launch(h, span, self._middle, len(self._conv_values), shifts)

    def _launch(self, h: Tensor, span: Span, stage: int, stages: int, shifts: Tensor | None) -> None:
        rows, n, width = h.shape
        assert span.keys is not None
        assert span.pages is not None
        assert span.tails is not None
        data, pages, tail = span.keys.data, span.pages.contiguous(), span.tails.data[self._first_tail]
        first = stage * self._blocks
        convolves = shifts is not None
        shifts = h if shifts is None else shifts[:, stage * width :]  # not read without convolutions
        tiles = next(tiles for tiles in TILES if 16 * tiles >= n)
        self._kernels[tiles](
            grid=(CTAS * rows, 1, 1),
            block=(_THREADS, 1, 1),
            args=[
                h, self._weights[first * self._block_weights :], self._values[first:], self._conv_weights,
                self._conv_values, shifts, data[first:], tail, pages, span.slots, span.start, span.length,
                n, stages, int(convolves), pages.shape[1], data.shape[2], tail.shape[0], shifts.stride(0),
            ],
            shared_mem=_shared_bytes(tiles, pages.shape[1]),
        )  # fmt: skip


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])
