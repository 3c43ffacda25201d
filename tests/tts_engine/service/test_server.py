"""Server and client over real sockets: one utterance, its end in every way, and what is refused;
by gRPC and by link."""

import asyncio
import ctypes
import gc
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.tts_engine.garbage import leaving_no_circles
from tests.tts_engine.service.scripted import RETRY_AFTER_S, ScriptedEngine, chunk_of
from tests.waiting import PATIENCE_S, until
from tts_engine.api import UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.correlation import CORRELATION, Correlation
from tts_engine.errors import (
    DeadlineExceeded,
    Exhausted,
    InvalidRequest,
    NotFound,
    SynthesisFailed,
    Unavailable,
)
from tts_engine.pipeline.engine import Engine
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2_grpc as pb_grpc
from tts_engine.service import speak_call, wire
from tts_engine.service.client import GrpcEngine
from tts_engine.service.server import AUDIO_S, DeadlineState, SpeechServer
from tts_engine.service.server import RETRY_AFTER_S as FULL_RETRY_S
from tts_engine.tone import ToneSynthesizer
from voicecodecs.registry import AudioFormat


class Pair:
    """An engine, its server, and a client."""

    def __init__(self, server: SpeechServer, scripted: ScriptedEngine, client: GrpcEngine) -> None:
        self.server, self.scripted, self.client = server, scripted, client

    async def speak(self, text: str, **request: Any) -> list:
        async with self.client.open(UtteranceRequest(utterance_id="u", **request)) as utterance:
            utterance.feed(text)
            utterance.end_text()
            return [chunk async for chunk in utterance]

    async def health(self) -> int:
        async with grpc.aio.insecure_channel(self.server.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest(service="talkspurt.v1.SpeechEngine"))).status


@pytest.fixture(params=["grpc", "link"])
def way(request: pytest.FixtureRequest) -> str:
    """The way of utterances to the engine: over TCP, and on one machine over a link, too."""
    return str(request.param)


@pytest.fixture
async def connect(tmp_path: Path, way: str) -> AsyncIterator[Callable[..., Awaitable[Pair]]]:
    pairs = []

    async def make(*, warm: bool = True, **settings: Any) -> Pair:
        listen = f"unix:{tmp_path}/{len(pairs)}.sock" if way == "link" else "127.0.0.1:0"
        config = EngineConfig.model_validate({"listen": listen} | settings)
        pair = Pair(SpeechServer(config), ScriptedEngine(), None)  # type: ignore[arg-type]
        pairs.append(pair)
        await pair.server.start()
        pair.client = GrpcEngine(pair.server.address, config)
        (backend,) = pair.client._backends
        if way == "link":
            await until(lambda: backend.link is not None and backend.link.stands, "the link")
        if warm:
            await pair.server.serve(pair.scripted)
        return pair

    yield make
    for pair in pairs:
        await pair.client.aclose()
        await pair.server.aclose()


@pytest.fixture
async def pair(connect: Callable[..., Awaitable[Pair]]) -> Pair:
    return await connect()


async def held(pair: Pair, text: str = "one hold two", **request: Any) -> tuple:
    """An utterance that stands still after its first word: the client's end and the engine's."""
    utterance = pair.client.open(UtteranceRequest(utterance_id="held", **request))
    utterance.feed(text)
    utterance.end_text()
    assert await anext(utterance) == chunk_of("one", 0)
    inner = pair.scripted.utterances[-1]
    await inner.holding.wait()
    return utterance, inner


async def test_an_utterance_that_is_given_up_needs_no_collection(pair: Pair) -> None:
    gc.disable()
    try:
        utterance, _ = await held(pair)
        utterance.played(1, at=time.monotonic())  # a message is on its way
        gone = weakref.ref(utterance)
        await utterance.aclose()
        del utterance, _
        await until(lambda: gone() is None, "the end of the utterance")
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["spoken", "cancelled", "failed", "refused"])
async def test_an_utterance_leaves_nothing_to_a_collection_of_garbage(pair: Pair, end: str) -> None:
    tasks = len(asyncio.all_tasks())
    async with leaving_no_circles():
        for _ in range(3):
            voice = "stranger" if end == "refused" else "heart"
            async with pair.client.open(UtteranceRequest(utterance_id="u", voice=voice)) as utterance:
                utterance.feed("one break two" if end == "failed" else "one two three")
                utterance.end_text()
                with suppress(SynthesisFailed, NotFound):
                    async for _chunk in utterance:
                        if end == "cancelled":
                            break
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "the end of the utterances")


