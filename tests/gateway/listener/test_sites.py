"""Names and pages: what a browser may be made to send, and by whom."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import ServerConfig
from gateway.errors import Rejected
from gateway.listener.forwarded import PublicUrl
from gateway.listener.sites import Sites
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import PATIENCE_S

PEER = "192.0.2.9"


def sites(**server: Any) -> Sites:
    config = ServerConfig.model_validate(server)
    return Sites(config, PublicUrl(config))


def status(tried: Sites, host: str, origin: str = "", *, peer: str = PEER, changes: bool = True, also: Any = ()) -> int:
    """Return the status of a request with these headers; 200 where it passes."""
    headers = {"Host": host} | ({"Origin": origin} if origin else {})
    try:
        tried.check(peer, headers, changes=changes, also=also)
    except Rejected as exc:
        return exc.status
    return 200


OURS = ["127.0.0.1:8080", "[::1]:8080", "localhost:8080", "demo.localhost", "talkspurt:8080", "192.0.2.1", ""]


@pytest.mark.parametrize("host", OURS)
def test_addresses_and_names_without_a_dot_are_ours(host: str) -> None:
    assert status(sites(), host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8080", "evil.example.", "[::1", "1.2.3.4.5", "evil.example@127.0.0.1",
     "evil%2eexample", "evil\u3002example", "evil\uff0eexample", "[::1].evil.example", "127.0.0.1#.evil.example",
     "127.0.0.1/.evil.example", "evil.example\\@127.0.0.1", "127.0.0.1:80:evil.example", "evil..", "..", "a b", ":80",
     "localhost.evil.example", "evil.example:", "evil.example:99999", "evil.example:8080:8080", "127.0.0.1.",
     "0x7f.0.0.1", "127.1.evil", "[evil.example]", "[::1]evil.example", "evil.example,localhost", "a, evil.example",
     "localhost evil.example", "evil.example\t", "\tlocalhost", "http://localhost", "localhost?evil.example",
     "xn--evil-9za.example", "evil.localhost.example"],
)  # fmt: skip
def test_a_name_that_was_made_to_point_at_us_is_not_ours(host: str) -> None:
    assert status(sites(), host) == 421
    assert status(sites(), host, changes=False) == 421  # reading is what such a page is after


def test_the_public_address_and_listed_sites_are_names_of_ours() -> None:
    tried = sites(host="0.0.0.0", public_url="https://voice.example.com", origins=["https://app.example.com"])
    assert [status(tried, host) for host in ("voice.example.com", "app.example.com", "evil.example")] == [200, 200, 421]


def test_beyond_loopback_without_a_public_address_no_name_is_known() -> None:
    assert status(sites(host="0.0.0.0"), "voice.example.com") == 200


@pytest.mark.parametrize("host", OURS[:-1])
def test_without_keys_beyond_loopback_only_names_of_this_network_are_ours(host: str) -> None:
    tried = sites(host="0.0.0.0", insecure=True)
    assert status(tried, host) == 200
    for changes in (False, True):
        assert status(tried, "evil.example", "http://evil.example", changes=changes) == 421
    assert status(tried, host, "http://evil.example") == 403


def test_a_proxy_that_is_trusted_decides_which_names_lead_here() -> None:
    tried = sites(trusted_proxies=["192.0.2.0/24"])
    assert status(tried, "voice.example.com") == 200
    assert status(tried, "voice.example.com", peer="198.51.100.1") == 421


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8080", 200),
        ("https://localhost:8080", 200),  # a proxy may end TLS
        ("https://voice.example.com", 200),
        ("https://app.example.com", 200),
        ("https://evil.example", 403),
        ("http://localhost:9090", 403),  # another program of this machine
        ("null", 403),
        ("http://localhost:8080.evil.example", 403),
        ("http://localhost:8080@evil.example", 403),
        ("http://evil.example@localhost:8080", 403),
        ("http://localhost:8080/", 403),  # no browser sends a path
        ("http://localhost:8080 http://evil.example", 403),
        ("http://evil.example, http://localhost:8080", 403),
        ("https://voice.example.com.evil.example", 403),
        ("https://voice.example.com:444", 403),
        ("http://voice.example.com", 403),
        ("HTTPS://VOICE.EXAMPLE.COM", 403),  # a browser writes it in lower case
        ("file://", 403),
        ("*", 403),
        ("chrome-extension://abcdef", 403),
        ("", 200),  # no browser
    ],
)
def test_a_change_is_for_our_own_pages_and_listed_ones(origin: str, expected: int) -> None:
    tried = sites(public_url="https://voice.example.com", origins=["https://app.example.com"])
    assert status(tried, "localhost:8080", origin) == expected
    assert status(tried, "localhost:8080", origin, changes=False) == 200


@pytest.mark.parametrize("public_url", ["https://Voice.Example.com:443/", "https://voice.example.com/below"])
def test_our_own_page_is_known_behind_a_proxy_that_writes_another_host(public_url: str) -> None:
    tried = sites(public_url=public_url)
    assert status(tried, "10.0.0.7:8080", "https://voice.example.com") == 200
    assert status(tried, "10.0.0.7:8080", "https://voice.example.com:8443") == 403


def test_a_star_lets_every_page_in() -> None:
    assert status(sites(origins=["*"]), "localhost", "https://evil.example") == 200
    assert status(sites(), "localhost", "https://evil.example", also=["*"]) == 200


async def test_a_request_that_names_several_hosts_is_refused(tmp_path: Path) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = "".join(f"{name}: {value}\r\n" for name, value in (upgrade | {"Sec-WebSocket-Key": "A" * 22 + "=="}).items())
    async with api_gateway(tmp_path, carriers={"twilio": {"verify": False}}) as (made, _, _):
        ours = f"127.0.0.1:{made.server.port}"

        async def answered(target: str, *hosts: str) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
            lines = "".join(f"Host: {host}\r\n" for host in hosts)
            writer.write(f"GET {target} HTTP/1.1\r\n{lines}{key if 'media' in target else ''}\r\n".encode())
            first = await asyncio.wait_for(reader.readline(), PATIENCE_S)
            writer.close()
            return int(first.split()[1])

        for path, status in (("/v1/calls", 200), ("/media/twilio/default", 101)):
            assert await answered(path, ours) == status
            for hosts in ((ours, "evil.example"), ("evil.example", ours), (ours, ours)):
                assert await answered(path, *hosts) == 400, (path, hosts)
        assert await answered(f"http://{ours}/v1/calls", ours) == 200
        assert await answered("http://evil.example/v1/calls", ours) == 400


async def test_a_page_of_another_site_reaches_nothing_of_a_running_server(tmp_path: Path) -> None:
    foreign = {"Origin": "https://evil.example"}
    async with api_gateway(tmp_path) as (made, _, _), aiohttp.ClientSession() as http:
        at = f"http://127.0.0.1:{made.server.port}"
        sockets = ("/v1/dialogue?route=default", "/ws/tts", "/media/twilio/default")
        for path in sockets:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(at + path, headers=foreign)
            assert refused.value.status == 403, path
        for path in ("/v1/tts", "/v1/calls", "/v1/webrtc/offer"):
            async with http.post(at + path, json={}, headers=foreign) as answer:
                assert answer.status == 403, path
        for path in ("/v1/calls", "/metrics", "/", "/web/base.css"):
            async with http.get(at + path, headers={"Host": "evil.example"}) as answer:
                assert answer.status == 421, path
            async with http.get(at + path) as answer:
                assert answer.status == 200, path
        for path in ("/healthz", "/readyz"):  # a probe calls whatever name its machine has
            async with http.get(at + path, headers={"Host": "pod-1.cluster.example"}) as answer:
                assert answer.status in (200, 503), path  # the engine may not be ready
