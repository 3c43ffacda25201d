"""The clients that may use an engine over TCP: real sockets, certificates made here, and the required settings."""

import asyncio
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import ValidationError

from tests.tts_engine.garbage import leaving_no_circles
from tests.tts_engine.service.scripted import ScriptedEngine
from tests.waiting import PATIENCE_S, until
from tts_engine.api import Utterance, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import EngineError, Unauthenticated, Unavailable
from tts_engine.service.client import GrpcEngine
from tts_engine.service.metrics_port import _MOST
from tts_engine.service.process import EngineProcess
from tts_engine.service.runner import serve_metrics
from tts_engine.service.server import SpeechServer

TOKEN = "correct-horse-battery"
LOOPBACK = "127.0.0.1:0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PEM files: an authority, the engine's and a gateway's certificate by it, and those of another authority."""
    folder = tmp_path_factory.mktemp("pem")
    for who in ("", "other_"):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / f"{who}ca"))
        for name, host in (("engine", "127.0.0.1"), ("gateway", "gateway.example")):
            issued = authority.issue_cert(host)
            issued.private_key_pem.write_to_path(str(folder / f"{who}{name}_key"))
            issued.cert_chain_pems[0].write_to_path(str(folder / f"{who}{name}"))
    (folder / "text").write_text("no certificate")
    return {path.name: str(path) for path in folder.iterdir()}


def tls(files: dict[str, str], **names: str) -> dict[str, str]:
    """The section ``tls`` with files by name; ``certificate`` brings its key."""
    if "certificate" in names:
        names["key"] = f"{names['certificate']}_key"
    return {key: files[name] for key, name in names.items()}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    server = SpeechServer(EngineConfig.model_validate({"listen": LOOPBACK} | settings))
    try:
        await server.start()
        await server.serve(ScriptedEngine())
        yield server.address
    finally:
        await server.aclose()


async def spoken(address: str, **settings: Any) -> int:
    """Return the number of chunks that an utterance of three words gets, by a client with these settings."""
    engine = GrpcEngine(address, EngineConfig.model_validate(settings))
    try:
        await engine.status()
        async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("one two three")
            utterance.end_text()
            return len([chunk async for chunk in utterance])
    finally:
        await engine.aclose()


async def test_mutual_tls_lets_in_whom_the_authority_knows(files: dict[str, str]) -> None:
    async with serving(tls=tls(files, certificate="engine", client_ca="ca")) as address:
        assert await spoken(address, tls=tls(files, ca="ca", certificate="gateway")) == 3
        for wrong in (
            tls(files, ca="ca"),  # shows no certificate
            tls(files, ca="ca", certificate="other_gateway"),  # shows one of another authority
            tls(files, ca="other_ca", certificate="gateway"),  # does not believe the engine
        ):
            with pytest.raises(Unavailable, match=r"the engine\.tls of both ends do not fit"):
                await spoken(address, tls=wrong)
        with pytest.raises(Unavailable, match=r"only one end has TLS"):
            await spoken(address)


async def test_a_token_over_tls_lets_in_who_knows_it(files: dict[str, str]) -> None:
    async with serving(tls=tls(files, certificate="engine"), token=TOKEN) as address:
        assert await spoken(address, tls=tls(files, ca="ca"), token=TOKEN) == 3
        with pytest.raises(Unauthenticated, match=r"no token; this engine has engine\.token"):
            await spoken(address, tls=tls(files, ca="ca"))
        with pytest.raises(Unauthenticated, match=r"another token than engine\.token"):
            await spoken(address, tls=tls(files, ca="ca"), token=TOKEN + "!")


async def test_a_refused_request_leaves_nothing_to_a_collection_of_garbage() -> None:
    async with serving(token=TOKEN) as address, grpc.aio.insecure_channel(address) as channel:
        await asyncio.sleep(0)  # the server's own tasks begin
        tasks = len(asyncio.all_tasks())
        async with leaving_no_circles():
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError):
                    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            await until(lambda: len(asyncio.all_tasks()) <= tasks, "the end of the requests")


