"""Offers, trickled candidates, ICE servers, CORS, limits: over HTTP as a browser sends them, and what is refused."""

import asyncio
import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aioice import stun
from aiortc import RTCSessionDescription
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import IceServerConfig, WebRtcConfig
from gateway.errors import ProtocolError, Rejected
from gateway.principal import ANYONE
from gateway.webrtc.sdp import MAX_CANDIDATES, read_fragment, read_offer
from gateway.webrtc.signalling import ice_server
from tests.gateway.webrtc.webrtc_gateway import Phone, calling, gateway
from tests.peers.ports import free_port
from tests.waiting import until

CHROMIUM = """v=0
o=- 4611731400430051336 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1 2
a=extmap-allow-mixed
a=msid-semantic: WMS
m=video 9 UDP/TLS/RTP/SAVPF 96
c=IN IP4 0.0.0.0
a=rtcp:9 IN IP4 0.0.0.0
a=candidate:1 1 udp 2113937151 1f0b2b3c-0000-4000-8000-000000000000.local 51234 typ host
a=ice-ufrag:Tp2x
a=ice-pwd:6pXzXH0f1u9VbUkT2R3sQ4wE
a=fingerprint:sha-256 {f}
a=setup:actpass
a=mid:0
a=sendrecv
a=rtcp-mux
a=rtpmap:96 VP8/90000
m=audio 9 UDP/TLS/RTP/SAVPF 111 63 9 0 8 13 110 126
c=IN IP4 0.0.0.0
a=rtcp:9 IN IP4 0.0.0.0
a=ice-ufrag:Tp2x
a=ice-pwd:6pXzXH0f1u9VbUkT2R3sQ4wE
a=ice-options:trickle
a=fingerprint:sha-256 {f}
a=setup:actpass
a=mid:1
a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level
a=sendrecv
a=rtcp-mux
a=rtcp-rsize
a=rtpmap:111 opus/48000/2
a=rtcp-fb:111 transport-cc
a=fmtp:111 minptime=10;useinbandfec=1
a=rtpmap:63 red/48000/2
a=fmtp:63 111/111
a=rtpmap:9 G722/8000
a=rtpmap:0 PCMU/8000
a=rtpmap:8 PCMA/8000
a=rtpmap:13 CN/8000
a=rtpmap:110 telephone-event/48000
a=rtpmap:126 telephone-event/8000
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=ice-ufrag:Tp2x
a=ice-pwd:6pXzXH0f1u9VbUkT2R3sQ4wE
a=fingerprint:sha-256 {f}
a=setup:actpass
a=mid:2
a=sctp-port:5000
a=max-message-size:262144
""".format(f=":".join(["AB"] * 32)).replace("\n", "\r\n")
"""The offer of Chromium with video, audio and data, shortened."""


def test_a_browsers_offer_is_read_in_its_own_order_of_codecs() -> None:
    offer = read_offer(CHROMIUM)
    assert [(c.encoding, c.payload_type, c.event_type, c.event_hz) for c in offer.codecs] == [
        ("OPUS", 111, 110, 48_000),
        ("PCMU", 0, 126, 8000),
        ("PCMA", 8, 126, 8000),
    ]
    assert (offer.audio, offer.channel, offer.direction, offer.dtls_role) == (1, 2, "sendrecv", "client")


