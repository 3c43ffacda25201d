"""Clauses with sound in hand wait while others have none."""

from __future__ import annotations

import asyncio

import pytest

from tts_engine.cosyvoice.token2wav.giving_way import GivingWay

pytestmark = pytest.mark.virtual_time


class Clauses:
    """Clauses that give way, each with some seconds to spare, and the names of those that no longer wait."""

    def __init__(self) -> None:
        self.somebody_waits = True
        self.gone: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._now = asyncio.get_running_loop().time
        self._giving_way = GivingWay(lambda: self.somebody_waits, clock=self._now)

    def give_way(self, name: str, spare_s: float) -> None:
        self.tasks[name] = asyncio.create_task(self._run(name, self._now() + spare_s))

    async def _run(self, name: str, until: float) -> None:
        await self._giving_way.wait(lambda now: until - now)
        self.gone.append(name)


async def test_a_clause_with_sound_to_spare_waits_for_the_first_sounds_of_others() -> None:
    clauses = Clauses()
    clauses.give_way("rich", 10.0)
    clauses.give_way("poor", 0.0)
    await asyncio.sleep(1)
    assert clauses.gone == ["poor"]
    clauses.somebody_waits = False
    await clauses.tasks["rich"]
    assert clauses.gone == ["poor", "rich"]


async def test_a_clause_whose_sound_runs_short_stops_waiting() -> None:
    clauses = Clauses()
    clauses.give_way("later", 5.0)
    clauses.give_way("soon", 0.2)
    await clauses.tasks["soon"]
    assert clauses.gone == ["soon"]


async def test_clauses_with_sound_to_spare_do_not_wake_one_another() -> None:
    clauses = Clauses()
    for name in ("a", "b", "c"):
        clauses.give_way(name, 10.0)
    await asyncio.sleep(1)
    assert not clauses.gone
    clauses.somebody_waits = False
    await asyncio.gather(*clauses.tasks.values())
