"""The client and the server of the listen protocol, against each other over a real socket. A function that counts is
in the network's place: these tests are about messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer
from numpy.typing import NDArray

from gateway.config import RecogniserConfig
from gateway.errors import ProtocolError
from gateway.recognition import listen
from gateway.recognition.client import ListenRecogniser, ListenStream
from gateway.recognition.server import PARTIAL_MS, ListenServer
from gateway.recognition.words import Words
from gateway.seams.recogniser import FRAME_BYTES
from gateway.websocket_client import open_websocket
from tests.gateway.recognition.ear import Ear
from tests.peers.ports import free_port
from tests.waiting import until

FRAME = bytes(FRAME_BYTES)


def count(pcm: NDArray[np.float32]) -> str:
    """In place of the network: how many frames it was given."""
    return f"{len(pcm) * 2 // FRAME_BYTES} frames"


def config(**more: Any) -> RecogniserConfig:
    return RecogniserConfig.model_validate({"final_timeout_ms": 20_000, **more})


@asynccontextmanager
async def serving(
    transcribe: Callable[[NDArray[np.float32]], str] = count,
    key: str = "",
    port: int = 0,
    before: Callable[[web.Request], object] = lambda request: None,
    partial_ms: int = PARTIAL_MS,
) -> AsyncIterator[TestServer]:
    """The recogniser on a TCP port; with a key, as a paid one would ask for it. ``before`` is called with each
    request."""
    listening = ListenServer(lambda pcm, language, begun: Words(transcribe(pcm)), partial_ms=partial_ms)

    @web.middleware
    async def ask(request: web.Request, handler: Callable[[web.Request], object]) -> web.StreamResponse:
        if key and request.headers.get("Authorization") != f"Token {key}":
            return web.Response(status=401)
        before(request)
        return await handler(request)  # type: ignore[misc,no-any-return]

    listening.app.middlewares.append(ask)
    server = TestServer(listening.app, port=port or None)
    await server.start_server()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def stream(
    url: str, settings: RecogniserConfig, ear: Ear, *, can_wait: bool = False, **more: Any
) -> AsyncIterator[ListenStream]:
    recogniser = ListenRecogniser(url, settings, can_wait=can_wait)
    options: dict[str, object] = {"language": "en-US", "hints": (), "partials": False, **more}
    opened = recogniser.open(ear, **options)  # type: ignore[arg-type]
    assert isinstance(opened, ListenStream)
    try:
        yield opened
    finally:
        await opened.aclose()
        await recogniser.aclose()


def ws(server: TestServer) -> str:
    return f"ws://{server.host}:{server.port}{listen.PATH}"


async def test_a_call_that_ends_before_it_is_listened_to_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def leave(request: web.Request) -> None:
        assert request.transport is not None
        request.transport.close()  # as when the call's end was read behind its request

    async with serving(before=leave) as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.ws_connect(ws(server))
    assert not caplog.records


async def test_every_utterance_gets_one_final_in_order() -> None:
    ear = Ear()
    async with serving() as server, stream(ws(server), config(), ear) as made:
        for length in (3, 1, 4, 2):
            for _ in range(length):
                made.push(FRAME)
            made.finish()
        await ear.until_finals(4)
        assert ear.finals == ["3 frames", "1 frames", "4 frames", "2 frames"]
        made.finish()  # nothing was said
        await ear.until_finals(5)
        assert ear.finals[4] == "" and ear.partials == []


async def test_what_is_said_before_the_recogniser_is_there_waits_for_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def counted(*args: Any, **more: Any) -> Any:
        tries.append(args)
        return open_websocket(*args, **more)

    monkeypatch.setattr("gateway.recognition.client.open_websocket", counted)
    caplog.set_level("INFO", "gateway.recognition.client")
    ear = Ear()
    port = free_port()
    async with stream(f"ws://127.0.0.1:{port}{listen.PATH}", config(), ear) as made:
        made.push(FRAME)
        made.finish()
        await until(lambda: len(tries) > 2)
        assert ear.finals == []
        async with serving(port=port):
            await ear.until_finals(1)
            assert [record.message for record in caplog.records] == ["recogniser line down", "recogniser line up"]
    assert ear.finals == ["1 frames"]


async def test_partial_results_come_while_the_caller_speaks_and_only_where_they_are_wanted() -> None:
    told: dict[bool, Ear] = {True: Ear(), False: Ear()}
    async with serving(partial_ms=100) as server:
        for partials, ear in told.items():
            async with stream(ws(server), config(), ear, partials=partials) as made:
                for _ in range(15):
                    made.push(FRAME)
                    await asyncio.sleep(0.01)
                if partials:
                    await until(lambda ear=ear: ear.partials, "a partial result")
                made.finish()
                await ear.until_finals(1)
    assert told[False].partials == [] and told[False].finals == ["15 frames"]
    assert told[True].finals == ["15 frames"] and told[True].partials
    lengths = [int(text.split()[0]) for text in told[True].partials]
    assert lengths == sorted(lengths) and all(0 < length <= 15 for length in lengths)


async def test_words_that_may_wait_come_at_the_pause_and_those_wanted_again_come_while_the_caller_speaks() -> None:
    asked: list[int] = []

    def transcribe(pcm: NDArray[np.float32]) -> str:
        asked.append(len(pcm) * 2 // FRAME_BYTES)
        return count(pcm)

    ear = Ear()
    async with (
        serving(transcribe, partial_ms=20) as server,
        stream(ws(server), config(), ear, can_wait=True, partials=True) as made,
    ):
        made.want_partials(False)
        for _ in range(10):
            made.push(FRAME)
            await asyncio.sleep(0.01)
        made.pause()
        await until(lambda: ear.partials, "the words of the pause")
        assert asked == [10] and ear.partials == ["10 frames"]
        made.want_partials(True)
        made.push(FRAME)
        await until(lambda: len(ear.partials) == 2, "the words of one more frame")
        made.finish()
        await ear.until_finals(1)
    assert asked == [10, 11] and ear.finals == ["11 frames"]


async def test_a_pause_is_answered_even_if_its_words_are_known() -> None:
    ear = Ear()
    async with (
        serving(lambda pcm: "yes", partial_ms=20) as server,
        stream(ws(server), config(), ear, partials=True) as made,
    ):
        made.push(FRAME)
        await until(lambda: ear.partials == ["yes"], "a partial result")
        made.pause()
        await until(lambda: ear.partials == ["yes", "yes"], "the words of the pause")
        made.push(FRAME)
        made.pause()
        await until(lambda: len(ear.partials) == 3, "the words of the next pause")


async def test_a_recogniser_of_others_is_never_told_that_words_may_wait() -> None:
    texts: list[str] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for message in websocket:
            texts.append(message.data if message.type is WSMsgType.TEXT else "audio")
        return websocket

    app = web.Application()
    app.router.add_get(listen.PATH, remember)
    server = TestServer(app)
    await server.start_server()
    async with stream(ws(server), config(), Ear(), partials=True) as made:
        made.want_partials(False)
        made.push(FRAME)
        made.pause()
        made.finish()
        await until(lambda: listen.FINALIZE in texts, "the end of the utterance")
    await server.close()
    assert set(texts) <= {"audio", listen.KEEP_ALIVE, listen.FINALIZE}


async def test_pause_has_the_answer_ready_before_the_end() -> None:
    asked: list[int] = []

    def transcribe(pcm: NDArray[np.float32]) -> str:
        asked.append(len(pcm))
        return count(pcm)

    ear = Ear()
    async with serving(transcribe) as server, stream(ws(server), config(), ear) as made:
        made.push(FRAME)
        made.pause()
        await until(lambda: asked)
        made.finish()
        await ear.until_finals(1)
    assert ear.finals == ["1 frames"] and len(asked) == 1  # the end costs no work


async def test_what_was_said_before_a_pause_in_a_long_utterance_is_not_worked_on_again() -> None:
    asked: list[int] = []

    def transcribe(pcm: NDArray[np.float32]) -> str:
        asked.append(len(pcm) * 2 // FRAME_BYTES)
        return count(pcm)

    ear = Ear()
    async with serving(transcribe) as server, stream(ws(server), config(), ear) as made:
        for _ in range(300):  # six seconds
            made.push(FRAME)
        made.pause()
        await until(lambda: asked)
        for _ in range(50):
            made.push(FRAME)
        made.finish()
        await ear.until_finals(1)
    assert asked == [300, 50] and ear.finals == ["300 frames 50 frames"]


async def test_network_that_fails_costs_one_prompt() -> None:
    def transcribe(pcm: NDArray[np.float32]) -> str:
        if len(pcm) * 2 == FRAME_BYTES:
            raise RuntimeError("cannot take it")
        return count(pcm)

    ear = Ear()
    async with serving(transcribe) as server, stream(ws(server), config(), ear) as made:
        made.push(FRAME)
        made.finish()
        made.push(FRAME + FRAME)
        made.finish()
        await ear.until_finals(2)
    assert ear.finals == ["", "2 frames"]


@asynccontextmanager
async def growing(answers: list[Words]) -> AsyncIterator[tuple[ListenStream, Ear, list[tuple[str, str]]]]:
    """A stream of German to a network that gives these answers in turn; and the languages and words it was given."""
    asked: list[tuple[str, str]] = []

    def transcribe(pcm: NDArray[np.float32], language: str, begun: str) -> Words:
        asked.append((language, begun))
        return answers[len(asked) - 1]

    server = TestServer(ListenServer(transcribe, partial_ms=20, knows=lambda language: True).app)
    await server.start_server()
    recogniser, ear = ListenRecogniser(ws(server), config()), Ear()
    made = recogniser.open(ear, language="de-DE", hints=(), partials=True)
    assert isinstance(made, ListenStream)
    try:
        yield made, ear, asked
    finally:
        await made.aclose()
        await server.close()


async def test_words_that_two_results_agree_on_are_given_to_the_next_one() -> None:
    texts = ["Ich", "Ich hätte", "Ich hätte gern zwei", "Ich hätte gern zwei Karten."]
    async with growing([Words(text) for text in texts]) as (made, ear, asked):
        for count in range(1, 4):
            made.push(FRAME)
            await until(lambda: len(asked) == count)  # noqa: B023
        made.push(FRAME)
        made.finish()
        await ear.until_finals(1)
    assert ear.finals == [texts[-1]]
    assert asked == [("de-DE", ""), ("de-DE", ""), ("de-DE", ""), ("de-DE", "Ich")]


async def test_the_language_that_was_detected_is_told_with_the_words() -> None:
    async with growing([Words("Ja", "de")]) as (made, ear, _):
        made.push(FRAME)
        made.finish()
        await ear.until_finals(1)
        assert made.heard_language == "de"


class Deaf:
    """A recogniser that takes connections and breaks each after some binary messages, or says nothing at all."""

    def __init__(self, break_after: int | None) -> None:
        self.break_after = break_after
        self.heard: list[list[int]] = []
        app = web.Application()
        app.router.add_get(listen.PATH, self._listen)
        self.server = TestServer(app)

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        heard: list[int] = []
        self.heard.append(heard)
        async for message in websocket:
            if message.type is WSMsgType.BINARY:
                heard.append(len(message.data) // FRAME_BYTES)
                if self.break_after is not None and len(heard) >= self.break_after:
                    assert request.transport is not None
                    request.transport.abort()
        return websocket


async def test_utterance_that_breaks_the_connection_is_sent_again_once_and_then_given_up() -> None:
    deaf, ear = Deaf(1), Ear()
    await deaf.server.start_server()
    async with stream(ws(deaf.server), config(), ear) as made:
        for _ in range(5):
            made.push(FRAME)
        made.finish()
        await ear.until_finals(1)
        made.push(FRAME)  # of the next utterance: a third copy of the first would come before it
        await until(lambda: len([heard for heard in deaf.heard if heard]) > 2)
        sent = [sum(heard) for heard in deaf.heard if heard]
    await deaf.server.close()
    assert ear.finals == [""]
    assert sent[:3] == [5, 5, 1]


async def test_recogniser_that_says_nothing_is_waited_for_so_long_and_its_connection_made_anew() -> None:
    deaf, ear = Deaf(None), Ear()
    await deaf.server.start_server()
    async with stream(ws(deaf.server), config(final_timeout_ms=100), ear) as made:
        made.push(FRAME)
        await until(lambda: deaf.heard and deaf.heard[0])
        made.finish()
        await ear.until_finals(1)
        made.push(FRAME)
        await until(lambda: len(deaf.heard) > 1 and deaf.heard[1])
    await deaf.server.close()
    assert ear.finals == [""] and deaf.heard[0] == [1]


async def test_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.recognition.client.MAX_UTTERANCE_S", 1.0)
    ear = Ear()
    nobody = f"ws://127.0.0.1:{free_port()}{listen.PATH}"
    recogniser = ListenRecogniser(nobody, config())
    made = recogniser.open(ear, language="en-US", hints=(), partials=False)
    for _ in range(200):
        made.push(FRAME)
    assert recogniser.dropped == 200 - 51
    for _ in range(8):
        made.finish()
        made.push(FRAME)
    await ear.until_finals(5)  # of nine, four may wait
    assert ear.finals == [""] * 5
    await made.aclose()
    await recogniser.aclose()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [({"sample_rate": "8000"}, "8000"), ({"language": "de"}, "does not know"), ({"encoding": "mulaw"}, "linear16")],
)
async def test_server_refuses_what_it_cannot_hear(parameters: dict[str, str], says: str) -> None:
    query = {"encoding": "linear16", "sample_rate": "16000", "language": "en-US", **parameters}
    async with serving() as server, aiohttp.ClientSession() as http:
        async with http.get(f"http://{server.host}:{server.port}{listen.PATH}", params=query) as answer:
            assert answer.status == 400
            assert says in await answer.text()


@pytest.mark.parametrize("hostile", ["", "[]", "null", '{"kind": 1}', "\ufffd"])
async def test_server_ends_a_connection_that_talks_nonsense_and_hears_the_others(hostile: str) -> None:
    ear = Ear()
    async with serving() as server, stream(ws(server), config(), ear) as made, aiohttp.ClientSession() as http:
        async with http.ws_connect(ws(server)) as websocket:
            await websocket.send_str(hostile)
            assert (await websocket.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        made.push(FRAME)
        made.finish()
        await ear.until_finals(1)
    assert ear.finals == ["1 frames"]


@pytest.mark.parametrize(
    "data",
    ["", "[]", "null", "7", '{"type":"Results"}', '{"type":"Results","is_final":true,"channel":{"alternatives":[]}}']
    + ['{"type":"Results","is_final":true,"channel":{"alternatives":[{"transcript":7}]}}'],
)
def test_bad_message_is_a_protocol_error(data: str) -> None:
    with pytest.raises(ProtocolError):
        listen.decode(data)


def test_messages_of_other_kinds_are_known_to_be_others() -> None:
    assert listen.decode('{"type":"SpeechStarted","timestamp":1.5}') == listen.Other("SpeechStarted")
    results = listen.Results(text="Hello.", final=True, from_finalize=True)
    assert listen.decode(listen.encode(results, start_s=0, duration_s=1)) == results


async def test_key_hints_and_parameters_reach_the_external_recogniser() -> None:
    asked: list[web.Request] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return web.Response(status=402)

    app = web.Application()
    app.router.add_get(listen.PATH, remember)
    server = TestServer(app)
    await server.start_server()
    settings = config(headers={"Authorization": "Token k"}, parameters={"model": "nova-3", "endpointing": "300"})
    hints = ("talk spurt", "Ada")
    async with stream(f"{ws(server)}?tier=x", settings, Ear(), hints=hints, partials=True):
        await until(lambda: len(asked) >= 2, "another try")
    await server.close()
    query = asked[0].query
    assert asked[0].headers["Authorization"] == "Token k"
    assert query.getall("keyterm") == list(hints)
    assert (query["tier"], query["model"], query["endpointing"], query["language"]) == ("x", "nova-3", "300", "en-US")
    assert (query["encoding"], query["sample_rate"], query["interim_results"]) == ("linear16", "16000", "true")