def test_firefox_bundles_with_port_0_and_offers_keys_at_8000_hz_only() -> None:
    application = "m=application {} UDP/DTLS/SCTP webrtc-datachannel\r\n"
    bundled = CHROMIUM.replace(application.format(9), application.format(0) + "a=bundle-only\r\n")
    offer = read_offer(bundled.replace("a=rtpmap:110 telephone-event/48000\r\n", ""))
    assert offer.channel == 2
    assert (offer.codecs[0].event_type, offer.codecs[0].event_hz) == (126, 8000)
    assert read_offer(CHROMIUM.replace(application.format(9), application.format(0))).channel is None  # refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: "", "does not start with v=0"),
        (lambda s: "hello", "does not start with v=0"),
        (lambda s: s.replace("m=audio", "m=video"), "expected an audio section"),
        (lambda s: s.replace("m=audio 9", "m=audio 0"), "expected an audio section"),
        (lambda s: re.sub("m=audio.*\r", "m=audio 9 UDP/TLS/RTP/SAVPF 9 13\r", s), "expected opus/48000/2"),
        (lambda s: s.replace("m=audio 9 UDP/TLS/RTP/SAVPF", "m=audio 9 RTP/AVP"), "expected an audio section"),
        (lambda s: s.replace("a=sendrecv", "a=inactive"), "as inactive"),
        (lambda s: s.replace("a=rtcp-mux", "a=x"), "rtcp-mux"),
        (lambda s: s.replace("sha-256", "md5"), "fingerprint"),
        (lambda s: s.replace("a=setup:actpass", "a=setup:me"), "cannot be read"),
        (lambda s: s.replace("a=ice-pwd:6pXzX", "a=ice-pwd:"), "ice-pwd"),
        (lambda s: s.replace("a=ice-ufrag:Tp2x", "a=ice-ufrag:T"), "ice-ufrag"),
        (lambda s: s.replace("a=candidate:1", "a=candidate:x\r\na=candidate:1"), "cannot be read"),
        (lambda s: s.replace("a=mid:1", "a=mid:1" + "\r\na=x" * 800), "lines"),
        (lambda s: s.replace("s=-", "s=" + "x" * 70_000), "characters"),
        (
            lambda s: s.replace(
                "a=mid:0", "a=mid:0" + "\r\na=candidate:1 1 udp 1 10.0.0.1 5000 typ host" * (MAX_CANDIDATES + 1)
            ),
            "candidates",
        ),
    ],
)  # fmt: skip
async def test_a_bad_offer_gets_one_clear_4xx(change: Callable[[str], str], says: str) -> None:
    async with gateway() as made, aiohttp.ClientSession() as http:
        body = {"sdp": change(CHROMIUM), "type": "offer"}
        async with http.post(f"{made.url}/v1/webrtc/offer", json=body) as response:
            assert response.status == 422
            error = (await response.json())["error"]
            assert says in error["message"] or says == "characters"
            assert error["param"] == "sdp"
        assert len(made.webrtc) == 0


@given(st.lists(st.sampled_from(CHROMIUM.split("\r\n")), max_size=90))
@settings(max_examples=150, deadline=None)
def test_any_lines_are_an_offer_or_a_protocol_error(lines: list[str]) -> None:
    try:
        read_offer("\r\n".join(["v=0", *lines]))
    except ProtocolError:
        pass


@given(st.text(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        read_offer("v=0\r\n" + text)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("not json", 422),
        ("[]", 422),
        ('{"type": "offer"}', 422),
        ('{"sdp": "v=0", "type": "answer"}', 422),
        ('{"sdp": 7, "type": "offer"}', 422),
        ('{"sdp": "v=0", "type": "offer", "params": {"a": 1}}', 422),
    ],
)
async def test_a_bad_body_is_refused(body: str, status: int) -> None:
    async with (
        gateway() as made,
        aiohttp.ClientSession() as http,
        http.post(f"{made.url}/v1/webrtc/offer", data=body, headers={"Content-Type": "application/json"}) as response,
    ):
        assert response.status == status
        assert (await response.json())["error"]["message"]


async def test_an_unknown_route_or_call_is_404() -> None:
    async with gateway() as made, aiohttp.ClientSession() as http:
        for wrong in ({"route": "nowhere"}, {"callId": "VX" + "0" * 32}):
            body = {"sdp": CHROMIUM, "type": "offer", **wrong}
            async with http.post(f"{made.url}/v1/webrtc/offer", json=body) as response:
                assert response.status == 404


@pytest.mark.parametrize("own", [", ", "\n"], ids=["in the client's header", "in a header of the proxy's own"])
async def test_calls_of_one_address_are_limited_and_another_address_is_not_harmed(own: str) -> None:
    async with gateway(WebRtcConfig(calls_per_address=2)) as made, aiohttp.ClientSession() as http:
        statuses = []
        for address in ("203.0.113.1",) * 3 + ("203.0.113.2",):
            async with http.post(
                f"{made.url}/v1/webrtc/offer",
                json={"sdp": CHROMIUM, "type": "offer"},
                # What the client itself claims comes first.
                headers=[("X-Forwarded-For", part) for part in f"198.51.100.{len(statuses)}{own}{address}".split("\n")],
            ) as response:
                statuses.append(response.status)
                if response.status == 429:
                    assert int(response.headers["Retry-After"]) > 0
        assert statuses == [200, 200, 429, 200]


