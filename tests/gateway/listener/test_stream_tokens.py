"""The token in a stream address, at a whole gateway: one call, the right one, lost by no failed socket."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4
from xml.etree import ElementTree

import aiohttp
import jwt
import pytest

from gateway.carriers.signatures import twilio_signature
from gateway.config import LimitsConfig
from talkspurt.build import Gateway
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import PATIENCE_S, until


class Carrier:
    """Twilio, as far as it opens streams."""

    def __init__(self, made: Gateway, http: aiohttp.ClientSession) -> None:
        self.made = made
        self.http = http

    async def address(self, call_sid: str) -> str:
        """The path of the stream that our webhook wants for a call."""
        async with self.http.post("/webhooks/twilio/default", data={"CallSid": call_sid}) as answer:
            stream = ElementTree.fromstring(await answer.text()).find("Connect/Stream")
        assert stream is not None
        return urlsplit(stream.attrib["url"]).path

    async def open(self, path: str) -> aiohttp.ClientWebSocketResponse:
        return await self.http.ws_connect(path)

    async def status(self, path: str) -> int:
        """Return the status of an upgrade that fails."""
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await self.open(path)
        return refused.value.status

    async def begins(self, socket: aiohttp.ClientWebSocketResponse, call_sid: str) -> bool:
        """Send a stream's start: whether a call begins, or the socket is closed as a violation."""
        before = len(self.made.directory)
        media = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": "MZ1", "callSid": call_sid, "tracks": ["inbound"], "mediaFormat": media}
        await socket.send_str(json.dumps({"event": "start", "streamSid": "MZ1", "start": start}))
        received = asyncio.create_task(socket.receive())  # a time limit might end it while it closes the socket
        await until(lambda: len(self.made.directory) != before or received.done())
        if len(self.made.directory) == before:
            assert (await received).data == aiohttp.WSCloseCode.POLICY_VIOLATION
            return False
        received.cancel()
        return True


SECRET = "a-secret-of-at-least-thirty-two-bytes"


def vonage() -> dict[str, str]:
    """The proof of a request without a body."""
    return {"Authorization": f"Bearer {jwt.encode({'iat': int(time.time()), 'jti': str(uuid4())}, SECRET)}"}


@asynccontextmanager
async def calling(tmp_path: Path, **twilio: Any) -> AsyncIterator[Carrier]:
    sections: dict[str, Any] = {
        "carriers": {"twilio": twilio, "vonage": {"signature_secret": SECRET}},
        "routes": {"default": {}, "other": {}},
        "limits": {"setup_timeout_s": 2 * PATIENCE_S},  # a socket that waits is not closed for that, with the same code
    }
    async with api_gateway(tmp_path, **sections) as (made, _, url):
        fresh = aiohttp.TCPConnector(force_close=True)  # media sockets come on connections of their own
        async with aiohttp.ClientSession(url, connector=fresh) as http:
            yield Carrier(made, http)


@pytest.fixture
async def carrier(tmp_path: Path) -> AsyncIterator[Carrier]:
    async with calling(tmp_path) as made:
        yield made


async def test_a_token_opens_one_call(carrier: Carrier) -> None:
    path = await carrier.address("CA1")
    first, second = await carrier.open(path), await carrier.open(path)
    assert await carrier.begins(first, "CA1")
    assert not await carrier.begins(second, "CA1"), "it was spent while this socket waited"
    assert await carrier.status(path) == 403


async def test_a_token_opens_the_call_that_it_was_made_for(carrier: Carrier) -> None:
    path = await carrier.address("CA1")
    assert not await carrier.begins(await carrier.open(path), "CA2")
    assert await carrier.begins(await carrier.open(path), "CA1"), "the wrong call did not spend it"