async def test_request_and_audio_arrive_as_they_were_sent(pair: Pair) -> None:
    request: dict[str, Any] = {
        "format": AudioFormat(encoding="L16", sample_rate=16000, ptime_ms=40),
        "voice": "heart",
        "language": "en-GB",
        "speed": 1.5,
        "instruct": "calm",
        "ahead": True,
    }
    assert await pair.speak("hello wide world", **request) == [
        chunk_of(word, step) for step, word in enumerate(["hello", "wide", "world"])
    ]
    assert pair.scripted.utterances[0].request == UtteranceRequest(utterance_id="u", **request)


async def test_text_fed_in_deltas_is_the_same_text(pair: Pair) -> None:
    text = "tokens come one by one, \N{GRINNING FACE} and they are joined"
    async with pair.client.open(UtteranceRequest(utterance_id="u")) as utterance:
        for at, character in enumerate(text):
            utterance.feed(character)
            if at % 7 == 0:
                await asyncio.sleep(0)
        utterance.end_text()
        async for _ in utterance:
            pass
    assert pair.scripted.utterances[0].text == text


async def test_audio_comes_before_the_text_has_ended(pair: Pair) -> None:
    async with pair.client.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed("first ")
        assert await anext(utterance) == chunk_of("first", 0)
        utterance.feed("second")
        utterance.end_text()
        assert [chunk async for chunk in utterance] == [chunk_of("second", 1)]


async def test_request_text_and_end_of_one_turn_of_the_loop_are_one_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = []
    apply = pair.server._apply
    monkeypatch.setattr(pair.server, "_apply", lambda message, *rest: (messages.append(message), apply(message, *rest)))
    await pair.speak("all at once")
    assert len(messages) == 1


