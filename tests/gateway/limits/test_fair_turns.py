"""Work of many tenants has its turn: one with much work does not delay the others' by all of it."""

import asyncio
import threading
from typing import Any

import pytest

from gateway.config import LimitsConfig
from gateway.dialogue import observers
from gateway.dialogue.observers import Observers, Subscription
from gateway.errors import Rejected
from gateway.limits.fair_turns import FairPool, FairTurns


async def test_work_takes_turns_by_tenant_and_then_by_call() -> None:
    pool, order, held = FairPool(1, "test"), [], threading.Event()
    first = asyncio.ensure_future(pool.run(("a", "1"), held.wait))
    await asyncio.sleep(0)
    asked = [("a", "1"), ("a", "1"), ("a", "1"), ("a", "2"), ("b", "3"), ("b", "3"), ("c", "4")]
    waiting = [asyncio.ensure_future(pool.run(whose, lambda whose=whose: order.append(whose[1]))) for whose in asked]
    await asyncio.sleep(0)
    waiting[1].cancel()
    held.set()
    await asyncio.gather(first, *waiting, return_exceptions=True)
    assert order == ["1", "3", "4", "2", "3", "1"]
    pool.close()


async def test_the_error_of_a_piece_is_its_callers_and_the_thread_works_on() -> None:
    pool = FairPool(1, "test")
    with pytest.raises(ZeroDivisionError):
        await pool.run(("a", "1"), lambda: 1 // 0)
    assert await pool.run(("a", "1"), lambda: 7) == 7
    pool.close()


async def test_a_piece_that_runs_keeps_its_thread_when_its_caller_is_gone() -> None:
    pool, order, held = FairPool(1, "test"), [], threading.Event()
    gone = asyncio.ensure_future(pool.run(("a", "1"), held.wait))
    await asyncio.sleep(0)
    after = asyncio.ensure_future(pool.run(("b", "2"), lambda: order.append("b")))
    gone.cancel()
    await asyncio.wait({gone})
    assert not after.done()
    held.set()
    await after
    assert order == ["b"]
    pool.close()


async def worked(turns: FairTurns, tenant: str, order: list[str]) -> None:
    async with turns.place((tenant, "")):
        order.append(tenant)
        await asyncio.sleep(0)


async def test_one_of_another_tenant_is_next_however_many_wait() -> None:
    turns, order = FairTurns(1), list[str]()
    work = [asyncio.ensure_future(worked(turns, "a", order)) for _ in range(50)]
    await asyncio.sleep(0)
    work += [asyncio.ensure_future(worked(turns, tenant, order)) for tenant in ("b", "c")]
    await asyncio.gather(*work)
    assert max(order.index("b"), order.index("c")) <= 5 and len(order) == 52


async def test_a_tenant_has_no_more_places_than_one_may_and_all_come_back() -> None:
    turns, order = FairTurns(4, of_one=3), list[str]()
    for _ in range(3):
        await turns.take(("a", ""))
    waiting = asyncio.ensure_future(worked(turns, "a", order))
    await worked(turns, "b", order)
    assert order == ["b"] and not waiting.done()
    cancelled = asyncio.ensure_future(turns.take(("a", "")))
    await asyncio.sleep(0)
    cancelled.cancel()
    turns.give_back(("a", ""))
    await waiting
    turns.give_back(("a", ""))
    turns.give_back(("a", ""))
    await asyncio.gather(*(worked(turns, "c", order) for _ in range(9)))
    assert order == ["b", "a", *"c" * 9] and turns._free == 4 and not turns._taken


@pytest.mark.parametrize("late", [False, True])
async def test_a_turn_of_a_caller_that_is_gone_is_the_next_ones(late: bool) -> None:
    turns = FairTurns(1)
    await turns.take(("a", ""))
    gone, following = (asyncio.ensure_future(turns.take((tenant, ""))) for tenant in "bc")
    await asyncio.sleep(0)
    if late:  # its turn has come, and it has not noticed
        turns.give_back(("a", ""))
        gone.cancel()
    else:
        gone.cancel()
        await asyncio.sleep(0)
        turns.give_back(("a", ""))
    await following
    assert gone.cancelled() or gone.done()


async def ended(subscription: Subscription) -> bool:
    return [text async for text in subscription] == []


async def test_a_tenant_that_follows_events_often_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "SUBSCRIBERS", 10)
    made: Any = Observers(limits=LimitsConfig())
    many = [made.subscribe(tenant="a") for _ in range(10)]
    with pytest.raises(Rejected, match="10 subscribers"):
        made.subscribe(tenant="a")
    others = [made.subscribe(tenant=tenant) for tenant in ("b", "c", "b", "c", "b")]
    assert all([await ended(each) for each in many[:5]])
    assert len(made._subscriptions) == 10
    made.subscribe(tenant="c")  # five, three and two become four, three and three
    with pytest.raises(Rejected):
        made.subscribe(tenant="b")  # it would only move a place
    assert len(made._subscriptions) == 10
    assert not any(each._over for each in [*many[6:], *others])
