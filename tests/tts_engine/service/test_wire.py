"""Values to messages and back, and the generated code against its source."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tts_engine.api import AudioChunk, EngineStatus, TextSpan, UtteranceRequest, VoiceInfo
from tts_engine.errors import (
    DeadlineExceeded,
    EngineError,
    Exhausted,
    InvalidRequest,
    NotFound,
    SynthesisFailed,
    Unavailable,
)
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import wire
from voicecodecs.registry import AudioFormat

ROOT = Path(__file__).parents[3]
PROTO = "tts_engine/proto/talkspurt/v1/speech_engine"


def comparable(code: str) -> list[str]:
    """Without what depends on the version of the tools."""
    code = code.replace("(object):", ":")
    code = re.sub(r"(?s)_runtime_version\.Domain\.PUBLIC,.*?\)", "", code)
    return [line for line in code.splitlines() if "Protobuf Python Version" not in line and "_VERSION =" not in line]


def test_generated_code_is_what_the_proto_says(tmp_path: Path) -> None:
    command = ["-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    subprocess.run([sys.executable, *command, f"{PROTO}.proto"], cwd=ROOT, check=True)
    for suffix in ("_pb2.py", "_pb2_grpc.py"):
        made = comparable((tmp_path / f"{PROTO}{suffix}").read_text())
        assert comparable((ROOT / f"{PROTO}{suffix}").read_text()) == made, f"regenerate {PROTO}{suffix}"


REQUEST = UtteranceRequest(
    utterance_id="u1",
    format=AudioFormat(encoding="L16", sample_rate=16000, ptime_ms=40),
    voice="heart",
    language="en-US",
    speed=1.25,
    instruct="softly",
    ahead=True,
    priority=0,
    at_once=True,
)


def test_request_survives_the_wire() -> None:
    data = wire.encode_start(REQUEST).SerializeToString()
    assert wire.decode_start(pb.SpeakStart.FromString(data)) == REQUEST


def test_absent_fields_are_the_defaults_of_the_seam() -> None:
    assert wire.decode_start(pb.SpeakStart(utterance_id="u")) == UtteranceRequest(utterance_id="u")


@pytest.mark.parametrize(
    ("start", "field"),
    [
        ({}, "utterance_id"),
        ({"utterance_id": "u", "speed": 9}, "speed"),
        ({"utterance_id": "u", "speed": float("nan")}, "speed"),
        ({"utterance_id": "u", "encoding": "MP3"}, "encoding"),
        ({"utterance_id": "u", "sample_rate": 44100}, "encoding"),
        ({"utterance_id": "u", "ptime_ms": 7}, "encoding"),
    ],
)
def test_bad_request_names_the_field(start: dict, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.decode_start(pb.SpeakStart(**start))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("frames", "sizes"),
    [([b"a" * 160] * 3, [160]), ([b"abc", b"d", b""], [3, 1, 0]), ([], []), ([b"abc"], [3])],
    ids=["equal", "unequal", "none", "one"],
)
def test_frames_survive_the_wire(frames: list[bytes], sizes: list[int]) -> None:
    chunk = AudioChunk(
        frames=frames,
        first_sample=2**33,
        samples=480,
        spans=[TextSpan(0, 5, 0, 240), TextSpan(6, 9, 240, 480, exact=False)],
        clause_end_char=5,
        stages_ms={"text": 0.25, "engine": 12.5},
        engine="cosyvoice3",
    )
    message = pb.SpeakResponse.FromString(wire.encode_chunk(chunk).SerializeToString())
    assert list(message.frame_bytes) == sizes
    assert wire.decode_chunk(message) == chunk


@pytest.mark.parametrize("sizes", [[160], [100, 100], [], [0]])
def test_frames_that_do_not_add_up_are_an_error(sizes: list[int]) -> None:
    with pytest.raises(SynthesisFailed, match="170 bytes"):
        wire.decode_chunk(pb.SpeakResponse(payload=bytes(170), frame_bytes=sizes))


def test_voice_and_status_survive_the_wire() -> None:
    voice = VoiceInfo(voice_id="v", name="V", languages=("en", "zh"), engine="e", registered=True)
    assert wire.decode_voice(wire.encode_voice(voice)) == voice
    status = EngineStatus(
        ready=True, engine="e", model="m", models=("m", "n"), gpu="g", vllm="v", active=3, queued=4, detail="d"
    )
    assert wire.decode_status(wire.encode_status(status)) == status


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("wrong", field="speed"),
        NotFound("none"),
        Exhausted("full", retry_after_s=0.25),
        Unavailable("draining"),
        DeadlineExceeded("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_the_wire(error: EngineError) -> None:
    back = wire.decode_error(error.code, str(error), dict(wire.error_metadata(error)))
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


@pytest.mark.parametrize("code", ["INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "DATA_LOSS"])
def test_other_codes_are_a_failed_synthesis(code: str) -> None:
    assert type(wire.decode_error(code, "why", {})) is SynthesisFailed
