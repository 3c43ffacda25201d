"""A decode step of the language model as one kernel launch (``decode_step.cu``): packed weights, buffers and the
kernel.

With many small launches, a step waits for free multiprocessors at each of them, and takes twice as long beside
token-to-wave as alone. This kernel waits once. It supports the released sizes, bf16, and GPUs of compute capability 9
or higher. Its blocks synchronise with each other, so all of them must be resident at the same time, and only one such
kernel may run on a device at a time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tts_engine.cosyvoice.kernels.cuda_source import compile_kernel, if_compiled
from tts_engine.cosyvoice.models.config import LanguageModelConfig

ROWS = (8, 16, 32)
"""Batch sizes for which the kernel is compiled. Other batches use the next larger one."""
MOST_ROWS = ROWS[-1]
_TILE = 16
"""Outputs of a block's matrix products."""
BLOCKS = 64
"""Blocks of the kernel, one per multiprocessor. More are not faster on an H100, and take multiprocessors from
token-to-wave."""
_THREADS = 256


def load(network: Any, *, device: torch.device, dtype: torch.dtype) -> DecodeStep | None:
    """Return the kernel with the weights of ``network``, a ``SpeechLanguageModel``, which may be dropped afterwards.
    None: sizes or device are not supported, or it could not be compiled."""
    if not _supported(network.config, device, dtype):
        return None
    return if_compiled(
        lambda: DecodeStep(network, device=device),
        "the fused kernel is not available: the language model's steps take many launches each",
    )


def under_mps() -> bool:
    """Return True if CUDA MPS runs, so that kernels of several processes run at once. Two kernels whose blocks wait for
    each other could then deadlock, each with a part of the multiprocessors."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def _supported(config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    sizes = config.head_dim == 64 and config.heads // config.kv_heads <= 8
    sizes = sizes and config.hidden_size % 128 == 0 and config.intermediate_size % 128 == 0
    if not (sizes and dtype == torch.bfloat16 and device.type == "cuda") or under_mps():
        return False
    properties: Any = torch.cuda.get_device_properties(device)
    blocks: int = min(properties.multi_processor_count, BLOCKS)
    return bool(properties.major >= 9) and blocks >= config.hidden_size // _TILE


def pack(weight: Tensor) -> Tensor:
    """Reorder a weight ``(n, k)`` for the registers of ``mma.m16n8k16`` (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
    ``(n / 16, k / 16, 32 threads, 8)``, where a thread has four neighbouring inputs of two outputs."""
    n, k = weight.shape
    tile, half, line, part, thread, pair, one = range(7)
    parts = weight.view(n // _TILE, 2, 8, k // 16, 4, 2, 2)
    return parts.permute(tile, part, line, thread, pair, half, one).reshape(n // _TILE, k // 16, 32, 8)


def rotated_pairs(heads: int) -> Tensor:
    """Return an order of the outputs of ``heads`` heads of 64, in which each 16 outputs have both halves of 8 rotated
    pairs."""
    return torch.arange(heads * 64).view(heads, 2, 4, 8).transpose(1, 2).reshape(-1)


class DecodeStep:
    """The packed weights of a model and its kernels."""

    def __init__(self, network: Any, *, device: torch.device) -> None:
        """See ``load``."""
        config = self.config = network.config
        processors: int = torch.cuda.get_device_properties(device).multi_processor_count
        self._blocks = min(BLOCKS, processors)

        def folded(norm: Tensor, *weights: Tensor) -> Tensor:
            """Return joined weights, multiplied by the weight of the norm before them."""
            joined = torch.cat([w.detach().to(device).float() for w in weights])
            return (joined * norm.detach().to(device).float()).to(torch.bfloat16)

        order = rotated_pairs(config.heads + 2 * config.kv_heads).to(device)
        layers, biases = [], []
        for layer in network.backbone.layers:
            a, m = layer.self_attn, layer.mlp
            qkv = folded(layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)
            norm = layer.post_attention_layernorm.weight
            up = [pack(folded(norm, w)) for w in (m.gate_proj.weight, m.up_proj.weight)]
            plain = [pack(w.detach().to(device, torch.bfloat16)) for w in (a.o_proj.weight, m.down_proj.weight)]
            parts = [pack(qkv[order]), plain[0], torch.stack(up, dim=1), plain[1]]
            layers.append(torch.cat([part.flatten() for part in parts]))
            bias = torch.cat([p.bias.detach().to(device).float() for p in (a.q_proj, a.k_proj, a.v_proj)])
            biases.append(bias[order])
        self._weights, self._biases = torch.cat(layers), torch.cat(biases)
        head, bias = network.llm_decoder.weight, network.llm_decoder.bias
        self.ids = len(head) + -len(head) % _TILE
        """Columns of the logits: the head's outputs, padded."""
        padded = torch.zeros(self.ids, config.hidden_size, dtype=torch.bfloat16, device=device)
        padded[: len(head)] = folded(network.backbone.norm.weight, head)
        self._head = pack(padded)
        self._head_bias = torch.zeros(self.ids, device=device)
        if bias is not None:
            self._head_bias[: len(head)] = bias.detach().to(device).float()

        hidden = config.hidden_size
        self._buffers = [
            torch.zeros(MOST_ROWS, width, dtype=torch.bfloat16, device=device)
            for width in (hidden, hidden, hidden, config.intermediate_size)
        ]
        self._arrived = torch.zeros(1, dtype=torch.int32, device=device)
        self._kernels = {rows: self._compile(rows) for rows in ROWS}

    def _compile(self, rows: int) -> Any:
        config = self.config
        sizes = {
            "ROWS": rows,
            "HIDDEN": config.hidden_size,
            "INTER": config.intermediate_size,
            "HEADS": config.heads,
            "KV_HEADS": config.kv_heads,
            "LAYERS": config.layers,
            "VOCAB": self.ids,
            "EPS": f"{config.rms_norm_eps!r}f",
        }
        return compile_kernel("decode_step", sizes, "waiting_blocks")

    def __call__(
        self, table: Tensor, cache: Tensor, slots: Tensor, last: Tensor, positions: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Feed the last id of each slot and write its keys and values.

        Args:
            table: embedding, ``(ids, hidden)``. cache: ``(layers, 2, slots, kv_heads, max_length, 64)``.
            slots: ``(rows,)``, up to 32; last, positions: ``(slots,)``; int64.
            cos, sin: ``(max_length, 32)``, fp32.

        Returns:
            logits, ``(rows, ids)``, fp32, padded on the right.
        """
        count, total, max_length = len(slots), cache.shape[2], cache.shape[4]
        logits = torch.empty(count, self.ids, device=table.device)
        self._arrived.zero_()
        self._kernels[min(rows for rows in ROWS if rows >= count)](
            grid=(self._blocks, 1, 1),
            block=(_THREADS, 1, 1),
            args=[
                table, last, slots, positions, cache, cos, sin, self._weights, self._biases, self._head,
                self._head_bias, *self._buffers, logits, self._arrived, count, total, max_length,
            ],
        )  # fmt: skip
        return logits