async def test_an_offer_that_nobody_follows_up_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.webrtc.signalling.CONNECT_S", 0.1)
    async with gateway(WebRtcConfig()) as made, aiohttp.ClientSession() as http:
        async with http.post(f"{made.url}/v1/webrtc/offer", json={"sdp": CHROMIUM, "type": "offer"}) as response:
            assert response.status == 200
        await until(lambda: len(made.webrtc) == 0, "the call to be forgotten")
        assert made.ended == []  # there never was a session


async def test_ports_come_from_the_configured_range_and_run_out_with_503() -> None:
    low = free_port()
    config = WebRtcConfig(ports=f"{low}-{low + 1}", addresses=("127.0.0.1",))
    async with gateway(config) as made, aiohttp.ClientSession() as http:
        ports, statuses = [], []
        for _ in range(3):
            async with http.post(f"{made.url}/v1/webrtc/offer", json={"sdp": CHROMIUM, "type": "offer"}) as response:
                statuses.append(response.status)
                if response.status == 200:
                    ports += re.findall(r"a=candidate:\S+ 1 udp \d+ 127.0.0.1 (\d+)", (await response.json())["sdp"])
        assert statuses == [200, 200, 503]
        assert set(map(int, ports)) == {low, low + 1}
        assert len(made.webrtc) == 2


async def test_the_answer_names_the_public_address_only() -> None:
    async with gateway(WebRtcConfig(public_address="203.0.113.9", addresses=("127.0.0.1",))) as made:
        _, answer = await made.webrtc.answer(CHROMIUM, ANYONE)
        assert "203.0.113.9" in answer and "127.0.0.1" not in answer


