"""Background tasks of ``serve``: none ends in silence."""

import asyncio
import logging

import pytest

from talkspurt.serving import kept
from tests.waiting import until


@pytest.mark.parametrize("fault", [RuntimeError("a bug"), ExceptionGroup("many", [OSError(24, "no files")])])
async def test_a_background_task_that_fails_is_logged_and_starts_again(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 4:
            raise fault
        await asyncio.Event().wait()

    task = asyncio.create_task(kept("keys", work, pause_s=0.001))
    await until(lambda: begun == 4, "the fourth start")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    failures = [record for record in caplog.records if record.getMessage() == "background task failed"]
    assert [(vars(record)["task"], vars(record)["next_try_s"]) for record in failures] == [
        ("keys", 0.001), ("keys", 0.002), ("keys", 0.004)
    ]  # fmt: skip


async def test_a_background_task_that_is_cancelled_from_within_starts_again() -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    task = asyncio.create_task(kept("keys", work, pause_s=0.001))
    await until(lambda: begun == 2, "the second start")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_background_task_with_nothing_to_do_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        pass

    with caplog.at_level(logging.DEBUG, "talkspurt.serving"):
        await kept("keys", work)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
