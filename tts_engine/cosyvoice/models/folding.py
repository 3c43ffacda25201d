"""Folds the weight norm of the vocoders' checkpoints: ``w = g * v / |v|``, with the norm over all axes but the
first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_GAIN = ".parametrizations.weight.original0"
_DIRECTION = ".parametrizations.weight.original1"


def fold_weight_norm(state: Mapping[str, Tensor], *, fp64: str = "") -> dict[str, Tensor]:
    """Replace each pair of gain and direction by the weight, computed in fp32, as upstream does.

    The phase of the excitation is a long sum over f0, so even the last bit of a weight changes the waveform.

    Args:
        fp64: prefix of the modules that are folded and returned in fp64, such as CosyVoice3's f0 network, which
            upstream runs in fp64. Empty: none.
    """
    folded = {}
    for name, value in state.items():
        if name.endswith(_DIRECTION):
            module = name.removesuffix(_DIRECTION)
            kind = torch.float64 if fp64 and module.startswith(fp64) else torch.float32
            # torch's own operator, for the same order of summation.
            folded[f"{module}.weight"] = torch._weight_norm(value.to(kind), state[module + _GAIN].to(kind), 0)
        elif not name.endswith(_GAIN):
            folded[name] = value
    return folded
