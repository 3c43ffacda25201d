"""The headers that every answer of the HTTP listener has."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from talkspurt.build import Gateway
from tests.gateway.http.api_gateway import api_gateway


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    async with api_gateway(tmp_path, carriers={"twilio": {}}) as (gateway, _, address):
        yield gateway, address


async def answer(method: str, url: str, **kwargs: Any) -> aiohttp.ClientResponse:
    async with aiohttp.ClientSession() as session, session.request(method, url, **kwargs) as response:
        await response.read()
        return response


async def test_every_answer_has_a_request_id_and_tells_nothing_of_what_we_are_made_of(
    server: tuple[Gateway, str],
) -> None:
    _, address = server
    seen = set()
    for method, path, status in (
        ("GET", "/healthz", 200),
        ("GET", "/nowhere", 404),
        ("PUT", "/healthz", 405),
        ("POST", "/v1/audio/speech", 415),
        ("GET", "/v1/dialogue?route=nosuch", 404),
        ("POST", "/webhooks/twilio", 200),
    ):
        got = await answer(method, address + path)
        assert got.status == status, path
        assert got.headers["Server"] == "talkspurt"
        seen.add(got.headers["X-Request-Id"])
    assert len(seen) == 6
    speech = await answer(
        "POST",
        f"{address}/v1/audio/speech",
        json={"model": "tts-1", "input": "hello", "voice": "alloy", "response_format": "pcm"},
    )
    assert speech.status == 200 and speech.headers["X-Request-Id"] not in seen, "a stream, whose head goes out early"


@pytest.mark.parametrize("given, taken", [("a-b_c.D:9", True), ("x" * 128, True), ("x" * 129, False), ('a" b', False)])
async def test_a_sane_id_of_the_client_is_kept(server: tuple[Gateway, str], given: str, taken: bool) -> None:
    got = await answer("GET", f"{server[1]}/healthz", headers={"x-request-id": given})
    assert (got.headers["X-Request-Id"] == given) is taken


async def test_the_id_stands_beside_a_bug_in_the_log(
    server: tuple[Gateway, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, address = server

    def broken(directory: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(gateway.directory), "__iter__", broken)
    with caplog.at_level(logging.ERROR):
        got = await answer("GET", f"{address}/v1/calls", headers={"x-request-id": "ours-17"})
    assert got.status == 500 and got.headers["X-Request-Id"] == "ours-17"
    (line,) = (vars(record) for record in caplog.records if record.message == "request failed")
    assert line["request"] == "ours-17"


async def test_bytes_that_are_no_http_learn_no_more(server: tuple[Gateway, str]) -> None:
    host, _, port = server[1].removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/9.9\r\nHost: x\r\n\r\n")
    head = (await reader.read()).decode()
    writer.close()
    assert head.startswith("HTTP/1.") and " 400 " in head.splitlines()[0]
    assert "Server: talkspurt" in head and "aiohttp" not in head and "Python" not in head


async def test_twiml_says_its_charset(server: tuple[Gateway, str]) -> None:
    got = await answer("POST", f"{server[1]}/webhooks/twilio")
    assert got.headers["Content-Type"] == "text/xml; charset=utf-8"
