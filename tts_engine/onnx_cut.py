"""Cuts a part out of an ONNX model: the nodes between some named tensors and some others. Or shows more of it.

onnxruntime runs every node of a graph even when only one output is asked for, and cannot be fed in the middle. With
the graph cut in two, its first half runs once and its second half piece by piece. Only the few fields that this needs
are declared; protobuf keeps all others as they are (unknown fields survive a round trip).
Field numbers: onnx.proto of ONNX 1.x, which never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS: dict[str, list[tuple[str, int, str]]] = {
    "Value": [("name", 1, "string"), ("type", 2, "bytes")],
    "Tensor": [("name", 8, "string")],
    "Node": [("input", 1, "string*"), ("output", 2, "string*")],
    "Graph": [("node", 1, "Node*"), ("initializer", 5, "Tensor*"), ("input", 11, "Value*"), ("output", 12, "Value*")],
    "Model": [("graph", 7, "Graph")],
}


@cache
def _messages() -> dict[str, Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="talkspurt/onnx_cut.proto", package="talkspurt.onnx_cut")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = field_type.LABEL_REPEATED if kind.endswith("*") else field_type.LABEL_OPTIONAL
            match kind.rstrip("*"):
                case "string":
                    field.type = field_type.TYPE_STRING
                case "bytes":
                    field.type = field_type.TYPE_BYTES
                case other:
                    field.type, field.type_name = field_type.TYPE_MESSAGE, f".talkspurt.onnx_cut.{other}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"talkspurt.onnx_cut.{name}"))
        for name in _FIELDS
    }


def cut(model: bytes, *, inputs: Mapping[str, int], outputs: Sequence[str]) -> bytes:
    """The smallest model that computes ``outputs`` from ``inputs``.

    Args:
        model: a serialized ONNX model.
        inputs: names of tensors that will be fed, with their element type (``TensorProto.DataType``: 1 float32,
            7 int64). Their shapes are left open.
        outputs: names of tensors to return.

    Raises:
        ValueError: an output that no node makes, or one that needs more than ``inputs``.
    """
    messages = _messages()
    whole = messages["Model"].FromString(model)
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
    value = messages["Value"]
    del graph.node[:], graph.initializer[:], graph.input[:], graph.output[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    # TypeProto{tensor_type=1: Tensor{elem_type=1}}
    graph.input.extend(value(name=name, type=bytes((0x0A, 2, 0x08, kind))) for name, kind in inputs.items())
    graph.output.extend(value(name=name) for name in outputs)
    return bytes(whole.SerializeToString())


def with_outputs(model: bytes, names: Sequence[str]) -> bytes:
    """The model with more of its tensors as outputs, after its own.

    A message is not read for it: of two serialized messages in a row protobuf makes one, lists joined.
    """
    messages = _messages()
    more = messages["Graph"](output=[messages["Value"](name=name) for name in names])
    return model + bytes(messages["Model"](graph=more).SerializeToString())
