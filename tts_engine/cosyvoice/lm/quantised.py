"""Weights in eight bits: a scale for each output, symmetric, nothing else.

Inputs and sums stay as they are. On a GPU ``kernels.matmul_8bit`` reads the eight bits and widens them in registers; on
a CPU the rounded values are put back at full width, for the same numbers without the gain in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

WeightKind = Literal["full", "int8", "fp8"]
"""``full``: as the engine computes otherwise, bf16 on a GPU. ``fp8`` is E4M3."""

_LARGEST = {"int8": 127.0, "fp8": 448.0}


@dataclass(frozen=True, slots=True)
class Quantised:
    """``values * scale[:, None]`` is the weight."""

    values: Tensor
    """Shape ``(outputs, inputs)``, int8 or float8_e4m3fn."""
    scale: Tensor
    """Shape ``(outputs,)``, fp32."""

    def wide(self) -> Tensor:
        """The weight in fp32, as it was rounded."""
        return self.values.float() * self.scale[:, None]


def quantise(weight: Tensor, kind: Literal["int8", "fp8"]) -> Quantised:
    """Round a weight ``(outputs, inputs)``; its largest value of each output is exact."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1).clamp(min=1e-12) / _LARGEST[kind]
    scaled = weight / scale[:, None]
    values = scaled.round().to(torch.int8) if kind == "int8" else scaled.to(torch.float8_e4m3fn)
    return Quantised(values, scale)


@torch.no_grad()
def round_linear_layers(network: nn.Module, kind: WeightKind) -> None:
    """Give every linear layer of a network the values that its weight has in eight bits, in place."""
    if kind == "full":
        return
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(quantise(module.weight, kind).wide())
