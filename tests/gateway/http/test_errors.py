"""The answer and the log lines of a request that fails."""

import logging

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.http.request import errors


@pytest.mark.parametrize("left", [True, False])
async def test_a_client_that_leaves_before_its_answer_is_no_error_of_ours(
    left: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if not left:
            raise ConnectionResetError("of a database, say")
        assert request.transport is not None
        request.transport.abort()
        await web.WebSocketResponse().prepare(request)
        raise AssertionError("the transport is closing")

    app = web.Application(middlewares=[errors.middleware])
    app.router.add_get("/", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        if left:
            with pytest.raises(aiohttp.ClientError):
                await http.ws_connect(server.make_url("/"))
        else:
            assert (await http.get(server.make_url("/"))).status == 500
    assert [record.levelno for record in caplog.records] == ([] if left else [logging.ERROR])


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("GET", "/v1/call", "no such path, did you mean '/v1/calls'?"),
        ("GET", "/nothing", "no such path"),
        ("DELETE", "/v1/calls", "DELETE is not possible here, expected GET or HEAD"),
    ],
)
async def test_a_request_for_no_handler_is_told_the_nearest_path_or_the_methods(
    method: str, path: str, told: str
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response()

    app = web.Application(middlewares=[errors.middleware])
    app.router.add_get("/v1/calls", handle)
    app.router.add_get("/v1/calls/{id}", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        async with http.request(method, server.make_url(path)) as answer:
            assert (await answer.json())["error"]["message"] == told
