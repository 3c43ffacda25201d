"""The engine as a real child process: start, crash, restart, hang, drain, and no orphan."""

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from talkspurt.engines import engine_process
from tests.peers.ports import free_port
from tests.tts_engine.service.scripted import chunk_of
from tests.waiting import PATIENCE_S, until
from tts_engine.api import UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import Unavailable
from tts_engine.service.client import GrpcEngine
from tts_engine.service.process import EngineProcess
from tts_engine.service.runner import NICE

CONFIG = EngineConfig(kind="tone", drain_s=60.0)


def running(child: EngineProcess) -> int:
    assert child.pid is not None
    return child.pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def child() -> AsyncIterator[EngineProcess]:
    process = EngineProcess("tests.tts_engine.service.scripted", CONFIG)
    await process.start()
    yield process
    await process.aclose()


@pytest.fixture
async def client(child: EngineProcess) -> AsyncIterator[GrpcEngine]:
    engine = GrpcEngine(child.target, CONFIG)
    yield engine
    await engine.aclose()


async def speak(engine: GrpcEngine, text: str) -> list:
    async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


async def test_a_crash_fails_the_live_utterance_and_the_next_one_is_spoken(
    child: EngineProcess, client: GrpcEngine
) -> None:
    first_pid = running(child)
    async with client.open(UtteranceRequest(utterance_id="live")) as utterance:
        utterance.feed("one hold")
        utterance.end_text()
        assert await anext(utterance) == chunk_of("one", 0)
        os.kill(first_pid, signal.SIGKILL)
        with pytest.raises(Unavailable):
            await anext(utterance)
    await until(lambda: child.restarts == 1 and child.ready)
    assert child.pid not in (None, first_pid)
    # The connection may still be in its back-off: 100 ms, against the child's start of several times that.
    assert await speak(client, "next one") == [chunk_of("next", 0), chunk_of("one", 1)]


@asynccontextmanager
async def stopped(hang_s: float) -> AsyncIterator[tuple[EngineProcess, int]]:
    """A child that has answered and does no more, and its process id."""
    timeouts = CONFIG.timeouts.model_copy(update={"hang_s": hang_s})
    child = EngineProcess("tests.tts_engine.service.scripted", CONFIG.model_copy(update={"timeouts": timeouts}))
    await child.start()
    try:
        pid = running(child)
        os.kill(pid, signal.SIGSTOP)
        yield child, pid
    finally:
        await child.aclose()


async def test_a_process_that_hangs_is_killed_and_replaced() -> None:
    async with stopped(hang_s=0.5) as (child, first_pid):
        await until(lambda: child.restarts >= 1 and child.ready)
        assert not alive(first_pid)


