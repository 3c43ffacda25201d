"""Call control of every carrier over HTTP: who may ask, what starts the stream, what follows it."""

import hashlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.call.handoff import Handoff, Handoffs
from gateway.carriers.call_control import CALL_CONTROL, plivo_headers
from gateway.carriers.plivo.dialect import Plivo
from gateway.carriers.signatures import plivo_signature
from gateway.carriers.tokens import StreamTokens
from gateway.config import CarriersConfig, RouteConfig, ServerConfig
from gateway.errors import Rejected
from gateway.http.webhooks import Webhooks
from gateway.listener.forwarded import PublicUrl
from gateway.seams.media_messages import StreamStarted

SECRET = "a-secret-of-at-least-thirty-two-bytes"
PUBLIC = "https://voice.example.com"
every = pytest.mark.parametrize("dialect", CALL_CONTROL)


class Harness:
    def __init__(self) -> None:
        self.handoffs = Handoffs()
        self.tokens = StreamTokens(None, lifetime_s=60)
        self.client: TestClient[web.Request, web.Application]

    async def open(self, carriers: CarriersConfig) -> None:
        hooks = Webhooks(
            PublicUrl(ServerConfig(public_url=PUBLIC)), carriers, {"default": RouteConfig()}, self.tokens, self.handoffs
        )

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
        app.router.add_route("*", "/webhooks/{dialect}/{route}", answering(hooks.start))
        self.client = TestClient(TestServer(app))
        await self.client.start_server()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    await made.open(CarriersConfig())
    yield made
    await made.client.close()


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
    assert head == f"wss://voice.example.com/media/{dialect}/default"
    harness.tokens.check(token, dialect, "default", now=time.time())
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
    harness.handoffs.leave("c1", Handoff("VX", "transferred", None, "+4930000003"))
    dialled = await (await harness.client.post(address, **form)).text()
    assert "4930000003" in dialled
    ended = await (await harness.client.post(address, **form)).text()
    assert "4930000003" not in ended
    harness.handoffs.leave("c1", Handoff("VX", "transferred", None, "sip:agent@example.com"))
    assert "sip:agent@example.com" in await (await harness.client.post(address, **form)).text()


async def test_vonage_events_that_ask_nothing_are_only_heard(harness: Harness) -> None:
    harness.handoffs.leave("c1", Handoff("VX", "transferred", None, "+4930000003"))
    answer = await harness.client.post("/webhooks/vonage/default/after?call=c1", json={"status": "started"})
    assert answer.status == 204
    assert harness.handoffs.take("c1") is not None


@every
async def test_an_unsigned_request_is_refused_where_a_secret_is_configured(dialect: str) -> None:
    carriers = CarriersConfig.model_validate(
        {
            "twilio": {"auth_token": SECRET},
            "signalwire": {"signing_key": SECRET},
            "telnyx": {"public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="},  # RFC 8032 section 7.1, test 1
            "plivo": {"auth_token": SECRET},
            "vonage": {"signature_secret": SECRET},
            "jambonz": {"webhook_secret": SECRET},
        }
    )
    harness = Harness()
    await harness.open(carriers)
    try:
        response = await harness.client.post(f"/webhooks/{dialect}/default", **FORMS[dialect])
        assert response.status == (200 if dialect == "exotel" else 403)
    finally:
        await harness.client.close()


async def test_signed_requests_are_let_in() -> None:
    harness = Harness()
    await harness.open(
        CarriersConfig.model_validate({"plivo": {"auth_token": SECRET}, "vonage": {"signature_secret": SECRET}})
    )
    try:
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
    finally:
        await harness.client.close()


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
