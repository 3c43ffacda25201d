"""The gateway's end of the engine's gRPC wire: ``GrpcEngine`` is a ``SpeechEngine``.

It runs on the loop that paces calls: nothing here blocks, and an utterance costs one task and one message per chunk.
The first message carries the request and the first text together.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from tts_engine import wire
from tts_engine.api import AudioChunk, EngineStatus, Utterance, UtteranceRequest, VoiceInfo
from tts_engine.config import EngineClientConfig
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

_POSITION_INTERVAL_S = 0.2
_POSITION_DRIFT_S = 0.04

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.use_local_subchannel_pool", 1),
]


def error_of(exc: grpc.aio.AioRpcError) -> EngineError:
    """A gRPC status as our own error."""
    detail = exc.details() or exc.code().name
    trailing = {key: str(value) for key, value in (exc.trailing_metadata() or ())}
    match exc.code():
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(detail, field=trailing.get("field", "text"))
        case grpc.StatusCode.NOT_FOUND:
            return NotFound(detail)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Exhausted(detail, retry_after_s=float(trailing.get("retry-after-s", "1")))
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(f"speech engine: {detail}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(detail)
        case _:
            return SynthesisFailed(detail)


class PositionReports:
    """When to send the playback position: first packet, stall, cut, and drift over 40 ms from what the engine
    extrapolates by itself; at most five a second. Pure."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._samples: int | None = None
        self._at = 0.0

    def due(self, samples: int, at: float) -> bool:
        """Whether to send this position; if so it becomes the new base."""
        if self._samples is not None:
            expected = self._samples + (at - self._at) * self._rate
            drifted = abs(samples - expected) > _POSITION_DRIFT_S * self._rate
            if not drifted or at - self._at < _POSITION_INTERVAL_S:
                return False
        self._samples, self._at = samples, at
        return True


