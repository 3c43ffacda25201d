"""Stages of CosyVoice2's U-Net as one launch (``unet_blocks.cu``): packed weights and the compiled kernel.

With a launch for each part, the 56 transformer blocks of a step are 392 small kernels in a row, and one clause waits
for their latencies. Here eight multiprocessors, a cluster, keep a row of the batch for all stages, and clusters do not
wait for each other. It is made for the released sizes, bf16, chunks with caches, and GPUs with clusters and 170 KB of
shared memory a block: Hopper and the Blackwell of servers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import FlowV2Config
from tts_engine.cosyvoice.models.streaming import Span

log = logging.getLogger(__name__)

CTAS = 8
"""Blocks of threads of a cluster: one for each head."""
TILES = (2, 3, 4)
"""Tiles of sixteen frames for which the kernel is compiled. Fewer frames take the next larger one."""
_CHANNELS, _HEAD_CHANNELS, _PAGE_FRAMES = 256, 64, 50
_THREADS = 256
_MOST_PAGES = 512
_SOURCE = Path(__file__).with_name("unet_blocks.cu")


def load(network: Any, *, device: torch.device, dtype: torch.dtype) -> UNetBlocks | None:
    """Return the kernel with the weights of ``network``, a ``CausalUNet``, which may be dropped afterwards.
    None: it cannot run these sizes there, or could not be compiled."""
    if not _supported(network.config, device, dtype):
        return None
    try:
        return UNetBlocks(network, device=device)
    except (AttributeError, ImportError, OSError, RuntimeError):  # an API of torch that is not public
        log.warning("CosyVoice2's flow will take many launches a step", exc_info=True)
        return None


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


@dataclass(frozen=True, slots=True)
class _Shares:
    """A weight, split into what each of the cluster's blocks multiplies with."""

    weight: Tensor

    def of(self, block: int, *, inputs: bool = False) -> Tensor:
        share: Tensor = self.weight.chunk(CTAS, dim=1 if inputs else 0)[block]
        return share


class UNetBlocks:
    """The packed weights of a network, and its kernels."""

    def __init__(self, network: Any, *, device: torch.device) -> None:
        """See ``load``."""
        stages = [*network.down_blocks, *network.mid_blocks, *network.up_blocks]
        self._blocks = network.config.blocks
        order = neighbours(_CHANNELS).to(device)

        def shares(weight: Tensor) -> _Shares:
            return _Shares(weight.detach().to(device=device, dtype=torch.bfloat16))

        def exact(*values: Tensor) -> Tensor:
            return torch.cat([v.detach().to(device=device, dtype=torch.float32) for v in values])

        weights, values = [], []
        for block in (block for stage in stages for block in stage[1]):
            a, ff = block.attn1, block.ff.net
            q, k, v, out, up, down = (
                shares(layer.weight) for layer in (a.to_q, a.to_k, a.to_v, a.to_out[0], ff[0].proj, ff[2])
            )
            for each in range(CTAS):
                weights += [
                    pack(torch.cat([q.of(each), k.of(each), v.of(each)])),
                    pack(out.of(each, inputs=True)[order]),
                    pack(up.of(each)),
                    pack(down.of(each, inputs=True)[order]),
                ]
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
            convs = [shares(conv.weight.permute(0, 2, 1).flatten(1)) for conv in (first[0], second[0])]
            beside = shares(resnet.res_conv.weight[:, :, 0])
            for each in range(CTAS):
                weights += [pack(part.of(each)) for part in (convs[0], beside, convs[1])]
            parts = [part for conv, _, norm in (first, second) for part in (conv.bias, norm.weight, norm.bias)]
            values.append(exact(*parts, resnet.res_conv.bias))
        self._conv_weights, self._conv_values = _joined(weights), torch.stack(values)
        # The multiprocessors of a cluster are neighbours, so that some find no cluster: on an H100 14 clusters run at
        # once. Further ones would wait until those have ended, and many launches take less than twice as long.
        processors: int = torch.cuda.get_device_properties(device).multi_processor_count
        self._most_rows = processors // (CTAS + 1)
        self._kernels = {tiles: self._compile(tiles) for tiles in TILES}

    def _compile(self, tiles: int) -> Any:
        from torch.utils import cpp_extension  # takes setuptools, which ``load`` may do without

        # torch adds the folder of the toolkit's headers, and fails where there is no toolkit, as beside a torch from
        # pip. This source includes none of them.
        cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"
        defined = f"#define TILES {tiles}\n#define BLOCKS {self._blocks}\n#define EPS 1e-5f\n"
        kernel = torch.cuda._compile_kernel(defined + _SOURCE.read_text(), "unet_blocks")
        kernel.set_shared_memory_config(_shared_bytes(tiles, _MOST_PAGES))
        return kernel

    def fits(self, span: Span, rows: int, frames: int) -> bool:
        """Is this a chunk that it can feed, and soon?"""
        if span.keys is None or span.pages is None or span.tails is None:
            return False
        small = rows <= self._most_rows and frames <= _PAGE_FRAMES and span.pages.shape[1] <= _MOST_PAGES
        return small and span.keys.page_frames == _PAGE_FRAMES

    def __call__(
        self, h: Tensor, span: Span, *, stage: int, shifts: Tensor | None = None, tails: Sequence[Tensor] = ()
    ) -> None:
        """Put ``h`` through one stage's transformer blocks or, with ``shifts``, through all middle stages.

        Args:
            h: ``(rows, n, 256)``, fp32, changed in place; a chunk that ``fits``.
            stage: which one; the first of the middle ones with ``shifts``.
            shifts: what the time adds in each stage, ``(rows, stages * 256)``, fp32.
            tails: those of the middle stages' convolutions, ``(slots, 2, 256)``, one behind the other in memory.
        """
        rows, n, width = h.shape
        assert span.keys is not None
        assert span.pages is not None
        data, pages = span.keys.data, span.pages.contiguous()
        first = stage * self._blocks
        convolves, stages = (False, 1) if shifts is None else (True, len(tails) // 2)
        # Without convolutions these two are not read.
        shifts = h if shifts is None else shifts[:, stage * width :]
        tail = tails[0] if convolves else h
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