class StunServer(asyncio.DatagramProtocol):
    """Tells everyone the same address."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        request = stun.parse_message(data)
        answer = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, transaction_id=request.transaction_id)
        answer.attributes["XOR-MAPPED-ADDRESS"] = ("203.0.113.5", 40123)
        self.transport.sendto(bytes(answer), addr)


async def test_our_side_asks_the_stun_server_where_it_is_told_to() -> None:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(StunServer, local_addr=("127.0.0.1", 0))
    servers = (IceServerConfig(urls=(f"stun:127.0.0.1:{transport.get_extra_info('sockname')[1]}",)),)
    for asks in (True, False):
        config = WebRtcConfig(ice_servers=servers, gather_from_servers=asks, addresses=("127.0.0.1",))
        async with gateway(config) as made:
            _, answer = await made.webrtc.answer(CHROMIUM, ANYONE)
            assert ("203.0.113.5 40123 typ srflx" in answer) is asks
    transport.close()


async def test_an_address_that_is_not_ours_is_a_503() -> None:
    async with gateway(WebRtcConfig(addresses=("203.0.113.7",))) as made:
        with pytest.raises(Rejected) as refusal:
            await made.webrtc.answer(CHROMIUM, ANYONE)
        assert refusal.value.status == 503
        assert len(made.webrtc) == 0


async def test_the_answer_takes_the_tagged_section_as_inactive() -> None:
    async with gateway() as made:
        _, answer = await made.webrtc.answer(CHROMIUM, ANYONE)
        sections = answer.split("m=")[1:]
        assert "a=inactive" in sections[0] and not sections[0].startswith("video 0 ")
        assert "a=sendrecv" in sections[1] and "telephone-event/48000" in sections[1]
        assert "a=group:BUNDLE 0 1 2\r\n" in answer
        assert "a=setup:active" in sections[1] and "a=end-of-candidates" in sections[1]


async def test_whip_offers_trickles_and_hangs_up() -> None:
    servers = (IceServerConfig(urls=("turn:turn.example.com:3478",), secret="s3cret", username="web"),)
    async with gateway(WebRtcConfig(ice_servers=servers)) as made, aiohttp.ClientSession() as http:
        phone = Phone()
        offer = await phone.offer()
        kept = re.findall(r"a=candidate:.*", offer)
        bare = re.sub(r"a=candidate:.*\r\n|a=end-of-candidates\r\n", "", offer)
        sdp = {"Content-Type": "application/sdp"}
        async with http.post(f"{made.url}/whip/default?shop=7", data=bare, headers=sdp) as response:
            assert response.status == 201
            assert response.content_type == "application/sdp"
            location, etag = response.headers["Location"], response.headers["ETag"]
            link = response.headers["Link"]
            answer = await response.text()
        assert link.startswith('<turn:turn.example.com:3478>; rel="ice-server"') and "credential=" in link
        fragment = "\r\n".join([f"a=ice-ufrag:{re.findall('ice-ufrag:(.*)', offer)[0].strip()}", *kept])
        trickle = {"Content-Type": "application/trickle-ice-sdpfrag"}
        url = made.url + location
        for headers, status in [
            (trickle, 428),
            ({**trickle, "If-Match": '"other"'}, 412),
            ({**sdp, "If-Match": etag}, 415),
            ({**trickle, "If-Match": etag}, 204),
        ]:
            async with http.patch(url, data=fragment, headers=headers) as response:
                assert response.status == status
        restart = fragment.replace("a=ice-ufrag:", "a=ice-ufrag:new")  # without a=ice-pwd
        async with http.patch(url, data=restart, headers={**trickle, "If-Match": etag}) as response:
            assert response.status == 422
            assert (await response.json())["error"]["code"] == "ice_restart"
        await phone.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await until(lambda: phone.of_type("setup"), "the call")
        assert phone.of_type("setup")[0]["customParameters"] == {"shop": "7"}
        async with http.delete(url) as response:
            assert response.status == 200
        await until(lambda: phone.connection.connectionState == "closed", "the connection's end")
        await until(lambda: made.ended == ["hangup"], "the session's end")
        async with http.delete(url) as response:
            assert response.status == 404
        await phone.close()


@pytest.mark.parametrize(
    "text",
    [
        "a=candidate:x",
        "a=candidate:1 1 udp a 10.0.0.1 5000 typ host",
        "a=candidate:\n" * 50,
        "a=ice-ufrag:abcd\na=ice-pwd:short",
        "a=ice-pwd:0123456789abcdefghijklmn",
        "a=ice-ufrag:a b c d\na=ice-pwd:0123456789abcdefghijklmn",
    ],
)
def test_a_bad_fragment_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        read_fragment(text)


async def test_candidates_without_end_are_not_kept() -> None:
    async with gateway() as made, calling(made.url) as phone:
        leg = next(iter(made.webrtc._legs.values()))
        assert leg.peer is not None
        for port in range(20):
            lines = "\n".join(f"a=candidate:1 1 udp 1 10.0.{port}.{n} 5000 typ host" for n in range(MAX_CANDIDATES))
            await leg.peer.trickle(read_fragment(lines))
        assert len(leg.peer._ice.remote_candidates) <= 64
        phone.say(type="text", token="Still here.", last=True, turn="a")
        await until(lambda: "finished" in phone.turn_events("a"), "voice")


async def test_turn_credentials_end_when_they_say() -> None:
    made = ice_server(
        IceServerConfig(urls=("turn:t.example:3478",), secret="north", username="web"), 3600, now=1_700_000_000.5
    )
    assert made.username == "1700003600:web"
    expected = hmac.new(b"north", b"1700003600:web", hashlib.sha1).digest()
    assert base64.b64decode(made.credential) == expected


async def test_ice_servers_are_told() -> None:
    servers = (
        IceServerConfig(urls=("stun:stun.example.com:3478",)),
        IceServerConfig(urls=("turn:turn.example.com",), secret="north"),
    )
    async with gateway(WebRtcConfig(ice_servers=servers)) as made, aiohttp.ClientSession() as http:
        async with http.get(f"{made.url}/v1/webrtc/ice") as response:
            told = await response.json()
            assert response.headers["Cache-Control"] == "no-store"
        assert told["ttl"] == 3600
        assert told["iceServers"][0] == {"urls": ["stun:stun.example.com:3478"], "username": "", "credential": ""}
        assert 3500 < int(told["iceServers"][1]["username"]) - time.time() <= 3600


@pytest.mark.parametrize(
    ("origin", "allowed"), [("https://www.example.com", True), ("https://evil.example", False), ("", False)]
)
async def test_other_sites_may_call_only_where_they_are_listed(origin: str, allowed: bool) -> None:
    config = WebRtcConfig(allowed_origins=("https://www.example.com",))
    headers: dict[str, Any] = {"Origin": origin} if origin else {}
    async with gateway(config) as made, aiohttp.ClientSession() as http:
        async with http.options(f"{made.url}/v1/webrtc/offer", headers=headers) as response:
            assert response.status == (204 if allowed else 403)
        body = {"sdp": "nonsense", "type": "offer"}
        async with http.post(f"{made.url}/v1/webrtc/offer", json=body, headers=headers) as response:
            assert response.status == 422  # readable by the page, where it is allowed
            assert response.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
