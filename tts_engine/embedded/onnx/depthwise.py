"""Runs one-dimensional depthwise convolutions as two-dimensional ones.

onnxruntime has a fast layout for convolutions of images only (NCHWc, channels innermost). It computes a sequence
channel by channel, at a tenth of the speed. With a dimension of length 1 in front of time, a sequence is an image.
"""

from __future__ import annotations

import numpy as np

from tts_engine.embedded.onnx.messages import messages

_INT64 = 7
_AXES = "talkspurt/time_axis"


def depthwise_as_images(model: bytes) -> bytes:
    """Return the model with an ``Unsqueeze`` before and a ``Squeeze`` after each depthwise convolution over time.

    Args:
        model: a serialized ONNX model whose convolutions share no weights.
    """
    types = messages()
    whole = types["Model"].FromString(model)
    graph = whole.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "Conv" else None
        if weight is None or len(weight.dims) != 3 or weight.dims[1] != 1:  # (channels, channels of a group, length)
            nodes.append(node)
            continue
        weight.dims.insert(2, 1)
        for attribute in node.attribute:
            if attribute.name in ("kernel_shape", "strides", "dilations"):
                attribute.ints.insert(0, 1)
            elif attribute.name == "pads":
                attribute.ints[:] = [0, attribute.ints[0], 0, attribute.ints[1]]
        image, made, sequence = f"{node.name}/image", f"{node.name}/made", node.output[0]
        nodes.append(types["Node"](op_type="Unsqueeze", input=[node.input[0], _AXES], output=[image]))
        node.input[0], node.output[0] = image, made
        nodes += [node, types["Node"](op_type="Squeeze", input=[made, _AXES], output=[sequence])]
    axes = types["Tensor"](name=_AXES, dims=[1], data_type=_INT64, raw_data=np.asarray([2], "<i8").tobytes())
    graph.initializer.append(axes)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return bytes(whole.SerializeToString())