async def test_no_method_answers_without_the_token() -> None:
    async with serving(token=TOKEN) as address:
        engine = GrpcEngine(address, EngineConfig())
        async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
            utterance.feed("words for no one")
            with pytest.raises(EngineError):
                await anext(utterance)
        await engine.aclose()
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_an_engine_beyond_loopback_does_not_list_its_services(files: dict[str, str]) -> None:
    settings = {"kind": "tone", "listen": "0.0.0.0:0", "tls": tls(files, certificate="engine"), "token": TOKEN}
    server = SpeechServer(EngineConfig.model_validate(settings))
    await server.start()
    address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
    credentials = grpc.ssl_channel_credentials(Path(files["ca"]).read_bytes())
    async with grpc.aio.secure_channel(address, credentials) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(metadata=(("authorization", f"Bearer {TOKEN}"),))
        with suppress(grpc.aio.AioRpcError):  # the answer may be there before the request has left
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.aclose()


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "engine.example:50051", ":50051", "10.0.0.7:50051"])
def test_an_engine_beyond_loopback_needs_tls_and_a_proof(listen: str) -> None:
    certificate = {"certificate": "c", "key": "k"}
    for lacking, what in (
        ({}, r"needs engine\.tls\.certificate and engine\.tls\.key, and engine\.tls\.client_ca or engine\.token"),
        ({"token": TOKEN}, r"needs engine\.tls\.certificate and engine\.tls\.key$"),  # never in plain text
        ({"tls": {"ca": "a"}, "token": TOKEN}, r"needs engine\.tls\.certificate and engine\.tls\.key$"),
        ({"tls": certificate}, r"needs engine\.tls\.client_ca or engine\.token$"),
    ):
        config = EngineConfig.model_validate({"listen": LOOPBACK} | lacking)
        assert f"on {listen} " in config.missing_to_listen(listen)
        with pytest.raises(ValidationError, match=what.removesuffix("$")):
            EngineConfig.model_validate({"listen": listen} | lacking)
    for enough in ({"tls": certificate | {"client_ca": "a"}}, {"tls": certificate, "token": TOKEN}):
        assert EngineConfig.model_validate({"listen": listen} | enough).listen == listen


@pytest.mark.parametrize("target", ["10.0.0.7:50051", "engine.example:50051"])
def test_a_gateway_needs_the_same_for_an_engine_elsewhere(target: str) -> None:
    for lacking in ({}, {"token": TOKEN}, {"tls": {"ca": "a"}}):
        with pytest.raises(ValidationError, match=f"engine at {target} needs engine.tls"):
            EngineConfig.model_validate({"targets": [target]} | lacking)
        with pytest.raises(Unauthenticated, match=target):  # also where a command line names the target
            GrpcEngine(target, EngineConfig.model_validate(lacking))
    for enough in ({"tls": {"ca": "a"}, "token": TOKEN}, {"tls": {"ca": "a", "certificate": "c", "key": "k"}}):
        assert EngineConfig.model_validate({"targets": [target]} | enough).targets == (target,)


@pytest.mark.parametrize("local", ["unix:/run/engine.sock", "127.0.0.1:50051", "localhost:50051", "[::1]:50051"])
def test_loopback_and_unix_sockets_need_nothing(local: str) -> None:
    config = EngineConfig(listen=local, targets=(local,))
    assert config.missing_to_listen(local) == config.missing_to_reach(local) == ""


async def test_a_file_that_cannot_be_used_is_named(files: dict[str, str]) -> None:
    mixed = {"certificate": files["engine"], "key": files["gateway_key"]}
    for section, what in (
        ({"certificate": "/none", "key": "/none"}, r"engine\.tls\.certificate /none .*: No such file"),
        ({"certificate": files["text"], "key": files["text"]}, r"engine\.tls\.certificate .*text .*cannot be used"),
        (mixed, r"cannot be used: .*key"),
        (tls(files, certificate="engine", client_ca="text"), r"engine\.tls\.client_ca .*text cannot be used"),
    ):
        with pytest.raises(Unauthenticated, match=what):
            async with serving(tls=section):
                pass
    with pytest.raises(Unauthenticated, match=r"engine\.tls\.ca /none cannot be used: No such file"):
        GrpcEngine("127.0.0.1:1", EngineConfig.model_validate({"tls": {"ca": "/none"}}))
    with pytest.raises(ValidationError, match="belong together"):
        EngineConfig.model_validate({"tls": {"certificate": "c"}})


