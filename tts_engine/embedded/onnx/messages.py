"""ONNX models as protobuf messages, without the package ``onnx``.

Only the few fields that are read or written here are declared. protobuf keeps all others, since unknown fields survive
a round trip. The field numbers are those of onnx.proto of ONNX 1.x, which never change.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS: dict[str, list[tuple[str, int, str]]] = {
    "Attribute": [("name", 1, "string"), ("i", 3, "int64"), ("ints", 8, "int64*"), ("type", 20, "int64")],
    "Value": [("name", 1, "string"), ("type", 2, "bytes")],
    "Tensor": [
        ("dims", 1, "int64*"),
        ("data_type", 2, "int64"),
        ("int32_data", 5, "int64*"),
        ("name", 8, "string"),
        ("raw_data", 9, "bytes"),
    ],
    "Node": [
        ("input", 1, "string*"),
        ("output", 2, "string*"),
        ("name", 3, "string"),
        ("op_type", 4, "string"),
        ("attribute", 5, "Attribute*"),
        ("domain", 7, "string"),
    ],
    "Graph": [
        ("node", 1, "Node*"),
        ("name", 2, "string"),
        ("initializer", 5, "Tensor*"),
        ("input", 11, "Value*"),
        ("output", 12, "Value*"),
        ("value_info", 13, "Value*"),
    ],
    "OperatorSet": [("domain", 1, "string"), ("version", 2, "int64")],
    "Model": [("ir_version", 1, "int64"), ("graph", 7, "Graph"), ("opset_import", 8, "OperatorSet*")],
}


@cache
def messages() -> dict[str, Any]:
    """Return the message classes by name: ``Model``, ``Graph``, ``Node`` and those inside them."""
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": field_type.TYPE_STRING, "bytes": field_type.TYPE_BYTES, "int64": field_type.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="talkspurt/onnx.proto", package="talkspurt.onnx")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = field_type.LABEL_REPEATED if kind.endswith("*") else field_type.LABEL_OPTIONAL
            one = kind.rstrip("*")
            if one in scalars:
                field.type = scalars[one]
            else:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".talkspurt.onnx.{one}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"talkspurt.onnx.{name}")) for name in _FIELDS
    }
