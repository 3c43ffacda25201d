"""The shared state of gateways in a real Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cluster.redis_state import RedisState
from gateway.errors import Rejected
from gateway.limits.quota import QuotaRequest
from gateway.limits.shared import SharedQuotas
from tests.gateway.cluster.shared_states import FIRST, check_contract
from tests.peers.programs import needs_redis
from tests.peers.redis_server import RedisServer
from tests.waiting import PATIENCE_S

pytestmark = needs_redis


async def test_redis_keeps_the_contract_and_an_outage_is_said(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    await server.start()
    state = RedisState(server.url, timeout_s=PATIENCE_S)
    try:
        await check_contract(state)
        await state.leave("twilio", "c2", FIRST)
        for key in await state._redis.keys("*"):
            assert 0 < await state._redis.ttl(key) <= 3600, "nothing stays for good"
        await server.stop()
        for asking in (state.first("x", b"1", keep_s=1), state.left("c2"), state.take("twilio", "c2")):
            with pytest.raises(Rejected) as refused:
                await asking
            assert (refused.value.status, refused.value.code) == (503, "directory_unavailable")
        await server.start()
        assert await state.first("x", b"1", keep_s=60) is None, "it answers again"
    finally:
        await state.aclose()
        await server.stop()


async def test_a_redis_that_becomes_a_replica_is_left_for_the_one_behind_its_address(tmp_path: Path) -> None:
    """A failover as Sentinel and managed services do it: the old master keeps its connections and refuses writes."""
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old, new = (RedisServer(folder) for folder in folders)
    await old.start()
    await new.start()
    state = RedisState(old.url, timeout_s=PATIENCE_S)
    quotas = SharedQuotas(old.url, timeout_s=PATIENCE_S)
    ask = QuotaRequest(what="requests", tenant="shop", limit=10, amount=1)
    try:
        await state.put("x", b"1", keep_s=60)
        assert (await quotas.decide([ask])).refused is None
        await state._redis.replicaof("127.0.0.1", 1)  # type: ignore[misc]
        (folders[1] / "redis.sock").rename(folders[0] / "redis.sock")
        await state.put("x", b"2", keep_s=60)
        assert await state.find("x") == b"2"
        await state.leave("twilio", "c2", FIRST)
        assert (await quotas.decide([ask])).refused is None
    finally:
        await state.aclose()
        await quotas.aclose()
        await old.stop()
        await new.stop()
