"""The shared state of gateways in a real Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cluster.redis_state import RedisState
from gateway.errors import Rejected
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
