"""Limits of tenants in one process, and what a Redis that cannot be reached means, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.config import LimitsConfig
from gateway.errors import Rejected
from gateway.limits.limiter import PAUSE_S, RENEW_S, Limiter, LimitReached
from gateway.limits.quota import QuotaRequest, QuotaVerdict

NOWHERE = "redis://127.0.0.1:1/0"  # tcpmux: no listener


def limiter(**fields: Any) -> Limiter:
    config = LimitsConfig.model_validate({"tenant": {"requests_per_minute": 3}, **fields})
    return Limiter(config, clock=asyncio.get_running_loop().time)


class Gone:
    """Redis for as long as it is there."""

    def __init__(self) -> None:
        self.there = False
        self.asked = 0
        self.renewed: list[str] = []

    async def decide(self, asks: list[QuotaRequest]) -> QuotaVerdict:
        self.asked += 1
        if not self.there:
            raise ConnectionRefusedError
        return QuotaVerdict(standings=())

    async def renew(self, asks: list[QuotaRequest]) -> None:
        if not self.there:
            raise ConnectionRefusedError
        self.renewed += [ask.holder for ask in asks]

    async def release(self, ask: QuotaRequest) -> None:
        if not self.there:
            raise ConnectionRefusedError

    async def aclose(self) -> None:
        pass


async def taken(limits: Limiter, times: int, tenant: str = "shop") -> int:
    """Return the number of requests, of ``times``, that are let in."""
    done = 0
    for _ in range(times):
        try:
            await limits.take(tenant, requests=1)
            done += 1
        except LimitReached:
            pass
    return done


@pytest.mark.virtual_time
async def test_requests_slide_out_of_the_window_one_by_one() -> None:
    limits = limiter()
    for _ in range(3):
        assert await taken(limits, 1) == 1
        await asyncio.sleep(10)
    with pytest.raises(LimitReached, match="3 requests a minute are allowed to this tenant") as refused:
        await limits.take("shop", requests=1)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 30.0)
    await asyncio.sleep(30)
    assert await taken(limits, 2) == 1
    assert await taken(limits, 5, "bank") == 3


@pytest.mark.virtual_time
async def test_a_tenant_of_its_own_has_its_own_limits_and_others_none() -> None:
    limits = limiter(tenant={}, tenants={"shop": {"characters_per_minute": 100, "calls_at_once": 1}})
    assert await taken(limits, 50) == 50 and await taken(limits, 50, "bank") == 50
    (standing,) = await limits.take("shop", requests=1, characters=60)
    assert (standing.what, standing.left) == ("characters", 40)
    with pytest.raises(LimitReached, match="100 characters a minute"):
        await limits.take("shop", characters=41)
    with pytest.raises(Rejected, match="101 characters, expected at most 100") as refused:
        await limits.take("shop", characters=101)
    assert refused.value.status == 413
    async with limits.held("shop", "calls", "c1"):
        with pytest.raises(LimitReached, match="1 calls at a time"):
            limits.check_room("shop", "calls")
        limits.check_room("bank", "calls")
    limits.check_room("shop", "calls")


@pytest.mark.virtual_time
async def test_streams_at_once_are_given_back_however_they_end() -> None:
    limits = limiter(tenant={"streams_at_once": 2})
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(limits.held("shop", "streams"))
        with pytest.raises(LimitReached) as refused:
            await stack.enter_async_context(limits.held("shop", "streams"))
        assert refused.value.code == "too_many_streams"
    with pytest.raises(ZeroDivisionError):
        async with limits.held("shop", "streams"):
            raise ZeroDivisionError
    async with limits.held("shop", "streams"), limits.held("shop", "streams"):
        pass


@pytest.mark.virtual_time
async def test_without_redis_each_gateway_limits_by_its_own_counts() -> None:
    limits, redis = limiter(redis_url=NOWHERE), Gone()
    limits._shared = redis  # type: ignore[assignment]
    redis.there = True
    assert await taken(limits, 2) == 2
    redis.there = False
    assert await taken(limits, 5) == 1, "what Redis let in is forgotten"
    assert redis.asked == 3, "a lost Redis is asked for every request"
    await asyncio.sleep(PAUSE_S)
    assert await taken(limits, 1) == 0 and redis.asked == 4
    redis.there = True
    await asyncio.sleep(PAUSE_S)
    assert await taken(limits, 5) == 5, "this Redis refuses nothing"


@pytest.mark.virtual_time
async def test_without_redis_all_that_is_limited_is_refused_where_that_is_wanted() -> None:
    limits = limiter(redis_url=NOWHERE, redis_outage="refuse", tenant={}, tenants={"shop": {"requests_per_minute": 3}})
    limits._shared = Gone()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(Rejected) as refused:
            await limits.take("shop", requests=1)
        assert (refused.value.status, refused.value.code) == (503, "limits_unavailable")
    assert await limits.take("bank", requests=1) == ()


@pytest.mark.virtual_time
async def test_what_is_held_is_renewed_and_told_again_to_a_redis_that_comes_back() -> None:
    limits, redis = limiter(redis_url=NOWHERE, tenant={"calls_at_once": 5}), Gone()
    limits._shared, redis.there = redis, True  # type: ignore[assignment]
    watch = asyncio.create_task(limits.watch())
    async with limits.held("shop", "calls", "before"):
        await asyncio.sleep(1.5 * RENEW_S)
        assert redis.renewed == ["before"]
        redis.there = False
        async with limits.held("shop", "calls", "meanwhile"):
            redis.there = True
            await asyncio.sleep(PAUSE_S)
            async with limits.held("shop", "calls", "after"):
                assert sorted(redis.renewed) == ["before", "before", "meanwhile"]
    watch.cancel()


async def test_a_redis_that_is_not_there_is_lost_and_no_more() -> None:
    limits = limiter(redis_url=NOWHERE)
    assert await taken(limits, 5) == 3
    await limits.aclose()


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379", ""])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="redis://"):
        LimitsConfig.model_validate({"redis_url": url})
