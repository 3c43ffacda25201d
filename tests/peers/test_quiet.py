"""Nothing leaves the machine that no configuration asks for, and nothing is written outside the configured folders:
servers, tools and examples under a recorder of system calls."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from talkspurt.cli import main
from talkspurt.simulator.call_script import Expect, HangUpStep, Press, TextStep
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from tests.gateway.webrtc.webrtc_gateway import SilentMicrophone, calling
from tests.peers.examples.language_model import serving
from tests.peers.live_server import START_S
from tests.peers.ports import free_port
from tests.peers.postgres_server import PostgresServer
from tests.peers.programs import needs_postgres, needs_redis, needs_strace
from tests.peers.recorder import Recording, findings
from tests.peers.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

pytestmark = needs_strace

PATIENT_MS = round(1000 * PATIENCE_S)
ROOT = Path(__file__).parents[2]
TALKSPURT = (sys.executable, "-m", "talkspurt")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a Unix socket has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="quiet-") as name:
        yield Path(name)


def assert_quiet(recording: Recording) -> None:
    found = recording.findings()
    assert not found, "\n".join(["not asked for:", *found])


@asynccontextmanager
async def server(recording: Recording, config: Path | str, **own: str) -> AsyncIterator[str]:
    """Run a server and yield its host and port. At the end nothing may have left the machine."""
    if isinstance(config, str):
        (recording.work / "talkspurt.yaml").write_text(config)
        config = recording.work / "talkspurt.yaml"
    own = {"TALKSPURT__SERVER__PORT": "0", **own}
    async with recording.running(*TALKSPURT, "serve", "-c", str(config), **own) as process:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
        ready = re.search(r"is ready: http://(\S+?)/\s*$", line)
        assert ready is not None, f"{line!r}\n{recording.errors()}"
        yield ready[1]
    assert_quiet(recording)


async def called(url: str, first: Press | TextStep, dialect: str = "twilio") -> None:
    """Make a call, and hang up when something is heard."""
    heard = Expect("speech", PATIENT_MS)
    caller = SimulatedCaller(CallOptions(url=url, dialect=dialect, steps=(first, heard, HangUpStep())))
    await caller.run()
    assert caller.report()["audio_ms"] > 0


@pytest.mark.slow
async def test_the_demo_answers_calls_of_a_carrier_and_a_browser(folder: Path) -> None:
    recording = Recording(folder)
    shutil.copytree(ROOT / "configs", recording.work / "configs")  # it keeps calls in a folder beside its own
    async with server(recording, recording.work / "configs/demo.yaml") as address:
        await asyncio.gather(
            called(f"ws://{address}/media/twilio", Press("3")),
            called(f"ws://{address}/media/twilio/call", TextStep("Hello there.")),
        )
        async with calling(f"http://{address}", microphone=SilentMicrophone(), route="default") as phone:
            await until(lambda: phone.pcm.any(), "sound")
        async with aiohttp.ClientSession() as http:
            async with http.post(f"http://{address}/v1/tts", json={"text": "Hello."}) as answer:
                assert answer.status == 200 and await answer.read()


@pytest.mark.slow
async def test_all_languages_of_the_embedded_engine_on_two_workers(folder: Path) -> None:
    config = """
server: {workers: 2}
engine: {kind: embedded, cache_folder: cache, embedded: {espeak: [de], mandarin: {}}}
routes: {de: {voice: "espeak:de"}, zh: {language: zh-CN}}
carriers: {twilio: {verify: false}}
"""
    async with server(Recording(folder), config) as address:
        await asyncio.gather(
            called(f"ws://{address}/media/twilio/de", TextStep("Guten Tag.")),
            called(f"ws://{address}/media/twilio/zh", TextStep("您好。")),
        )


@needs_redis
@needs_postgres
async def test_a_server_with_traces_shared_limits_a_shared_store_and_sip(folder: Path) -> None:
    """All that a configuration asks for is on loopback here."""
    traced: list[str] = []

    async def collect(request: web.Request) -> web.Response:
        traced.append(request.path)
        return web.Response()

    async with AsyncExitStack() as stack:
        app = web.Application()
        app.router.add_post("/v1/traces", collect)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        redis, postgres, sip = RedisServer(folder), PostgresServer(), free_port()
        await redis.start()
        stack.push_async_callback(redis.stop)
        stack.callback(postgres.close)
        await asyncio.to_thread(postgres.start)
        config = f"""
