"""Cuts a part out of an ONNX model (the nodes between named tensors), or makes inner tensors visible as outputs.

onnxruntime runs every node of a graph even if only one output is asked for, and it takes no input in the middle. With
the graph cut in two, the first half runs once and the second half piece by piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tts_engine.embedded.onnx.messages import messages


def cut(model: bytes, *, inputs: Mapping[str, int], outputs: Sequence[str]) -> bytes:
    """Return the smallest model that computes ``outputs`` from ``inputs``.

    Args:
        model: a serialized ONNX model.
        inputs: names of tensors that will be fed, with their element type (``TensorProto.DataType``: 1 float32,
            7 int64). Their shapes are left open.
        outputs: names of tensors to return.

    Raises:
        ValueError: no node makes an output, or an output needs more than ``inputs``.
    """
    types = messages()
    whole = types["Model"].FromString(model)
    graph = whole.graph
    maker = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    needed: set[str] = set()
    todo = list(outputs)
    while todo:
        name = todo.pop()
        if not name or name in needed or name in inputs:
            continue
        needed.add(name)
        if name in maker:
            todo += maker[name].input
        elif name not in constants:
            raise ValueError(f"the model has no tensor {name!r} that follows from {sorted(inputs)}")
    kept = [node for node in graph.node if needed.intersection(node.output)]
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    value = types["Value"]
    del graph.node[:], graph.initializer[:], graph.input[:], graph.output[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    # TypeProto{tensor_type=1: Tensor{elem_type=1}}
    graph.input.extend(value(name=name, type=bytes((0x0A, 2, 0x08, kind))) for name, kind in inputs.items())
    graph.output.extend(value(name=name) for name in outputs)
    return bytes(whole.SerializeToString())


def with_outputs(model: bytes, names: Sequence[str]) -> bytes:
    """Return the model with more of its tensors as outputs, after its own.

    The model is not parsed for this: protobuf reads two serialized messages in a row as one, with their lists joined.
    """
    types = messages()
    more = types["Graph"](output=[types["Value"](name=name) for name in names])
    return model + bytes(types["Model"](graph=more).SerializeToString())
