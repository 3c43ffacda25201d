"""A model on trial in several processes: real sockets between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.cluster import trial_sharing
from gateway.model_trial import ModelTrials, TrialTerms
from gateway.seams.leg import CallInfo
from tests.waiting import until

CALL = CallInfo(call_id="VX1", route="r", transport="t")
TERMS = TrialTerms(model="next", percent=100.0, key="from", values=frozenset({"vip"}), max_error_ratio=0.1)


@asynccontextmanager
async def leading(trials: ModelTrials, socket: Path) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([trial_sharing.route(trials)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    yield
    await runner.cleanup()


async def test_errors_of_all_processes_count_together_and_end_the_trial_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_sharing, "EVERY_S", 0.005)
    socket = tmp_path / "first.sock"
    first, *others = ModelTrials(), ModelTrials(leads=False), ModelTrials(leads=False)
    following = [asyncio.create_task(trial_sharing.follow(trials, socket)) for trials in others]
    try:
        async with leading(first, socket):
            first.begin(TERMS)
            await until(lambda: all(trials.current for trials in others), "the trial everywhere")
            assert [trials.latest.terms for trials in others if trials.latest] == [TERMS, TERMS]
            begun = [trials.of_call(CALL) for trials in (first, *others)]
            for trials, trial in zip((first, *others), begun, strict=True):
                for _ in range(10):
                    assert trials.model_of_turn(trial) == "next"
                trials.error("next")
            assert first.latest is not None
            await until(lambda: first.latest is not None and first.latest.turns == 30, "the counts of all")
            assert (first.latest.calls, first.latest.error_ratio, first.latest.ended) == (3, 0.1, "")
            others[1].error("next")
            await until(lambda: not any(trials.current for trials in (first, *others)), "the end everywhere")
            assert [trials.latest.ended for trials in (first, *others) if trials.latest] == ["errors"] * 3
            assert [trials.model_of_turn(trial) for trials, trial in zip(others, begun[1:], strict=True)] == ["", ""]
            first.begin(TERMS)
            await until(lambda: all(trials.current for trials in others), "the next trial everywhere")
            assert first.current is not None and first.current.turns == 0
            held = others[0].of_call(CALL)
        assert others[0].model_of_turn(held) == "next", "the trial continues without a leader"
        again = ModelTrials()
        async with leading(again, socket):  # it has been started anew
            await until(lambda: not any(trials.current for trials in others), "no trial")
            assert others[0].model_of_turn(held) == ""
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
