import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from picows import WSListener

from talkspurt.simulator.peer_socket import PeerSocketError, connect


@pytest_asyncio.fixture
async def address() -> AsyncIterator[str]:
    async def refuse(request: web.Request) -> web.Response:
        body = {"error": {"type": "conflict", "code": "led_by_script", "message": "the route is led by a script"}}
        return web.json_response(body, status=409)

    async def plain(request: web.Request) -> web.Response:
        return web.Response(text="no socket here")

    app = web.Application()
    app.router.add_get("/refuse", refuse)
    app.router.add_get("/plain", plain)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"ws://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[str]:
    """Closes each connection when it has read the request, as a server does that is killed then."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"


async def test_a_refusal_carries_the_gateways_own_words(address: str) -> None:
    with pytest.raises(PeerSocketError, match="refused the connection: HTTP 409, the route is led by a script"):
        await connect(WSListener(), f"{address}/refuse")


async def test_an_answer_that_is_no_websocket_is_a_refusal(address: str) -> None:
    with pytest.raises(PeerSocketError, match="HTTP 200, no socket here$"):
        await connect(WSListener(), f"{address}/plain")


async def test_an_unused_port_is_named(address: str) -> None:
    with pytest.raises(
        PeerSocketError, match=r"cannot connect to ws://127\.0\.0\.1:1/x: no server listens there; is it"
    ):
        await connect(WSListener(), "ws://127.0.0.1:1/x")


async def test_a_connection_that_is_closed_before_the_answer_was_none(silent: str) -> None:
    with pytest.raises(PeerSocketError, match="closed the connection before it answered"):
        await connect(WSListener(), silent)