async def test_what_fails_before_a_call_begins_spends_nothing(carrier: Carrier) -> None:
    path = await carrier.address("CA1")
    await (await carrier.open(path)).close()
    unreadable = await carrier.open(path)
    for _ in range(LimitsConfig().errors_in_a_row):
        await unreadable.send_str("{")
    assert (await unreadable.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
    assert await carrier.status(path.replace("/default/", "/other/")) == 403
    carrier.made.directory.limit = 0
    assert await carrier.status(path) == 503
    carrier.made.directory.limit = 1
    assert await carrier.begins(await carrier.open(path), "CA1")


@pytest.mark.parametrize("dialect", ["telnyx", "exotel", "genesys", "freeswitch-fork", "asterisk", "nobody"])
async def test_a_carrier_without_a_section_has_no_media_address(carrier: Carrier, dialect: str) -> None:
    assert await carrier.status(f"/media/{dialect}/default") == 404


@pytest.mark.parametrize("verify", [True, False])  # without a proof no token is asked for, but the address has one
async def test_the_calls_id_ends_with_what_the_webhook_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, verify: bool
) -> None:
    caplog.set_level("INFO")
    async with calling(tmp_path, verify=verify) as carrier:
        assert await carrier.begins(await carrier.open(await carrier.address("CA1")), "CA1")
        (call_id,) = (session.call_id for session in carrier.made.directory)
    (asked,) = (vars(record) for record in caplog.records if record.message == "stream requested")
    assert len(asked["stream"]) == 16 and call_id.endswith(asked["stream"]) and len(call_id) == 34
    assert asked["call_sid"] == "CA1"


async def test_a_token_is_spent_and_has_an_age_also_where_the_carrier_signs(tmp_path: Path) -> None:
    async with calling(tmp_path, auth_token=SECRET) as carrier:
        public = str(carrier.http._base_url).rstrip("/")

        async def opened(path: str) -> aiohttp.ClientWebSocketResponse:
            signature = twilio_signature(SECRET, public.replace("http", "ws", 1) + path)
            return await carrier.http.ws_connect(path, headers={"X-Twilio-Signature": signature})

        tokens = carrier.made.tokens
        good = tokens.make("twilio", "default", now=time.time(), call="CA1")
        old = tokens.make("twilio", "default", now=time.time() - 3600, call="CA1")
        elsewhere = tokens.make("twilio", "other", now=time.time(), call="CA1")
        first, second = await opened(f"/media/twilio/default/{good}"), await opened(f"/media/twilio/default/{good}")
        assert await carrier.begins(first, "CA1")
        assert not await carrier.begins(second, "CA1")
        for token in (good, old, elsewhere, "x" * 56):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await opened(f"/media/twilio/default/{token}")
            assert refused.value.status == 403
        other = tokens.make("twilio", "default", now=time.time(), call="CA2")
        assert not await carrier.begins(await opened(f"/media/twilio/default/{other}"), "CA3")


async def test_a_signature_of_no_address_opens_one_stream_with_or_without_our_token(carrier: Carrier) -> None:
    signed, token = vonage(), carrier.made.tokens.make("vonage", "default", now=time.time())
    socket = await carrier.http.ws_connect(f"/media/vonage/default/{token}", headers=signed)
    await socket.send_json({"event": "websocket:connected", "content-type": "audio/l16;rate=16000"})
    await until(lambda: len(carrier.made.directory) == 1)
    again = carrier.made.tokens.make("vonage", "default", now=time.time())
    for path in ("default", "other", f"default/{token}", f"default/{again}"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await carrier.http.ws_connect(f"/media/vonage/{path}", headers=signed)
        assert refused.value.status == 403, path
    for path in ("default", "other", "default/after", "default/status"):
        async with carrier.http.get(f"/webhooks/vonage/{path}?uuid=c2", headers=signed) as answer:
            assert answer.status == 403, path


@pytest.mark.parametrize("hook", ["default", "default/after", "default/status"])
async def test_a_signature_that_came_with_a_webhook_opens_no_stream(carrier: Carrier, hook: str) -> None:
    signed = vonage()
    for _ in "again":
        async with carrier.http.get(f"/webhooks/vonage/{hook}?uuid=c1&status=ringing", headers=signed) as answer:
            assert answer.status in (200, 204)
    for route in ("default", "other"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await carrier.http.ws_connect(f"/media/vonage/{route}", headers=signed)
        assert refused.value.status == 403
