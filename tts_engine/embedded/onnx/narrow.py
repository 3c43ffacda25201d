"""Leaves out columns of a network's last layer: what nobody hears need not be computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tts_engine.embedded.onnx.messages import messages

_TYPES: dict[int, np.dtype[np.generic]] = {1: np.dtype("<f4"), 3: np.dtype("i1")}
"""TensorProto.DataType of what is cut."""


def narrow(model: bytes, *, tensors: Sequence[str], parts: Sequence[str], width: int) -> bytes:
    """The model with ``width`` values instead of more in each of the equal parts that its last layer is split into.

    Args:
        model: a serialized ONNX model.
        tensors: weights and bias of that layer; the parts follow each other along their last axis.
        parts: the outputs of the one ``Split``.
        width: values kept of each part, the first ones.

    Raises:
        ValueError: no such ``Split``, or a tensor that is missing, of another type, or too narrow.
    """
    whole = messages()["Model"].FromString(model)
    splits = [node for node in whole.graph.node if node.op_type == "Split" and list(node.output) == list(parts)]
    if len(splits) != 1:
        raise ValueError(f"the model has {len(splits)} nodes that split into {', '.join(parts)}, expected one")
    del splits[0].input[1:]  # without sizes the parts are equal (Split-13)
    del whole.graph.value_info[:]  # the shapes that the exporter noted
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