async def test_a_process_that_is_only_busy_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that loads a model is busy: for seconds it does not even take a connection."""
    async with stopped(hang_s=8.0) as (child, pid):
        asked, answers = asyncio.Event(), child.answers

        async def asking() -> bool:
            asked.set()
            return await answers()

        monkeypatch.setattr(child, "answers", asking)
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        await asyncio.sleep(1)  # the busy time: the parent waits, and nothing happens that could be an event
        os.kill(pid, signal.SIGCONT)
        assert await child.answers()
        assert child.pid == pid and child.restarts == 0


async def test_it_runs_at_lower_priority_in_a_private_folder(child: EngineProcess) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, running(child)) == min(19, ours + NICE)
    group = Path(f"/proc/{child.pid}/autogroup")
    if group.exists():
        assert group.read_text().split()[-1] == str(min(19, ours + NICE)), (
            "a session of its own has an autogroup of its own"
        )
    folder = Path(child.target.removeprefix("unix:")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_closing_lets_the_live_utterance_finish_and_leaves_nothing(
    child: EngineProcess, client: GrpcEngine
) -> None:
    utterance = client.open(UtteranceRequest(utterance_id="live"))
    utterance.feed("one two ")
    assert await anext(utterance) == chunk_of("one", 0)
    pid, folder = running(child), Path(child.target.removeprefix("unix:")).parent
    closing = asyncio.create_task(child.aclose())
    await until(lambda: not child.ready)
    await asyncio.sleep(0)
    utterance.feed("three")
    utterance.end_text()
    assert [chunk async for chunk in utterance] == [chunk_of("two", 1), chunk_of("three", 2)]
    await closing
    assert not alive(pid) and not folder.exists()
    assert child.restarts == 0
    await child.aclose()  # idempotent


async def test_an_engine_that_broke_for_good_is_started_anew(child: EngineProcess, client: GrpcEngine) -> None:
    pid = child.pid
    utterance = client.open(UtteranceRequest(utterance_id="live"))
    utterance.feed("ruin hold ")
    with pytest.raises(Unavailable):
        assert [chunk async for chunk in utterance] == [chunk_of("ruin", 0)]
    await until(lambda: child.restarts == 1 and child.ready)
    assert child.pid != pid
    assert await speak(client, "again") == [chunk_of("again", 0)]


async def test_a_child_that_cannot_start_is_one_clear_error(capfd: pytest.CaptureFixture[str]) -> None:
    child = engine_process(CONFIG.model_copy(update={"kind": "cosyvoice3"}))
    with pytest.raises(Unavailable, match="ended with code 1"):
        await child.start()
    assert "cosyvoice3 needs engine.model_folder" in capfd.readouterr().err
    assert not Path(child.target.removeprefix("unix:")).parent.exists()


async def test_a_child_that_closes_its_port_before_it_ends_was_not_warm() -> None:
    child = EngineProcess("tests.peers.server.slow_to_end", CONFIG)
    with pytest.raises(Unavailable, match="ended with code 1"):
        await child.start()


async def test_a_child_that_does_not_get_warm_is_given_up() -> None:
    config = CONFIG.model_copy(update={"timeouts": CONFIG.timeouts.model_copy(update={"start_s": 0.05})})
    child = EngineProcess("tests.tts_engine.service.scripted", config)
    with pytest.raises(Unavailable, match="not warm within"):
        await child.start()
    assert child.pid is None


async def test_no_orphan_outlives_a_killed_gateway(tmp_path: Path) -> None:
    gateway = tmp_path / "gateway.py"
    gateway.write_text(
        "import asyncio\n"
        "from tts_engine.config import EngineConfig\n"
        "from tts_engine.service.process import EngineProcess\n"
        "async def main():\n"
        "    child = EngineProcess('tests.tts_engine.service.scripted', EngineConfig(kind='tone'))\n"
        "    await child.start()\n"
        "    print(child.pid, child.target, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, str(gateway)]
    parent = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True, env=env)
    with parent:
        line = await asyncio.to_thread(parent.stdout.readline)
        pid = int(line.split()[0])
        assert alive(pid)
        parent.kill()
    await until(lambda: not alive(pid))


async def test_the_wired_engine_speaks_through_its_own_process() -> None:
    """``talkspurt.engines`` with the tone engine: what the gateway starts."""
    port = free_port()
    child = engine_process(CONFIG.model_copy(update={"metrics_port": port}))
    await child.start()
    client = GrpcEngine(child.target, CONFIG)
    text = "Hello there, how are you today?"
    chunks = await speak(client, text)
    assert {len(frame) for chunk in chunks for frame in chunk.frames} == {160}
    assert sum(len(chunk.frames) for chunk in chunks) * 160 == sum(chunk.samples for chunk in chunks)
    spans = [span for chunk in chunks for span in chunk.spans]
    assert [text[span.start_char : span.end_char].strip(",?") for span in spans] == text.replace(",", "")[:-1].split()
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics") as answer:
        scraped = answer.read().decode()
    shown = (await client.metrics()).decode()
    for exposition in (scraped, shown):
        assert 'talkspurt_engine_first_chunk_seconds_count{engine="tone"} 1.0' in exposition
        assert "cv_audio_first_byte_seconds_count 1.0" in exposition
        assert 'talkspurt_text_cache_requests_total{outcome="miss"}' in exposition
    assert (await client.status()).engine == "tone"
    await client.aclose()
    await child.aclose()


async def test_a_turn_whose_engine_is_killed_is_spoken_to_its_end_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tts_engine.service.process.RESTART_BACKOFF_S", 60.0)
    config = EngineConfig()
    text = "One moment please, the whole of this sentence is still to be heard. And so is this one. And the last."
    async with AsyncExitStack() as stack:
        children = [engine_process(config) for _ in range(2)]
        for child in children:
            stack.push_async_callback(child.aclose)
            await child.start()
        engine = GrpcEngine([child.target for child in children], config)
        stack.push_async_callback(engine.aclose)
        utterance = engine.open(UtteranceRequest(utterance_id="u"))
        stack.push_async_callback(utterance.aclose)
        known = text.index(" And so")
        utterance.feed(text[:known])
        chunks = [await anext(utterance)]
        (busy,) = (number for number, backend in enumerate(engine._backends) if backend.active)
        os.kill(running(children[busy]), signal.SIGKILL)
        utterance.feed(text[known:])  # so the engine cannot have made all of it, however late we come
        utterance.end_text()
        chunks += [chunk async for chunk in utterance]

        ends = [chunk.first_sample + chunk.samples for chunk in chunks]
        assert [chunk.first_sample for chunk in chunks] == [0, *ends[:-1]], "no hole"
        spans = [span for chunk in chunks for span in chunk.spans]
        words = [(span.start_char, span.end_char) for span in spans]
        # A word of which only the beginning was made is said again.
        again = sum(one == other for one, other in pairwise(words))
        assert again <= 1
        assert [text[start:end].strip(" ,.") for start, end in dict.fromkeys(words)] == re.findall(r"\w+", text)
        assert engine.moves == 1

        # The dead engine gets no new turn.
        assert await speak(engine, "Hello.")
        assert engine.moves == 1
