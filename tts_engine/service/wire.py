"""Converts the values of ``tts_engine.api`` to wire messages and back. Pure: no socket, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tts_engine.api import AudioChunk, EngineStatus, ModelToLoad, TextSpan, UtteranceRequest, VoiceInfo
from tts_engine.errors import (
    DeadlineExceeded,
    EngineError,
    Exhausted,
    InvalidRequest,
    NotFound,
    SynthesisFailed,
    Unauthenticated,
    Unavailable,
)
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.synthesizer import HIGHEST_PRIORITY
from voicecodecs.registry import AudioFormat

FIELD_KEY = "field"
"""Trailing metadata of INVALID_ARGUMENT: the name of the field that is wrong."""

MESSAGE_BYTES = 16 * 2**20
"""Largest gRPC message, bytes. Reference audio of a voice has to fit: 16 MiB are three minutes of 44.1 kHz mono."""

KEEPALIVE_S = 10.0
"""Time between pings on a connection in use, seconds. A peer that does not answer within the same time is lost."""

RETRY_AFTER_KEY = "retry-after-s"
"""Trailing metadata of RESOURCE_EXHAUSTED: the delay in decimal seconds."""

SERVICE = "talkspurt.v1.SpeechEngine"


_UPLOAD_BYTES = 64 * 1024
"""Audio in one message of an upload: small enough that a copy delays no call."""


def encode_start(request: UtteranceRequest) -> pb.SpeakStart:
    return pb.SpeakStart(
        utterance_id=request.utterance_id,
        voice=request.voice,
        language=request.language,
        speed=request.speed,
        instruct=request.instruct,
        encoding=request.format.encoding,
        sample_rate=request.format.sample_rate,
        ptime_ms=request.format.ptime_ms,
        ahead=request.ahead,
        failure_wanted=True,
        priority=request.priority,
        at_once=request.at_once,
        model=request.model,
    )


def decode_start(start: pb.SpeakStart) -> UtteranceRequest:
    """Fill in the defaults that ``speech_engine.proto`` states.

    Raises:
        InvalidRequest: the utterance id is missing, speed or priority is out of range, or no codec has the format.
    """
    speed = start.speed or 1.0
    if not start.utterance_id:
        raise InvalidRequest("utterance_id is empty, expected a name unique to this utterance", field="utterance_id")
    if not 0.25 <= speed <= 4:
        raise InvalidRequest(f"speed is {speed:g}, expected 0.25 to 4", field="speed")
    if start.priority > HIGHEST_PRIORITY:
        raise InvalidRequest(f"priority is {start.priority}, expected 0 to {HIGHEST_PRIORITY}", field="priority")
    try:
        audio_format = AudioFormat(
            encoding=start.encoding or "PCMU", sample_rate=start.sample_rate or 8000, ptime_ms=start.ptime_ms or 20
        )
    except ValueError as exc:
        raise InvalidRequest(str(exc), field="encoding") from exc
    return UtteranceRequest(
        utterance_id=start.utterance_id,
        voice=start.voice,
        language=start.language,
        speed=speed,
        instruct=start.instruct,
        format=audio_format,
        ahead=start.ahead,
        priority=start.priority if start.HasField("priority") else 5,
        at_once=start.at_once,
        model=start.model,
    )


def encode_chunk(chunk: AudioChunk) -> pb.SpeakResponse:
    frames = chunk.frames
    sizes = [len(frame) for frame in frames]
    message = pb.SpeakResponse(
        payload=b"".join(frames),
        # Every codec but Opus makes frames of one size, which we send once instead of once for each frame.
        frame_bytes=sizes[:1] if len(set(sizes)) == 1 else sizes,
        first_sample=chunk.first_sample,
        samples=chunk.samples,
        engine=chunk.engine,
        clause_end_char=chunk.clause_end_char,
    )
    # Setting field by field takes half the time of keywords, and this is most of a chunk's cost here.
    stages_ms = message.stages_ms
    for stage, ms in chunk.stages_ms.items():
        stages_ms[stage] = ms
    spans = message.spans
    for start_char, end_char, first_sample, end_sample, exact in chunk.spans:
        span = spans.add()
        span.start_char = start_char
        span.end_char = end_char
        span.first_sample = first_sample
        span.end_sample = end_sample
        span.exact = exact
    return message


def decode_chunk(message: pb.SpeakResponse) -> AudioChunk:
    """Cut the payload into frames.

    Raises:
        SynthesisFailed: the sizes do not add up to the payload.
    """
    payload, sizes = message.payload, message.frame_bytes
    if len(sizes) == 1:
        size = sizes[0]
        frames = [payload[at : at + size] for at in range(0, len(payload), size)] if size else []
        total = len(frames) * size
    else:
        frames, total = [], 0
        for size in sizes:
            frames.append(payload[total : total + size])
            total += size
    if total != len(payload):
        raise SynthesisFailed(f"chunk of {len(payload)} bytes has frames of {total} bytes in all")
    return AudioChunk(
        frames=frames,
        first_sample=message.first_sample,
        samples=message.samples,
        spans=[TextSpan(s.start_char, s.end_char, s.first_sample, s.end_sample, s.exact) for s in message.spans],
        clause_end_char=message.clause_end_char,
        stages_ms=dict(message.stages_ms),
        engine=message.engine,
    )


def encode_voice(voice: VoiceInfo) -> pb.Voice:
    return pb.Voice(
        voice_id=voice.voice_id,
        name=voice.name,
        languages=voice.languages,
        engine=voice.engine,
        registered=voice.registered,
    )


def decode_voice(voice: pb.Voice) -> VoiceInfo:
    return VoiceInfo(
        voice_id=voice.voice_id,
        name=voice.name,
        languages=tuple(voice.languages),
        engine=voice.engine,
        registered=voice.registered,
    )


def encode_status(status: EngineStatus) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        ready=status.ready,
        engine=status.engine,
        model=status.model,
        models=status.models,
        gpu=status.gpu,
        vllm=status.vllm,
        active=status.active,
        queued=status.queued,
        queue_s=status.queue_s,
        detail=status.detail,
    )


def decode_status(status: pb.GetStatusResponse) -> EngineStatus:
    return EngineStatus(
        ready=status.ready,
        engine=status.engine,
        model=status.model,
        models=tuple(status.models),
        gpu=status.gpu,
        vllm=status.vllm,
        active=status.active,
        queued=status.queued,
        queue_s=status.queue_s,
        detail=status.detail,
    )


def encode_load(model: ModelToLoad) -> pb.LoadModelRequest:
    return pb.LoadModelRequest(
        model=model.name, folder=model.folder, kind=model.kind, device=model.device, cosyvoice=model.cosyvoice
    )


def decode_load(request: pb.LoadModelRequest) -> ModelToLoad:
    return ModelToLoad(
        name=request.model,
        folder=request.folder,
        kind=request.kind,
        device=request.device,
        cosyvoice=request.cosyvoice,
    )


def error_metadata(error: EngineError) -> tuple[tuple[str, str], ...]:
    """Return the fields of an error, apart from its status code, as trailing metadata."""
    if isinstance(error, InvalidRequest):
        return ((FIELD_KEY, error.field),)
    if isinstance(error, Exhausted):
        return ((RETRY_AFTER_KEY, f"{error.retry_after_s:g}"),)
    return ()


def decode_error(code: str, details: str, metadata: Mapping[str, str]) -> EngineError:
    """Return the error behind a gRPC status, by the name of its code.

    Codes that the engine does not send come from gRPC itself: the connection broke (UNAVAILABLE, CANCELLED), a message
    was too large (RESOURCE_EXHAUSTED without a delay), or the peer is another program (UNIMPLEMENTED).
    """
    match code:
        case "INVALID_ARGUMENT":
            return InvalidRequest(details, field=metadata.get(FIELD_KEY, "text"))
        case "NOT_FOUND":
            return NotFound(details)
        case "RESOURCE_EXHAUSTED" if RETRY_AFTER_KEY in metadata:
            return Exhausted(details, retry_after_s=float(metadata[RETRY_AFTER_KEY]))
        case "RESOURCE_EXHAUSTED":
            return InvalidRequest(details, field="message")
        case "DEADLINE_EXCEEDED":
            return DeadlineExceeded(details)
        case "UNAUTHENTICATED":
            return Unauthenticated(details)
        case "UNAVAILABLE" | "CANCELLED":
            return Unavailable(details)
        case _:
            return SynthesisFailed(f"{code}: {details}")


def encode_upload(head: pb.AddVoiceRequest, wav: bytes | bytearray) -> Iterator[pb.AddVoiceRequest]:
    """Yield the messages of an upload: ``head``, which has no audio, and the audio in pieces."""
    yield head
    audio = memoryview(wav)
    for at in range(0, len(audio), _UPLOAD_BYTES):
        yield pb.AddVoiceRequest(wav=bytes(audio[at : at + _UPLOAD_BYTES]))


def encode_failure(error: EngineError) -> pb.Failure:
    """Return the call's coming status as a message; ``decode_error`` reads it."""
    return pb.Failure(code=error.code, details=str(error), metadata=dict(error_metadata(error)))
