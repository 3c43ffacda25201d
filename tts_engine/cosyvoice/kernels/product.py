"""Products by cuBLAS, with numbers of lines for which it has fast kernels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

_SPARE_LINES = 8


def empty_lines(lines: int, width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return an empty ``x`` for ``product``, ``(lines, width)``, with spare lines after it."""
    return torch.empty(lines + _SPARE_LINES, width, device=device, dtype=dtype)[:lines]


def product(x: Tensor, weight: Tensor, bias: Tensor | None, *, gelu: Literal["tanh", "none"] | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, ``(lines, n)``, with spare lines after it.

    Args:
        x: ``(lines, k)``, from ``empty_lines`` or ``product``. weight: ``(n, k)``. bias: ``(n,)``.
        gelu: form of GELU applied to the result. On a GPU it is part of the product and always "tanh"; the difference
            is much smaller than bf16's rounding.
    """
    lines, width = x.shape
    if _is_slow(lines):
        x = x.as_strided((lines + _SPARE_LINES, width), (width, 1))
    if bias is None:
        out = x @ weight.t()
    elif gelu is not None and x.is_cuda:
        out = torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    else:
        out = torch.addmm(bias, x, weight.t())
        out = out if gelu is None else F.gelu(out, approximate=gelu)
    return out[:lines]


def _is_slow(lines: int) -> bool:
    """Return True if cuBLAS chooses a slow kernel for this number of lines (measured on an H100)."""
    return lines > 512 and lines % 32 == 0
