"""A ``SpeechEngine`` in another process, over gRPC.

The client is made for an event loop that paces calls: ``feed``, ``end_text`` and ``played`` only note what to send, and
one short task sends everything that has gathered as one message. The gathered data is bounded: text by the gateway's
``limits.turn_chars``, and only the newest position is kept. Audio that is not taken stays in gRPC's flow-control
window.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import grpc

from tts_engine import metrics
from tts_engine.api import AudioChunk, EngineStatus, ModelToLoad, Utterance, UtteranceRequest, VoiceInfo
from tts_engine.config import EngineConfig
from tts_engine.correlation import CORRELATION
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, NotFound, Unauthenticated, Unavailable
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2_grpc as pb_grpc
from tts_engine.service import wire
from tts_engine.service.link_client import LinkCall, SpeakLink
from tts_engine.service.moving import MovingUtterance
from tts_engine.service.position import PositionReporter
from tts_engine.service.security import Connecting, proof
from tts_engine.service.speak_call import SpeakCall
from tts_engine.service.targets import EngineAddress, Targets
from tts_engine.synthesizer import HIGHEST_PRIORITY

log = logging.getLogger(__name__)

WATCH_S = 1.0
"""Time between two refreshes, seconds. A refresh resolves the engines' names and asks each engine how busy it is, with
a small request."""

_ANSWER_S = 5.0
"""Longest wait for one unary call, such as status or the list of voices, seconds."""

_ADD_VOICE_S = 120.0
"""Longest wait for the registration of a voice, seconds. A CPU needs long to extract the features."""

_GONE_S = 1.0
"""Time for which an engine that drains or is gone gets no new utterances, seconds."""

_OLD_S = 3600.0
"""Time for which utterances may continue on a connection whose certificate has been renewed, seconds."""

_SAME_WAIT_S = 0.02
"""Engines whose waits differ by less count as equal, seconds."""

_NO_CONNECTION = "failed to connect"
_TLS_TRACES = "Socket closed", "handshake failed"
"""Parts of gRPC's message for a connection that failed because one end did not accept the other's TLS."""


def channel_options() -> list[tuple[str, int]]:
    """Return the gRPC settings of a connection to an engine."""
    ping_ms = int(wire.KEEPALIVE_S * 1000)
    return [
        ("grpc.max_receive_message_length", wire.MESSAGE_BYTES),
        ("grpc.max_send_message_length", wire.MESSAGE_BYTES),
        ("grpc.enable_retries", 0),  # half an utterance cannot be repeated; the retry layer would copy each message
        ("grpc.enable_http_proxy", 0),
        ("grpc.http2.bdp_probe", 0),  # a window of 64 KiB, 8 s of PCMU; estimating it lets megabytes gather unread
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", ping_ms),
        # A restarted engine is found again within this time; by default it may take two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, this option is the time limit for setting up a connection. An engine that is busy or far
        # away needs more than 100 ms. A refused connection is tried again after the time above.
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
    ]


class GrpcUtterance:
    """One Speak call as ``tts_engine.api.Utterance``. ``GrpcEngine.open`` makes it.

    The iteration raises the engine's refusals (unknown voice, full, draining). ``open`` does not wait for the answer,
    so that the request and the first text travel as one message.
    """

    def __init__(self, backend: _Backend, request: UtteranceRequest) -> None:
        self._backend = backend
        self._model = request.model
        self._error: EngineError | None = None
        """The error for which this end cancelled the call."""
        self._text_ended = False
        self._closed = False
        self._finished = False
        self._positions = PositionReporter(request.format.sample_rate)
        self._position_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        metadata = CORRELATION.get().metadata()
        self._call = backend.call(metadata, wire.encode_start(request))
        backend.active += 1

    def feed(self, text: str) -> None:
        if self._closed or self._finished:
            return
        if self._text_ended:
            # We must check this here: the message that leaves next may already hold the end, so the engine would not
            # notice.
            self._error = InvalidRequest("text was fed after the end of the text")
            self._call.cancel()
        elif text:
            self._call.gather().text += text

    def end_text(self) -> None:
        if not self._text_ended:
            self._text_ended = True
            self._call.gather().end_of_text = True

    def played(self, samples: int, *, at: float) -> None:
        delay_s = self._positions.offer(samples, at=at)
        if delay_s is None or self._position_timer is not None:
            return
        if delay_s == 0.0:
            self._send_position()
        else:
            self._position_timer = self._loop.call_later(delay_s, self._send_position)

    def _send_position(self) -> None:
        self._position_timer = None
        samples, age_s = self._positions.take(now=time.monotonic())
        position = self._call.gather().position
        position.samples, position.age_ms = samples, age_s * 1000

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        message = await self._call.receive()
        if isinstance(message, grpc.aio.AioRpcError | EngineError):
            self._release()
            try:
                raise self._refused(message if isinstance(message, EngineError) else _engine_error(message))
            finally:
                del message
        if isinstance(message, asyncio.CancelledError):
            if not self._closed and self._error is None:
                self._error = Unavailable("the client of the engine is closed")
            self._release()
            raise StopAsyncIteration if self._error is None else copy(self._error)
        if message is grpc.aio.EOF:
            self._release()
            raise StopAsyncIteration
        if message.finished:
            await self._half_close()
            raise StopAsyncIteration
        if message.HasField("failure"):
            await self._half_close()
            failure = message.failure
            raise self._refused(wire.decode_error(failure.code, failure.details, failure.metadata))
        chunk = wire.decode_chunk(message)
        return replace(chunk, engine=self._model) if self._model else chunk

    # No frame that an exception passes may refer to that exception or to the task, not even through ``self``. The
    # traceback refers to the frame, so the whole call would stay in a reference cycle.

    def _refused(self, error: EngineError) -> EngineError:
        self._backend.refused(error)
        return error

    async def _half_close(self) -> None:
        """Tell the engine that nothing more will be sent, since everything is spoken."""
        self._finished = True
        if self._position_timer is not None:
            self._position_timer.cancel()
        await self._call.half_close()
        self._release()

    def _release(self) -> None:
        """Free the place of a call that is over."""
        if not self._closed:
            self._closed = True
            self._backend.active -= 1
            if self._position_timer is not None:
                self._position_timer.cancel()

    async def aclose(self) -> None:
        self._release()
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _write(call: Any, message: Any) -> None:
    """Send a message of a stream.

    A write that meets the end of the call fails. grpc.aio's own ``write`` then replaces the server's status by
    INTERNAL, and messages that have arrived can no longer be read. So we write with the layer below it, and the
    server's answer stays readable.

    Raises:
        grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError: the call is over.
    """
    await call._cython_call.send_serialized_message(message.SerializeToString())


async def _upload(call: Any, messages: Iterable[Any]) -> None:
    """Send all messages of a stream that has one answer. If the stream ends early, the answer says why."""
    with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
        await call.wait_for_connection()
        for message in messages:
            await _write(call, message)
        await call.done_writing()


class _Backend:
    """One engine process: the connection to it, and the number of our utterances there."""

    def __init__(self, address: EngineAddress, config: EngineConfig) -> None:
        target, name = address
        self._connecting = Connecting(target, config, name=name)
        self._options = channel_options()
        self.channel = self._connecting.channel(self._options)
        self._old = dict[grpc.aio.Channel, asyncio.Task[None]]()
        """Replaced connections on which utterances continue, each with the task that closes it after the last one."""
        self.proof = proof(target, config)
        self.stub = pb_grpc.SpeechEngineStub(self.channel)
        self.link: SpeakLink | None = None
        if target.startswith("unix:"):
            self.link = SpeakLink(target, most_bytes=wire.MESSAGE_BYTES, keepalive_s=wire.KEEPALIVE_S)
        """The faster way for calls to an engine on this machine. Only an engine without a token offers it."""
        self.active = 0
        self._full_until = self._gone_until = 0.0
        """Monotonic seconds until which other engines are preferred to this one."""
        self._others = 0
        """Number of other clients' utterances at the latest look."""
        self._queue_s = 0.0

    def call(self, metadata: tuple[tuple[str, str], ...], start: pb.SpeakStart) -> LinkCall | SpeakCall:
        """Begin a Speak call."""
        if self.link is not None and self.link.stands:
            return self.link.call(metadata, start)
        return SpeakCall(self.stub.Speak, (*self.proof, *metadata), start)

    async def look(self, *, timeout_s: float) -> None:
        """Ask how busy the engine is. If it does not answer, only the state of its connection is known."""
        try:
            status = wire.decode_status(await self.ask("GetStatus", pb.GetStatusRequest(), timeout_s=timeout_s))
        except EngineError:
            return
        self._others, self._queue_s = max(0, status.active - self.active), status.queue_s
        if not status.ready:
            self._gone_until = time.monotonic() + _GONE_S

    async def ask(self, method: str, request: object, *, timeout_s: float) -> Any:
        """Call a method with one answer. Raises EngineError."""
        try:
            return await getattr(self.stub, method)(request, timeout=timeout_s, metadata=self.proof)
        except grpc.aio.AioRpcError as exc:
            raise _engine_error(exc) from None

    async def add_voice(self, head: pb.AddVoiceRequest, wav: bytes | bytearray, *, timeout_s: float) -> pb.Voice:
        """Call AddVoice with a recording. Raises EngineError."""
        call = self.stub.AddVoice(timeout=timeout_s, metadata=self.proof)
        uploading = asyncio.create_task(_upload(call, wire.encode_upload(head, wav)))
        try:
            return await call
        except grpc.aio.AioRpcError as exc:
            raise _engine_error(exc) from None
        finally:
            uploading.cancel()

    async def renew(self) -> None:
        """Connect again if the certificate files have changed."""
        if not await asyncio.to_thread(self._connecting.renew):
            return
        old, self.channel = self.channel, self._connecting.channel(self._options)
        self.stub = pb_grpc.SpeechEngineStub(self.channel)
        closing = self._old[old] = asyncio.create_task(old.close(_OLD_S))
        closing.add_done_callback(lambda _: self._old.pop(old, None))

    async def aclose(self) -> None:
        """Close all connections, with the utterances on them."""
        old, self._old = self._old, {}
        for closing in old.values():
            closing.cancel()
        await asyncio.gather(*(channel.close() for channel in (self.channel, *old)))
        if self.link is not None:
            await self.link.aclose()

    @property
    def lost(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def refused(self, error: EngineError) -> None:
        """Note that an utterance failed. A full engine says for how long; an engine that is gone, or does not accept
        us, is tried again in a second."""
        if isinstance(error, Exhausted):
            self._full_until = time.monotonic() + error.retry_after_s
        elif isinstance(error, Unavailable | Unauthenticated):
            self._gone_until = time.monotonic() + _GONE_S

    @property
    def load(self) -> tuple[bool, bool, int, int]:
        """Sort key of engines; the smallest is the best. An engine that is gone comes last. An engine that has just
        refused as full comes before it, since a turn can wait there. Then the shorter wait of utterances decides, then
        the smaller number of utterances."""
        now = time.monotonic()
        gone = self.lost or now < self._gone_until
        return gone, now < self._full_until, int(self._queue_s / _SAME_WAIT_S), self.active + self._others


class GrpcEngine:
    """``tts_engine.api.SpeechEngine`` in one or more other processes.

    With several engines, an utterance goes to the one with the shortest recent wait, then to the one with the fewest
    utterances. Engines that are lost or full come last. An utterance that is refused or lost continues at the next
    engine; if all are full, it waits at the least busy one. Voices and models are set on all engines, and read from the
    first one that answers. ``watch`` asks the engines how busy they are, and finds new ones.
    """

    def __init__(self, target: str | Sequence[str] | Targets, config: EngineConfig) -> None:
        self._config = config
        if not isinstance(target, Targets):
            target = Targets([target] if isinstance(target, str) else target)
        if not target.change and not target.known():
            raise ValueError("no engine target, expected at least one host:port or unix:/path")
        for name in target.names:
            if missing := config.missing_to_reach(name):
                raise Unauthenticated(missing)
        self.targets = target
        """The addresses of the engines."""
        self._by_address: dict[EngineAddress, _Backend] = {}
        self._leaving: set[_Backend] = set()
        """Engines that take no new utterances, but still have open ones."""
        self._closed = False
        self.moves = 0
        """Number of utterances that continued at another engine after their first sound."""
        self.on_model_failed: Callable[[str], None] | None = None
        """Called with a model's name when an utterance asked for the model and the model failed."""
        self._follow()

    @property
    def _backends(self) -> list[_Backend]:
        """All known engines. Raises Unavailable if there is none."""
        if not self._by_address:
            raise Unavailable("no engine is known: no name of engine.targets has an address, or the directory has none")
        return list(self._by_address.values())

    @property
    def linked(self) -> list[bool]:
        """For each engine, True if calls take the link instead of gRPC. The order is that of ``metrics``."""
        return [one.link is not None and one.link.stands for one in self._by_address.values()]

    @property
    def utterances(self) -> int:
        """Number of our open utterances on all engines."""
        return sum(one.active for one in (*self._by_address.values(), *self._leaving))

    def _follow(self) -> None:
        """Connect to new engines, and leave those that are gone."""
        known = self.targets.known()
        for address in known:
            if address not in self._by_address:
                self._by_address[address] = _Backend(address, self._config)
        for address in self._by_address.keys() - set(known):
            self._leaving.add(self._by_address.pop(address))

    async def refresh(self) -> None:
        """Find the engines, and ask how busy each is."""
        if self.targets.change:
            await self.targets.refresh()
            self._follow()
        for backend in [backend for backend in self._leaving if not backend.active]:
            self._leaving.discard(backend)
            await backend.aclose()
        if len(self._by_address) > 1:
            timeout_s = _ANSWER_S
            await asyncio.gather(*(one.look(timeout_s=timeout_s) for one in self._by_address.values()))

    async def watch(self) -> None:
        """Call ``refresh`` every ``WATCH_S``. Does not return."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self.refresh()
            except EngineError as exc:  # of a new engine, such as a file of tls that cannot be used
                log.error("engine cannot be reached", extra={"error": str(exc)})

    def open(self, request: UtteranceRequest) -> GrpcUtterance | MovingUtterance:
        """Begin an utterance. If the model that it names fails, the active model continues it."""
        if not request.model:
            return self._open(request)
        instead = [replace(request, model="")]

        def reopen(heard: bool) -> Utterance | None:
            if not instead:
                return None
            if self.on_model_failed is not None:
                self.on_model_failed(request.model)
            return self._open(instead.pop())

        return MovingUtterance(self._open(request), reopen, moved=self._note_move, errors=(EngineError,))

    def _open(self, request: UtteranceRequest) -> GrpcUtterance | MovingUtterance:
        if self._closed:
            raise Unavailable("the client of the engine is closed")
        left = self._backends
        if len(left) == 1:
            return GrpcUtterance(left[0], request)
        asked_all = False

        def reopen(heard: bool) -> Utterance | None:
            """Open it at the next engine. An engine refuses at once while another may have a place. When all are full,
            the turn waits at one."""
            nonlocal asked_all
            if self._closed or asked_all or not self._by_address:
                return None
            asked_all = not left
            backend = min(left or self._backends, key=lambda one: one.load)
            if left:
                left.remove(backend)
            priority = HIGHEST_PRIORITY if heard else request.priority
            return GrpcUtterance(backend, replace(request, priority=priority, at_once=not asked_all))

        first = reopen(False)
        assert first is not None
        return MovingUtterance(first, reopen, moved=self._note_move)

    def _note_move(self) -> None:
        self.moves += 1

    async def list_voices(self) -> Sequence[VoiceInfo]:
        response = await self._first("ListVoices", pb.ListVoicesRequest())
        return [wire.decode_voice(voice) for voice in response.voices]

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        if len(wav) > wire.MESSAGE_BYTES:
            raise InvalidRequest(f"wav is {len(wav)} bytes, expected at most {wire.MESSAGE_BYTES}")
        head = pb.AddVoiceRequest(voice_id=voice_id, name=name, transcript=transcript, language=language)
        timeout_s = _ADD_VOICE_S
        first, *others = sorted(self._backends, key=lambda one: one.lost)
        added = await first.add_voice(head, wav, timeout_s=timeout_s)
        head.voice_id = added.voice_id
        for other in others:  # engines that share the first one's folder have the voice already
            there = await other.ask("ListVoices", pb.ListVoicesRequest(), timeout_s=timeout_s)
            if all(voice.voice_id != added.voice_id for voice in there.voices):
                await other.add_voice(head, wav, timeout_s=timeout_s)
        return wire.decode_voice(added)

    async def remove_voice(self, voice_id: str) -> None:
        request, timeout_s = pb.RemoveVoiceRequest(voice_id=voice_id), _ANSWER_S
        first, *others = sorted(self._backends, key=lambda one: one.lost)
        await first.ask("RemoveVoice", request, timeout_s=timeout_s)
        for other in others:
            with contextlib.suppress(NotFound):
                await other.ask("RemoveVoice", request, timeout_s=timeout_s)

    async def set_active_model(self, model: str) -> None:
        await self._all("SetActiveModel", pb.SetActiveModelRequest(model=model))

    async def load_model(self, model: ModelToLoad) -> None:
        """Load a model on all engines. If one of them fails, none has the model afterwards."""
        timeout_s = self._config.timeouts.start_s + _ANSWER_S
        backends = self._backends
        calls = [one.ask("LoadModel", wire.encode_load(model), timeout_s=timeout_s) for one in backends]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed:
            loaded = [one for one, answer in zip(backends, answers, strict=True) if answer not in failed]
            await asyncio.gather(*(self._unload(one, model.name) for one in loaded), return_exceptions=True)
            raise failed[0]

    async def unload_model(self, name: str) -> None:
        await asyncio.gather(*(self._unload(one, name) for one in self._backends))

    async def _unload(self, backend: _Backend, name: str) -> None:
        timeout_s = self._config.drain_s + _ANSWER_S + 10.0
        await backend.ask("UnloadModel", pb.UnloadModelRequest(model=name), timeout_s=timeout_s)

    async def status(self) -> EngineStatus:
        """Ask for the engine's status. This also takes new certificate files."""
        await asyncio.gather(*(backend.renew() for backend in self._by_address.values()))
        return wire.decode_status(await self._first("GetStatus", pb.GetStatusRequest()))

    async def metrics(self) -> bytes:
        """Return the engines' metrics as Prometheus text. If several engines answer, the label ``worker`` numbers
        them."""
        timeout_s = _ANSWER_S
        calls = [one.ask("GetMetrics", pb.GetMetricsRequest(), timeout_s=timeout_s) for one in self._backends]
        if len(calls) == 1:
            return bytes((await calls[0]).exposition)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return metrics.merged([b"" if isinstance(answer, BaseException) else answer.exposition for answer in answers])

    async def aclose(self) -> None:
        self._closed = True
        await asyncio.gather(*(backend.aclose() for backend in (*self._by_address.values(), *self._leaving)))

    async def _first(self, method: str, request: object) -> Any:
        backend = min(self._backends, key=lambda one: one.lost)
        return await backend.ask(method, request, timeout_s=_ANSWER_S)

    async def _all(self, method: str, request: object) -> list[Any]:
        timeout_s = _ANSWER_S
        calls = [backend.ask(method, request, timeout_s=timeout_s) for backend in self._backends]
        return list(await asyncio.gather(*calls))


def _engine_error(exc: grpc.aio.AioRpcError) -> EngineError:
    details = exc.details() or ""
    if details.startswith(_NO_CONNECTION) and any(trace in details for trace in _TLS_TRACES):
        details += " (the engine.tls of both ends do not fit: certificate, client_ca, ca, or only one end has TLS)"
    metadata = {key: value for key, value in exc.trailing_metadata() or () if isinstance(value, str)}
    return wire.decode_error(exc.code().name, details, metadata)
