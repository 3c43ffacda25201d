"""The transformer blocks of CosyVoice3's estimator as one kernel launch (``dit_blocks.cu``): packed weights and the
kernel.

Otherwise the 22 blocks of an Euler step are 154 small kernels, and a single clause waits for the latency of each, and
for multiprocessors that the language model's steps use. This kernel computes a short chunk of one clause (such as a
short first chunk) on 64 multiprocessors. It supports the released sizes, bf16, chunks with caches, and GPUs of compute
capability 9 or higher. Its blocks synchronise with each other, so all of them must be resident at the same time. Only
one such kernel and one ``decode_step`` may run on a device at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.kernels import decode_step
from tts_engine.cosyvoice.kernels.cuda_source import compile_kernel, if_compiled
from tts_engine.cosyvoice.models.config import FlowV3Config
from tts_engine.cosyvoice.models.streaming import Span

BLOCKS = 64
"""Thread blocks, one per multiprocessor."""
MOST_FRAMES = 24
"""Most frames of a chunk. A first chunk of 8 tokens has 22."""
_DIM, _HEADS, _PAGE_FRAMES = 1024, 16, 50
_THREADS = 256
_LINES = 2 * MOST_FRAMES
_MOST_PAGES = 512
_SHARED_BYTES = 2 * _LINES * (_DIM + 8) + 3 * 2 * 16 * _DIM + 2 * 4 * _DIM + 4 * _MOST_PAGES
"""Shared memory of a block (see ``dit_blocks.cu``): normalised lines, weights, shift and scale, page numbers."""


def load(network: Any, *, device: torch.device, dtype: torch.dtype) -> DitBlocks | None:
    """Return the kernel with the weights of ``network``, a ``DiT``, which may be dropped afterwards. None: sizes or
    device are not supported, or it could not be compiled."""
    if not _supported(network.config, device, dtype):
        return None
    return if_compiled(
        lambda: DitBlocks(network, device=device),
        "the fused kernel is not available: CosyVoice3's flow takes many launches a step",
    )


def _supported(config: FlowV3Config, device: torch.device, dtype: torch.dtype) -> bool:
    sizes = (config.dim, config.heads, config.head_dim, config.ff_mult) == (_DIM, _HEADS, _DIM // _HEADS, 2)
    if not (sizes and dtype == torch.bfloat16 and device.type == "cuda") or decode_step.under_mps():
        return False
    properties: Any = torch.cuda.get_device_properties(device)
    # The blocks of this kernel and of ``decode_step`` must fit on the device together, or the two may deadlock.
    places: int = properties.multi_processor_count - decode_step.BLOCKS
    shared: int = properties.shared_memory_per_block_optin
    return bool(properties.major >= 9) and places >= BLOCKS and shared >= _SHARED_BYTES


def pack(weight: Tensor, *, neighbours: bool) -> Tensor:
    """Reorder a weight ``(n, k)`` for the registers of the first factor of ``mma.m16n8k16`` (PTX ISA, "Matrix Fragments
    for mma.m16n8k16"): ``(n / 16, k / 16, 32 threads, 8)``.

    Args:
        neighbours: True: in the two instructions for 32 inputs, a thread has eight neighbouring inputs. False: inputs
            are ordered as ``ldmatrix`` loads them.
    """
    n, k = weight.shape
    if neighbours:
        tile, half, line, step, thread, product, pair, one = range(8)
        parts = weight.reshape(n // 16, 2, 8, k // 32, 4, 2, 2, 2)
        parts = parts.permute(tile, step, product, line, thread, pair, half, one)
    else:
        tile, half, line, step, pair, thread, one = range(7)
        parts = weight.reshape(n // 16, 2, 8, k // 16, 2, 4, 2).permute(tile, step, line, thread, pair, half, one)
    return parts.reshape(n // 16, k // 16, 32, 8)


class DitBlocks:
    """The packed weights of a network and its kernel."""

    def __init__(self, network: Any, *, device: torch.device) -> None:
        """See ``load``."""
        weights, biases = [], []
        for block in network.transformer_blocks:
            a, up, down = block.attn, block.ff.ff[0][0], block.ff.ff[2]
            out = a.to_out[0]
            qkv = torch.cat([part.weight for part in (a.to_q, a.to_k, a.to_v)])
            for weight, neighbours in ((qkv, False), (out.weight, True), (up.weight, False), (down.weight, True)):
                narrow = weight.detach().to(device=device, dtype=torch.bfloat16)
                weights.append(pack(narrow, neighbours=neighbours).flatten())
            values = [part.bias.detach().to(device).float() for part in (a.to_q, a.to_k, a.to_v, out, up, down)]
            biases += values
        self._weights, self._biases = torch.cat(weights), torch.cat(biases)
        self._lines = [
            torch.zeros(_LINES, width, dtype=torch.bfloat16, device=device) for width in (_DIM, _DIM, _DIM, 2 * _DIM)
        ]
        self._arrived = torch.zeros(1 + _HEADS, 32, dtype=torch.int32, device=device)
        sizes = {"LAYERS": len(network.transformer_blocks), "EPS": "1e-6f"}
        self._kernel = compile_kernel("dit_blocks", sizes, "waiting_blocks", "chunk_attention")
        self._kernel.set_shared_memory_config(_SHARED_BYTES)

    def fits(self, span: Span, rows: int, frames: int) -> bool:
        """Return True if the kernel can compute this chunk: one clause and few frames."""
        if span.keys is None or span.pages is None:
            return False
        short = rows == 2 and frames <= MOST_FRAMES and span.pages.shape[1] <= _MOST_PAGES
        return short and span.keys.page_frames == _PAGE_FRAMES

    def __call__(self, h: Tensor, span: Span, step: Tensor, modulations: Tensor, turn: tuple[Tensor, Tensor]) -> None:
        """Apply all blocks to ``h`` ``(2, n, 1024)``, fp32, in place. ``fits`` must be True for the chunk.

        Args:
            step: ``(1,)``, int64; modulations: ``(steps, any)``, fp32, from ``DiT.modulations``.
            turn: cosine and sine by position, ``(positions, 32)``, fp32.
        """
        assert span.keys is not None
        assert span.pages is not None
        data, pages = span.keys.data, span.pages.contiguous()
        assert modulations.dtype == torch.float32
        self._arrived.zero_()
        self._kernel(
            grid=(BLOCKS, 1, 1),
            block=(_THREADS, 1, 1),
            args=[
                h, self._weights, self._biases, modulations, step, *turn, data, pages, span.start, span.length,
                *self._lines, self._arrived, h.shape[1], pages.shape[1], data.shape[2], modulations.stride(0),
            ],
            shared_mem=_SHARED_BYTES,
        )  # fmt: skip