@pytest.mark.parametrize("way", ["grpc"])
async def test_that_message_leaves_in_one_piece_with_the_request(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    execute = speak_call.cygrpc.execute_batch

    async def executed(call: object, operations: tuple, loop: object) -> None:
        names = [type(operation).__name__ for operation in operations]
        if "SendInitialMetadataOperation" in names:
            begun.append(names)
        await execute(call, operations, loop)

    monkeypatch.setattr(speak_call.cygrpc, "execute_batch", executed)
    await pair.speak("all at once")
    request, answer = begun
    assert request == answer == ["SendInitialMetadataOperation", "SendMessageOperation"]


# How an utterance ends early.


@pytest.mark.parametrize("how", ["aclose", "leave", "task", "client"])
async def test_cancel_ends_the_engines_work_within_the_step_under_way(pair: Pair, how: str) -> None:
    utterance, inner = await held(pair, "one hold two three")
    match how:
        case "aclose":
            await utterance.aclose()
        case "leave":
            async with utterance:
                pass
        case "task":

            async def read() -> None:
                async with utterance:
                    await anext(utterance)

            reading = asyncio.create_task(read())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        case "client":
            await pair.client.aclose()
    async with asyncio.timeout(AUDIO_S / 2):  # by which the engine would end it anyway
        await inner.closed.wait()
    inner.release.set()
    await until(lambda: not pair.server._speaks)
    assert inner.steps == 2  # "one", and "hold" that was under way


async def test_the_engines_work_is_known_by_the_call_that_it_is_for(pair: Pair) -> None:
    parent = f"00-{1:032x}-{1:016x}-01"
    seen = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(CORRELATION.get())

    async def break_for(call_id: str, traceparent: str) -> None:
        CORRELATION.set(Correlation(call_id, traceparent))
        with pytest.raises(SynthesisFailed):
            await pair.speak("break")

    log = logging.getLogger("tts_engine.service.server")
    log.addHandler(handler := Seen())
    try:
        await asyncio.create_task(break_for("VX1", parent))
        await asyncio.create_task(break_for("VX 1", f"{parent}-"))
        await asyncio.create_task(break_for("", ""))
    finally:
        log.removeHandler(handler)
    assert seen == [Correlation("VX1", parent), Correlation(), Correlation()], "what is no id is not believed"


async def test_cancel_by_message_is_answered_with_cancelled(pair: Pair) -> None:
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        call = pb_grpc.SpeechEngineStub(channel).Speak()
        await call.write(pb.SpeakRequest(start=pb.SpeakStart(utterance_id="u"), text="hold on", end_of_text=True))
        await until(lambda: bool(pair.scripted.utterances))
        await pair.scripted.utterances[0].holding.wait()
        await call.write(pb.SpeakRequest(cancel=True))
        assert await call.code() is grpc.StatusCode.CANCELLED
    await pair.scripted.utterances[0].closed.wait()


async def test_a_half_closed_call_means_end_of_text(pair: Pair) -> None:
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        call = pb_grpc.SpeechEngineStub(channel).Speak()
        await call.write(pb.SpeakRequest(start=pb.SpeakStart(utterance_id="u"), text="two words"))
        await call.done_writing()
        assert [message.finished async for message in call] == [False, False, True]


async def test_closing_while_somebody_reads_ends_the_iteration(pair: Pair) -> None:
    utterance, _ = await held(pair)
    reading = asyncio.create_task(anext(utterance, "ended"))
    await asyncio.sleep(0)  # it waits
    await utterance.aclose()
    assert await reading == "ended"


async def test_other_utterances_do_not_notice_a_failed_one(pair: Pair) -> None:
    utterance, inner = await held(pair)
    with pytest.raises(SynthesisFailed, match="RuntimeError"):
        await pair.speak("then break")
    inner.release.set()
    assert len([chunk async for chunk in utterance]) == 2
    assert pair.scripted.utterances[-1].closed.is_set()


async def test_a_bug_of_the_engine_is_logged_without_the_callers_words(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SynthesisFailed) as caught:
        await pair.speak("secret break")
    assert "RuntimeError" in caplog.text and "scripted.py" in caplog.text
    assert "secret" not in caplog.text and "secret" not in str(caught.value)


# What is refused.


async def test_unknown_voice(pair: Pair) -> None:
    with pytest.raises(NotFound, match="stranger"):
        await pair.speak("hello", voice="stranger")


async def test_a_full_engine_says_when_to_come_back(pair: Pair) -> None:
    with pytest.raises(Exhausted) as caught:
        await pair.speak("hello", voice="full")
    assert caught.value.retry_after_s == RETRY_AFTER_S


async def test_one_utterance_too_many_is_refused_and_a_place_comes_free(connect: Callable) -> None:
    pair = await connect(speech={"max_utterances": 2})
    first, _ = await held(pair)
    second, _ = await held(pair)
    with pytest.raises(Exhausted) as caught:
        await pair.speak("three")
    assert caught.value.retry_after_s == FULL_RETRY_S
    await first.aclose()
    await until(lambda: len(pair.server._speaks) == 1)
    assert len(await pair.speak("three")) == 1
    await second.aclose()


async def test_a_refusal_waits_for_the_first_message(connect: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at once it would meet that message on its way, which grpc.aio's client makes INTERNAL of."""
    pair = await connect(speech={"max_utterances": 1})
    first, _ = await held(pair)
    waits, first_message = asyncio.Event(), pair.server._first

    async def waited_for(context: grpc.aio.ServicerContext) -> pb.SpeakRequest:
        waits.set()
        return await first_message(context)

    monkeypatch.setattr(pair.server, "_first", waited_for)
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        call = pb_grpc.SpeechEngineStub(channel).Speak()
        await asyncio.wait_for(waits.wait(), PATIENCE_S)
        assert not call.done()
        await call.write(pb.SpeakRequest(start=pb.SpeakStart(utterance_id="u"), text="late"))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await call.trailing_metadata())["retry-after-s"] == f"{FULL_RETRY_S:g}"
    await first.aclose()


async def test_a_call_without_a_start_ends(connect: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_engine.service.server.TEXT_S", 0.05)
    pair = await connect()
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        call = pb_grpc.SpeechEngineStub(channel).Speak()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no start" in await call.details()


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [({"speed": 9.0}, "speed"), ({"utterance_id": ""}, "utterance_id")],
)
async def test_a_bad_request_names_its_field(pair: Pair, request_fields: dict, field: str) -> None:
    async with pair.client.open(UtteranceRequest(**({"utterance_id": "u"} | request_fields))) as utterance:
        with pytest.raises(InvalidRequest) as caught:
            await anext(utterance)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"text": "no start"}], "start"),
        ([{"start": {"utterance_id": "u"}}, {"start": {"utterance_id": "u"}}], "start"),
        ([{"start": {"utterance_id": "u"}, "end_of_text": True, "text": "hold"}, {"text": "more"}], "text"),
        ([{"start": {"utterance_id": "u", "encoding": "GSM"}}], "encoding"),
    ],
    ids=["no start", "two starts", "after the end", "codec"],
)
async def test_a_client_that_breaks_the_rules_is_told_the_field(pair: Pair, messages: list[dict], field: str) -> None:
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        call = pb_grpc.SpeechEngineStub(channel).Speak()
        for message in messages:
            await call.write(pb.SpeakRequest(**message))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await call.trailing_metadata())["field"] == field


