"""Behind a proxy: which address carriers are taken to have signed, and what the log says where that cannot be known."""

import base64
import hashlib
import hmac
import logging
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from gateway.config import ServerConfig
from gateway.listener.forwarded import Proxies, PublicUrl
from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import RawSocket, Refused

TOKEN = "carrier secret, thirty-two bytes or more"
FORM = {"CallSid": "CA1", "From": "+15550100"}
FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "voice.example.com"}
TWILIO: dict[str, Any] = {"carriers": {"twilio": {"auth_token": TOKEN}}}


def signed(url: str, form: dict[str, str] | None = None) -> dict[str, str]:
    """Twilio's own recipe, written down again (Twilio, *Webhooks security*)."""
    message = url + "".join(name + value for name, value in sorted((form or {}).items()))
    digest = hmac.new(TOKEN.encode(), message.encode(), hashlib.sha1).digest()
    return {"X-Twilio-Signature": base64.b64encode(digest).decode()}


async def webhook(address: str, headers: dict[str, str], dialect: str = "twilio") -> int:
    """Status of a webhook, signed for the address that the outside knows."""
    path = f"/webhooks/{dialect}/default"
    headers = signed(f"https://voice.example.com{path}", FORM) | headers
    async with aiohttp.ClientSession() as http, http.post(f"{address}{path}", data=FORM, headers=headers) as answer:
        return answer.status


async def stream(address: str, headers: dict[str, str]) -> int:
    """Status of a media socket, signed likewise."""
    path = "/media/twilio/default"
    headers = signed(f"wss://voice.example.com{path}") | headers
    try:
        peer = await RawSocket.connect(address.removeprefix("http://"), path, headers=list(headers.items()))
    except Refused as exc:
        return exc.status
    peer.abort()
    return 101


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "gateway.listener.forwarded"]


async def test_an_untrusted_proxy_is_not_believed_and_the_log_says_once_what_to_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_gateway(tmp_path, **TWILIO) as (_, _, address):
        assert (await webhook(address, {}), await stream(address, {}), told(caplog)) == (403, 403, [])  # no proxy
        for _ in range(2):
            assert (await webhook(address, FORWARDED), await stream(address, FORWARDED)) == (403, 403)
        (record,) = told(caplog)
        assert record.levelno == logging.ERROR and "server.public_url" in record.message
        assert (record.checked_for, record.proxy, record.proxy_trusted) == (address, "127.0.0.1", False)
        assert record.headers == "X-Forwarded-Proto, X-Forwarded-Host"


async def test_a_media_socket_finds_its_mismatch_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with api_gateway(tmp_path, **TWILIO) as (_, _, address):
        assert await stream(address, FORWARDED) == 403
        assert len(told(caplog)) == 1


async def test_a_trusted_proxy_is_believed_for_webhooks_and_media_sockets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_gateway(tmp_path, **TWILIO, server={"trusted_proxies": ["127.0.0.1"]}) as (_, _, address):
        assert (await webhook(address, FORWARDED), await stream(address, FORWARDED)) == (200, 101)
        assert (await webhook(address, {}), await stream(address, {}), told(caplog)) == (403, 403, [])
        # Trusted, but it does not tell the host: that needs public_url too.
        assert await stream(address, {"X-Forwarded-Proto": "https"}) == 403
        assert [record.proxy_trusted for record in told(caplog)] == [True]


async def test_with_a_public_url_headers_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = {"public_url": "https://voice.example.com"}
    keys = {"api_keys": [{"key": "k"}]}
    elsewhere = {"X-Forwarded-Proto": "http", "X-Forwarded-Host": "elsewhere.example"}
    async with api_gateway(tmp_path, **TWILIO, server=server, auth=keys) as (_, _, address):
        assert (await webhook(address, elsewhere), await stream(address, elsewhere)) == (200, 101)
        wrong = {"X-Twilio-Signature": "AAAA", **FORWARDED}
        assert (await webhook(address, wrong), await stream(address, wrong), told(caplog)) == (403, 403, [])


async def test_a_signature_over_the_body_alone_is_not_the_proxys_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    carriers = {"vonage": {"signature_secret": TOKEN}}
    theirs = jwt.encode({"iat": 0}, TOKEN, algorithm="HS256")  # too old
    async with api_gateway(tmp_path, carriers=carriers) as (_, _, address):
        assert await webhook(address, {"Authorization": f"Bearer {theirs}", **FORWARDED}, "vonage") == 403
        assert told(caplog) == []


def test_the_list_of_hops_is_read_from_its_end_while_proxies_are_trusted() -> None:
    proxies = Proxies(["10.0.0.0/8", "2001:db8::1"])
    hops = {"X-Forwarded-For": "198.51.100.77, 192.0.2.5, 10.0.0.2"}
    assert proxies.client("10.0.0.1", hops) == "192.0.2.5"
    assert proxies.client("::ffff:10.0.0.1", hops) == "192.0.2.5"  # of a socket for both families
    assert proxies.client("192.0.2.9", hops) == "192.0.2.9"
    assert proxies.client("2001:db8::1", {"X-Forwarded-For": "unknown"}) == "2001:db8::1"
    assert proxies.client("10.0.0.1", {}) == "10.0.0.1"
    assert not proxies.trusts("") and not proxies.trusts("a.example")


def test_a_hop_counts_without_its_port() -> None:
    """Azure's Application Gateway writes "IP:port", AWS's load balancer if ``preserve_xff_client_port`` is set: each
    connection would else be a client of its own, or the proxy would be the only client."""
    proxies = Proxies(["10.0.0.0/8"])
    for hop, client in (
        ("192.0.2.5:50123", "192.0.2.5"),
        ("[2001:db8::5]:50123", "2001:db8::5"),
        ("[2001:db8::5]", "2001:db8::5"),
        ("2001:db8::5", "2001:db8::5"),
        ("192.0.2.5:50123, 10.0.0.2:443", "192.0.2.5"),
        ("a.example:80", "10.0.0.1"),
        ("[", "10.0.0.1"),
    ):
        assert proxies.client("10.0.0.1", {"X-Forwarded-For": hop}) == client


def test_without_a_proxy_the_scheme_is_the_listeners(tmp_path: Path) -> None:
    tls = {"certificate": "c.pem", "key": "k.pem"}
    headers = {"Host": "voice.example.com", **FORWARDED}
    assert PublicUrl(ServerConfig()).of("192.0.2.1", headers) == "http://voice.example.com"
    assert PublicUrl(ServerConfig.model_validate({"tls": tls})).of("192.0.2.1", headers) == "https://voice.example.com"
