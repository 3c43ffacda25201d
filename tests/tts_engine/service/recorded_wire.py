"""The proto as other versions had it: its descriptor, and bytes of every message with all fields set.

``python -m tests.tts_engine.service.recorded_wire VERSION`` records the proto of this tree into
``tests/vectors/speech_engine``, which is done once for each release. A recording is never changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb

FOLDER = Path(__file__).parents[2] / "vectors" / "speech_engine"


class RecordedWire:
    """One recorded version. ``file`` is its proto; ``message`` makes messages as a program of that version did."""

    def __init__(self, version: str) -> None:
        recorded = json.loads((FOLDER / f"{version}.json").read_text())
        proto = json_format.ParseDict(recorded["proto"], descriptor_pb2.FileDescriptorProto())
        pool = descriptor_pool.DescriptorPool()
        pool.Add(proto)
        self.file: FileDescriptor = pool.FindFileByName(proto.name)
        self.messages: dict[str, dict[str, Any]] = recorded["messages"]
        """The messages by name: ``bytes`` in hex, and ``means``, the fields in protobuf's JSON form."""

    def type(self, name: str) -> type[Message]:
        return message_factory.GetMessageClass(self.file.message_types_by_name[name])

    def message(self, name: str, **fields: Any) -> Any:
        return self.type(name)(**fields)


def recorded_versions() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def filled(message: Message) -> Message:
    """Set every field, nested ones too, to a value that is not its default and differs from its neighbours'."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[f"{field.name} key"] = _value(field.message_type.fields_by_name["value"])
        elif field.message_type is not None:
            filled(getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name))
        elif field.is_repeated:
            getattr(message, field.name).extend([_value(field), _value(field)])
        else:
            setattr(message, field.name, _value(field))
    return message


def _value(field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return bytes([0, 0xFF, field.number])
        case FieldDescriptor.CPPTYPE_STRING:
            return f"{field.name} \N{GREEK SMALL LETTER MU}"
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return field.number + 0.25
        case FieldDescriptor.CPPTYPE_UINT64:
            return 2**40 + field.number
        case FieldDescriptor.CPPTYPE_UINT32:
            return 2**16 + field.number
        case other:
            raise ValueError(f"{field.full_name} has C++ type {other}, for which there is no value here")


def recording() -> str:
    """Return the recording of this tree's proto, a message a line."""
    proto = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(proto)
    lines = []
    for name in sorted(pb.DESCRIPTOR.message_types_by_name):
        message = filled(getattr(pb, name)())
        means = json_format.MessageToDict(message, preserving_proto_field_name=True)
        recorded = {"bytes": message.SerializeToString(deterministic=True).hex(), "means": means}
        lines.append(f"{_json(name)}: {_json(recorded)}")
    messages = ",\n".join(lines)
    return f'{{"proto": {_json(json_format.MessageToDict(proto))},\n"messages": {{\n{messages}}}}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    file = FOLDER / f"{sys.argv[1]}.json"
    if file.exists():
        sys.exit(f"{file} is recorded already; a recording is never changed")
    file.write_text(recording())