async def test_a_message_over_the_bound_is_refused_and_the_connection_lives(
    connect: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MESSAGE_BYTES", 2**16)
    pair = await connect()
    with pytest.raises(InvalidRequest):
        await pair.client.add_voice(voice_id="v", name="V", wav=bytes(2**17), transcript="t", language="en")
    assert len(await pair.speak("still here")) == 2


# Deadlines.


def test_each_deadline_counts_from_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_engine.service.server.CONSUMPTION_S", 7.0)
    monkeypatch.setattr("tts_engine.service.server.TEXT_S", 5.0)
    monkeypatch.setattr("tts_engine.service.server.AUDIO_S", 3.0)
    progress = DeadlineState(now=100.0)
    assert progress.expired(104.9) is None
    assert "no text" in str(progress.expired(105.1))
    progress.text_at = 104.0
    assert progress.expired(108.9) is None
    progress.writing_at = 108.0  # a chunk waits: now it is the client's turn
    assert progress.expired(114.9) is None
    assert "client took no audio" in str(progress.expired(115.1))
    progress.writing_at, progress.text_ended, progress.audio_at = None, True, 110.0
    assert progress.expired(112.9) is None
    assert "made no audio" in str(progress.expired(113.1))
    progress.gave(25.0, now=113.0)  # and no more until this has been heard
    progress.writing_at = None
    assert progress.expired(140.9) is None
    progress.given(now=114.0)
    assert progress.expired(140.9) is None
    assert "made no audio" in str(progress.expired(141.1))
    progress.ahead = True  # it is not awaited
    assert progress.expired(500.0) is None


def test_sound_made_ahead_is_owed_no_earlier_than_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_engine.service.server.AUDIO_S", 3.0)
    progress = DeadlineState(now=100.0)
    progress.ahead = progress.text_ended = True
    progress.gave(5.0, now=101.0)
    progress.writing_at = None
    progress.played(0.0, at=200.0)
    assert progress.expired(207.9) is None
    assert "made no audio" in str(progress.expired(208.1))
    progress.played(1.0, at=260.0)  # the caller was put on hold
    assert progress.expired(266.9) is None
    for at in (264.0, 265.0, 300.0):  # the caller has heard all, and says so again and again
        progress.played(4.9, at=at)
    assert "made no audio" in str(progress.expired(267.1))


def test_an_utterance_made_ahead_without_sound_has_its_time_once_the_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tts_engine.service.server.AUDIO_S", 3.0)
    progress = DeadlineState(now=100.0)
    progress.ahead = progress.text_ended = True
    progress.played(0.0, at=200.0)
    assert progress.expired(202.9) is None
    progress.played(0.0, at=202.0)
    assert "made no audio" in str(progress.expired(203.1))


async def test_an_utterance_that_waited_behind_long_speech_is_spoken(pair: Pair) -> None:
    utterance, inner = await held(pair, ahead=True)
    (speak,) = pair.server._speaks
    speak.progress.audio_at -= 1000.0  # as long as the speech before it lasts
    utterance.played(0, at=time.monotonic())
    await until(lambda: inner.positions, "the position")
    assert speak.progress.expired(time.monotonic()) is None
    inner.release.set()
    assert [chunk async for chunk in utterance] == [chunk_of("hold", 1), chunk_of("two", 2)]


async def test_an_engine_that_is_ahead_of_the_phone_owes_no_audio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_engine.service.server.AUDIO_S", 2.0)
    config = EngineConfig.model_validate({"listen": f"unix:{tmp_path}/engine.sock", "speech": {"ahead_s": 0.2}})
    server, engine = SpeechServer(config), Engine(ToneSynthesizer(), config.speech)
    await server.start()
    await server.serve(engine)
    client = GrpcEngine([server.address], config)
    try:
        async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("This sentence sounds for much longer than the engine may make none. Really.")
            utterance.end_text()
            chunk, begun, samples = await anext(utterance), time.monotonic(), 0
            utterance.played(0, at=begun)
            async for chunk in utterance:
                samples = chunk.first_sample
            assert samples > 2.5 * 8000
            assert chunk.clause_end_char > 70
    finally:
        await client.aclose()
        await server.aclose()
        await engine.aclose()


@pytest.mark.parametrize(
    ("since", "text", "end", "reason"),
    [("text_at", "one ", False, "no text"), ("audio_at", "one hold", True, "made no audio")],
)
async def test_what_stands_still_ends_with_deadline_exceeded(
    pair: Pair, since: str, text: str, end: bool, reason: str
) -> None:
    async with pair.client.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed(text)
        if end:
            utterance.end_text()
        await anext(utterance)
        (speak,) = pair.server._speaks
        setattr(speak.progress, since, time.monotonic() - 3600.0)  # an hour passes
        with pytest.raises(DeadlineExceeded, match=reason):
            async for _ in utterance:
                pass
    await pair.scripted.utterances[0].closed.wait()


async def test_a_client_that_takes_no_audio_stops_the_engine_and_then_loses_its_place(
    connect: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_engine.service.server.CONSUMPTION_S", 0.1)
    pair = await connect()
    utterance = pair.client.open(UtteranceRequest(utterance_id="u"))
    utterance.feed("flood")
    utterance.end_text()
    await until(lambda: bool(pair.scripted.utterances))
    inner = pair.scripted.utterances[0]
    await inner.closed.wait()
    # 64 kB a step: what gRPC holds for a client that does not read is a few windows of 64 KiB, not all there is.
    assert inner.steps < 20
    with pytest.raises(DeadlineExceeded, match="took no audio"):
        async for _ in utterance:
            pass


async def test_utterances_that_nobody_reads_do_not_hold_up_the_others(pair: Pair) -> None:
    unread = [pair.client.open(UtteranceRequest(utterance_id=str(n))) for n in range(20)]
    for utterance in unread:
        utterance.feed("flood")
        utterance.end_text()
    await until(lambda: sum(inner.steps > 2 for inner in pair.scripted.utterances) == 20)
    async with pair.client.open(UtteranceRequest(utterance_id="read")) as utterance:
        utterance.feed("flood")
        utterance.end_text()
        for _ in range(100):
            await anext(utterance)
    for utterance in unread:
        await utterance.aclose()


# Drain and health.


async def test_not_serving_until_warm_and_while_draining(connect: Callable) -> None:
    pair = await connect(warm=False)
    assert await pair.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(Unavailable, match="starting"):
        await pair.speak("too early")
    assert not (await pair.client.status()).ready
    await pair.server.serve(pair.scripted)
    assert await pair.health() == health_pb2.HealthCheckResponse.SERVING

    utterance, inner = await held(pair)
    draining = asyncio.create_task(pair.server.drain())
    await until(lambda: pair.server._draining)
    assert await pair.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(Unavailable, match="draining"):
        await pair.speak("too late")
    status = await pair.client.status()
    assert not status.ready and status.detail == "draining" and status.active == 1
    assert not draining.done()

    inner.release.set()
    assert [chunk async for chunk in utterance] == [chunk_of("hold", 1), chunk_of("two", 2)]
    assert await draining == 0


async def test_a_drain_is_bounded(connect: Callable) -> None:
    pair = await connect(drain_s=0.05)
    utterance, inner = await held(pair)
    assert await pair.server.drain() == 1
    with pytest.raises(Unavailable, match="shut down"):
        await anext(utterance)
    assert inner.closed.is_set()


async def test_reflection_names_the_services(pair: Pair) -> None:
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {"talkspurt.v1.SpeechEngine", "grpc.health.v1.Health"}


@pytest.mark.parametrize("way", ["grpc"])
async def test_listens_on_tcp_and_says_where(connect: Callable) -> None:
    pair = await connect(listen="127.0.0.1:0")
    assert not pair.server.address.endswith(":0")
    assert len(await pair.speak("over tcp")) == 2
    second = SpeechServer(EngineConfig(listen=pair.server.address))
    with pytest.raises(OSError, match=pair.server.address):
        await second.start()
    await second.aclose()


# Voices, models, status, metrics, position.


async def test_voices_models_and_status(pair: Pair) -> None:
    added = await pair.client.add_voice(voice_id="mine", name="Mine", wav=b"RIFF", transcript="said", language="de")
    assert added.registered and [voice.voice_id for voice in await pair.client.list_voices()] == ["heart", "mine"]
    await pair.client.remove_voice("mine")
    with pytest.raises(NotFound, match="mine"):
        await pair.client.remove_voice("mine")
    await pair.client.set_active_model("two")
    status = await pair.client.status()
    assert (status.model, status.models, status.queued, status.gpu) == ("two", ("one", "two"), 3, "none")
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        models = await pb_grpc.SpeechEngineStub(channel).ListModels(pb.ListModelsRequest())
    assert list(models.models) == ["one", "two"] and models.active == "two"


async def test_a_recording_comes_in_pieces_that_keep_nobody_waiting(pair: Pair) -> None:
    wav = bytearray(range(256)) * 1000
    sent = [len(message.SerializeToString()) for message in wire.encode_upload(pb.AddVoiceRequest(voice_id="v"), wav)]
    assert max(sent) < 66_000 and sum(sent) >= len(wav)
    await pair.client.add_voice(voice_id="mine", name="Mine", wav=wav, transcript="said", language="de")
    assert pair.scripted.wav == wav


async def test_an_upload_over_the_bound_or_without_a_message_is_refused(
    connect: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MESSAGE_BYTES", 2**16)
    pair = await connect()
    pieces = [pb.AddVoiceRequest(voice_id="v", wav=bytes(2**15)) for _ in range(3)]
    async with grpc.aio.insecure_channel(pair.server.address) as channel:
        for sent in (pieces, []):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await pb_grpc.SpeechEngineStub(channel).AddVoice(iter(sent))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_client_sees_the_engines_metrics(pair: Pair) -> None:
    text = (await pair.client.metrics()).decode()
    for name in ("talkspurt_engine_first_chunk_seconds", "talkspurt_text_cache_requests_total", "cv_audio_first_byte"):
        assert name in text


async def test_the_played_position_reaches_the_engine_with_its_age(pair: Pair) -> None:
    utterance, inner = await held(pair, ahead=True)
    now = time.monotonic()
    for step in range(100):  # a steady playout, read every 20 ms: one message
        utterance.played(160 * step, at=now - 2 + 0.02 * step)
    await until(lambda: bool(inner.positions))
    [(samples, at)] = inner.positions
    # The first reading is the news; what gathers before the message leaves is told with it. It is heard of later by the
    # time that the message took, and no message took longer than from then to now.
    assert -0.02 < at - (now - 2) - samples / 8000 < 0.02 + time.monotonic() - now
    await utterance.aclose()


async def test_news_within_200_ms_of_the_last_is_kept_and_told_although_no_reading_follows(pair: Pair) -> None:
    utterance, inner = await held(pair)
    utterance.played(0, at=time.monotonic())
    await until(lambda: len(inner.positions) == 1)
    utterance.played(8000, at=time.monotonic())  # within 200 ms of the one before: kept, and sent when its time comes
    await until(lambda: len(inner.positions) == 2)
    assert inner.positions[1][0] == 8000
    await utterance.aclose()


# Several engines.


async def test_the_engine_with_the_fewest_utterances_gets_the_next(connect: Callable) -> None:
    pairs = [await connect(), await connect()]
    client = GrpcEngine([one.server.address for one in pairs], EngineConfig())
    opened = []
    for number in range(6):
        opened.append(client.open(UtteranceRequest(utterance_id=str(number))))
        opened[-1].feed("hold")
    await until(lambda: sum(len(one.scripted.utterances) for one in pairs) == 6)
    assert [len(one.scripted.utterances) for one in pairs] == [3, 3]
    await opened[0].aclose()  # was the first engine's: it has the fewest now
    opened.append(client.open(UtteranceRequest(utterance_id="next")))
    await until(lambda: len(pairs[0].scripted.utterances) == 4)
    await client.aclose()


async def test_a_turn_waits_for_a_place_only_when_every_engine_has_refused_it(connect: Callable) -> None:
    pairs = [await connect(), await connect()]
    client = GrpcEngine([one.server.address for one in pairs], EngineConfig())
    async with client.open(UtteranceRequest(utterance_id="u", voice="full", priority=4)) as utterance:
        with pytest.raises(Exhausted):
            await anext(aiter(utterance))
    asked = [request for one in pairs for request in one.scripted.refused]
    assert sorted(request.at_once for request in asked) == [False, True, True]
    assert {request.priority for request in asked} == {4}
    assert [len(one.scripted.refused) > 0 for one in pairs] == [True, True]
    alone = GrpcEngine(pairs[0].server.address, EngineConfig())
    async with alone.open(UtteranceRequest(utterance_id="u", voice="full")) as utterance:
        with pytest.raises(Exhausted):
            await anext(aiter(utterance))
    assert not pairs[0].scripted.refused[-1].at_once
    await client.aclose()
    await alone.aclose()


async def test_a_turn_that_all_refuse_waits_at_a_full_engine_and_not_at_one_that_is_gone(tmp_path: Path) -> None:
    """An engine that had just died had the fewest utterances, so the turn was lost at it."""
    client = GrpcEngine([f"unix:{tmp_path}/{name}.sock" for name in "ab"], EngineConfig())
    full, gone = client._backends
    full.active = 5
    full.refused(Exhausted("full", retry_after_s=1.0))
    gone.refused(Unavailable("gone"))
    assert full.load < gone.load
    await client.aclose()


@pytest.mark.parametrize("way", ["link"])
async def test_an_engine_that_is_slow_to_take_a_connection_is_waited_for(pair: Pair, tmp_path: Path) -> None:
    """The attempt was given up after 100 ms, and with it the call."""
    taken: list[asyncio.Task[None] | None] = []

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        taken.append(asyncio.current_task())
        inner_reader, inner_writer = await asyncio.open_unix_connection(pair.server.address.removeprefix("unix:"))

        async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()
            await sink.wait_closed()

        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer), return_exceptions=True)

    async with await asyncio.start_unix_server(slowly, str(tmp_path / "slow.sock")):
        client = GrpcEngine(f"unix:{tmp_path}/slow.sock", EngineConfig())
        assert (await client.status()).engine == "scripted"
        assert taken
        await client.aclose()
        # An older Python's server does not wait for its connections, whose sockets would be found open in a later test.
        await asyncio.wait_for(asyncio.gather(*filter(None, taken)), 30)


async def test_a_lost_connection_is_unavailable(pair: Pair) -> None:
    utterance, _ = await held(pair)
    await pair.server._server.stop(None)
    await pair.server._link.aclose(0.0)
    with pytest.raises(Unavailable):
        async for _ in utterance:
            pass
    with pytest.raises(Unavailable):
        await pair.speak("no one there")
    with pytest.raises(Unavailable):
        await pair.client.status()


class GoingClient:
    """Asks for an utterance, and is gone when something is sent to it. gRPC's core fails what is sent, and then
    (``noticed``) cancels the task, in this order if many clients go at once."""

    def __init__(self, text: str, *, noticed: bool) -> None:
        start = wire.encode_start(UtteranceRequest(utterance_id="u"))
        self._said = [pb.SpeakRequest(start=start, text=text, end_of_text=True)]
        self._noticed = noticed

    def invocation_metadata(self) -> tuple:
        return ()

    async def read(self) -> pb.SpeakRequest:
        if not self._said:
            await asyncio.Event().wait()
        return self._said.pop()

    async def write(self, _message: pb.SpeakResponse) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._noticed:
            asyncio.get_running_loop().call_soon(task.cancel)
        raise grpc.aio.InternalError("Failed to send")

    async def abort(self, *_: object) -> None:
        await self.write(pb.SpeakResponse())


@pytest.mark.parametrize("text", ["one", "break"], ids=["sound", "status"])
async def test_a_client_that_is_gone_while_we_send_ends_its_call_as_cancelled(pair: Pair, text: str) -> None:
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(pair.server.Speak(None, GoingClient(text, noticed=True)))
    assert pair.scripted.utterances[-1].closed.is_set() and not pair.server._speaks


async def test_what_cannot_be_sent_to_a_client_that_stays_is_our_error(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_engine.service.server._CLIENT_GONE_S", 0)
    with pytest.raises(grpc.aio.InternalError):
        await pair.server.Speak(None, GoingClient("one", noticed=False))


async def test_a_closed_client_opens_nothing(pair: Pair) -> None:
    await pair.client.aclose()
    with pytest.raises(Unavailable, match="closed"):
        pair.client.open(UtteranceRequest(utterance_id="u"))


async def test_positions_that_cross_the_end_of_an_utterance_do_not_fail_it(pair: Pair) -> None:
    """A position written while the server ended the call turned a finished utterance into INTERNAL."""
    for _ in range(100):
        async with pair.client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("word")
            utterance.end_text()
            async for _chunk in utterance:
                for _ in range(3):
                    utterance._call.gather().position.samples = 160
                    await asyncio.sleep(0)


async def test_a_refusal_that_meets_text_on_its_way_is_told_with_its_reason(pair: Pair) -> None:
    """The status met a write of the client and was lost: the turn failed without its reason and its delay."""
    for _ in range(100):
        async with pair.client.open(UtteranceRequest(utterance_id="u", voice="full")) as utterance:
            utterance.feed("word")
            reading = asyncio.ensure_future(anext(utterance))
            while not (reading.done() or utterance._finished):
                utterance._call.gather().position.samples = 160
                await asyncio.sleep(0)
            with pytest.raises(Exhausted) as refused:
                await reading
            assert refused.value.retry_after_s == RETRY_AFTER_S


class Mallinfo(ctypes.Structure):
    """mallinfo(3), of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def allocated_bytes() -> int:
    """Return the bytes that libraries in C have allocated and not given back, beside Python's larger objects."""
    mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo.restype = Mallinfo
    gc.collect()
    return int(mallinfo().uordblks)


async def test_who_is_cancelled_while_a_chunk_comes_leaves_no_memory_behind(
    connect: Callable[..., Awaitable[Pair]],
) -> None:
    pair = await connect()

    async def cut(number: int) -> None:
        async with pair.client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("a hold flood ")
            await anext(utterance)
            speaking = pair.scripted.utterances[number]
            await speaking.holding.wait()
            waiting = asyncio.create_task(anext(utterance))
            speaking.release.set()
            while speaking.steps < 4:  # "a", "hold", "flood" and its first chunk, which is sent now
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])

    async def cut_often() -> int:
        for number in range(60):
            await cut(number)
        await until(lambda: all(each.closed.is_set() for each in pair.scripted.utterances))
        pair.scripted.utterances.clear()
        return allocated_bytes()

    await cut_often()  # what is made once
    before = await cut_often()
    assert await cut_often() - before < 6 * 64_000  # of 60 chunks, a third of which came after the last listener left