class _Target:
    """One engine and how busy we keep it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self.speak = self.channel.stream_stream(
            f"/{wire.SERVICE}/Speak", pb.SpeakRequest.SerializeToString, pb.SpeakResponse.FromString
        )
        self.in_flight = 0

    def unary(self, name: str, answer: Any) -> Any:
        return self.channel.unary_unary(
            f"/{wire.SERVICE}/{name}", lambda message: message.SerializeToString(), answer.FromString
        )


class GrpcUtterance:
    """One utterance; see ``tts_engine.api.Utterance``. The call begins with the first text."""

    def __init__(self, target: _Target, request: UtteranceRequest, config: EngineClientConfig) -> None:
        self._target = target
        self._request = request
        self._config = config
        self._text: list[str] = []
        self._ended = False
        self._end_sent = False
        self._position: pb.Position | None = None
        self._reports = PositionReports(request.format.sample_rate)
        self._wake = asyncio.Event()
        self._call: Any = None
        self._writer: asyncio.Task[None] | None = None
        self._closed = False
        self._patience: asyncio.Timeout | None = None

    def feed(self, text: str) -> None:
        """Queue text; deltas that have not been sent yet are joined, so the queue is bounded by the turn's text."""
        self._text.append(text)
        self._wake.set()

    def end_text(self) -> None:
        """No more text."""
        self._ended = True
        self._wake.set()

    def played(self, samples: int, *, at: float) -> None:
        """Remember the position; it is sent when it says something new."""
        if self._reports.due(samples, at):
            self._position = pb.Position(samples=samples, age_s=max(0.0, time.monotonic() - at))
            self._wake.set()

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        await self._wake.wait()
        if self._closed:
            return
        self._call = self._target.speak()
        self._target.in_flight += 1
        self._writer = asyncio.create_task(self._write())
        try:
            while True:
                try:
                    async with asyncio.timeout(None) as self._patience:
                        self._expect_audio()
                        message = await self._call.read()
                except TimeoutError:
                    raise DeadlineExceeded(f"no audio for {self._config.audio_s:g} s (engine.client.audio_s)") from None
                finally:
                    self._patience = None
                if message is grpc.aio.EOF:
                    break
                yield wire.chunk_from_pb(message)
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                raise error_of(
                    grpc.aio.AioRpcError(
                        code,
                        await self._call.initial_metadata() or grpc.aio.Metadata(),
                        await self._call.trailing_metadata() or grpc.aio.Metadata(),
                        await self._call.details(),
                    )
                )
        except grpc.aio.AioRpcError as exc:
            raise error_of(exc) from exc
        finally:
            await self.aclose()

    async def _write(self) -> None:
        first = pb.SpeakRequest(utterance=wire.request_to_pb(self._request))
        message = first
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                self._wake.clear()
                message.text = "".join(self._text)
                self._text.clear()
                if self._ended and not self._end_sent:
                    message.end_of_text = self._end_sent = True
                    self._expect_audio()
                if self._position is not None:
                    message.position.CopyFrom(self._position)
                    self._position = None
                await self._call.write(message)
                await self._wake.wait()
                message = pb.SpeakRequest()

    def _expect_audio(self) -> None:
        """All text is there: from now on sound has to come."""
        if self._end_sent and self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._config.audio_s)

    async def aclose(self) -> None:
        """Cancel the call, and with it the engine's work."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._writer is not None:
            self._writer.cancel()
            self._call.cancel()
            self._target.in_flight -= 1
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class GrpcEngine:
    """A ``SpeechEngine`` behind one or several gRPC targets; an utterance goes to the least busy one.

    Voices and models are told to all targets, status is the first one's.
    """

    def __init__(self, targets: Sequence[str], config: EngineClientConfig) -> None:
        self._targets = [_Target(address) for address in targets]
        self._config = config

    async def open(self, request: UtteranceRequest) -> Utterance:
        """Begin an utterance; nothing is sent before text is fed."""
        return GrpcUtterance(min(self._targets, key=lambda target: target.in_flight), request, self._config)

    async def _unary(self, target: _Target, name: str, request: Any, answer: Any, *, timeout_s: float = 10.0) -> Any:
        try:
            return await target.unary(name, answer)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise error_of(exc) from exc

    async def list_voices(self) -> Sequence[VoiceInfo]:
        """Voices of the first target."""
        answer = await self._unary(self._targets[0], "ListVoices", pb.ListVoicesRequest(), pb.ListVoicesResponse)
        return [wire.voice_from_pb(voice) for voice in answer.voices]

    async def add_voice(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        """Register a voice on every target."""
        request = pb.AddVoiceRequest(voice_id=voice_id, name=name, wav=wav, transcript=transcript, language=language)
        answers = [await self._unary(target, "AddVoice", request, pb.Voice, timeout_s=120) for target in self._targets]
        return wire.voice_from_pb(answers[0])

    async def remove_voice(self, voice_id: str) -> None:
        """Remove a voice from every target."""
        for target in self._targets:
            await self._unary(target, "RemoveVoice", pb.RemoveVoiceRequest(voice_id=voice_id), pb.RemoveVoiceResponse)

    async def set_active_model(self, model: str) -> None:
        """Switch every target."""
        for target in self._targets:
            await self._unary(
                target, "SetActiveModel", pb.SetActiveModelRequest(model=model), pb.SetActiveModelResponse,
                timeout_s=120,
            )  # fmt: skip

    async def status(self) -> EngineStatus:
        """Status of the first target."""
        return wire.status_from_pb(
            await self._unary(self._targets[0], "GetStatus", pb.GetStatusRequest(), pb.Status, timeout_s=2)
        )

    async def metrics(self) -> bytes:
        """The first target's Prometheus exposition."""
        answer = await self._unary(
            self._targets[0], "GetStatus", pb.GetStatusRequest(with_metrics=True), pb.Status, timeout_s=2
        )
        return bytes(answer.metrics)

    async def aclose(self) -> None:
        """Close the channels."""
        for target in self._targets:
            await target.channel.close(grace=None)
