"""Serves any ``SpeechEngine`` over gRPC. This module decides which requests are taken, which deadlines have passed, and
how errors look on the wire. It knows nothing of speech.

Threads and queues: there is one event loop. Each Speak has one task, and a second one that reads. Audio waits in gRPC's
flow-control window of 64 KiB (200 kB with the buffers of both ends; when they are full, we ask the engine for no more).
Text goes straight to the utterance, which bounds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from tts_engine import metrics
from tts_engine.api import EngineStatus, SpeechEngine, Utterance
from tts_engine.config import EngineConfig, is_local
from tts_engine.correlation import CORRELATION, Correlation
from tts_engine.errors import DeadlineExceeded, EngineError, Exhausted, InvalidRequest, SynthesisFailed, Unavailable
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2_grpc as pb_grpc
from tts_engine.service import wire
from tts_engine.service.link_server import LinkServer
from tts_engine.service.load import RecentWait
from tts_engine.service.models import EngineWithModels
from tts_engine.service.security import TokenCheck, server_credentials
from tts_engine.service.socket_file import SocketFile, move, name_beside
from tts_engine.supervision import SUPERVISOR, SupervisedTask

log = logging.getLogger(__name__)

_HALF_CLOSE_S = 1.0  # longest wait for a client's half-close, seconds
RETRY_AFTER_S = 1.0
"""Time after which a client that was refused because the engine is full should try again, seconds."""

TEXT_S = 120.0
"""Longest wait for more text of an utterance, seconds. Language models call slow tools in mid-sentence; a client that
forgets to end its text holds a place for as long."""

AUDIO_S = 20.0
"""Longest time without audio from an engine that has all the text and whose sound has all been heard, seconds. It
exceeds the longest waits in the engine's own queues."""

CONSUMPTION_S = 120.0
"""Time for which a client may leave audio untaken, seconds; then its utterance fails. A held turn is not taken while it
waits, unless the client buffers it."""

_GRACE_S = 0.5  # time that calls get to end, seconds
_ALL_HEARD_S = 0.5  # with less sound in hand than this, seconds, a caller waits for the engine; longer than any frame
_CLIENT_GONE_S = 1.0  # time in which gRPC notices a lost client after a failed write, seconds

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class _Cancelled(EngineError):
    """The client cancelled by a message, and does not wait for the answer."""

    code = "CANCELLED"


class DeadlineState:
    """Deadline state of one utterance: what it waits for, and since when. Times are monotonic seconds."""

    def __init__(self, *, now: float) -> None:
        self.text_at = now
        self.text_ended = False
        self.audio_at = now
        """The engine owes audio from this time on: when text came last, or when all audio so far is heard, whichever is
        later. While a caller hears a long clause, the engine makes nothing, on purpose."""
        self._given_s = 0.0
        self.writing_at: float | None = None
        """Time since which a chunk waits for the client to take it. None: no chunk waits."""
        self.ahead = False
        """True until the caller's position is known: the sound is for later, and the engine may take its time."""

    def given(self, *, now: float) -> None:
        """Note that text came."""
        self.text_at, self.audio_at = now, max(self.audio_at, now)

    def gave(self, seconds: float, *, now: float) -> None:
        """Note that a chunk of ``seconds`` waits for the client to take it."""
        self.writing_at, self.audio_at = now, max(self.audio_at, now) + seconds
        self._given_s += seconds

    def played(self, seconds: float, *, at: float) -> None:
        """Note that the caller had heard ``seconds`` of sound at second ``at``.

        Sound that was made ahead begins to be heard only now, and sound that a paused caller has not heard yet is still
        in hand. Until all of it is heard the engine owes nothing.
        """
        unheard_s = max(0.0, self._given_s - seconds)
        if self.ahead or unheard_s > _ALL_HEARD_S:
            self.audio_at = max(self.audio_at, at + unheard_s)
        self.ahead = False

    def expired(self, now: float) -> DeadlineExceeded | None:
        """Return the deadline that has passed, if there is one."""
        if self.writing_at is not None:
            if now - self.writing_at > CONSUMPTION_S:
                return DeadlineExceeded(f"client took no audio for {CONSUMPTION_S:g} s")
        elif not self.text_ended:
            if now - self.text_at > TEXT_S:
                return DeadlineExceeded(f"no text for {TEXT_S:g} s and no end of text")
        elif not self.ahead and now - self.audio_at > AUDIO_S:
            return DeadlineExceeded(f"engine made no audio for {AUDIO_S:g} s")
        return None


