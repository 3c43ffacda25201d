"""A speech engine over gRPC: any ``SpeechEngine`` behind ``talkspurt.v1``, with health, reflection, deadlines, drain.

A cancelled or broken call closes its utterance at once; that is how a barge-in reaches the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tts_engine import wire
from tts_engine.api import SpeechEngine, Utterance
from tts_engine.config import EngineServerConfig
from tts_engine.errors import DeadlineExceeded, EngineError, Exhausted, InvalidRequest, Unavailable
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb

RETRY_AFTER_KEY = "retry-after-s"
FIELD_KEY = "field"


class EngineServer:
    """The listener of one engine.

    Args:
        listen: ``unix:/path`` or ``host:port`` (port 0: a free one, then in ``port``).
        metrics: gives the Prometheus exposition of this process.
    """

    def __init__(
        self, engine: SpeechEngine, config: EngineServerConfig, listen: str, *, metrics: Callable[[], bytes] = bytes
    ) -> None:
        self._engine = engine
        self._config = config
        self._listen = listen
        self._metrics = metrics
        self._live = 0
        self._idle = asyncio.Event()
        self._draining = False
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.message_bytes),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ]
        )
        self.port = 0

    async def start(self) -> None:
        """Listen; health says NOT_SERVING until ``serving``."""
        handlers = {
            "Speak": grpc.stream_stream_rpc_method_handler(
                self._speak, pb.SpeakRequest.FromString, pb.SpeakResponse.SerializeToString
            ),
            "ListVoices": _unary(self._list_voices, pb.ListVoicesRequest),
            "AddVoice": _unary(self._add_voice, pb.AddVoiceRequest),
            "RemoveVoice": _unary(self._remove_voice, pb.RemoveVoiceRequest),
            "ListModels": _unary(self._list_models, pb.ListModelsRequest),
            "SetActiveModel": _unary(self._set_active_model, pb.SetActiveModelRequest),
            "GetStatus": _unary(self._get_status, pb.GetStatusRequest),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (wire.SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self._server,
        )
        await self._set_health(serving=False)
        self.port = self._server.add_insecure_port(self._listen)
        await self._server.start()

    async def serving(self) -> None:
        """The engine is warm: health turns SERVING."""
        await self._set_health(serving=True)

    async def _set_health(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", wire.SERVICE):
            await self._health.set(name, status)

    async def drain(self) -> None:
        """Take no new utterances; live ones finish, bounded by ``drain_s``."""
        self._draining = True
        await self._set_health(serving=False)
        if self._live:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self._config.drain_s)
        await self._server.stop(grace=0.5)

    # --- methods ---------------------------------------------------------------------------------------------------

    async def _speak(self, requests: Any, context: Any) -> None:
        try:
            if self._draining:
                raise Unavailable("the engine is draining")
            if self._live >= self._config.max_utterances:
                raise Exhausted(f"{self._live} utterances are live (engine.server.max_utterances)", retry_after_s=1.0)
            self._live += 1
            self._idle.clear()
            try:
                await self._utterance(context)
            finally:
                self._live -= 1
                if not self._live:
                    self._idle.set()
        except EngineError as exc:
            await _abort(context, exc)

    async def _utterance(self, context: Any) -> None:
        first = await context.read()
        if first is grpc.aio.EOF or not first.HasField("utterance"):
            raise InvalidRequest("the first message carries no utterance", field="utterance")
        async with await self._engine.open(wire.request_from_pb(first.utterance)) as utterance:
            reader = asyncio.create_task(self._read(first, context, utterance))
            try:
                async for chunk in utterance:
                    await context.write(wire.chunk_to_pb(chunk))
                if reader.done():
                    reader.result()
            finally:
                reader.cancel()
                with contextlib.suppress(asyncio.CancelledError, EngineError):
                    await reader

    async def _read(self, message: pb.SpeakRequest, context: Any, utterance: Utterance) -> None:
        ended = False
        while True:
            if message.text:
                utterance.feed(message.text)
            if message.end_of_text and not ended:
                ended = True
                utterance.end_text()
            if message.HasField("position"):
                utterance.played(message.position.samples, at=time.monotonic() - message.position.age_s)
            try:
                message = await asyncio.wait_for(context.read(), None if ended else self._config.idle_text_s)
            except TimeoutError:
                # Whatever was fed is spoken; the chunks end, and with them the call.
                utterance.end_text()
                raise DeadlineExceeded(
                    f"no text for {self._config.idle_text_s:g} s (engine.server.idle_text_s)"
                ) from None
            if message is grpc.aio.EOF:
                if not ended:
                    utterance.end_text()
                return

    async def _list_voices(self, request: pb.ListVoicesRequest) -> pb.ListVoicesResponse:
        return pb.ListVoicesResponse(voices=[wire.voice_to_pb(voice) for voice in await self._engine.list_voices()])

    async def _add_voice(self, request: pb.AddVoiceRequest) -> pb.Voice:
        voice = await self._engine.add_voice(
            voice_id=request.voice_id,
            name=request.name,
            wav=request.wav,
            transcript=request.transcript,
            language=request.language,
        )
        return wire.voice_to_pb(voice)

    async def _remove_voice(self, request: pb.RemoveVoiceRequest) -> pb.RemoveVoiceResponse:
        await self._engine.remove_voice(request.voice_id)
        return pb.RemoveVoiceResponse()

    async def _list_models(self, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
        status = await self._engine.status()
        return pb.ListModelsResponse(models=status.models, active=status.model)

    async def _set_active_model(self, request: pb.SetActiveModelRequest) -> pb.SetActiveModelResponse:
        await self._engine.set_active_model(request.model)
        return pb.SetActiveModelResponse()

    async def _get_status(self, request: pb.GetStatusRequest) -> pb.Status:
        return wire.status_to_pb(await self._engine.status(), self._metrics() if request.with_metrics else b"")


def _unary(method: Any, request: Any) -> Any:
    async def handle(message: Any, context: Any) -> Any:
        try:
            return await method(message)
        except EngineError as exc:
            await _abort(context, exc)

    return grpc.unary_unary_rpc_method_handler(handle, request.FromString, lambda answer: answer.SerializeToString())


async def _abort(context: Any, exc: EngineError) -> None:
    metadata: list[tuple[str, str]] = []
    if isinstance(exc, Exhausted):
        metadata.append((RETRY_AFTER_KEY, f"{exc.retry_after_s:g}"))
    if isinstance(exc, InvalidRequest):
        metadata.append((FIELD_KEY, exc.field))
    await context.abort(grpc.StatusCode[exc.code], str(exc), tuple(metadata))
