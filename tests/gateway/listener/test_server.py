"""The listener's end."""

import asyncio
import gzip
import json
import socket
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from gateway.config import LimitsConfig
from gateway.listener import server
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


async def test_refused_sites_and_connections_are_counted_by_their_reason(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, limits={"connections_per_address": 1}) as (made, _, url):
        async with aiohttp.ClientSession(url) as http:
            for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
                async with http.post("/v1/tts", json={"text": "Hi."}, headers=headers) as answer:
                    assert answer.status in (403, 421)
            async with http.get("/v1/events"):  # keeps the client's own connection in use
                reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
                async with asyncio.timeout(PATIENCE_S):
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
                writer.close()
        text = made.metrics.exposition().decode()
    for reason in ("origin_not_allowed", "misdirected_request", "too_many_connections"):
        assert f'talkspurt_calls_rejected_total{{reason="{reason}"}} 1.0' in text


async def test_a_packed_body_is_refused_and_not_unpacked(tmp_path: Path) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with api_gateway(tmp_path) as (made, _, _), aiohttp.ClientSession() as http:
        address = f"http://127.0.0.1:{made.server.port}"
        for path in ("/webhooks/vonage/default", "/v1/tts", "/healthz"):
            # Not even damage is noticed by a listener that does not unpack.
            for body in (gzip.compress(b'{"text": "hello"}'), b"damaged"):
                async with http.post(address + path, data=body, headers=headers) as answer:
                    assert answer.status == 415
                    assert (await answer.json())["error"]["code"] == "packed_body"


async def test_headers_that_are_no_text_are_made_text_once(tmp_path: Path) -> None:
    """Each of these got 500, since aiohttp itself answers them and cannot write what it has read."""
    async with api_gateway(tmp_path) as (made, _, _):
        for name in ("Expect", "Upgrade", "Range", "If-None-Match", "Authorization", "Origin", "X-Request-Id"):
            for value in (b"\xff\xfe", b"\xed\xa0\x80", b"100-\xc2\x9bcontinue"):
                reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
                head = b"GET /v1/calls HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                writer.write(head + name.encode() + b": " + value + b"\r\n\r\n")
                async with asyncio.timeout(PATIENCE_S):
                    status = (await reader.readline()).split(b" ")[1]
                assert status in (b"200", b"400", b"401", b"403", b"417"), (name, value, status)
                writer.close()


async def test_connections_that_are_ended_without_an_answer_are_counted(tmp_path: Path) -> None:
    limits = {"connections": 3, "setup_timeout_s": 0.2}
    async with api_gateway(tmp_path, limits=limits, carriers={"twilio": {"verify": False}}) as (made, _, _):

        async def ended(sent: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                with suppress(ConnectionError):
                    await reader.read()
            writer.close()

        upgrade = "Host: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        upgrade += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        await ended(b"GET / HTTP/1.1\r\nX: " + 20_000 * b"a")
        await ended(b"GET / HTTP/1.1\r\nX: ")
        await ended(f"GET /media/twilio HTTP/1.1\r\n{upgrade}".encode())
        await ended(b"")  # browsers do this
        made.server.limits = LimitsConfig(setup_timeout_s=PATIENCE_S)
        opened = [await asyncio.open_connection("127.0.0.1", made.server.port) for _ in range(5)]
        for reader, _ in opened[:2]:
            assert await reader.read() == b""
        text = made.metrics.exposition().decode()
        for reason, times in (
            ("head_too_long", 1),
            ("head_too_slow", 1),
            ("not_started", 1),
            ("too_many_connections", 2),
        ):
            assert f'talkspurt_calls_rejected_total{{reason="{reason}"}} {times}.0' in text
        for _, writer in opened:
            writer.close()


async def test_a_reader_that_stops_does_not_keep_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNREAD_MS", 300)
    body = json.dumps({"text": "word and another word. " * 600}).encode()
    head = f"POST /v1/tts/stream HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    async with api_gateway(tmp_path) as (made, _, _):
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.connect(("127.0.0.1", made.server.port))
            deaf.sendall(head.encode() + body)
            await until(lambda: len(made.server.sockets) == 1, "the request")
            await until(lambda: not len(made.server.sockets), "the end of the connection")
