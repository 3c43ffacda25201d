"""The layout of a tensor core's operands in the registers of its threads."""

from __future__ import annotations

import torch
from torch import Tensor


def first_factor(packed: Tensor) -> Tensor:
    """The matrix ``(16, 16)`` that ``mma`` sees in the registers ``(32 threads, 8)`` of its first factor (PTX
    ISA, m16n8k16 with bf16): a thread ``4 g + t`` has lines ``g`` and ``g + 8``, columns ``2 t`` and ``2 t + 8``."""
    out = torch.empty(16, 16)
    for thread in range(32):
        g, t = divmod(thread, 4)
        for register in range(4):
            line, column = g + 8 * (register % 2), 2 * t + 8 * (register // 2)
            out[line, column : column + 2] = packed[thread, 2 * register : 2 * register + 2]
    return out
