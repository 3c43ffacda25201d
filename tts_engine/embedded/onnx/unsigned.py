"""Makes signed 8-bit weights unsigned, because some processors multiply only unsigned weights without error.

A product has unsigned activations. Where a processor has no VNNI (AMD before Zen 4, Intel before Ice Lake), onnxruntime
adds pairs of such products with signed weights in 16 bits, and cuts what does not fit. Weights that use all eight bits,
like Hibari's, then give a wrong sum: the error was only 2 to 8 dB below the sound itself (measured). With unsigned
weights onnxruntime adds in 32 bits, and a sentence takes 7 % more time. Kokoro's weights do not overflow.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tts_engine.embedded.onnx.messages import messages
from tts_engine.onnx_runtime import onnxruntime as ort

_UINT8, _INT8, _INT32 = 2, 3, 6
"""TensorProto.DataType."""
_PRODUCT = "MatMulInteger"
_WEIGHT, _WEIGHT_ZERO = 1, 3
"""Inputs of a product."""


def exact(model: bytes) -> bytes:
    """Return a model whose integer products are exact on this processor: the same model if they are exact already."""
    return unsigned(model) if overflows() else model


def unsigned(model: bytes) -> bytes:
    """Return a model with the same results whose products (``MatMulInteger``) have unsigned weights.

    Args:
        model: a serialized ONNX model whose signed weights have 0 as zero point.

    Raises:
        ValueError: signed weights have another zero point, or are used elsewhere, too.
    """
    whole = messages()["Model"].FromString(model)
    graph = whole.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    signed = {
        name: [node for node in graph.node if name in node.input]
        for node in graph.node
        if node.op_type == _PRODUCT and (name := node.input[_WEIGHT]) in tensors and tensors[name].data_type == _INT8
    }
    for name, users in signed.items():
        weight = tensors[name]
        zero = f"{name}/zero_point"
        for node in users:
            given = "".join(node.input[_WEIGHT_ZERO : _WEIGHT_ZERO + 1])
            if node.op_type != _PRODUCT or (given and not _is_zero(tensors.get(given))):
                raise ValueError(f"the weights {name!r} have a zero point that is not 0, or are no product's alone")
            node.input[:] = [*node.input, ""][:_WEIGHT_ZERO] + [zero]
        values = np.frombuffer(weight.raw_data, "i1").astype(np.int16) + 128
        weight.raw_data, weight.data_type = values.astype(np.uint8).tobytes(), _UINT8
        graph.initializer.add(name=zero, data_type=_UINT8, raw_data=bytes([128]))
    return bytes(whole.SerializeToString())


def _is_zero(tensor: Any) -> bool:
    """Return whether the tensor is a constant that holds only zeros."""
    return tensor is not None and not any(tensor.raw_data) and not any(tensor.int32_data)


@cache
def overflows() -> bool:
    """Return whether onnxruntime computes a product of large numbers wrongly on this processor."""
    depth, activation, weight = 64, 255, 127
    product = ort.InferenceSession(a_product(np.full((depth, 16), weight, np.int8)), providers=["CPUExecutionProvider"])
    (got,) = product.run(None, {"a": np.full((4, depth), activation, np.uint8)})
    return bool((got != depth * activation * weight).any())


def a_product(weights: np.ndarray[tuple[int, int], np.dtype[np.int8]]) -> bytes:
    """Return a model that multiplies its input ``a``, 8 bits without sign, by signed weights."""
    types = messages()

    def value(name: str, data_type: int) -> object:  # a TypeProto: a tensor of that type, of any shape
        return types["Value"](name=name, type=bytes([0x0A, 2, 0x08, data_type]))

    w = types["Tensor"](name="w", dims=weights.shape, data_type=_INT8, raw_data=weights.tobytes())
    graph = types["Graph"](
        name="product",
        node=[types["Node"](op_type=_PRODUCT, input=["a", "w"], output=["y"])],
        initializer=[w],
        input=[value("a", _UINT8)],
        output=[value("y", _INT32)],
    )
    model = types["Model"](ir_version=8, graph=graph, opset_import=[types["OperatorSet"](version=17)])
    return bytes(model.SerializeToString())
