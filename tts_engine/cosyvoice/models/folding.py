"""Weight norm of the vocoders' checkpoints, folded: ``w = g * v / |v|``, the norm over all axes but the first."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

_GAIN = ".parametrizations.weight.original0"
_DIRECTION = ".parametrizations.weight.original1"


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace every pair of gain and direction by the weight. Computed, and returned, in fp64.

    The causal network evaluates its f0 predictor in fp64, weights included; the others are rounded when loaded.
    """
    folded = {}
    for name, value in state.items():
        if name.endswith(_DIRECTION):
            module = name.removesuffix(_DIRECTION)
            direction = value.double()
            norm = direction.flatten(1).norm(dim=1).view(-1, *[1] * (direction.dim() - 1))
            folded[f"{module}.weight"] = state[module + _GAIN].double() * direction / norm
        elif not name.endswith(_GAIN):
            folded[name] = value
    return folded