class _Speak:
    """One Speak in progress: its task, and the error with which other tasks end it."""

    def __init__(self, task: asyncio.Task[Any], *, now: float) -> None:
        self.task = task
        self.progress = DeadlineState(now=now)
        self.sample_rate = 8000
        self.failure: EngineError | None = None

    def fail(self, error: EngineError) -> None:
        if self.failure is None:
            self.failure = error
            self.task.cancel()


class _ByName:
    """A server as generated code sees it, which finds methods by name when they are called.

    grpc.aio waits separately for each method that is registered beforehand, and sets all of these waits up again for
    each request.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing: ``add_generic_rpc_handlers`` gets the same handlers."""


class SpeechServer(pb_grpc.SpeechEngineServicer):  # type: ignore[misc]  # generated, untyped
    """Serves one engine. ``start()`` listens and answers NOT_SERVING, ``serve(engine)`` takes requests, ``drain()``
    refuses new ones and waits, ``aclose()`` ends the rest. The owner of the engine closes the engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.address = ""
        """The address where the server listens, with the real port. ``start`` sets it."""
        self._engine: SpeechEngine | None = None
        self._engine_name: str = config.kind
        self._draining = False
        self._speaks: set[_Speak] = set()
        self._wait = RecentWait()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sweeper: SupervisedTask | None = None
        self._health = health_aio.HealthServicer()
        ping_ms = int(wire.KEEPALIVE_S * 1000)
        self._most_bytes = wire.MESSAGE_BYTES
        # This is twice the number of utterances: status and health must get through when the engine is full, and a
        # client over the limit must get RESOURCE_EXHAUSTED instead of waiting in HTTP/2's own queue.
        streams = 2 * config.speech.max_utterances + 16
        checks = []
        if config.token is not None:
            checks.append(TokenCheck(config.token.get_secret_value(), wait_s=TEXT_S))
        self._server = grpc.aio.server(
            interceptors=checks,
            options=[
                ("grpc.so_reuseport", 0),  # a second engine on the same port is an error, not a silent half of the load
                ("grpc.max_receive_message_length", self._most_bytes),
                ("grpc.max_send_message_length", self._most_bytes),
                ("grpc.max_concurrent_streams", streams),
                # gRPC's limit would also count cancelled calls that are not torn down yet, and a starved engine would
                # refuse at random. Our own limit answers such requests.
                ("grpc.http.overload_protection", 0),
                # If more than 1000 requests come at once, gRPC refuses some of them at random, unless this limit is
                # higher.
                ("grpc.server.max_pending_requests", streams),
                ("grpc.server.max_pending_requests_hard_limit", 2 * streams),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.keepalive_time_ms", ping_ms),
                ("grpc.keepalive_timeout_ms", ping_ms),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", ping_ms // 2),
            ],
        )
        self._link = LinkServer(
            self.Speak, most_calls=streams, most_bytes=self._most_bytes, retry_after_s=RETRY_AFTER_S
        )
        self._file: SocketFile | None = None
        by_name = _ByName(self._server)
        pb_grpc.add_SpeechEngineServicer_to_server(self, by_name)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, by_name)

    async def start(self, listen: str | None = None) -> None:
        """Listen on ``listen`` (default: the configured address).

        Raises:
            Unauthenticated: the configuration lacks what the address needs, or a file of ``tls`` cannot be used.
            OSError: the address is not available.
        """
        listen = listen or self.config.listen
        credentials = server_credentials(self.config, listen)
        if is_local(listen):  # strangers need not learn which services there are
            names = (wire.SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        await self._set_health(NOT_SERVING)
        path = listen.removeprefix("unix:") if listen.startswith("unix:") else ""
        # gRPC removes the file at its path when it ends, even a newer engine's socket, so it gets a path of its own.
        own = f"unix:{name_beside(path)}" if path else listen
        try:
            if credentials is None:
                port = self._server.add_insecure_port(own)
            else:
                port = self._server.add_secure_port(own, credentials)
        except RuntimeError as exc:
            raise OSError(f"cannot listen on {listen}: {exc}") from exc
        if path:
            self._file = move(own.removeprefix("unix:"), path)
        self.address = listen if path else f"{listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        if path and self.config.token is None:
            try:
                await self._link.start(listen)
            except OSError as exc:  # for example, the path is too long; calls then come over gRPC
                log.warning("the engine offers no link", extra={"error": str(exc)})
        self._sweeper = SUPERVISOR.task("deadlines", self._sweep)

    @property
    def serves(self) -> bool:
        """True while requests are taken."""
        return self._engine is not None and not self._draining

    @property
    def utterances(self) -> int:
        """Number of open utterances."""
        return len(self._speaks)

    async def serve(self, engine: SpeechEngine) -> None:
        """Take requests for ``engine``, which is warm."""
        self._engine_name = (await engine.status()).engine
        self._engine = engine
        await self._set_health(SERVING)

    async def drain(self) -> int:
        """Refuse new requests, and wait up to ``drain_s`` for running ones. Return how many utterances were cut
        short."""
        self._draining = True
        await self._set_health(NOT_SERVING)
        try:
            async with asyncio.timeout(self.config.drain_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        left = len(self._speaks)
        for speak in list(self._speaks):
            speak.fail(Unavailable("engine shut down before the utterance was finished"))
        return left

    async def aclose(self) -> None:
        """Stop listening and cancel running requests. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._file is not None:
            self._file.remove()
        # The short grace lets refusals of drain() reach their clients.
        await asyncio.gather(self._server.stop(_GRACE_S), self._link.aclose(_GRACE_S))

    # The methods of the service.

    async def Speak(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        CORRELATION.set(Correlation.of_metadata(context.invocation_metadata() or ()))
        async with self._errors(context):
            # We read before we refuse anything: the start says if the client would lose a status that meets its write.
            first = await self._first(context)
            engine = self._require_engine()
            if len(self._speaks) >= (limit := self.config.speech.max_utterances):
                metrics.REFUSED.labels("utterances").inc()
                full = Exhausted(
                    f"{limit} utterances are open already (engine.speech.max_utterances)",
                    retry_after_s=RETRY_AFTER_S,
                )
                if first.start.failure_wanted:
                    await _tell(context, full)
                raise full
            speak = _Speak(task, now=time.monotonic())
            self._speaks.add(speak)
            self._idle.clear()
            try:
                await self._speak(engine, speak, first, context)
            except asyncio.CancelledError:
                if speak.failure is None:
                    raise  # the client cancelled, or is gone
                task.uncancel()
                raise speak.failure from None
            finally:
                self._speaks.discard(speak)
                if not self._speaks:
                    self._idle.set()

    async def _first(self, context: grpc.aio.ServicerContext) -> pb.SpeakRequest:
        """Read the message with the start. Such calls have no place in the engine yet; HTTP/2's limit of streams bounds
        them."""
        try:
            async with asyncio.timeout(TEXT_S):
                message = await context.read()
        except TimeoutError:
            raise DeadlineExceeded(f"no start for {TEXT_S:g} s") from None
        if message is grpc.aio.EOF or not message.HasField("start"):
            raise InvalidRequest("the first message carries no start", field="start")
        return message

    async def _speak(
        self, engine: SpeechEngine, speak: _Speak, message: pb.SpeakRequest, context: grpc.aio.ServicerContext
    ) -> None:
        request, failure_wanted = wire.decode_start(message.start), message.start.failure_wanted
        message.ClearField("start")
        progress = speak.progress
        progress.ahead, speak.sample_rate = request.ahead, request.format.sample_rate
        utterance: Utterance | None = None
        reader: asyncio.Task[None] | None = None
        try:
            try:
                utterance = engine.open(request)
                self._apply(message, speak, utterance)
                reader = asyncio.create_task(self._read(context, speak, utterance))
                waited = False
                async for chunk in utterance:
                    if not waited:
                        waited = True
                        wait_ms = chunk.stages_ms.get("admission", 0.0) + chunk.stages_ms.get("queue", 0.0)
                        self._wait.note(wait_ms / 1000, now=time.monotonic())
                    progress.gave(chunk.samples / request.format.sample_rate, now=time.monotonic())
                    await context.write(wire.encode_chunk(chunk))
                    progress.writing_at = None
            except EngineError as exc:
                if failure_wanted:
                    await _tell(context, exc, reader)
                raise
            await context.write(pb.SpeakResponse(finished=True))
            await _half_closed(reader)
        finally:
            if reader is not None:
                reader.cancel()
            if utterance is not None:
                await utterance.aclose()

    async def _read(self, context: grpc.aio.ServicerContext, speak: _Speak, utterance: Utterance) -> None:
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                self._apply(message, speak, utterance)
            if not speak.progress.text_ended:
                self._apply(pb.SpeakRequest(end_of_text=True), speak, utterance)
        except EngineError as exc:
            speak.fail(exc)
        except Exception as exc:  # a bug in the engine ends this call alone; _broken logs it
            speak.fail(_broken(exc))

    def _apply(self, message: pb.SpeakRequest, speak: _Speak, utterance: Utterance) -> None:
        """Carry out a message, in the order of its field numbers."""
        progress, now = speak.progress, time.monotonic()
        if message.HasField("start"):
            raise InvalidRequest("a second start; it belongs into the first message only", field="start")
        if message.text or message.end_of_text:
            if progress.text_ended:
                raise InvalidRequest("text after the end of text", field="text")
            progress.given(now=now)
            if message.text:
                utterance.feed(message.text)
            if message.end_of_text:
                progress.text_ended = True
                utterance.end_text()
        if message.HasField("position"):
            samples, at = message.position.samples, now - message.position.age_ms / 1000
            progress.played(samples / speak.sample_rate, at=at)
            utterance.played(samples, at=at)
        if message.cancel:
            raise _Cancelled("cancelled by the client's message")

    async def ListVoices(self, _request: pb.ListVoicesRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            voices = await self._require_engine().list_voices()
            return pb.ListVoicesResponse(voices=[wire.encode_voice(voice) for voice in voices])

    async def AddVoice(self, requests: AsyncIterator[pb.AddVoiceRequest], context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            head: pb.AddVoiceRequest | None = None
            wav = bytearray()
            async for request in requests:
                head = head or request
                wav += request.wav
                if len(wav) > self._most_bytes:
                    raise InvalidRequest(f"wav is over {self._most_bytes} bytes")
            if head is None:
                raise InvalidRequest("the upload has no message")
            voice = await self._require_engine().add_voice(
                voice_id=head.voice_id,
                name=head.name,
                wav=bytes(wav),
                transcript=head.transcript,
                language=head.language,
            )
            return wire.encode_voice(voice)

    async def RemoveVoice(self, request: pb.RemoveVoiceRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            await self._require_engine().remove_voice(request.voice_id)
            return pb.RemoveVoiceResponse()

    async def ListModels(self, _request: pb.ListModelsRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            status = await self._require_engine().status()
            return pb.ListModelsResponse(models=status.models or [status.model], active=status.model)

    async def SetActiveModel(self, request: pb.SetActiveModelRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            await self._require_engine().set_active_model(request.model)
            return pb.SetActiveModelResponse()

    async def LoadModel(self, request: pb.LoadModelRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            await self._require_engine().load_model(wire.decode_load(request))
            return pb.LoadModelResponse()

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            await self._require_engine().unload_model(request.model)
            return pb.UnloadModelResponse()

    async def GetStatus(self, _request: pb.GetStatusRequest, context: grpc.aio.ServicerContext) -> Any:
        async with self._errors(context):
            if self._engine is None:
                status = EngineStatus(ready=False, engine=self._engine_name, model="", detail="starting")
            else:
                queue_s = self._wait.seconds(time.monotonic())
                status = replace(await self._engine.status(), active=len(self._speaks), queue_s=queue_s)
                if self._draining:
                    status = replace(status, ready=False, detail="draining")
            return wire.encode_status(status)

    async def GetMetrics(self, _request: pb.GetMetricsRequest, _context: grpc.aio.ServicerContext) -> Any:
        others = await self._engine.metrics() if isinstance(self._engine, EngineWithModels) else {}
        return pb.GetMetricsResponse(exposition=metrics.with_models(metrics.exposition(), others))

    # Helpers of these methods.

    def _require_engine(self) -> SpeechEngine:
        if self._engine is None:
            raise Unavailable("engine is starting")
        if self._draining:
            raise Unavailable("engine is draining")
        return self._engine

    @asynccontextmanager
    async def _errors(self, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """Turn errors of the engine into the call's status."""
        try:
            try:
                yield
            except EngineError as exc:
                await _abort(context, exc)
            except grpc.aio.BaseError:
                raise
            except Exception as exc:  # a bug in the engine: the client gets a status, _broken logs it
                await _abort(context, _broken(exc))
        except grpc.aio.AbortError as end:
            # The call has its status. gRPC keeps this error with the call and raises it again after we return. With our
            # frames in its traceback, the utterance would stay until a collection of garbage.
            end.__traceback__ = end.__context__ = None
        except grpc.aio.InternalError:
            # A message to a client that has just gone fails, and a moment later gRPC cancels this task. That is the
            # usual end of such a call. If the error came first, it would be logged as a fault of the engine.
            await asyncio.sleep(_CLIENT_GONE_S)
            raise

    async def _sweep(self) -> None:
        # With this period, a deadline is late by a quarter at most.
        period_s = min(1.0, TEXT_S / 4, AUDIO_S / 4, CONSUMPTION_S / 4)
        while True:
            await asyncio.sleep(period_s)
            now = time.monotonic()
            for speak in list(self._speaks):
                if error := speak.progress.expired(now):
                    speak.fail(error)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", wire.SERVICE):
            await self._health.set(name, status)


async def _tell(
    context: grpc.aio.ServicerContext, error: EngineError, reader: asyncio.Task[None] | None = None
) -> None:
    """Send the error as a message before it becomes the call's status. Clients that write with grpc.aio lose a status
    that meets their write."""
    await context.write(pb.SpeakResponse(failure=wire.encode_failure(error)))
    unread = asyncio.create_task(_drain(context)) if reader is None else reader
    try:
        await _half_closed(unread)
    finally:
        unread.cancel()


async def _half_closed(reader: asyncio.Task[None]) -> None:
    """Wait until the client has half-closed. If the call ended earlier, a write in progress would fail on the client's
    side."""
    await asyncio.wait({reader}, timeout=_HALF_CLOSE_S)


async def _drain(context: grpc.aio.ServicerContext) -> None:
    while await context.read() is not grpc.aio.EOF:
        pass


async def _abort(context: grpc.aio.ServicerContext, error: EngineError) -> NoReturn:
    await context.abort(grpc.StatusCode[error.code], str(error), wire.error_metadata(error))
    raise AssertionError("abort raises")


def _broken(exc: Exception) -> SynthesisFailed:
    """Turn an exception of the engine's code into an error. Its message may quote the caller's text, so only the
    traceback is logged."""
    log.error("engine raised %s at\n%s", type(exc).__name__, "".join(traceback.format_tb(exc.__traceback__)).rstrip())
    return SynthesisFailed(f"engine raised {type(exc).__name__}")
