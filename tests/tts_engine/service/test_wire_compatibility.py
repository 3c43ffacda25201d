"""Programs of different versions understand each other: today's proto against the recorded ones.

``recorded_wire.py`` says what a recording is. A test that fails here has found a change that breaks engines or gateways
in the field; the recording is not what is to be changed.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.tts_engine.service.recorded_wire import RecordedWire, filled, recorded_versions, recording
from tests.tts_engine.service.scripted import ScriptedEngine, chunk_of
from tts_engine.api import EngineStatus, UtteranceRequest, VoiceInfo
from tts_engine.config import EngineConfig
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import wire
from tts_engine.service.client import GrpcEngine
from tts_engine.service.server import SpeechServer

VERSIONS = recorded_versions()
SERVICE = pb.DESCRIPTOR.services_by_name["SpeechEngine"]


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> RecordedWire:
    return RecordedWire(request.param)


def means(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def test_there_is_a_recording() -> None:
    assert VERSIONS


def test_a_recording_has_every_field_of_every_message() -> None:
    now = json.loads(recording())
    assert now["messages"].keys() == set(pb.DESCRIPTOR.message_types_by_name)
    for name, message in now["messages"].items():
        fields = {field.name for field in getattr(pb, name).DESCRIPTOR.fields}
        assert message["means"].keys() == fields, name


def test_recorded_bytes_mean_the_same_and_are_written_again(recorded: RecordedWire) -> None:
    for name, message in recorded.messages.items():
        data = bytes.fromhex(message["bytes"])
        parsed = getattr(pb, name).FromString(data)
        assert means(parsed) == message["means"], name
        assert parsed.SerializeToString(deterministic=True) == data, name


def test_no_field_of_a_recorded_version_is_renumbered_or_gone(recorded: RecordedWire) -> None:
    for name, before in recorded.file.message_types_by_name.items():
        now = pb.DESCRIPTOR.message_types_by_name[name].fields_by_number
        for field in before.fields:
            same = now[field.number]
            kind = (field.name, field.type, field.is_repeated, field.has_presence)
            assert (same.name, same.type, same.is_repeated, same.has_presence) == kind, field.full_name
            if field.message_type is not None:
                assert same.message_type.full_name == field.message_type.full_name


def test_no_method_of_a_recorded_version_has_changed_or_gone(recorded: RecordedWire) -> None:
    for before in recorded.file.services_by_name["SpeechEngine"].methods:
        now = SERVICE.methods_by_name[before.name]
        assert now.input_type.full_name == before.input_type.full_name
        assert now.output_type.full_name == before.output_type.full_name
        assert (now.client_streaming, now.server_streaming) == (before.client_streaming, before.server_streaming)


def test_an_older_program_reads_what_it_knows_and_passes_on_the_rest(recorded: RecordedWire) -> None:
    for name in recorded.messages:
        sent = filled(getattr(pb, name)())
        read = recorded.type(name).FromString(sent.SerializeToString())
        for field in read.DESCRIPTOR.fields:
            if field.message_type is None:
                assert getattr(read, field.name) == getattr(sent, field.name), field.full_name
        assert getattr(pb, name).FromString(read.SerializeToString()) == sent, name


# An older client and today's server, and the other way round.


async def test_an_older_client_speaks_with_this_server(recorded: RecordedWire, tmp_path: Path) -> None:
    server, engine = SpeechServer(EngineConfig(listen=f"unix:{tmp_path}/engine.sock")), ScriptedEngine()
    await server.start()
    await server.serve(engine)
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            speak = channel.stream_stream(
                f"/{wire.SERVICE}/Speak",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=recorded.type("SpeakResponse").FromString,
            )
            call = speak()
            start = recorded.message("SpeakStart", utterance_id="old", voice="heart", encoding="PCMU")
            await call.write(recorded.message("SpeakRequest", start=start, text="two words", end_of_text=True))
            await call.done_writing()
            heard = [message async for message in call]
            assert [message.payload for message in heard[:-1]] == [
                b"".join(chunk_of(word, step).frames) for step, word in enumerate(["two", "words"])
            ]
            assert heard[-1].finished
            status = channel.unary_unary(
                f"/{wire.SERVICE}/GetStatus",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=recorded.type("GetStatusResponse").FromString,
            )
            assert (await status(recorded.message("GetStatusRequest"))).models == ["one", "two"]
    finally:
        await server.aclose()


@asynccontextmanager
async def older_server(recorded: RecordedWire, address: str, asked: list[Any]) -> AsyncIterator[None]:
    """Serve what a recorded version does: each method answers with the recorded message."""

    def answer(name: str) -> Any:
        return recorded.type(name).FromString(bytes.fromhex(recorded.messages[name]["bytes"]))

    async def speak(requests: AsyncIterator[Any], _context: object) -> AsyncIterator[Any]:
        asked.append(await anext(requests))
        yield recorded.message("SpeakResponse", payload=b"abcdef", frame_bytes=[3], samples=2, engine="older")
        yield recorded.message("SpeakResponse", finished=True)

    async def status(request: Any, _context: object) -> Any:
        return answer("GetStatusResponse")

    async def voices(request: Any, _context: object) -> Any:
        return answer("ListVoicesResponse")

    def handler(kind: Any, behaviour: Any, request: str) -> Any:
        read = recorded.type(request).FromString
        return kind(behaviour, request_deserializer=read, response_serializer=lambda m: m.SerializeToString())

    server = grpc.aio.server()
    handlers = {
        "Speak": handler(grpc.stream_stream_rpc_method_handler, speak, "SpeakRequest"),
        "GetStatus": handler(grpc.unary_unary_rpc_method_handler, status, "GetStatusRequest"),
        "ListVoices": handler(grpc.unary_unary_rpc_method_handler, voices, "ListVoicesRequest"),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, handlers),))
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_this_client_speaks_with_an_older_server(recorded: RecordedWire, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/older.sock"
    asked: list[Any] = []
    async with older_server(recorded, address, asked):
        client = GrpcEngine(address, EngineConfig())
        try:
            async with client.open(UtteranceRequest(utterance_id="new", voice="heart", speed=1.5)) as utterance:
                utterance.feed("two words")
                utterance.end_text()
                chunks = [chunk async for chunk in utterance]
            assert [(chunk.frames, chunk.samples, chunk.engine) for chunk in chunks] == [([b"abc", b"def"], 2, "older")]
            (request,) = asked
            assert (request.start.utterance_id, request.start.voice, request.start.speed) == ("new", "heart", 1.5)
            assert (request.text, request.end_of_text) == ("two words", True)
            answered = recorded.messages["GetStatusResponse"]["means"]
            status = await client.status()
            assert status == EngineStatus(**answered | {"models": tuple(answered["models"])})
            (voice,) = recorded.messages["ListVoicesResponse"]["means"]["voices"]
            assert await client.list_voices() == [VoiceInfo(**voice | {"languages": tuple(voice["languages"])})]
        finally:
            await client.aclose()
