"""Products of many lines with weights, by cuBLAS, with numbers of lines that it multiplies fast."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

_SPARE_LINES = 8


def empty_lines(lines: int, width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return memory for the ``x`` of a ``product``, ``(lines, width)``, with spare lines behind it."""
    return torch.empty(lines + _SPARE_LINES, width, device=device, dtype=dtype)[:lines]


def product(x: Tensor, weight: Tensor, bias: Tensor | None, *, gelu: Literal["tanh", "none"] | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, ``(lines, n)``, with spare lines behind it.

    Args:
        x: ``(lines, k)``, from ``empty_lines`` or ``product``. weight: ``(n, k)``. bias: ``(n,)``.
        gelu: the form of GELU that is taken of it. On a GPU, in one launch, it is always "tanh": an error of 4.5e-5 of
            CosyVoice2's golden mel, a sixtieth of bf16's.
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
    """Does cuBLAS choose a slow kernel for so many lines? On an H100 the four products of a block of CosyVoice3's
    estimator take 103 us with 3,200 lines, which are 32 clauses, and 90 with 3,208; 62 and 54 with 1,600 and 1,608."""
    return lines > 512 and lines % 32 == 0
