"""Seam values to protobuf messages and back. Pure; both ends of the gRPC wire use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tts_engine.api import AudioChunk, EngineStatus, TextSpan, UtteranceRequest, VoiceInfo
from tts_engine.errors import InvalidRequest
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from voicecodecs.registry import AudioFormat

SERVICE = "talkspurt.v1.SpeechEngine"


def request_to_pb(request: UtteranceRequest) -> pb.Utterance:
    """An utterance's first message."""
    fmt = request.format
    return pb.Utterance(
        utterance_id=request.utterance_id,
        format=pb.AudioFormat(encoding=fmt.encoding, sample_rate=fmt.sample_rate, ptime_ms=fmt.ptime_ms),
        voice=request.voice,
        language=request.language,
        speed=request.speed,
        instruct=request.instruct,
        ahead=request.ahead,
    )


def request_from_pb(message: pb.Utterance) -> UtteranceRequest:
    """Raises ``InvalidRequest`` for a format that no codec has, or a speed out of range."""
    try:
        fmt = AudioFormat(message.format.encoding, message.format.sample_rate, message.format.ptime_ms)
    except ValueError as exc:
        raise InvalidRequest(str(exc), field="format") from exc
    speed = message.speed or 1.0
    if not 0.25 <= speed <= 4.0:
        raise InvalidRequest(f"speed is {speed:g}, expected 0.25 to 4", field="speed")
    return UtteranceRequest(
        utterance_id=message.utterance_id,
        format=fmt,
        voice=message.voice,
        language=message.language,
        speed=speed,
        instruct=message.instruct,
        ahead=message.ahead,
    )


def chunk_to_pb(chunk: AudioChunk) -> pb.SpeakResponse:
    """Audio, with one size for all frames where they are alike (every codec but Opus)."""
    sizes = {len(frame) for frame in chunk.frames}
    return pb.SpeakResponse(
        payload=b"".join(chunk.frames),
        frame_bytes=list(sizes) if len(sizes) <= 1 else [len(frame) for frame in chunk.frames],
        first_sample=chunk.first_sample,
        samples=chunk.samples,
        spans=[
            pb.TextSpan(
                start_char=span.start_char,
                end_char=span.end_char,
                first_sample=span.first_sample,
                end_sample=span.end_sample,
                exact=span.exact,
            )
            for span in chunk.spans
        ],
        stages_ms=chunk.stages_ms,
    )


def chunk_from_pb(message: pb.SpeakResponse) -> AudioChunk:
    """The chunk that was sent."""
    return AudioChunk(
        frames=list(_frames(message.payload, message.frame_bytes)),
        first_sample=message.first_sample,
        samples=message.samples,
        spans=[
            TextSpan(span.start_char, span.end_char, span.first_sample, span.end_sample, span.exact)
            for span in message.spans
        ],
        stages_ms=dict(message.stages_ms),
    )


def _frames(payload: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    if len(sizes) == 1:
        size = sizes[0]
        yield from (payload[at : at + size] for at in range(0, len(payload), size))
        return
    at = 0
    for size in sizes:
        yield payload[at : at + size]
        at += size


def voice_to_pb(voice: VoiceInfo) -> pb.Voice:
    """A voice."""
    return pb.Voice(
        voice_id=voice.voice_id,
        name=voice.name,
        languages=voice.languages,
        engine=voice.engine,
        registered=voice.registered,
    )


def voice_from_pb(voice: pb.Voice) -> VoiceInfo:
    """A voice."""
    return VoiceInfo(
        voice_id=voice.voice_id,
        name=voice.name,
        languages=tuple(voice.languages),
        engine=voice.engine,
        registered=voice.registered,
    )


def status_to_pb(status: EngineStatus, metrics: bytes = b"") -> pb.Status:
    """An engine's status."""
    return pb.Status(
        ready=status.ready,
        engine=status.engine,
        model=status.model,
        models=status.models,
        gpu=status.gpu,
        vllm=status.vllm,
        active=status.active,
        queued=status.queued,
        detail=status.detail,
        metrics=metrics,
    )


def status_from_pb(status: pb.Status) -> EngineStatus:
    """An engine's status."""
    return EngineStatus(
        ready=status.ready,
        engine=status.engine,
        model=status.model,
        models=tuple(status.models),
        gpu=status.gpu,
        vllm=status.vllm,
        active=status.active,
        queued=status.queued,
        detail=status.detail,
    )