async def test_a_token_that_a_header_cannot_carry_is_refused_without_being_told() -> None:
    with pytest.raises(ValidationError, match=r"engine\.token holds a blank") as caught:
        EngineConfig.model_validate({"token": "two words"})
    assert "two words" not in str(caught.value.errors()[0]["msg"])


async def test_the_engine_of_this_machine_is_not_told_the_token(files: dict[str, str], tmp_path: Path) -> None:
    config = EngineConfig.model_validate({"tls": tls(files, ca="ca"), "token": TOKEN})
    process = EngineProcess("tests.tts_engine.service.scripted", config)
    await process.aclose()
    child = EngineConfig.model_validate_json(process.settings())
    assert child.token is None
    process = EngineProcess("tests.tts_engine.service.scripted", config, listen="127.0.0.1:7")
    await process.aclose()
    child = EngineConfig.model_validate_json(process.settings())
    assert child.token is not None and child.token.get_secret_value() == TOKEN and child.listen == "127.0.0.1:7"
    path = f"unix:{tmp_path}/engine.sock"
    async with serving(listen=path, tls=tls(files, certificate="engine")) as address:
        assert await spoken(address, tls=tls(files, ca="ca"), token=TOKEN) == 3


def test_metrics_beyond_loopback_need_a_proof_of_who_reads_them(files: dict[str, str]) -> None:
    certificate = tls(files, certificate="engine")
    for lacking in ({}, {"token": TOKEN}, {"tls": certificate}):
        with pytest.raises(ValidationError, match=r"engine\.metrics_host is 0\.0\.0\.0.*engine\.metrics_insecure"):
            EngineConfig.model_validate({"metrics_port": 0, "metrics_host": "0.0.0.0"} | lacking)
    for enough in ({"tls": certificate | {"client_ca": "a"}}, {"metrics_insecure": True}):
        EngineConfig.model_validate({"metrics_port": 0, "metrics_host": "0.0.0.0"} | enough)
    EngineConfig.model_validate({"metrics_port": 0})


async def test_metrics_beyond_loopback_are_told_to_clients_with_a_certificate_only(files: dict[str, str]) -> None:
    config = EngineConfig.model_validate(
        {"metrics_port": 0, "metrics_host": "0.0.0.0", "tls": tls(files, certificate="engine", client_ca="ca")}
    )
    server = serve_metrics(config)
    assert server is not None
    url = f"https://127.0.0.1:{server.server_port}/metrics"
    try:
        known = ssl.create_default_context(cafile=files["ca"])
        known.load_cert_chain(files["gateway"], files["gateway_key"])
        with await asyncio.to_thread(urllib.request.urlopen, url, context=known) as answer:
            assert b"talkspurt_engine_" in answer.read()
        with pytest.raises(OSError, match=r"(?i)certificate required|reset|closed|EOF"):
            with await asyncio.to_thread(
                urllib.request.urlopen, url, context=ssl.create_default_context(cafile=files["ca"])
            ) as answer:
                answer.read()
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


