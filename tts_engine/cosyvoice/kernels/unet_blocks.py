"""Stages of CosyVoice2's U-Net as one launch (``unet_blocks.cu``): packed weights and the compiled kernel.

With a launch for each part, the 56 transformer blocks of a step are 392 small kernels in a row, and one clause waits
for their latencies. Here eight multiprocessors, a cluster, keep a row of the batch for all stages, and clusters do not
wait for each other. It is made for the released sizes, bf16, chunks with caches, and GPUs with clusters and 170 KB of
shared memory a block: Hopper and the Blackwell of servers.
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
"""Blocks of threads of a cluster: one for each head."""
TILES = (2, 3, 4)
"""Tiles of sixteen frames for which the kernel is compiled. Fewer frames take the next larger one."""
_CHANNELS, _HEAD_CHANNELS, _PAGE_FRAMES = 256, 64, 50
_THREADS = 256
_MOST_PAGES = 512


def load(network: Any, *, device: torch.device, dtype: torch.dtype) -> UNetBlocks | None:
    """Return the kernel with the weights of ``network``, a ``CausalUNet``, which may be dropped afterwards.
    None: it cannot run these sizes there, or could not be compiled."""
    if not _supported(network.config, device, dtype):
        return None
    return if_compiled(lambda: UNetBlocks(network, device=device), "CosyVoice2's flow will take many launches a step")


def _supported(config: FlowV2Config, device: torch.device, dtype: torch.dtype) -> bool:
    sizes = (config.channels, config.heads, config.head_dim) == (_CHANNELS, CTAS, _HEAD_CHANNELS)
    if not (sizes and dtype == torch.bfloat16 and device.type == "cuda"):
        return False
    properties: Any = torch.cuda.get_device_properties(device)
    return bool(
        properties.major >= 9 and properties.shared_memory_per_block_optin >= _shared_bytes(max(TILES), _MOST_PAGES)
    )


def _shared_bytes(tiles: int, pages: int) -> int:
    """As ``unet_blocks.cu`` divides it: lines, parts of sums, queries with keys and values, four pages, their
    numbers."""
    lines = 16 * tiles
    own = (2 + lines) * (_CHANNELS + 8) + lines * _CHANNELS + 3 * lines * (_HEAD_CHANNELS + 8)
    return 2 * (own + 4 * 2 * 64 * (_HEAD_CHANNELS + 8)) + 4 * pages


def pack(weight: Tensor) -> Tensor:
    """Order a weight ``(n, k)`` as the registers of two ``mma.m16n8k16`` want their second factor (PTX ISA, "Matrix
    Fragments for mma.m16n8k16"): ``(n / 8, k / 32, 32 threads, 8)``."""
    n, k = weight.shape
    tile, line, step, product, half, thread, one = range(7)
    parts = weight.reshape(n // 8, 8, k // 32, 2, 2, 4, 2)
    return parts.permute(tile, step, line, thread, product, half, one).reshape(n // 8, k // 32, 32, 8)


def neighbours(outputs: int) -> Tensor:
    """Return an order of the outputs in which a thread has eight neighbours in four tiles of eight."""
    return torch.arange(outputs).view(-1, 4, 4, 2).transpose(1, 2).reshape(-1)


class UNetBlocks:
    """The packed weights of a network, and its kernels."""

    def __init__(self, network: Any, *, device: torch.device) -> None:
        """See ``load``."""
        stages = [*network.down_blocks, *network.mid_blocks, *network.up_blocks]
        self._blocks = network.config.blocks
        order = neighbours(_CHANNELS).to(device)

        def narrow(weight: Tensor) -> Tensor:
            return weight.detach().to(device=device, dtype=torch.bfloat16)

        def outputs(layer: Any) -> Sequence[Tensor]:
            """The part of a weight that each block of the cluster has to make its part of the outputs."""
            return narrow(layer.weight).chunk(CTAS)

        def sums(layer: Any) -> Sequence[Tensor]:
            """The part that each has to make its part of all sums."""
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
        # The tails of the middle stages' convolutions lie behind this one (``ConvTails``).
        self._first_tail = network.mid_blocks[0][0].block1.block[0].tail
        # The multiprocessors of a cluster are neighbours, so that some find no cluster: on an H100 14 clusters run at
        # once, and 16 do not. Further ones wait until those have ended, and many launches take less than twice as long.
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
        """Is this a chunk that it can feed, and soon?"""
        if span.keys is None or span.pages is None or span.tails is None:
            return False
        small = rows <= self.most_rows and frames <= _PAGE_FRAMES and span.pages.shape[1] <= _MOST_PAGES
        return small and span.keys.page_frames == _PAGE_FRAMES

    def transform(self, h: Tensor, span: Span, stage: int) -> None:
        """Put ``h`` ``(rows, n, 256)``, fp32, through a stage's transformer blocks, in place. The chunk ``fits``."""
        self._launch(h, span, stage, 1, None)

    def middle(self, h: Tensor, span: Span, shifts: Tensor) -> None:
        """Put ``h`` through all middle stages, in place. ``shifts``: what the time adds in each stage of the network,
        ``(rows, stages * 256)``, fp32."""
        self._launch(h, span, self._middle, len(self._conv_values), shifts)

    def _launch(self, h: Tensor, span: Span, stage: int, stages: int, shifts: Tensor | None) -> None:
        rows, n, width = h.shape
        assert span.keys is not None
        assert span.pages is not None
        assert span.tails is not None
        data, pages, tail = span.keys.data, span.pages.contiguous(), span.tails.data[self._first_tail]
        first = stage * self._blocks
        convolves = shifts is not None
        shifts = h if shifts is None else shifts[:, stage * width :]  # without convolutions it is not read
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
