"""Weight norm of the vocoders' checkpoints, folded: ``w = g * v / |v|``, the norm over all axes but the first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_GAIN = ".parametrizations.weight.original0"
_DIRECTION = ".parametrizations.weight.original1"


def fold_weight_norm(state: Mapping[str, Tensor], *, fp64: str = "") -> dict[str, Tensor]:
    """Replace every pair of gain and direction by the weight, computed in fp32, as upstream does.

    The phase of the source is a long sum over f0, so that even the last bit of a weight is heard in the waveform.

    Args:
        fp64: modules whose names begin so are folded, and returned, in fp64: the f0 network of CosyVoice3, which
            upstream evaluates in fp64, weights included. Empty: none.
    """
    folded = {}
    for name, value in state.items():
        if name.endswith(_DIRECTION):
            module = name.removesuffix(_DIRECTION)
            kind = torch.float64 if fp64 and module.startswith(fp64) else torch.float32
            # The operator of torch's own parametrization, for the same order of sums.
            folded[f"{module}.weight"] = torch._weight_norm(value.to(kind), state[module + _GAIN].to(kind), 0)
        elif not name.endswith(_GAIN):
            folded[name] = value
    return folded
