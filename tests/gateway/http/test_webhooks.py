"""Call control of every carrier over HTTP: who may ask, what starts the stream, what follows it."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.call.directory import LocalDirectory
from gateway.call.handoff import Handoffs
from gateway.carriers.carrier import ConfiguredCarrier
from gateway.carriers.plivo.call_control import plivo_headers
from gateway.carriers.plivo.dialect import Plivo
from gateway.carriers.plivo.proof import plivo_signature
from gateway.carriers.signatures import twilio_signature
from gateway.carriers.table import CARRIERS, CarriersConfig
from gateway.config import RouteConfig, ServerConfig
from gateway.errors import Rejected
from gateway.http.webhooks import Webhooks
from gateway.listener.forwarded import PublicUrl
from gateway.listener.stream_claims import StreamClaims
from gateway.seams.media_messages import StreamStarted
from gateway.seams.shared_state import Handoff
from gateway.tokens import StreamToken, Tokens
from talkspurt.config.settings import load
from tests.talkspurt.config.test_settings import EXAMPLES, SECRETS

SECRET = "a-secret-of-at-least-thirty-two-bytes"
PUBLIC = "https://voice.example.com"
ASKING = [name for name, carrier in CARRIERS.items() if carrier.call_control is not None]
every = pytest.mark.parametrize("dialect", ASKING)


class Harness:
    def __init__(self) -> None:
        self.handoffs = Handoffs()
        self.tokens = Tokens(None, lifetime_s=60)
        self.directory: LocalDirectory[Any] = LocalDirectory(limit=10)
        self.client: TestClient[web.Request, web.Application]

    async def open(self, carriers: Mapping[str, ConfiguredCarrier], server: ServerConfig) -> None:
        routes = {"default": RouteConfig()}
        claims = StreamClaims(self.directory, None, keep_s=60)
        hooks = Webhooks(PublicUrl(server), carriers, routes, self.tokens, self.handoffs, claims.is_spent)

        def answering(handler: Any) -> Any:
            async def handle(request: web.Request) -> web.StreamResponse:
                try:
                    response: web.StreamResponse = await handler(request)
                except Rejected as exc:
                    return web.Response(status=exc.status, text=str(exc))
                return response

            return handle

        app = web.Application()
        app.router.add_route("*", "/webhooks/{dialect}/{route}/after", answering(hooks.after))
        app.router.add_route("*", "/webhooks/{dialect}/{route}/status", answering(hooks.status))
        app.router.add_route("*", "/webhooks/{dialect}/{route}", answering(hooks.start))
        self.client = TestClient(TestServer(app))
        await self.client.start_server()


OUTSIDE = ServerConfig(public_url=PUBLIC)
UNPROVEN = CarriersConfig.model_validate({dialect: {} for dialect in ASKING}).configured()
"""Every carrier that has webhooks, without anything that could prove who asks."""
PROVEN = CarriersConfig.model_validate(
    {
        "twilio": {"auth_token": SECRET},
        "signalwire": {"signing_key": SECRET},
        "telnyx": {"public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="},  # RFC 8032 section 7.1, test 1
        "plivo": {"auth_token": SECRET},
        "exotel": {"api_key": "key", "api_token": SECRET},
        "vonage": {"signature_secret": SECRET},
        "jambonz": {"webhook_secret": SECRET, "username": "user", "password": "a password"},
    }
).configured()


@asynccontextmanager
async def serving(carriers: Mapping[str, ConfiguredCarrier], server: ServerConfig) -> AsyncIterator[Harness]:
    made = Harness()
    await made.open(carriers, server)
    try:
        yield made
    finally:
        await made.client.close()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """On loopback only, where nobody has to prove anything."""
    async with serving(UNPROVEN, ServerConfig()) as made:
        yield made


FORMS: dict[str, dict[str, Any]] = {
    "twilio": {"data": {"CallSid": "c1", "From": "+4930000001", "To": "+4930000002"}},
    "signalwire": {"data": {"CallSid": "c1", "From": "+4930000001", "To": "+4930000002"}},
    "telnyx": {"data": {"CallSid": "c1", "From": "+4930000001", "To": "+4930000002"}},
    "plivo": {"data": {"CallUUID": "c1", "From": "+4930000001", "To": "+4930000002"}},
    "exotel": {"data": {"CallSid": "c1", "CallFrom": "+4930000001", "CallTo": "+4930000002"}},
    "vonage": {"json": {"uuid": "c1", "from": "+4930000001", "to": "+4930000002"}},
    "jambonz": {"json": {"call_sid": "c1", "from": "+4930000001", "to": "+4930000002"}},
}


def stream_of(dialect: str, body: str) -> tuple[str, dict[str, str]]:
    """Address and parameters of the stream that the answer starts."""
    if dialect == "exotel":
        return json.loads(body)["url"].partition("?")[0], {}
    if dialect == "vonage":
        (endpoint,) = json.loads(body)[0]["endpoint"]
        return endpoint["uri"], endpoint["headers"]
    if dialect == "jambonz":
        return json.loads(body)[0]["url"], json.loads(body)[0]["metadata"]
    root = ElementTree.fromstring(body)
    stream = root.find(".//Stream")
    assert stream is not None
    if dialect == "plivo":
        return str(stream.text), dict(pair.split("=") for pair in stream.attrib["extraHeaders"].split(","))
    return stream.attrib["url"], {p.attrib["name"]: p.attrib["value"] for p in stream.iter("Parameter")}


@every
async def test_the_answer_starts_a_stream_with_a_token_and_the_callers_number(harness: Harness, dialect: str) -> None:
    response = await harness.client.post(f"/webhooks/{dialect}/default?bot=billing", **FORMS[dialect])
    assert response.status == 200
    url, parameters = stream_of(dialect, await response.text())
    head, _, token = url.rpartition("/")
    assert head == f"ws://127.0.0.1:{harness.client.port}/media/{dialect}/default"
    opened = harness.tokens.check(token, dialect, "default", now=time.time())
    opened.check_call("c1")
    if dialect != "exotel":  # its stream may name the call otherwise
        with pytest.raises(Rejected, match="another call"):
            opened.check_call("c2")
    if dialect == "plivo":
        assert parameters["talkspurtFrom"] == "0x" + b"+4930000001".hex() and parameters["bot"] == "billing"
    elif dialect != "exotel":  # its stream repeats the numbers itself
        assert parameters["talkspurt.From"] == "+4930000001" and parameters["bot"] == "billing"


@every
async def test_after_the_stream_a_transfer_is_dialled_and_else_the_call_ends(harness: Harness, dialect: str) -> None:
    if dialect == "exotel":
        return  # its flow goes on by itself
    form = FORMS[dialect] if dialect != "vonage" else {"json": {"status": "disconnected", "uuid": "leg"}}
    address = f"/webhooks/{dialect}/default/after?call=c1"
    harness.handoffs.leave("asterisk", "c1", Handoff("VX", "transferred", None, "+4930000004"))
    harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", None, "+4930000003"))
    dialled = await (await harness.client.post(address, **form)).text()
    assert "4930000003" in dialled
    ended = await (await harness.client.post(address, **form)).text()
    assert "493000000" not in ended, "handed over once, and to no other dialect"
    harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", None, "sip:agent@example.com"))
    assert "sip:agent@example.com" in await (await harness.client.post(address, **form)).text()


async def test_vonage_events_that_ask_nothing_are_only_heard(harness: Harness) -> None:
    harness.handoffs.leave("vonage", "c1", Handoff("VX", "transferred", None, "+4930000003"))
    answer = await harness.client.post("/webhooks/vonage/default/after?call=c1", json={"status": "started"})
    assert answer.status == 204
    assert await harness.handoffs.take("vonage", "c1") is not None


@pytest.mark.parametrize("form", ["a=b&" * 300, "a=" + "b" * 70_000], ids=["fields", "bytes"])
async def test_a_form_that_takes_long_to_read_is_refused(harness: Harness, form: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await harness.client.post("/webhooks/twilio/default", data=form.encode(), headers=headers)
    assert answer.status == 413


async def statuses(harness: Harness, dialect: str, **headers: str) -> list[int]:
    """Of the three webhooks."""
    found = []
    for what in ("", "/after", "/status"):
        path = f"/webhooks/{dialect}/default{what}"
        found.append((await harness.client.post(path, headers=headers, **FORMS[dialect])).status)
    return found


async def test_a_refused_signature_says_what_it_should_have_covered() -> None:
    async with serving(PROVEN, OUTSIDE) as harness:
        path = "/webhooks/twilio/default"
        missing = await harness.client.post(path, **FORMS["twilio"])
        assert await missing.text() == "twilio: the carrier's signature or credentials are missing or do not match"
        wrong = await harness.client.post(path, headers={"X-Twilio-Signature": "A"}, **FORMS["twilio"])
        assert (
            await wrong.text()
            == f"twilio: X-Twilio-Signature does not match {PUBLIC}{path} and the secret of carriers.twilio"
        )


@every
async def test_a_carrier_without_a_section_is_not_there(dialect: str) -> None:
    others = CarriersConfig.model_validate({other: {} for other in ASKING if other != dialect}).configured()
    async with serving(others, ServerConfig()) as harness:
        assert await statuses(harness, dialect) == [404, 404, 404]


@every
@pytest.mark.parametrize("server", [ServerConfig(), OUTSIDE], ids=["loopback", "outside"])
async def test_an_unsigned_request_is_refused_where_a_secret_is_configured(dialect: str, server: ServerConfig) -> None:
    async with serving(PROVEN, server) as harness:
        harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", None, "+4930000003"))
        assert await statuses(harness, dialect) == [403, 403, 403]
        assert await harness.handoffs.take(dialect, "c1") is not None


@every
@pytest.mark.parametrize(
    "server",
    [
        OUTSIDE,
        ServerConfig(host="0.0.0.0"),
        ServerConfig(host="0.0.0.0", insecure=True),
        ServerConfig(trusted_proxies=("127.0.0.1",)),
    ],
    ids=["public address", "beyond loopback", "insecure", "behind a proxy"],
)
async def test_what_nobody_can_prove_is_refused_where_the_outside_reaches_us(
    dialect: str, server: ServerConfig
) -> None:
    unchecked = CarriersConfig.model_validate({dialect: {"verify": False}}).configured()
    for carriers in (UNPROVEN, unchecked):
        async with serving(carriers, server) as harness:
            assert await statuses(harness, dialect) == [403, 403, 403]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("dialect", CARRIERS)
async def test_no_shipped_configuration_gives_a_stranger_a_token_or_a_secret(example: Path, dialect: str) -> None:
    config = load(example, environment=SECRETS)
    async with serving(config.carriers.configured(), config.server) as harness:
        harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", "secret data", "+4930000003"))
        for method in ("GET", "POST"):  # nobody has signed, and a proxy has passed it on
            for what in ("", "/after", "/status"):
                path, sent = f"/webhooks/{dialect}/default{what}", FORMS.get(dialect, {}) if method == "POST" else {}
                async with harness.client.request(
                    method, path, headers={"X-Forwarded-For": "192.0.2.1"}, params={"call": "c1"}, **sent
                ) as answer:
                    text = await answer.text()
                assert answer.status in (403, 404)
                assert not any(
                    secret in text for secret in (*SECRETS.values(), "/media/", "secret data", "+4930000003")
                )
        assert await harness.handoffs.take(dialect, "c1") is not None


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via"])
async def test_a_request_that_a_tunnel_passed_on_comes_from_outside(harness: Harness, header: str) -> None:
    assert await statuses(harness, "twilio", **{header: "127.0.0.1"}) == [403, 403, 403]


@pytest.mark.parametrize("host", ["x:99999", "x:y", "[", "[::1", ":", "x/y"])
async def test_a_host_that_is_none_is_a_bad_request(host: str) -> None:
    async with serving(PROVEN, ServerConfig(host="0.0.0.0")) as harness:
        for dialect in ("twilio", "signalwire", "plivo"):
            assert await statuses(harness, dialect, Host=host) == [400, 400, 400]


async def test_a_signed_webhook_that_is_repeated_after_its_call_began_opens_no_second_one() -> None:
    """Twilio signs no time, so what somebody has seen stays good for ever."""
    async with serving(PROVEN, OUTSIDE) as harness:

        async def token(query: str = "", call: str = "c1") -> StreamToken | None:
            path, form = f"/webhooks/twilio/default{query}", {"CallSid": call}
            headers = {"X-Twilio-Signature": twilio_signature(SECRET, PUBLIC + path, {"CallSid": [call]})}
            answer = await harness.client.post(path, data=form, headers=headers)
            if answer.status == 409:
                return None
            stream = ElementTree.fromstring(await answer.text()).find("Connect/Stream")
            assert stream is not None
            return harness.tokens.check(stream.attrib["url"].rpartition("/")[2], "twilio", "default", now=time.time())

        first, again = await token(), await token()  # a carrier that got no answer in time asks again
        assert first is not None and again is not None and first.id == again.id
        harness.directory.spend(first, now=time.time())
        assert await token() is None
        harness.directory.spend(StreamToken(b"another", 0, b""), now=time.time() + 3600)
        assert await token() is None, "forgotten as soon as the token had expired"
        assert await token(call="c2") is not None and await token("?again=1") is not None


async def test_signed_requests_are_let_in() -> None:
    async with serving(PROVEN, OUTSIDE) as harness:
        form = {"CallUUID": "c1", "From": "+4930000001"}
        signature = plivo_signature(
            SECRET, f"{PUBLIC}/webhooks/plivo/default", "n1", {name: [value] for name, value in form.items()}
        )
        headers = {"X-Plivo-Signature-V3": f"other,{signature}", "X-Plivo-Signature-V3-Nonce": "n1"}
        assert (await harness.client.post("/webhooks/plivo/default", data=form, headers=headers)).status == 200
        body = b'{"uuid":"c1"}'
        claims = {"iat": int(time.time()), "payload_hash": hashlib.sha256(body).hexdigest()}
        headers = {"Authorization": f"Bearer {jwt.encode(claims, SECRET)}", "Content-Type": "application/json"}
        assert (await harness.client.post("/webhooks/vonage/default", data=body, headers=headers)).status == 200
        assert (await harness.client.post("/webhooks/vonage/default", data=b"{}", headers=headers)).status == 403
        credentials = {"Authorization": "Basic " + base64.b64encode(f"key:{SECRET}".encode()).decode()}
        answer = await harness.client.get("/webhooks/exotel/default?CallSid=c1", headers=credentials)
        assert stream_of("exotel", await answer.text())[0].startswith("wss://voice.example.com/media/exotel/default/")


async def test_a_password_is_told_only_to_who_has_proven_to_be_the_carrier() -> None:
    body = json.dumps(FORMS["jambonz"]["json"]).encode()
    stamp = str(int(time.time()))
    digest = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"Content-Type": "application/json", "Jambonz-Signature": f"t={stamp},v1={digest}"}
    async with serving(PROVEN, OUTSIDE) as harness:
        answer = await harness.client.post("/webhooks/jambonz/default", data=body, headers=headers)
        assert (await answer.json())[0]["wsAuth"] == {"username": "user", "password": "a password"}
    nobody = CarriersConfig.model_validate({"jambonz": {"username": "user", "password": "a password"}}).configured()
    async with serving(nobody, ServerConfig()) as harness:
        answer = await harness.client.post("/webhooks/jambonz/default", data=body, headers=headers)
        assert answer.status == 200 and "password" not in await answer.text()


@pytest.mark.parametrize(("path", "status"), [("genesys/default", 404), ("nobody/default", 404), ("twilio/other", 404)])
async def test_what_is_not_there_is_not_found(harness: Harness, path: str, status: int) -> None:
    assert (await harness.client.post(f"/webhooks/{path}")).status == status


async def test_a_body_that_is_no_json_object_is_a_bad_request(harness: Harness) -> None:
    for body in (b"{", b"[]"):
        headers = {"Content-Type": "application/json"}
        assert (await harness.client.post("/webhooks/vonage/default", data=body, headers=headers)).status == 400


@pytest.mark.parametrize("value", ["+4930000001", "0x41", "plain", "ümlaut", ""])
def test_plivo_headers_survive_the_way_through_letters_and_digits(value: str) -> None:
    text = plivo_headers({"talkspurt.From": value, "bot": value})
    assert all(char.isalnum() or char in "=," for char in text)
    start = {"callId": "c", "streamId": "s", "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000}}
    (started,) = Plivo().decode(json.dumps({"event": "start", "start": start, "extra_headers": text.replace(",", ";")}))
    assert isinstance(started, StreamStarted)
    assert started.custom_parameters == {"talkspurt.From": value, "bot": value}
