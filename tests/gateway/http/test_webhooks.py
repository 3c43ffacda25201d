"""Call control of every carrier over HTTP: who may ask, what starts the stream, what follows it."""

import asyncio
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
from gateway.carriers.call_control import Answer
from gateway.carriers.carrier import ConfiguredCarrier
from gateway.carriers.plivo.call_control import plivo_headers
from gateway.carriers.plivo.dialect import Plivo
from gateway.carriers.plivo.proof import plivo_signature
from gateway.carriers.signatures import twilio_signature
from gateway.carriers.table import CARRIERS, CarriersConfig
from gateway.cluster.memory_state import MemoryState
from gateway.cluster.outage_state import OutageState
from gateway.config import RouteConfig, ServerConfig
from gateway.errors import Rejected
from gateway.http.after import KEEP_S, AfterUrl, GivenAnswers
from gateway.http.used_proofs import UsedProofs
from gateway.http.webhooks import Webhooks
from gateway.listener.forwarded import PublicUrl
from gateway.listener.sites import Sites
from gateway.listener.stream_claims import StreamClaims
from gateway.seams.media_messages import StreamStarted
from gateway.seams.shared_state import Handoff, SharedState, Values
from gateway.tokens import StreamToken, Tokens
from talkspurt.config.settings import load
from tests.talkspurt.config.test_settings import EXAMPLES, SECRETS

SECRET = "a-secret-of-at-least-thirty-two-bytes"
PUBLIC = "https://voice.example.com"
ASKING = [name for name, carrier in CARRIERS.items() if carrier.call_control is not None]
every = pytest.mark.parametrize("dialect", ASKING)


class Harness:
    def __init__(self, shared: SharedState | None = None, values: Values | None = None) -> None:
        self.handoffs = Handoffs(shared=shared)
        self.values = OutageState(shared, values)
        self.shared = shared
        self.tokens = Tokens("of all workers", lifetime_s=60)
        self.routes: dict[str, RouteConfig] = {}
        self.directory: LocalDirectory[Any] = LocalDirectory(limit=10)
        self.client: TestClient[web.Request, web.Application]

    async def open(self, carriers: Mapping[str, ConfiguredCarrier], server: ServerConfig) -> None:
        self.routes["default"] = RouteConfig()
        self.claims = StreamClaims(self.directory, self.shared, keep_s=60)
        public_url = PublicUrl(server)
        self.hooks = hooks = Webhooks(
            public_url, Sites(server, public_url), carriers, self.routes, self.tokens, self.handoffs, self.claims,
            self.values,
        )  # fmt: skip

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
async def serving(
    carriers: Mapping[str, ConfiguredCarrier],
    server: ServerConfig,
    *,
    shared: SharedState | None = None,
    values: Values | None = None,
) -> AsyncIterator[Harness]:
    made = Harness(shared, values)
    await made.open(carriers, server)
    try:
        yield made
    finally:
        await made.client.close()
        await made.hooks.aclose()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """On loopback only, where no one has to prove anything."""
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


def after_form(dialect: str) -> dict[str, Any]:
    return FORMS[dialect] if dialect != "vonage" else {"json": {"status": "disconnected", "uuid": "leg"}}


@every
async def test_after_the_stream_a_transfer_is_dialled_and_else_the_call_ends(harness: Harness, dialect: str) -> None:
    if dialect == "exotel":
        return  # its flow continues by itself
    form = after_form(dialect)
    address = f"/webhooks/{dialect}/default/after?call=c1"
    harness.handoffs.leave("asterisk", "c1", Handoff("VX", "transferred", None, "+4930000004"))
    harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", None, "+4930000003"))
    dialled = await (await harness.client.post(address, **form)).text()
    assert "4930000003" in dialled
    other = await (await harness.client.post(address.replace("c1", "c2"), **form)).text()
    assert "493000000" not in other, "handed over to no other call and no other dialect"
    harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", None, "sip:agent@example.com"))
    assert "sip:agent@example.com" in await (await harness.client.post(address, **form)).text()


@every
async def test_a_repeated_webhook_gets_the_same_answer_until_the_call_begins_again(
    harness: Harness, dialect: str
) -> None:
    if dialect == "exotel":
        return  # its flow continues by itself
    form = after_form(dialect)
    address = f"/webhooks/{dialect}/default/after?call=c1"
    harness.handoffs.leave(dialect, "c1", Handoff("VX", "transferred", None, "+4930000003"))
    answers = {await (await harness.client.post(address, **form)).text() for _ in range(3)}
    assert len(answers) == 1 and "4930000003" in answers.pop()
    await harness.client.post(f"/webhooks/{dialect}/default", **FORMS[dialect])
    ended = await (await harness.client.post(address, **form)).text()
    assert "493000000" not in ended


