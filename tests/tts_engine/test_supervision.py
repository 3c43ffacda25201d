"""The supervisor of tasks and threads: no end goes unseen, and what ended works again."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.waiting import PATIENCE_S, until
from tts_engine.supervision import FAILURES, LONGEST_PAUSE_S, WELL_S, Need, Supervisor


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


async def _raises() -> None:
    await asyncio.sleep(2)
    raise ValueError("a bug")


async def _returns() -> None:
    await asyncio.sleep(2)


async def _is_cancelled() -> None:
    await asyncio.sleep(2)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def _raises_a_cancellation() -> None:
    await asyncio.sleep(2)
    raise asyncio.CancelledError


ENDS = [_raises, _returns, _is_cancelled, _raises_a_cancellation]


async def test_work_that_fails_while_its_owner_ends_it_is_not_reported(supervisor: Supervisor) -> None:
    """Both happen in one turn of the loop."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    begun, is_over = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await is_over.wait()
        raise ValueError("its socket is closed")

    kept = supervisor.task("sockets", work)
    await begun.wait()
    is_over.set()
    await asyncio.sleep(0)  # the work fails, and its keeper has not run since
    await kept.aclose()
    del kept
    gc.collect()
    assert not reported and not supervisor.states()


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", ENDS)
async def test_a_task_that_ends_in_any_way_is_told_counted_and_started_again(
    end: Callable[[], Awaitable[None]], supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[float] = []

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        await end()

    kept = supervisor.task("keys", work)
    await asyncio.sleep(14)
    assert [later - earlier for earlier, later in zip(begun, begun[1:], strict=False)] == [3, 4, 6]  # 2 s, and a pause
    assert supervisor.restarts == {"keys": 3}
    assert [(record.message, vars(record)["task"]) for record in caplog.records] == [
        ("background task ended, restarting", "keys")
    ] * 3
    await kept.aclose()
    assert supervisor.states() == []
    await asyncio.sleep(100)
    assert len(begun) == 4


@pytest.mark.virtual_time
async def test_calls_are_refused_after_five_failures_in_a_row_until_a_run_lasts(supervisor: Supervisor) -> None:
    fails = True

    async def work() -> None:
        if fails:
            raise ValueError("a bug")
        await asyncio.Event().wait()

    kept = supervisor.task("engine link", work, need=Need.CALLS)
    other = supervisor.task("voices", work)
    await asyncio.sleep(1 + 2 + 4)
    assert supervisor.why_not_ready() == ""
    await asyncio.sleep(8.1)  # the fifth
    assert supervisor.why_not_ready() == "engine link"
    assert {state.name: state.failures_in_a_row for state in supervisor.states()} == dict.fromkeys(
        ("engine link", "voices"), FAILURES
    )
    fails = False
    await asyncio.sleep(16 + WELL_S)
    assert supervisor.why_not_ready() == ""
    assert all(state.running and not state.failing for state in supervisor.states())
    for each in (kept, other):
        await each.aclose()


@pytest.mark.virtual_time
async def test_the_pause_has_a_bound(supervisor: Supervisor) -> None:
    begun: list[float] = []

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        raise ValueError("a bug")

    kept = supervisor.task("keys", work)
    await asyncio.sleep(1000)
    assert begun[-1] - begun[-2] == LONGEST_PAUSE_S
    await kept.aclose()


@pytest.mark.virtual_time
async def test_a_task_without_work_is_over_and_its_owner_may_close_it(supervisor: Supervisor) -> None:
    async def work() -> None:
        return None

    kept = supervisor.task("keys", work)
    await asyncio.sleep(5)
    assert supervisor.states() == [] and not supervisor.restarts
    await kept.aclose()


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", ENDS)
async def test_the_end_of_what_the_process_needs_ends_it(
    end: Callable[[], Awaitable[None]], supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    supervisor.on_fatal = ended.append
    supervisor.task("listener", end, need=Need.PROCESS)
    await asyncio.sleep(100)
    assert ended == ["listener"]
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]


@pytest.fixture
async def threads() -> AsyncIterator[list[threading.Thread]]:
    made: list[threading.Thread] = []
    yield made
    for thread in made:
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(1), KeyboardInterrupt()])
async def test_a_thread_that_ends_by_any_error_works_on(
    error: BaseException, supervisor: Supervisor, threads: list[threading.Thread]
) -> None:
    stop, begun = threading.Event(), 0

    def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise error
        stop.wait(PATIENCE_S)

    kept = supervisor.thread("call log", work, pause_s=0.001)
    threads.append(kept.thread)
    await until(lambda: begun == 3, "the third run")
    (state,) = supervisor.states()
    assert (state.name, state.running, state.restarts) == ("call log", True, 2)
    stop.set()
    assert await asyncio.to_thread(kept.join, PATIENCE_S)
    assert supervisor.states() == []


async def test_a_thread_that_its_owner_ends_is_not_started_again(supervisor: Supervisor) -> None:
    begun: list[int] = []
    kept = supervisor.thread("call log", lambda: begun.append(1))
    assert await asyncio.to_thread(kept.join, PATIENCE_S)
    assert begun == [1] and supervisor.states() == [] and not supervisor.restarts
