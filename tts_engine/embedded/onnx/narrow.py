"""Removes columns of a network's last layer, because inaudible bins need not be computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tts_engine.embedded.onnx.messages import messages

_TYPES: dict[int, np.dtype[np.generic]] = {1: np.dtype("<f4"), 3: np.dtype("i1")}
"""TensorProto.DataType -> numpy type, for the tensors that are cut."""


def narrow(model: bytes, *, tensors: Sequence[str], parts: Sequence[str], width: int) -> bytes:
    """Return a model whose last layer makes only ``width`` values in each of the equal parts that it is split into.

    Args:
        model: a serialized ONNX model.
        tensors: weights and bias of that layer. The parts follow each other along their last axis.
        parts: the outputs of the only ``Split``.
        width: how many values of each part are kept; they are the first ones.

    Raises:
        ValueError: there is no such ``Split``, or a tensor is missing, of another type, or too narrow.
    """
    whole = messages()["Model"].FromString(model)
    splits = [node for node in whole.graph.node if node.op_type == "Split" and list(node.output) == list(parts)]
    if len(splits) != 1:
        raise ValueError(f"the model has {len(splits)} nodes that split into {', '.join(parts)}, expected one")
    del splits[0].input[1:]  # without sizes the parts are equal (Split-13)
    del whole.graph.value_info[:]  # the exporter's shapes, which are no longer right
    found = {tensor.name: tensor for tensor in whole.graph.initializer}
    for name in tensors:
        tensor = found.get(name)
        if tensor is None or tensor.data_type not in _TYPES or not tensor.raw_data:
            raise ValueError(f"the model has no tensor {name!r} of raw float32 or int8 values")
        dtype = _TYPES[tensor.data_type]
        values = np.frombuffer(tensor.raw_data, dtype).reshape(*tensor.dims[:-1], len(parts), -1)
        if width > values.shape[-1]:
            raise ValueError(f"parts of {name!r} are {values.shape[-1]} wide, cannot keep {width}")
        tensor.raw_data = values[..., :width].tobytes()
        tensor.dims[-1] = len(parts) * width
    return bytes(whole.SerializeToString())
