"""Weights in eight bits, symmetric, with one scale for each output.

Inputs and sums stay as they are. On a GPU, ``kernels.matmul_8bit`` reads the eight bits and widens them in registers.
On a CPU, the rounded values are stored at full width, which gives the same numbers without saving memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

WeightKind = Literal["full", "int8", "fp8"]
"""``full`` is the engine's usual type, bf16 on a GPU. ``fp8`` is E4M3."""

_LARGEST = {"int8": 127.0, "fp8": 448.0}


@dataclass(frozen=True, slots=True)
class Quantised:
    """A rounded weight: ``values * scale[:, None]``."""

    values: Tensor
    """Shape ``(outputs, inputs)``, int8 or float8_e4m3fn."""
    scale: Tensor
    """Shape ``(outputs,)``, fp32."""

    def wide(self) -> Tensor:
        """Return the rounded weight in fp32."""
        return self.values.float() * self.scale[:, None]


def quantise(weight: Tensor, kind: Literal["int8", "fp8"]) -> Quantised:
    """Round a weight ``(outputs, inputs)``. The largest value of each output stays exact."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1).clamp(min=1e-12) / _LARGEST[kind]
    scaled = weight / scale[:, None]
    values = scaled.round().to(torch.int8) if kind == "int8" else scaled.to(torch.float8_e4m3fn)
    return Quantised(values, scale)


@torch.no_grad()
def round_linear_layers(network: nn.Module, kind: WeightKind) -> None:
    """Replace the weight of every linear layer of a network by its eight-bit values, in place."""
    if kind == "full":
        return
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(quantise(module.weight, kind).wide())
