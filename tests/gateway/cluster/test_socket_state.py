from pathlib import Path

import pytest
from aiohttp import web

from gateway.cluster.memory_state import MemoryState
from gateway.cluster.socket_state import SocketState, routes
from gateway.errors import Rejected
from tests.gateway.cluster.shared_states import check_contract


async def test_a_socket_keeps_the_contract_and_says_when_nobody_answers(tmp_path: Path) -> None:
    app = web.Application()
    app.add_routes(routes(MemoryState()))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "state.sock")).start()
    state = SocketState(tmp_path / "state.sock")
    try:
        await check_contract(state)
        await runner.cleanup()
        with pytest.raises(Rejected) as refused:
            await state.find("a")
        assert (refused.value.status, refused.value.code) == (503, "directory_unavailable")
        assert refused.value.retry_after_s > 0
    finally:
        await state.aclose()
        await runner.cleanup()
