"""The link between gateway and engine on one machine: that it is used, comes back, and bounds what each end may do.

What calls on it do in general, ``test_server`` shows for both ways.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tts_engine.service.scripted import ScriptedEngine, chunk_of
from tests.waiting import PATIENCE_S, stand_still, until
from tts_engine.api import UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import Exhausted, Unavailable
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import link_frames, link_server, wire
from tts_engine.service.client import GrpcEngine
from tts_engine.service.link_client import LinkCall
from tts_engine.service.link_frames import COUNT, FrameKind, LinkEnd
from tts_engine.service.process import EngineProcess
from tts_engine.service.server import SpeechServer
from tts_engine.service.speak_call import SpeakCall


class Engine:
    """A scripted engine behind a unix socket, which can go and come back."""

    def __init__(self, config: EngineConfig) -> None:
        self.config, self.scripted = config, ScriptedEngine()
        self.server = SpeechServer(config)

    async def start(self) -> None:
        self.server = SpeechServer(self.config)
        await self.server.start()
        await self.server.serve(self.scripted)


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(wire, "MESSAGE_BYTES", 2**17)
    made = Engine(EngineConfig(listen=f"unix:{tmp_path}/engine.sock"))
    await made.start()
    yield made
    await made.server.aclose()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[GrpcEngine]:
    made = GrpcEngine(engine.config.listen, engine.config)
    await linked(made)
    yield made
    await made.aclose()


async def linked(client: GrpcEngine) -> None:
    (backend,) = client._backends
    await until(lambda: backend.link is not None and backend.link.stands, "the link")


async def speak(client: GrpcEngine, text: str) -> tuple[list[object], type]:
    """Return the spoken chunks, and the way that the call took."""
    async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
        way = type(utterance._call)  # type: ignore[union-attr]
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance], way


async def test_calls_take_the_link_as_soon_as_it_stands_and_grpc_until_then(engine: Engine) -> None:
    client = GrpcEngine(engine.config.listen, engine.config)
    assert client.linked == [False]
    assert await speak(client, "hello world") == ([chunk_of("hello", 0), chunk_of("world", 1)], SpeakCall)
    await linked(client)
    assert client.linked == [True]
    assert await speak(client, "hello again") == ([chunk_of("hello", 0), chunk_of("again", 1)], LinkCall)
    await client.aclose()


async def test_an_engine_that_wants_a_token_offers_no_link(tmp_path: Path) -> None:
    server = SpeechServer(EngineConfig(listen=f"unix:{tmp_path}/engine.sock", token="secret"))
    await server.start()
    assert not (tmp_path / "engine.sock.speak").exists()
    await server.aclose()


async def test_without_a_place_for_the_link_calls_come_over_grpc(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (104 - len(str(tmp_path)) - 1))  # fits a socket's address, with the suffix it does not
    engine = Engine(EngineConfig(listen=f"unix:{path}"))
    await engine.start()
    client = GrpcEngine(engine.config.listen, engine.config)
    assert (await speak(client, "hello"))[1] is SpeakCall
    await client.aclose()
    await engine.server.aclose()


async def test_a_server_that_shuts_down_leaves_no_file(engine: Engine, tmp_path: Path) -> None:
    assert (tmp_path / "engine.sock.speak").is_socket()
    await engine.server.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_a_server_that_shuts_down_leaves_the_sockets_of_one_that_has_replaced_it(
    engine: Engine, tmp_path: Path
) -> None:
    newer = Engine(engine.config)
    await newer.start()
    await engine.server.aclose()
    client = GrpcEngine(newer.config.listen, newer.config)
    assert (await speak(client, "over gRPC"))[1] is SpeakCall
    await linked(client)
    assert (await speak(client, "on the link"))[1] is LinkCall
    await client.aclose()
    await newer.server.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_an_engine_replaces_the_socket_of_one_that_was_killed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    engine = Engine(EngineConfig(listen=f"unix:{path}"))
    await engine.start()
    client = GrpcEngine(engine.config.listen, engine.config)
    assert (await speak(client, "hello"))[0]
    await client.aclose()
    await engine.server.aclose()
    path.write_text("notes")
    with pytest.raises(OSError, match="exists and is no socket"):
        await engine.start()
    await engine.server.aclose()
    assert [each.name for each in tmp_path.iterdir()] == ["engine.sock"]
    assert path.read_text() == "notes"


async def test_the_link_comes_back_with_the_engine(engine: Engine, client: GrpcEngine) -> None:
    async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed("one hold two")
        utterance.end_text()
        assert await anext(utterance) == chunk_of("one", 0)
        await engine.server.aclose()
        with pytest.raises(Unavailable):
            await anext(utterance)
    await engine.start()
    await linked(client)
    assert (await speak(client, "back again"))[1] is LinkCall


LOOKED_AT = 8_000
"""Objects: some 2 ms."""


@asynccontextmanager
async def in_a_process(config: EngineConfig) -> AsyncIterator[tuple[EngineProcess, GrpcEngine]]:
    """A scripted engine as a child, and a client that is linked to it."""
    process = EngineProcess("tests.tts_engine.service.scripted", config)
    await process.start()
    client = GrpcEngine(process.target, config)
    try:
        await linked(client)
        yield process, client
    finally:
        await client.aclose()
        await process.aclose()


async def test_a_killed_engine_ends_its_calls_and_the_next_one_is_linked_again() -> None:
    async with in_a_process(EngineConfig()) as (process, client):
        async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("one hold two")
            await anext(utterance)
            assert process._process is not None
            process._process.kill()
            with pytest.raises(Unavailable, match="closed the connection"):
                await anext(utterance)
        await until(lambda: process.restarts == 1 and process.ready, "the next process")
        await linked(client)
        assert (await speak(client, "here again"))[1] is LinkCall


async def test_no_collection_of_garbage_looks_at_much_while_turns_are_spoken() -> None:
    async with in_a_process(EngineConfig()) as (_, client), client.open(UtteranceRequest(utterance_id="u")) as turn:
        turn.feed("garbage ")
        assert 0 < (await anext(turn)).first_sample < LOOKED_AT


async def test_an_engine_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "KEEPALIVE_S", 1.0)
    async with in_a_process(EngineConfig()) as (process, client):
        async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("one hold two")
            await anext(utterance)
            assert process.pid is not None
            await stand_still(process.pid)
            with pytest.raises(Unavailable, match="closed the connection"):
                await asyncio.wait_for(anext(utterance), PATIENCE_S)
            os.kill(process.pid, signal.SIGCONT)
        await linked(client)
        assert (await speak(client, "here again"))[1] is LinkCall


async def test_what_nobody_takes_is_bounded(engine: Engine, client: GrpcEngine) -> None:
    async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed("flood ")
        await until(lambda: engine.scripted.utterances, "the utterance")
        made = engine.scripted.utterances[0]
        (context,) = next(iter(engine.server._link._ends))._calls.values()
        await until(lambda: context._writing is not None, "the engine's wait for its client")
        steps = made.steps
        chunks = steps - 1  # the word is a step, too
        assert chunks * 64_000 <= link_server._AHEAD_BYTES + 2 * 64_000
        for _ in range(20):  # and it continues as it is taken
            await anext(utterance)
        assert made.steps > steps + 10


async def test_messages_longer_than_the_window_pass(engine: Engine, client: GrpcEngine) -> None:
    """A call waits for no credit that its client keeps back."""
    words = [f"w{n}" for n in range(2000)]  # each chunk 320 bytes: many windows
    async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed(" ".join(words))
        utterance.end_text()
        assert len([chunk async for chunk in utterance]) == 2000


async def test_tokens_that_come_while_the_engine_stands_still_cost_no_call() -> None:
    words = [f"w{n}" for n in range(2000)]
    async with in_a_process(EngineConfig()) as (process, client):
        async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("one ")
            await anext(utterance)
            assert process.pid is not None
            await stand_still(process.pid)
            for word in words:
                utterance.feed(f"{word} ")
                await asyncio.sleep(0)  # each in a message of its own
            os.kill(process.pid, signal.SIGCONT)
            utterance.feed("end")
            utterance.end_text()
            assert len([chunk async for chunk in utterance]) == len(words) + 1


async def test_a_client_that_goes_ends_its_utterances(engine: Engine, client: GrpcEngine) -> None:
    utterance = client.open(UtteranceRequest(utterance_id="u"))
    utterance.feed("one hold two")
    await anext(utterance)
    await client.aclose()
    await until(engine.scripted.utterances[0].closed.is_set, "the end of the utterance")
    with pytest.raises(Unavailable):
        await anext(utterance)


async def test_a_call_beyond_the_limit_is_refused_alone(tmp_path: Path) -> None:
    config = EngineConfig.model_validate({"listen": f"unix:{tmp_path}/engine.sock"})
    engine = Engine(config)
    engine.server._link._most_calls = 2
    await engine.server.start()
    await engine.server.serve(engine.scripted)
    client = GrpcEngine(config.listen, config)
    await linked(client)
    open_ones = [client.open(UtteranceRequest(utterance_id=f"u{n}")) for n in range(3)]
    for utterance in open_ones:
        utterance.feed("one hold two")
    assert [await anext(utterance) for utterance in open_ones[:2]] == [chunk_of("one", 0)] * 2
    with pytest.raises(Exhausted, match="2 calls are on the link"):
        await anext(open_ones[2])
    await client.aclose()
    await engine.server.aclose()


def frame(call: int, kind: int, payload: bytes = b"") -> bytes:
    return link_frames._HEADER.pack(len(payload), call, kind) + payload


START = pb.SpeakRequest(start=pb.SpeakStart(utterance_id="u"), text="one hold").SerializeToString()
LONG = pb.SpeakRequest(text="x" * (2**17 - 50)).SerializeToString()
WRONG = {
    "unknown kind": frame(1, 9),
    "too long": link_frames._HEADER.pack(2**31, 1, FrameKind.MESSAGE),
    "no metadata": frame(1, FrameKind.BEGIN, b"[]"),
    "metadata that is no JSON": frame(1, FrameKind.BEGIN, b"{"),
    "metadata that is no UTF-8": frame(1, FrameKind.BEGIN, b"\xff"),
    "nested metadata": frame(1, FrameKind.BEGIN, b"[" * 100_000),
    "begins twice": frame(1, FrameKind.BEGIN, b"{}") * 2,
    "no SpeakRequest": frame(1, FrameKind.BEGIN, b"{}") + frame(1, FrameKind.MESSAGE, b"\xff\xff"),
    "behind the half-close": frame(1, FrameKind.BEGIN, b"{}")
    + frame(1, FrameKind.HALF_CLOSE)
    + frame(1, FrameKind.MESSAGE, START),
    "too much that is not read": frame(1, FrameKind.BEGIN, b"{}")
    + frame(1, FrameKind.MESSAGE, START)
    + frame(1, FrameKind.MESSAGE, LONG),
    "a count that is none": frame(1, FrameKind.BEGIN, b"{}") + frame(1, FrameKind.TAKEN, b"1"),
    "an end from the client": frame(1, FrameKind.BEGIN, b"{}") + frame(1, FrameKind.END),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
async def test_whoever_says_what_is_none_of_the_links_loses_it_alone(
    engine: Engine, client: GrpcEngine, data: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(engine.config.listen.removeprefix("unix:") + link_frames.SUFFIX)
    writer.write(data)
    try:
        while await reader.read(1000):
            pass
    except ConnectionResetError:
        pass
    writer.close()
    assert (await speak(client, "all well"))[1] is LinkCall
    await until(lambda: not engine.server._speaks, "the end of what it had begun")


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
async def test_frames_are_the_same_however_the_socket_cuts_them(cut: int) -> None:
    class End(LinkEnd):
        def __init__(self) -> None:
            super().__init__(most_bytes=100, turn_bytes=2**20)
            self.frames: list[tuple[int, FrameKind, bytes]] = []

        def took(self, call: int, kind: FrameKind, payload: bytes) -> None:
            self.frames.append((call, kind, payload))

        def lost(self) -> None:
            pass

    here, there = socket.socketpair()
    sender, receiver = End(), End()
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: sender, sock=here)
    said = [
        (2**32 - 1, FrameKind.BEGIN, b"{}"),
        (7, FrameKind.TAKEN, COUNT.pack(9)),
        (7, FrameKind.MESSAGE, bytes(100)),
        (0, FrameKind.END, b""),
    ]
    for each in said:
        sender.send(*each)
    data = there.recv(1000)
    for at in range(0, len(data), cut):
        receiver.data_received(data[at : at + cut])
    assert receiver.frames == said
    sender.close()
    there.close()


async def test_what_nobody_waits_for_leaves_with_what_is_said_next_or_with_the_next_turn_of_the_loop() -> None:
    class End(LinkEnd):
        def took(self, call: int, kind: FrameKind, payload: bytes) -> None: ...

        def lost(self) -> None: ...

    here, there = socket.socketpair()
    there.setblocking(False)
    sender = End(most_bytes=100, turn_bytes=100)
    await asyncio.get_running_loop().create_unix_connection(lambda: sender, sock=here)
    told = frame(7, FrameKind.TAKEN, COUNT.pack(9))
    sender.send(7, FrameKind.TAKEN, COUNT.pack(9))
    sender.send(7, FrameKind.TAKEN, COUNT.pack(9))
    with pytest.raises(BlockingIOError):
        there.recv(1000)
    sender.send(8, FrameKind.MESSAGE, b"now")
    assert there.recv(1000) == told * 2 + frame(8, FrameKind.MESSAGE, b"now")
    sender.send(7, FrameKind.TAKEN, COUNT.pack(9))
    await asyncio.sleep(0)
    assert there.recv(1000) == told
    sender.send(7, FrameKind.TAKEN, COUNT.pack(9))
    sender.close()
    assert there.recv(1000) == told
    there.close()


async def test_what_comes_in_one_read_is_taken_in_several_turns_of_the_loop() -> None:
    turn = 0
    taken: list[tuple[int, int]] = []

    class End(LinkEnd):
        def took(self, call: int, kind: FrameKind, payload: bytes) -> None:
            taken.append((turn, call))
            assert call != 40 or kind is FrameKind.END
            if call == 40:
                all_taken.set()

        def lost(self) -> None:
            pass

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    loop, all_taken = asyncio.get_running_loop(), asyncio.Event()
    here, there = socket.socketpair()
    _, receiver = await loop.create_unix_connection(lambda: End(most_bytes=4000, turn_bytes=4096), sock=there)
    counting = asyncio.create_task(count())
    frames = [frame(number, FrameKind.MESSAGE, bytes(1900)) for number in range(40)]
    here.sendall(b"".join(frames) + frame(40, FrameKind.END))
    async with asyncio.timeout(PATIENCE_S):
        await all_taken.wait()
    counting.cancel()
    receiver.close()
    here.close()
    assert [call for _, call in taken] == list(range(41))
    together = Counter(turn for turn, _ in taken)
    assert max(together.values()) <= 4  # 4,096 bytes and the frame that exceeds them; the end is a frame, too
