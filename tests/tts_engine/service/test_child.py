"""A child process and its supervisor, with real processes: the faults are the parent's own."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, stand_still, until
from tts_engine.config import EngineConfig
from tts_engine.errors import Unavailable
from tts_engine.service.child import ChildProcess, ChildTimes, die_with
from tts_engine.service.process import EngineProcess

TIMES = ChildTimes(start_s=PATIENCE_S, hang_s=0.4, end_s=PATIENCE_S, restart_backoff_s=0.01)


class Sleeper(ChildProcess):
    """A child that does nothing. What its parent asks of it fails as the test says."""

    def __init__(self, times: ChildTimes = TIMES) -> None:
        super().__init__("sleeper", __name__, times=times)
        self.fault: BaseException | None = None
        self.asked = 0

    def settings(self) -> str:
        return "{}"

    async def warm(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def answers(self) -> bool:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return True


@pytest.fixture
async def sleeper() -> AsyncIterator[Sleeper]:
    child = Sleeper()
    yield child
    await child.aclose()


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open no file: as after a thousand idle connections, ``open`` and ``fork``'s pipes fail."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def count(caplog: pytest.LogCaptureFixture, message: str) -> int:
    return sum(message in record.getMessage() for record in caplog.records)


async def test_a_health_check_without_files_of_our_own_ends_no_engine(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig.model_validate({"timeouts": {"hang_s": 1.0}})
    engine = EngineProcess("tests.tts_engine.service.scripted", config)
    verdicts: list[bool] = []
    hangs = engine._hangs

    async def noted() -> bool:
        verdicts.append(await hangs())
        return verdicts[-1]

    monkeypatch.setattr(engine, "_hangs", noted)
    try:
        await engine.start()
        pid = engine.pid
        with no_more_files():
            await until(lambda: count(caplog, "cannot be asked"), "a check that could not be made")
            seen = len(verdicts)
            await until(lambda: len(verdicts) > seen + 2 or any(verdicts), "more such checks")
            assert (engine.pid, engine.ready, any(verdicts)) == (pid, True, False)
        assert count(caplog, "cannot be asked") == 1
        assert pid is not None
        await stand_still(pid)
        await until(lambda: engine.restarts and engine.ready, "a new engine in place of one that hangs")
        assert engine.pid != pid
    finally:
        await engine.aclose()


async def test_a_check_that_runs_out_of_files_under_way_is_no_verdict(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's client reports such a failure as a missing answer."""
    rounds = 0

    async def answers() -> bool:
        nonlocal rounds
        rounds += 1
        if rounds > 2:
            return True
        with no_more_files():
            await asyncio.sleep(TIMES.hang_s / 4)
        return False

    monkeypatch.setattr(sleeper, "answers", answers)
    await sleeper.start()
    pid = sleeper.pid
    await until(lambda: rounds >= 3, "a question with files again")
    assert (sleeper.pid, sleeper.ready) == (pid, True)


async def test_a_child_that_ends_while_no_file_can_be_opened_is_started_once_one_can(
    sleeper: Sleeper, caplog: pytest.LogCaptureFixture
) -> None:
    await sleeper.start()
    pid = sleeper.pid
    assert pid is not None
    with no_more_files():
        os.kill(pid, signal.SIGKILL)
        await until(lambda: count(caplog, "did not start") >= 3, "attempts to start it")
    await until(lambda: sleeper.ready, "a new child")
    assert sleeper.pid not in (None, pid)


@pytest.mark.parametrize("fault", [RuntimeError("a bug"), OSError(24, "too many open files"), asyncio.CancelledError()])
async def test_an_error_while_the_child_is_asked_ends_neither_it_nor_its_supervisor(
    sleeper: Sleeper, fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    await sleeper.start()
    pid = sleeper.pid
    sleeper.fault = fault
    await until(lambda: sleeper.asked >= 3, "three questions")
    assert (sleeper.pid, sleeper.ready) == (pid, True)
    assert count(caplog, "cannot be asked") == 1
    sleeper.fault = None
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: sleeper.ready and sleeper.pid != pid, "a new child")


async def test_a_child_whose_start_fails_in_an_unforeseen_way_is_started_again(
    sleeper: Sleeper, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper.fault = RuntimeError("a bug")
    sleeper.begin()
    await until(lambda: count(caplog, "could not be watched") >= 2, "two attempts")
    assert not sleeper.ready
    sleeper.fault = None
    await until(lambda: sleeper.ready, "the child")


async def test_a_process_that_cannot_be_made_is_unavailable_and_tried_again(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = asyncio.create_subprocess_exec, [BlockingIOError(11, "fork"), MemoryError()]

    async def create(*args: str, **more: object) -> object:
        if failures:
            raise failures.pop(0)
        return await real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    sleeper.begin()
    await until(lambda: sleeper.ready, "the child")
    assert (count(caplog, "did not start"), count(caplog, "could not be watched")) == (1, 1)


async def test_a_first_start_without_files_says_so() -> None:
    child = Sleeper()
    with no_more_files(), pytest.raises(Unavailable, match="can open no more files"):
        await child.start()
    await child.aclose()


async def test_a_supervisor_that_ends_is_started_again(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ended = sleeper._supervise, 0

    async def supervise() -> None:
        nonlocal ended
        ended += 1
        if ended == 1:
            raise SystemError("the interpreter")
        await real()

    monkeypatch.setattr(sleeper, "_supervise", supervise)
    sleeper.begin()
    await until(lambda: sleeper.ready, "the child")
    assert ended == 2


class EndsBeforeItServes(Sleeper):
    """A child whose first processes end as the test says, before they serve."""

    def __init__(self, deaths: int, number: int = signal.SIGKILL) -> None:
        super().__init__()
        self.deaths, self.number = deaths, number
        self.started: list[int] = []

    async def warm(self) -> None:
        assert self.pid is not None
        self.started.append(self.pid)
        if len(self.started) > self.deaths:
            return
        await until((self.folder / "up").exists, "a process that takes signals as it wants")
        (self.folder / "up").unlink()
        os.kill(self.pid, self.number)
        await asyncio.Event().wait()


async def test_a_first_process_that_a_signal_ends_before_it_serves_is_followed_by_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = EndsBeforeItServes(2)
    try:
        await child.start()
        assert child.ready and child.pid == child.started[2]
        assert count(caplog, "did not start") == 2
    finally:
        await child.aclose()


async def test_of_first_processes_that_signals_end_there_are_three() -> None:
    child = EndsBeforeItServes(9)
    with pytest.raises(Unavailable, match="sleeper process ended with code -9"):
        await child.start()
    assert len(child.started) == 3


async def test_a_first_process_that_ends_by_itself_is_the_only_one() -> None:
    child = EndsBeforeItServes(9, signal.SIGTERM)
    with pytest.raises(Unavailable, match="sleeper process ended with code 3"):
        await child.start()
    assert len(child.started) == 1


async def test_a_child_that_is_not_needed_now_comes_up_later() -> None:
    async def is_needed() -> bool:
        return False

    child = EndsBeforeItServes(4)
    try:
        await child.start(is_needed=is_needed)
        assert not child.ready
        await until(lambda: child.ready, "the child")
        assert child.pid == child.started[4]
    finally:
        await child.aclose()


if __name__ == "__main__":
    _file, parent_pid = sys.argv[1:]
    die_with(int(parent_pid))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    Path(_file).with_name("up").touch()
    signal.pause()
