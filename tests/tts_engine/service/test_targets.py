"""Engines that come and go behind names and directories, and which of them a new utterance gets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from tests.tts_engine.service.scripted import ScriptedEngine
from tts_engine.api import UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import Unavailable
from tts_engine.service.client import GrpcEngine
from tts_engine.service.load import RecentWait
from tts_engine.service.server import SpeechServer
from tts_engine.service.targets import EngineAddress, Targets, is_name, resolve

NAME = "engines.example:50051"
PROVEN = EngineConfig.model_validate({"tls": {}, "token": "word"})  # what a name beyond loopback needs


@dataclass
class Resolver:
    """Answers what a test puts in."""

    answers: set[EngineAddress] = field(default_factory=set)
    down: bool = False

    async def __call__(self, target: str) -> set[EngineAddress]:
        assert target == NAME
        if self.down:
            raise OSError("no answer")
        return self.answers


@dataclass
class Engines:
    """Served engines; ``serve`` adds one."""

    folder: Path
    servers: list[SpeechServer] = field(default_factory=list)
    engines: list[ScriptedEngine] = field(default_factory=list)

    async def serve(self) -> EngineAddress:
        server = SpeechServer(EngineConfig(listen=f"unix:{self.folder}/{len(self.servers)}.sock"))
        await server.start()
        self.servers.append(server)
        self.engines.append(ScriptedEngine())
        await server.serve(self.engines[-1])
        return EngineAddress(server.address)

    def spoken(self) -> list[int]:
        return [len(engine.utterances) for engine in self.engines]


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    made = Engines(tmp_path)
    yield made
    for server in made.servers:
        await server.aclose()


async def speak(client: GrpcEngine, text: str = "word") -> int:
    async with client.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return len([chunk async for chunk in utterance])


async def test_new_engines_behind_a_name_are_found_and_those_gone_are_left(engines: Engines) -> None:
    resolver = Resolver()
    client = GrpcEngine(Targets([NAME], resolver=resolver), PROVEN)
    with pytest.raises(Unavailable, match="no engine is known"):
        client.open(UtteranceRequest(utterance_id="u"))
    first = await engines.serve()
    resolver.answers = {first}
    await client.refresh()
    assert await speak(client) == 1
    resolver.answers = {first, await engines.serve()}
    await client.refresh()
    held = client.open(UtteranceRequest(utterance_id="held"))
    held.feed("one two")
    assert await anext(aiter(held))
    await speak(client)
    assert engines.spoken() == [2, 1]
    resolver.answers -= {first}
    await client.refresh()
    await speak(client)
    assert engines.spoken() == [2, 2]
    held.end_text()
    assert len([chunk async for chunk in held]) == 1, "an utterance under way finishes at the engine that is left"
    await held.aclose()
    await client.refresh()
    assert not client._leaving
    await client.aclose()


async def test_a_resolver_or_directory_that_is_down_takes_no_engine_along(engines: Engines) -> None:
    resolver, listed = Resolver({await engines.serve()}), [(await engines.serve()).target]
    down = False

    async def source() -> list[str]:
        if down:
            raise ConnectionRefusedError
        return listed

    client = GrpcEngine(Targets([NAME], source=source, resolver=resolver), PROVEN)
    await client.refresh()
    resolver.down = down = True
    await client.refresh()
    for _ in range(2):
        held = client.open(UtteranceRequest(utterance_id="held"))
        held.feed("one two")
        assert await anext(aiter(held))
    assert engines.spoken() == [1, 1]
    await client.aclose()


async def test_an_utterance_goes_where_utterances_wait_least_whoever_put_them_there(engines: Engines) -> None:
    targets = [(await engines.serve()).target for _ in range(3)]
    client, other = GrpcEngine(targets, EngineConfig()), GrpcEngine(targets[1], EngineConfig())
    engines.servers[0]._wait.note(1.0, now=time.monotonic())
    held = other.open(UtteranceRequest(utterance_id="held"))
    held.feed("one two")
    assert await anext(aiter(held))
    await client.refresh()
    await speak(client)
    assert engines.spoken() == [0, 1, 1]
    await client.aclose()
    await other.aclose()


async def test_an_engine_that_drains_gets_nothing_new(engines: Engines) -> None:
    targets = [(await engines.serve()).target for _ in range(2)]
    client = GrpcEngine(targets, EngineConfig())
    await engines.servers[0].drain()
    await client.refresh()
    await speak(client)
    assert engines.spoken() == [0, 1]
    await client.aclose()


@pytest.mark.parametrize("named", ["engines.example", "others.example"])
async def test_an_engine_behind_a_name_has_to_have_a_certificate_of_that_name(tmp_path: Path, named: str) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert(named)
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate"))
    files = {name: str(tmp_path / name) for name in ("ca", "key", "certificate")}
    config = EngineConfig.model_validate({"listen": "127.0.0.1:0", "tls": files, "token": "word"})
    server = SpeechServer(config)
    await server.start()
    await server.serve(ScriptedEngine())
    client = GrpcEngine(Targets([NAME], resolver=Resolver({EngineAddress(server.address, "engines.example")})), config)
    try:
        await client.refresh()
        if named == "engines.example":
            assert await speak(client) == 1
        else:
            with pytest.raises(Unavailable):
                await speak(client)
    finally:
        await client.aclose()
        await server.aclose()


async def test_a_name_is_resolved_to_every_address_of_one_kind() -> None:
    assert await resolve("127.0.0.1:7") == {EngineAddress("127.0.0.1:7", "127.0.0.1")}
    assert await resolve("::1:7") == {EngineAddress("[::1]:7", "::1")}


@pytest.mark.parametrize(
    ("target", "expected"),
    [("unix:/a:1", False), ("127.0.0.1:1", False), ("[::1]:1", False), ("localhost:1", False), (NAME, True)],
)
def test_names_are_told_from_addresses(target: str, expected: bool) -> None:
    assert is_name(target) == expected


def test_a_wait_counts_while_it_is_recent() -> None:
    wait = RecentWait()
    assert wait.seconds(0.0) == 0.0
    for second in range(10):
        wait.note(2.0, now=float(second))
    assert 1.0 < wait.seconds(9.0) < 2.0
    assert wait.seconds(60.0) < 0.001
