"""Limits that two gateways share, counted by a real Redis on a Unix socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.config import LimitsConfig
from gateway.limits.limiter import Limiter, LimitReached
from gateway.limits.quota import WINDOW_S, LocalQuotas, QuotaRequest
from gateway.limits.shared import LEASE_S, SharedQuotas, _key
from tests.peers.programs import needs_redis
from tests.peers.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

pytestmark = needs_redis


@dataclass
class Server(RedisServer):
    """And the gateways that use it."""

    opened: list[SharedQuotas] = field(default_factory=list)

    def quotas(self) -> SharedQuotas:
        """The connection of one more gateway, which waits as long as a starved machine needs."""
        self.opened.append(SharedQuotas(self.url, timeout_s=PATIENCE_S))
        return self.opened[-1]

    def limiter(self, **fields: Any) -> Limiter:
        """One more gateway."""
        fields = {"redis_url": self.url, "redis_timeout_s": PATIENCE_S, **fields}
        return Limiter(LimitsConfig.model_validate(fields))

    async def grow_older(self, ask: QuotaRequest, seconds: float) -> None:
        """Let a window or a lease believe that so much time has passed."""
        redis = self.opened[0]._redis
        for member, score in await redis.zrange(_key(ask), 0, -1, withscores=True):
            await redis.zadd(_key(ask), {member: score - seconds * 1000})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    await made.start()
    try:
        yield made
    finally:
        for quotas in made.opened:
            await quotas.aclose()
        await made.stop()


async def test_two_gateways_let_in_exactly_one_limit_between_them(server: Server) -> None:
    gateways = [server.limiter(tenant={"requests_per_minute": 200, "characters_per_minute": 5000}) for _ in range(2)]
    let_in = 0

    async def client(number: int) -> None:
        nonlocal let_in
        chance = random.Random(number)
        for _ in range(20):
            try:
                await chance.choice(gateways).take("shop", requests=1, characters=10)
                let_in += 1
            except LimitReached as exc:
                assert exc.code == "rate_limited" and 0 < exc.retry_after_s <= WINDOW_S
                assert [each.left for each in exc.standings] == [0, 3000]

    await asyncio.gather(*(client(number) for number in range(20)))
    assert let_in == 200
    for gateway in gateways:
        await gateway.aclose()


async def test_redis_decides_as_one_process_does(server: Server) -> None:
    """The script against the counts of one process, over random asks while time passes."""
    chance, shared, local, now = random.Random(7), server.quotas(), LocalQuotas(), 1000.0
    ask = QuotaRequest(tenant="a}{b c", what="characters", limit=300)
    for _ in range(300):
        if chance.random() < 0.2:
            passed = chance.choice((35.0, 45.0))  # far from a minute, whatever passes meanwhile in truth
            await server.grow_older(ask, passed)
            now += passed
        wanted = QuotaRequest(tenant=ask.tenant, what=ask.what, limit=ask.limit, amount=chance.randint(1, 90))
        theirs, ours = await shared.decide([wanted]), local.decide([wanted], now)
        assert (theirs.refused is None) == (ours.refused is None)
        assert theirs.standings[0].left == ours.standings[0].left


async def test_what_is_held_at_once_is_counted_over_gateways_and_forgotten_with_a_dead_one(server: Server) -> None:
    one, two = (server.limiter(tenant={"streams_at_once": 2}) for _ in range(2))
    server.quotas()
    async with one.held("shop", "streams", "first"):
        async with two.held("shop", "streams", "second"):
            for gateway in (one, two):
                with pytest.raises(LimitReached, match="2 streams of speech at a time"):
                    async with gateway.held("shop", "streams", "third"):
                        pass
        async with two.held("shop", "streams", "third"):
            pass
        # The first gateway dies: its lease is not renewed, and its name is forgotten.
        await server.grow_older(QuotaRequest(tenant="shop", what="streams", limit=2), LEASE_S + 1)
        async with two.held("shop", "streams", "fourth"), two.held("shop", "streams", "fifth"):
            pass
    for gateway in (one, two):
        await gateway.aclose()


async def test_a_killed_redis_costs_no_request_and_a_new_one_learns_what_is_held(server: Server) -> None:
    gateway = server.limiter(tenant={"requests_per_minute": 3, "calls_at_once": 1})
    await gateway.take("shop", requests=2)
    async with gateway.held("shop", "calls", "before"):
        await server.stop()
        await gateway.take("shop", requests=1)
        with pytest.raises(LimitReached):
            await gateway.take("shop", requests=1)
        await server.start()

        async def shared_again() -> bool:  # the fresh Redis has an empty window
            try:
                await gateway.take("shop", requests=1)
                return True
            except LimitReached:
                return False

        await until(shared_again, "limits that are shared again")
        other = server.limiter(tenant={"calls_at_once": 1})
        with pytest.raises(LimitReached, match="1 calls at a time"):
            async with other.held("shop", "calls", "another"):
                pass
    for each in (gateway, other):
        await each.aclose()