engine: {{kind: tone}}
calls: {{folder: calls}}
limits: {{redis_url: "{redis.url}"}}
postgres: {{url: "{postgres.url(postgres.make_database("quiet"))}"}}
tracing: {{endpoint: "http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"}}
sip: {{port: {sip}, rtp_ports: 27000-27999, trunks: {{phones: {{addresses: [127.0.0.1], route: talk}}}}}}
routes: {{talk: {{}}}}
"""
        async with server(Recording(folder / "server"), config) as address:
            url = f"sip:100@127.0.0.1:{sip}?route=talk&http={address.rpartition(':')[2]}"
            await called(url, TextStep("Hello there."), dialect="sip")
        assert traced


@pytest.mark.slow
async def test_cosyvoice_and_its_processes(folder: Path) -> None:
    """The voice model in a process of its own, as on a GPU."""
    recording = Recording(folder / "server")
    model = recording.work / "tiny"
    assert main(["engine", "make-checkpoint", str(model), "--version", "3", "--size", "tiny"]) == 0
    config = f"""
engine:
  kind: cosyvoice3
  model_folder: {model}
  device: cpu
  voices_folder: voices
  cache_folder: cache
  cosyvoice: {{max_clauses: 8, first_chunk_s: 1000, own_process: true}}
routes: {{talk: {{}}}}
carriers: {{twilio: {{verify: false}}}}
"""
    async with server(recording, config) as address:
        await called(f"ws://{address}/media/twilio/talk", TextStep("Your order left the warehouse."))


async def test_the_ivr_of_the_examples_and_the_program_that_calls_it(folder: Path) -> None:
    config = ROOT / "examples/ivr/talkspurt.yaml"
    async with server(Recording(folder / "server"), config) as address:
        caller = Recording(folder / "caller")
        url = f"ws://{address}/media/twilio"
        (caller.work / "steps.yaml").write_text(
            f"[dtmf: '1', expect: {{speech_s: {PATIENT_MS / 1000}}}, hang_up: true]"
        )
        await caller.run(*TALKSPURT, "call", url, "--script", "steps.yaml", "-o", "heard.wav")
    assert_quiet(caller)


HEARING = "from gateway.recognition.moonshine import Moonshine\nMoonshine()"
NARROW = str(ROOT / "tests/tts_engine/embedded/onnx/test_narrow.py")
SPEAKING = "from hibari import Hibari\nfrom tts_engine.embedded.hibari import *\nHibari()"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((*TALKSPURT, "say", "Hello there.", "-o", "speech.wav"), id="say"),
        pytest.param((*TALKSPURT, "doctor"), id="doctor"),
        pytest.param((*TALKSPURT, "bench", "call", "--calls", "1", "--seconds", "2"), id="bench"),
        pytest.param((sys.executable, "-c", HEARING), id="program-that-hears"),
        pytest.param((sys.executable, "-c", SPEAKING), id="program-that-speaks"),
        pytest.param((sys.executable, "-m", "pytest", "-p", "no:cacheprovider", NARROW), id="pytest"),
    ],
)
async def test_a_program_that_ends(folder: Path, command: tuple[str, ...]) -> None:
    recording = Recording(folder)
    await recording.run(*command)
    assert_quiet(recording)


@pytest.mark.parametrize("name", ["llm_agent.py", "openai_agents.py", "langchain_agent.py"])
async def test_an_agent_of_the_examples(folder: Path, name: str) -> None:
    recording = Recording(folder)
    async with serving() as model:
        own = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": name, "PORT": "0"}
        async with recording.running(sys.executable, str(ROOT / "examples" / name), **own) as process:
            assert process.stdout is not None
            line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
            assert line, recording.errors()
            async with aiohttp.ClientSession() as http, http.ws_connect(line.split()[-1]) as call:
                await call.send_json({"type": "setup", "sessionId": "1"})
                prompt = {"type": "prompt", "voicePrompt": "Where is my order?", "last": True, "sessionId": "1"}
                await call.send_json(prompt)
                said = ""
                async with asyncio.timeout(PATIENCE_S):
                    while not (message := await call.receive_json())["last"]:
                        said += message["token"]
                assert "Friday" in said, recording.errors()
    assert_quiet(recording)


async def test_the_site_of_the_examples(folder: Path) -> None:
    recording, port = Recording(folder), free_port()

    async def token(request: web.Request) -> web.Response:
        return web.json_response({"token": "one"})

    app = web.Application()
    app.router.add_post("/v1/tokens", token)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    own = {"TALKSPURT": f"http://127.0.0.1:{runner.addresses[0][1]}", "PORT": str(port)}
    try:
        async with recording.running(sys.executable, str(ROOT / "examples/browser_widget.py"), **own):

            async def visited() -> bool:
                try:
                    async with aiohttp.ClientSession() as http, http.post(f"http://127.0.0.1:{port}/token") as answer:
                        return (await answer.json())["token"] == "one"
                except aiohttp.ClientError:
                    return False

            await until(visited, "the site")
    finally:
        await runner.cleanup()
    assert_quiet(recording)


# -- the recorder itself -----------------------------------------------------------------------------------------------

BAD = """
import os, socket, subprocess, sys, threading
def child():
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect_ex(("2001:db8::1", 443))
    open(os.path.expanduser("~/id"), "w")
