"""When clauses give way, and when they go on."""

from __future__ import annotations

import asyncio

import pytest

from tts_engine.cosyvoice.token2wav.giving_way import GivingWay

pytestmark = pytest.mark.virtual_time


class Clauses:
    """Clauses that give way, each with some seconds to spare, and who has gone on."""

    def __init__(self, together: int) -> None:
        self.somebody_waits = True
        self.gone: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._now = asyncio.get_running_loop().time
        self._giving_way = GivingWay(lambda: self.somebody_waits, together=together, clock=self._now)

    def give_way(self, name: str, spare_s: float) -> None:
        self.tasks[name] = asyncio.create_task(self._run(name, self._now() + spare_s))

    async def _run(self, name: str, until: float) -> None:
        await self._giving_way.wait(lambda now: until - now)
        self.gone.append(name)


async def test_who_has_sound_to_spare_waits_for_first_sounds_of_others() -> None:
    clauses = Clauses(together=4)
    clauses.give_way("rich", 10.0)
    clauses.give_way("poor", 0.0)
    await asyncio.sleep(1)
    assert clauses.gone == ["poor"]
    clauses.somebody_waits = False
    await clauses.tasks["rich"]
    assert clauses.gone == ["poor", "rich"]


async def test_whose_sound_runs_short_goes_on_alone() -> None:
    clauses = Clauses(together=4)
    clauses.give_way("later", 5.0)
    clauses.give_way("soon", 0.2)
    await clauses.tasks["soon"]
    assert clauses.gone == ["soon"]


async def test_as_many_as_fill_a_batch_go_on_together() -> None:
    clauses = Clauses(together=3)
    for name in ("a", "b"):
        clauses.give_way(name, 10.0)
    await asyncio.sleep(1)
    assert not clauses.gone
    clauses.give_way("c", 10.0)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*clauses.tasks.values())
    assert asyncio.get_running_loop().time() == began, "at once"
    assert sorted(clauses.gone) == ["a", "b", "c"]
    clauses.give_way("d", 10.0)
    await asyncio.sleep(1)
    assert clauses.gone[3:] == [], "the next ones gather anew"


async def test_by_default_nobody_gathers() -> None:
    clauses = Clauses(together=0)
    for name in ("a", "b", "c"):
        clauses.give_way(name, 10.0)
    await asyncio.sleep(1)
    assert not clauses.gone


async def test_who_gives_up_counts_no_more() -> None:
    clauses = Clauses(together=2)
    clauses.give_way("gone", 10.0)
    await asyncio.sleep(0)
    clauses.tasks["gone"].cancel()
    await asyncio.wait([clauses.tasks["gone"]])
    clauses.give_way("left", 10.0)
    await asyncio.sleep(1)
    assert not clauses.gone
