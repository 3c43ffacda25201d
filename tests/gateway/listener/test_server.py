"""The listener's end."""

import asyncio
from pathlib import Path

from tests.gateway.http.api_gateway import api_gateway


async def test_a_socket_that_was_opened_ahead_of_a_request_is_closed_with_the_server(tmp_path: Path) -> None:
    async with api_gateway(tmp_path) as (made, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        while not made.server._by_address:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5):  # setup_timeout_s would take 10
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