async def test_an_answer_is_kept_for_a_minute_and_an_early_repetition_waits_for_it() -> None:
    now = [0.0]
    given, first, asked = GivenAnswers(MemoryState(clock=lambda: now[0])), asyncio.Event(), []
    call = ("twilio", "default", "c1")

    async def make(previous: Answer | None) -> Answer:
        asked.append(previous)
        await first.wait()
        return previous or Answer("text/xml", b"%d" % len(asked))

    waiting = [asyncio.create_task(given.answer(call, make)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting.pop().cancel()  # the carrier has given up, and the work continues
    first.set()
    assert [answer.body for answer in await asyncio.gather(*waiting)] == [b"1", b"1"]
    now[0] = KEEP_S - 1
    assert (await given.answer(call, make)).body == b"1"
    now[0] = 2 * KEEP_S
    assert (await given.answer(call, make)).body != b"1"
    await given.aclose()


class Application:
    """The operator's application at ``after_url``."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self.signed: list[str] = []
        self.status = 200

    async def after(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.forms.append({name: str(value) for name, value in form.items()})
        self.signed.append(request.headers.get("X-Twilio-Signature", ""))
        return web.Response(status=self.status, text="<Response><Dial>+15550199</Dial></Response>",
                            content_type="text/xml")  # fmt: skip


AFTER = {
    "twilio": {"auth_token": SECRET},
    "signalwire": {"signing_key": SECRET},
    "plivo": {"auth_token": SECRET},
    "telnyx": {},
}


@pytest.mark.parametrize("dialect", AFTER)
async def test_the_application_says_what_follows_by_twilios_form(dialect: str) -> None:
    told = Application()
    app = web.Application()
    app.router.add_post("/after", told.after)
    async with TestServer(app) as server:
        url = str(server.make_url("/after?a=1"))
        section = {**AFTER[dialect], "after_url": url, "verify": False}
        carriers = CarriersConfig.model_validate({dialect: section}).configured()
        async with serving(carriers, ServerConfig()) as made:
            made.routes["default"] = RouteConfig.model_validate({"fallback": {"transfer": "+15550100"}})
            address = f"/webhooks/{dialect}/default/after?call=c1"
            for reason, data in (("ended", '{"queue":"billing"}'), ("dialogue_failed", None)):
                made.handoffs.leave(dialect, "c1", Handoff("VX1", reason, data))
                for _ in range(2):  # the second is a repetition
                    answer = await made.client.post(address, **FORMS[dialect])
                    assert (answer.content_type, await answer.text()) == (
                        "text/xml", "<Response><Dial>+15550199</Dial></Response>",
                    )  # fmt: skip
            sent = {**FORMS[dialect]["data"], "SessionId": "VX1", "SessionStatus": "ended"}
            sent["HandoffData"] = '{"queue":"billing"}'
            assert told.forms[0] == sent and len(told.forms) == 2
            assert "HandoffData" not in told.forms[1] and told.forms[1]["SessionStatus"] == "dialogue_failed"
            signature = twilio_signature(SECRET, url, {name: [value] for name, value in sent.items()})
            assert told.signed[0] == (signature if AFTER[dialect] else "")
            told.status = 500
            made.handoffs.leave(dialect, "c1", Handoff("VX1", "ended"))
            assert "+15550100" in await (await made.client.post(address, **FORMS[dialect])).text()
            made.routes["default"] = RouteConfig()
            made.handoffs.leave(dialect, "c1", Handoff("VX1", "ended"))
            assert "<Hangup/>" in await (await made.client.post(address, **FORMS[dialect])).text()


async def test_an_application_that_does_not_answer_is_given_up() -> None:
    silent = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await silent.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/", wait)
    async with TestServer(app) as server:
        asked = AfterUrl(timeout_s=0.05)
        assert await asked.ask(str(server.make_url("/")), {}, "") is None
        assert await asked.ask("http://127.0.0.1:1/", {}, "") is None
        await asked.aclose()
        silent.set()


FIELDS: dict[str, dict[str, str]] = {
    "twilio": {
        "CallSid": "c1", "From": "+4930000001", "To": "+4930000002", "AccountSid": "AC1", "ApiVersion": "2010-04-01",
        "CallToken": "secret", "StirVerstat": "TN-Validation-Passed-A", "FromCity": "BERLIN", "CalledZip": "10115",
        "CallerName": "X", "SipHeader_X-Order": "7", "Direction": "inbound", "CallStatus": "ringing",
    },
    "plivo": {
        "CallUUID": "c1", "From": "+4930000001", "To": "+4930000002", "ParentAuthID": "MA1", "SessionStart": "now",
        "STIRVerification": "Not Verified", "BillRate": "0.0", "Event": "StartApp", "CallStatus": "ringing",
    },
    "exotel": {
        "CallSid": "c1", "CallFrom": "09000000001", "CallTo": "08000000002", "Direction": "incoming", "Created": "now",
        "DialWhomNumber": "", "HangupLatencyStartTimeExocc": "", "flow_id": "1", "tenant_id": "2", "CurrentTime": "now",
        "digits": '"1"',
    },
    "vonage": {
        "uuid": "c1", "from": "4930000001", "to": "4930000002", "conversation_uuid": "CON-1", "region_url": "https://x",
        "endpoint_type": "phone", "from_user": "u", "custom_data": "{}",
    },
    "jambonz": {
        "call_sid": "c1", "from": "+4930000001", "to": "+4930000002", "application_sid": "a", "account_sid": "b",
        "sip_status": "100", "sip_reason": "Trying", "call_status": "trying", "originating_sip_ip": "192.0.2.1",
        "fs_sip_address": "10.0.0.1", "api_base_url": "http://x", "trace_id": "t", "direction": "inbound",
        "caller_name": "", "service_provider_sid": "s", "call_id": "i", "originating_sip_trunk_name": "t",
    },
}  # fmt: skip
FIELDS |= {"signalwire": FIELDS["twilio"], "telnyx": FIELDS["twilio"] | {"CallSidLegacy": "x", "CallerId": "+49"}}


@every
async def test_a_get_passes_on_what_the_configured_address_has_and_nothing_else(harness: Harness, dialect: str) -> None:
    if dialect == "exotel":
        return  # its stream carries no parameters
    address = f"/webhooks/{dialect}/default"
    answer = await harness.client.get(address, params={"bot": "billing", **FIELDS[dialect], "again": "1"})
    _, parameters = stream_of(dialect, await answer.text())
    assert {name for name in parameters if not name.startswith("talkspurt")} == {"bot", "again"}
    assert parameters["bot"] == "billing"


async def test_a_call_control_event_is_refused_with_what_to_set(harness: Harness) -> None:
    event = {"data": {"event_type": "call.initiated", "payload": {"call_control_id": "v3:x"}}}
    answer = await harness.client.post("/webhooks/telnyx/default", json=event)
    assert answer.status == 422 and "TeXML application" in await answer.text()


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
    """Send each of the three webhooks."""
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
        for method in ("GET", "POST"):  # unsigned, and a proxy has passed it on
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
    now = 1000.0
    async with serving(PROVEN, OUTSIDE, values=MemoryState(clock=lambda: now)) as harness:

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
        again = await token()
        assert again is not None and again.id == first.id, "the same answer, which starts nothing"
        now += KEEP_S
        assert await token() is None
        harness.directory.spend(StreamToken(b"another", 0, b""), now=time.time() + 3600)
        assert await token() is None, "forgotten as soon as the token had expired"
        assert await token(call="c2") is not None and await token("?again=1") is not None


async def test_a_proof_that_was_shown_to_one_worker_is_known_to_the_other() -> None:
    """A copied webhook finds its first use, its answer and its call at whichever worker it arrives."""
    store = MemoryState()
    async with (
        serving(PROVEN, OUTSIDE, shared=store) as one,
        serving(PROVEN, OUTSIDE, shared=store) as two,
    ):
        path, form = "/webhooks/twilio/default?CallSid=call-1", {"CallSid": "call-1"}
        first = await one.client.get(path, headers=_twilio({}, path))
        again = await two.client.get(path, headers=_twilio({}, path))
        assert (first.status, again.status) == (200, 200) and await first.read() == await again.read()
        for way, where in (
            ("post", path),
            ("get", path.replace("?", "/status?")),
            ("get", path.replace("default", "b")),
        ):
            other = await two.client.request(way, where, headers=_twilio({}, path))
            assert other.status in (403, 404), where
        changed = await two.client.post(path, data=form, headers=_twilio(form, path))
        assert changed.status == 200, "a proof of its own"

        stream = ElementTree.fromstring(await first.text()).find("Connect/Stream")
        assert stream is not None
        url = stream.attrib["url"]
        token = one.tokens.check(url.rpartition("/")[2], "twilio", "default", now=time.time())
        assert await store.first(f"claimed:{token.id.hex()}", b"1", keep_s=60) is None  # the call begins at worker one
        for key in [key for key in store._values if key.startswith("answer:")]:
            await store.put(key, b"", keep_s=0)  # after a minute
        two.values._here = MemoryState()
        assert (await two.client.get(path, headers=_twilio({}, path))).status == 409
        assert not any("call-1" in key for key in store._values), "no call id is a key"


async def test_an_answer_after_a_stream_is_given_again_by_another_worker_also_while_it_is_made() -> None:
    store, first, asked = MemoryState(), asyncio.Event(), asyncio.Event()
    one, two = (GivenAnswers(OutageState(store)) for _ in range(2))
    call = ("twilio", "default", "c1")

    async def slow(previous: Answer | None) -> Answer:
        asked.set()
        await first.wait()
        return Answer("text/xml", b"dial")

    async def repeated(previous: Answer | None) -> Answer:
        return previous or Answer("text/xml", b"hang up")

    making = asyncio.create_task(one.answer(call, slow))
    await asked.wait()
    waiting = asyncio.create_task(two.answer(call, repeated))
    first.set()
    assert (await making).body == (await waiting).body == b"dial"
    assert (await one.answer(call, repeated)).body == b"dial"
    await two.forget(call)
    assert (await one.answer(call, repeated)).body == b"hang up"

    async def fails(previous: Answer | None) -> Answer:
        raise Rejected("the store is away", status=503, code="directory_unavailable")

    call = ("twilio", "default", "c2")
    with pytest.raises(Rejected):
        await one.answer(call, fails)
    assert (await two.answer(call, repeated)).body == b"hang up", "no one waits for an answer that failed"
    await one.aclose()
    await two.aclose()


def _twilio(form: Mapping[str, str], path: str = "/webhooks/twilio/default") -> dict[str, str]:
    signature = twilio_signature(SECRET, PUBLIC + path, {name: [value] for name, value in form.items()})
    return {"X-Twilio-Signature": signature}


FORM = {"CallSid": "c1", "From": "+4930000001"}


@pytest.mark.parametrize(
    "body",
    [
        "From=%2B4930000001&CallSid=c1",
        "CallSid=c1&From=%2b4930000001",
        "CallSid=%631&From=%2B4930000001",
        "CallSid=c1&From=%2B4930000001&",
        "&CallSid=c1&&From=%2B4930000001",
        "CallSid=c1&From=%2B4930000001&CallSid=c1",
    ],
)
@pytest.mark.parametrize("dialect", ["twilio", "signalwire", "plivo"])
async def test_a_copied_webhook_in_another_spelling_starts_nothing(dialect: str, body: str) -> None:
    path, form = f"/webhooks/{dialect}/default", dict(FORM)
    if dialect == "plivo":
        form["CallUUID"] = form.pop("CallSid")
        body = body.replace("CallSid", "CallUUID")
    fields = {name: [value] for name, value in form.items()}
    headers = {
        "twilio": {"X-Twilio-Signature": twilio_signature(SECRET, PUBLIC + path, fields)},
        "signalwire": {"X-SignalWire-Signature": twilio_signature(SECRET, PUBLIC + path, fields)},
        "plivo": {
            "X-Plivo-Signature-V3": plivo_signature(SECRET, PUBLIC + path, "n", fields),
            "X-Plivo-Signature-V3-Nonce": "n",
        },
    }[dialect] | {"Content-Type": "application/x-www-form-urlencoded"}
    async with serving(PROVEN, OUTSIDE) as harness:
        first = await harness.client.post(path, data=form, headers=headers)
        copied = await harness.client.post(path, data=body, headers=headers)
        if copied.status == 200:
            assert await copied.read() == await first.read()
        else:  # Plivo signs each value, so a doubled one is another message
            assert (dialect, copied.status) == ("plivo", 403)


@pytest.mark.parametrize("dialect", ["twilio", "signalwire"])
async def test_a_copied_webhook_under_another_port_of_the_same_host_starts_nothing(dialect: str) -> None:
    """Twilio signs an address with or without its port, so a signature is right under every port."""
    path, fields = f"/webhooks/{dialect}/default", {name: [value] for name, value in FORM.items()}
    signature = twilio_signature(SECRET, f"http://bot.example{path}", fields)
    header = {"twilio": "X-Twilio-Signature", "signalwire": "X-SignalWire-Signature"}[dialect]
    async with serving(PROVEN, ServerConfig(host="0.0.0.0")) as harness:
        answers = [
            await harness.client.post(path, data=FORM, headers={header: signature, "Host": host})
            for host in ("bot.example", "bot.example:80", "bot.example:8443", "BOT.example:1", "a@bot.example:443")
        ]
        assert {answer.status for answer in answers} == {200}
        assert len({await answer.read() for answer in answers}) == 1, "the first answer"


async def test_a_proof_is_bound_to_its_method_and_its_fields() -> None:
    async with serving(PROVEN, OUTSIDE) as harness:
        path = "/webhooks/twilio/default?CallSid=c1&From=%2B4930000001"
        headers = _twilio({}, path)
        assert (await harness.client.get(path, headers=headers)).status == 200
        for body in (
            {"data": {"CallSid": "c2"}},
            {"json": {"CallSid": "c2"}},
            {"data": "CallSid=c2"},
            {"data": b"&"},
            {},
        ):
            assert (await harness.client.post(path, headers=headers, **body)).status == 403
        # Twilio joins names and values, so other fields may have the same signature.
        assert (await harness.client.post("/webhooks/twilio/default", data=FORM, headers=_twilio(FORM))).status == 200
        moved = {"CallSi": "dc1", "From": "+4930000001"}
        answer = await harness.client.post("/webhooks/twilio/default", data=moved, headers=_twilio(FORM))
        assert (answer.status, await answer.text()) == (
            403,
            "this proof came before, with another call, route or method",
        )


@pytest.mark.parametrize("body", ["{}", '{"CallSid": "c9"}', "x"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("dialect", ["twilio", "signalwire", "plivo"])
async def test_a_body_that_the_signature_does_not_cover_is_refused(dialect: str, content_type: str, body: str) -> None:
    path = f"/webhooks/{dialect}/default"
    headers = {
        "twilio": {"X-Twilio-Signature": twilio_signature(SECRET, PUBLIC + path)},
        "signalwire": {"X-SignalWire-Signature": twilio_signature(SECRET, PUBLIC + path)},
        "plivo": {
            "X-Plivo-Signature-V3": plivo_signature(SECRET, PUBLIC + path, "n"), "X-Plivo-Signature-V3-Nonce": "n"
        },
    }[dialect] | {"Content-Type": content_type}  # fmt: skip
    async with serving(PROVEN, OUTSIDE) as harness:
        assert (await harness.client.post(path, data=body, headers=headers)).status == 403


def _jambonz(body: bytes, at: float) -> dict[str, str]:
    mac = hmac.new(SECRET.encode(), f"{int(at)}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Jambonz-Signature": f"t={int(at)},v1={mac}"}


def _vonage(body: bytes, at: float) -> dict[str, str]:
    claims = {"iat": at, "payload_hash": hashlib.sha256(body).hexdigest()}
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET)}"}


@pytest.mark.parametrize(("dialect", "sign", "name"), [("jambonz", _jambonz, "call_sid"), ("vonage", _vonage, "uuid")])
async def test_a_proof_of_a_carrier_that_signs_no_address_is_bound_to_its_route(
    dialect: str, sign: Any, name: str
) -> None:
    async with serving(PROVEN, OUTSIDE) as harness:
        harness.routes["other"] = RouteConfig()
        body = json.dumps({name: "c1"}).encode()
        headers = {**sign(body, time.time()), "Content-Type": "application/json"}
        path = f"/webhooks/{dialect}/default"
        first = await harness.client.post(path, data=body, headers=headers)
        assert first.status == 200
        again = await harness.client.post(path, data=body, headers=headers)
        assert await again.read() == await first.read()
        for elsewhere in (f"/webhooks/{dialect}/other", f"{path}/after", f"{path}/status", f"{path}?call=c2"):
            assert (await harness.client.post(elsewhere, data=body, headers=headers)).status == 403


@pytest.mark.parametrize(("dialect", "sign", "name"), [("jambonz", _jambonz, "call_sid"), ("vonage", _vonage, "uuid")])
async def test_a_copied_json_webhook_in_another_guise_starts_nothing(dialect: str, sign: Any, name: str) -> None:
    """The proof covers the body, and neither the address nor how the body is to be read."""
    async with serving(PROVEN, OUTSIDE) as harness:
        body, path = json.dumps({name: "c1", "from": "+4930000001"}).encode(), f"/webhooks/{dialect}/default"
        headers = {**sign(body, time.time()), "Content-Type": "application/json"}
        first = await harness.client.post(path, data=body, headers=headers)
        answer, spent = await first.read(), dict(harness.directory._spent)
        assert first.status == 200
        form = "application/x-www-form-urlencoded"
        for method, where, sent, changed in (
            ("POST", path, body, {"Content-Type": form}),
            ("POST", path, body, {"Content-Type": "text/plain"}),
            ("POST", path, body, {"Content-Type": "multipart/form-data; boundary=x"}),
            ("POST", path, body, {"Content-Type": "application/json; charset=utf-16"}),
            ("POST", path, body, {"Content-Encoding": "identity"}),
            ("POST", f"{path}?{name}=c2", body, {}),
            ("POST", f"{path}?again=1", body, {}),
            ("POST", f"{path}?placed=c1", body, {}),
            ("POST", f"{path}?call=c1", body, {}),
            ("POST", f"/webhooks/{dialect}", body, {}),
            ("POST", f"/webhooks/{dialect}/d%65fault", body, {}),
            ("POST", path, b"", {}),
            ("POST", path, body + b" ", {}),
            ("GET", path, b"", {}),
            ("GET", f"{path}?{name}=c1", b"", {}),
            ("HEAD", f"{path}?{name}=c1", b"", {}),
        ):
            copied = await harness.client.request(method, where, data=sent, headers={**headers, **changed})
            assert copied.status in (400, 403, 404, 405) or await copied.read() == answer, (method, where, changed)
        assert harness.directory._spent == spent


@pytest.mark.parametrize("path", ["default", "default/after", "default/status"])
async def test_where_no_proof_is_asked_for_a_page_of_another_site_reaches_nothing(harness: Harness, path: str) -> None:
    url, form = f"/webhooks/twilio/{path}", {"CallSid": "c1"}
    assert (await harness.client.post(url, data=form)).status in (200, 204)
    for foreign, status in (({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)):
        assert (await harness.client.post(url, data=form, headers=foreign)).status == status
        assert (await harness.client.get(f"{url}?CallSid=c1", headers=foreign)).status == status


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


@pytest.mark.parametrize(
    ("path", "status"), [("genesys/default", 404), ("unknown/default", 404), ("twilio/other", 404)]
)
async def test_what_is_not_there_is_not_found(harness: Harness, path: str, status: int) -> None:
    assert (await harness.client.post(f"/webhooks/{path}")).status == status


async def test_a_body_that_is_no_json_object_is_a_bad_request(harness: Harness) -> None:
    for body in (b"{", b"[]"):
        headers = {"Content-Type": "application/json"}
        assert (await harness.client.post("/webhooks/vonage/default", data=body, headers=headers)).status == 400


async def test_a_webhook_with_a_name_that_was_cut_within_a_character_starts_its_call(harness: Harness) -> None:
    body = b'{"uuid": "c1", "from": "Ann \\ud83d", "to": "+4930000001"}'
    headers = {"Content-Type": "application/json"}
    answer = await harness.client.post("/webhooks/vonage/default", data=body, headers=headers)
    assert answer.status == 200 and "Ann \ufffd" in await answer.text()


@pytest.mark.parametrize("value", ["+4930000001", "0x41", "plain", "ümlaut", ""])
def test_plivo_headers_survive_the_way_through_letters_and_digits(value: str) -> None:
    text = plivo_headers({"talkspurt.From": value, "bot": value})
    assert all(char.isalnum() or char in "=," for char in text)
    start = {"callId": "c", "streamId": "s", "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000}}
    (started,) = Plivo().decode(json.dumps({"event": "start", "start": start, "extra_headers": text.replace(",", ";")}))
    assert isinstance(started, StreamStarted)
    assert started.custom_parameters == {"talkspurt.From": value, "bot": value}


async def test_of_one_request_at_two_processes_at_once_neither_is_refused() -> None:
    values, use, elsewhere = MemoryState(), ("start", "GET", "default", "c1"), []

    async def begin() -> None:
        pass

    async def begun_elsewhere() -> None:
        elsewhere.append(asyncio.create_task(UsedProofs(values).bind(b"proof", use, begin)))
        raise Rejected("the signature has opened a stream", status=403, code="replayed")

    assert await UsedProofs(values).bind(b"proof", use, begun_elsewhere) is None
    with pytest.raises(Rejected):
        await UsedProofs(values).bind(b"other", use, begun_elsewhere)
    await asyncio.gather(*elsewhere)
