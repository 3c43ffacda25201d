"""The listener's end."""

import asyncio
from pathlib import Path

from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import PATIENCE_S, until


async def test_a_socket_that_was_opened_ahead_of_a_request_is_closed_with_the_server(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, limits={"setup_timeout_s": 2 * PATIENCE_S}) as (made, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        await until(lambda: len(made.server.sockets) > 0)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
