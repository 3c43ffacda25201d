"""``talkspurt conformance`` as its user meets it: what is printed, exit codes, bad addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.carriers.signatures import twilio_signature
from talkspurt.cli import main
from tests.talkspurt.conformance.applications import AnswersWhole, HangsUp, serving


async def test_a_failed_check_is_exit_1_and_json_tells_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    application = HangsUp()
    monkeypatch.setenv("KEY", "secret")
    async with serving(application) as url:
        arguments = ["conformance", f"{url}?key=hidden", "--json", "--sign-with", "KEY", "--header", "X-Mine: 1"]
        code = await asyncio.to_thread(main, arguments)
    shown = json.loads(capsys.readouterr().out)
    assert (code, shown["failed"], shown["url"]) == (1, 1, url)
    assert shown["checks"][0] == {
        "check": "setup",
        "outcome": "fail",
        "detail": "closed with 1000 after setup, expected an open socket; this ends the call",
    }
    assert application.headers["X-Mine"] == "1"
    assert application.headers["X-Twilio-Signature"] == twilio_signature("secret", f"{url}?key=hidden")


async def test_a_right_application_is_exit_0_with_a_line_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(AnswersWhole()) as url:
        code = await asyncio.to_thread(main, ["conformance", url, "--quiet", "0.3", "--wait", "30"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and len(lines) == 10
    assert lines[0] == "ok    setup: does not greet" and lines[4].startswith("skip  interrupt: ")
    assert lines[-1] == "none of 9 checks failed"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["http://127.0.0.1/"], "URL has the scheme 'http', expected ws:// or wss://"),
        (["relay"], "URL has the scheme '', expected ws:// or wss://"),
        (["ws:///relay"], "URL names no host"),
        (["ws://127.0.0.1:99999/"], "URL is no address: Port out of range"),
        (["ws://127.0.0.1:9/", "--sign-with", "NO_SUCH_KEY"], "NO_SUCH_KEY, which is empty or not set"),
        (["ws://127.0.0.1:9/", "--header", "nonsense"], "8 characters without a name and a colon"),
        (["ws://127.0.0.1:9/", "--wait", "0"], "--wait is 0, expected seconds above 0"),
        (["ws://127.0.0.1:9/", "--quiet", "nan"], "--quiet is nan, expected seconds above 0"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said and "\n" not in said


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(reply: bytes | None) -> AsyncIterator[str]:
    """A server that answers a request with these bytes and closes; None: it never answers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply is None:
            await reader.read()
        else:
            writer.write(reply)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/?key=hidden"


UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered with HTTP 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "answered with HTTP 200"),
        (UPGRADE + b"Sec-WebSocket-Accept: wrong\r\n\r\n", "answered with HTTP 101 (Invalid challenge response)"),
        (b"220 mail.example ESMTP\r\n", "the answer is not HTTP"),
        (b"", "cannot connect: Server disconnected"),
        (None, "no WebSocket within 1 s"),
    ],
    ids=["404", "200", "wrong accept", "no http", "closes", "silent"],
)
async def test_an_address_without_a_websocket_is_one_line_and_exit_1(
    reply: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with answering(reply) as url:
        wait = "1" if reply is None else "30"
        code = await asyncio.to_thread(main, ["conformance", url, "--wait", wait])
    error = capsys.readouterr().err.strip()
    assert code == 1 and said in error and "\n" not in error and "hidden" not in error


def test_a_port_that_nobody_listens_on_is_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "ws://127.0.0.1:9/"]) == 1
    error = capsys.readouterr().err.strip()
    assert "cannot connect" in error and "\n" not in error