if len(sys.argv) > 1:
    thread = threading.Thread(target=child); thread.start(); thread.join()
else:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9))
    open("fine", "w")
    subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
"""


async def test_the_recorder_names_process_and_target(folder: Path) -> None:
    """A UDP socket that is connected sends nothing: the address is one for documentation (RFC 3849)."""
    recording = Recording(folder)
    (recording.work / "bad.py").write_text(BAD)
    await recording.run(sys.executable, "bad.py")
    assert recording.findings() == [
        f"{sys.executable} bad.py child: reaches out to 2001:db8::1, port 443",
        f"{sys.executable} bad.py child: writes {folder}/home/id",
    ]


def test_the_recorder_reads_questions_to_name_servers(folder: Path) -> None:
    question = r"\315y\1\0\0\1\0\0\0\0\0\0\4mail\7example\3org\0\0\1\0\1"
    trace = f"""
7 execve("/bin/it", ["it", "-x"], 0x7ffd /* 9 vars */) = 0
7 clone3({{flags=CLONE_VM}} => {{parent_tid=[8]}}, 88 <unfinished ...>
8 connect(3<socket:[1]>, {{sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.53")}}, 16) = 0
8 sendmmsg(3<socket:[1]>, [{{msg_hdr={{msg_name=NULL, msg_iov=[{{iov_base="{question}", iov_len=34}}]}}}}], 1, 0) = 1
7 <... clone3 resumed>) = 8
7 connect(4<socket:[2]>, {{sa_family=AF_UNIX, sun_path="/run/systemd/resolve/io.systemd.Resolve"}}, 42) = 0
7 openat(AT_FDCWD</srv>, "session.db", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = -1 EROFS (Read-only file system)
7 renameat(AT_FDCWD</srv>, "a", AT_FDCWD</srv>, "b") = 0
7 openat(AT_FDCWD</srv>, "other.db", O_RDONLY) = 3
"""
    assert findings(trace, folder) == [
        "it -x: looks names up at 127.0.0.53, port 53",
        "it -x: asks 127.0.0.53 for mail.example.org",
        "it -x: looks names up by /run/systemd/resolve/",
        "it -x: writes /srv/session.db",
        "it -x: writes /srv/b",
    ]