@pytest.mark.parametrize("over_tls", [True, False])
async def test_silent_connections_to_the_port_of_the_metrics_keep_no_one_out(
    files: dict[str, str], over_tls: bool
) -> None:
    proof = tls(files, certificate="engine", client_ca="ca")
    beyond = {"metrics_host": "0.0.0.0", "tls": proof} if over_tls else {}
    server = serve_metrics(EngineConfig.model_validate({"metrics_port": 0} | beyond))
    assert server is not None
    url = f"{'https' if over_tls else 'http'}://127.0.0.1:{server.server_port}/metrics"
    known = ssl.create_default_context(cafile=files["ca"])
    known.load_cert_chain(files["gateway"], files["gateway_key"])
    threads = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server.server_port), source_address=("127.0.0.9", 0))]
    try:
        for _ in range(100):
            silent.append(socket.create_connection(("127.0.0.1", server.server_port), source_address=("127.0.0.9", 0)))
        context = known if over_tls else None
        with await asyncio.to_thread(urllib.request.urlopen, url, context=context, timeout=PATIENCE_S) as answer:
            assert b"talkspurt_engine_" in answer.read()
        await until(lambda: threading.active_count() <= threads + _MOST + 4, "the end of the oldest")
    finally:
        for each in silent:
            each.close()
        await asyncio.to_thread(server.shutdown)
        server.server_close()


async def test_the_port_of_the_metrics_says_whether_the_engine_takes_requests() -> None:
    takes = False
    server = serve_metrics(EngineConfig(metrics_port=0), lambda: takes)
    assert server is not None
    url = f"http://127.0.0.1:{server.server_port}/readyz"
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            await asyncio.to_thread(urllib.request.urlopen, url)
        takes = True
        with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
            assert answer.status == 200
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


async def test_a_gateway_shows_its_renewed_certificate_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(authority: trustme.CA) -> None:
        authority.cert_pem.write_to_path(str(tmp_path / "ca"))
        for name, host in (("engine", "127.0.0.1"), ("gateway", "gateway.example")):
            issued = authority.issue_cert(host)
            for file, pem in ((name, issued.cert_chain_pems[0]), (f"{name}_key", issued.private_key_pem)):
                pem.write_to_path(str(tmp_path / "new"))
                (tmp_path / "new").rename(tmp_path / file)

    async def say(utterance: Utterance) -> int:
        utterance.feed("one two three")
        utterance.end_text()
        return len([chunk async for chunk in utterance])

    def opened() -> Any:
        return engine.open(UtteranceRequest(utterance_id="u"))

    write(trustme.CA())
    paths = {name: str(tmp_path / name) for name in ("ca", "engine", "engine_key", "gateway", "gateway_key")}
    of_gateway = tls(paths, ca="ca", certificate="gateway")
    async with serving(tls=tls(paths, client_ca="ca", certificate="engine")) as address:
        engine = GrpcEngine(address, EngineConfig.model_validate({"tls": of_gateway}))
        await engine.status()
        first = engine._backends[0].channel
        async with opened() as before:
            before.feed("one ")
            await anext(before)
            write(trustme.CA())  # both ends have other certificates of another authority
            await engine.status()
            assert engine._backends[0].channel is not first
            async with opened() as utterance:
                assert await say(utterance) == 3
            assert await say(before) == 3  # over the old connection
        (tmp_path / "gateway").write_text("no certificate")
        for _ in range(2):
            await engine.status()
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
            "new certificate cannot be used"
        ]
        async with opened() as utterance:
            assert await say(utterance) == 3
        await engine.aclose()


async def test_an_engine_takes_a_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    def write(authority: trustme.CA) -> None:
        issued = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(str(tmp_path / "ca"))
        for file, pem in (("engine", issued.cert_chain_pems[0]), ("engine_key", issued.private_key_pem)):
            pem.write_to_path(str(tmp_path / "new"))
            (tmp_path / "new").rename(tmp_path / file)

    write(trustme.CA())
    section = {"certificate": str(tmp_path / "engine"), "key": str(tmp_path / "engine_key")}
    reads = {"ca": str(tmp_path / "ca")}
    async with serving(tls=section, token=TOKEN) as address:
        assert await spoken(address, tls=reads, token=TOKEN) == 3
        write(trustme.CA())
        assert await spoken(address, tls=reads, token=TOKEN) == 3
        (tmp_path / "engine").write_text("no certificate")
        assert await spoken(address, tls=reads, token=TOKEN) == 3
