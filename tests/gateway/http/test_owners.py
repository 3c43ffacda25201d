"""Two tenants tried against each other, and keys without a scope, over every route of the application.

Who asks shows an API key or a JSON Web Token."""

from __future__ import annotations

import base64
import csv
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import jwt
import pytest
from aiohttp import web

from gateway.call.expected import ExpectedCall
from gateway.config import SCOPES
from gateway.http.app import ROUTES
from gateway.http.request.access import ACCESS
from gateway.http.request.routes import JSON, Route
from gateway.principal import ANYONE
from gateway.seams.messages import Text
from gateway.seams.shared_state import Handoff
from talkspurt.build import Gateway
from tests.gateway.call.test_calls import CALL, Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.speech_api.test_speech_api import reference_wav
from tests.gateway.webrtc.test_webrtc_signalling import CHROMIUM
from tests.waiting import until

KEYS = [
    {"key": "one", "tenant": "one"},
    {"key": "two", "tenant": "two"},
    {"key": "office", "tenant": "office", "scopes": list(SCOPES)},
    *({"key": f"only-{scope}", "tenant": "two", "scopes": [scope]} for scope in SCOPES),
]
JWT = {"issuer": "https://login", "audience": "talkspurt", "algorithms": ["HS256"], "secret": "of the issuer" * 4}


def signed(tenant: str, *scopes: str, expires_in_s: float = 3600) -> str:
    """A JSON Web Token of the issuer's."""
    said = {"iss": JWT["issuer"], "aud": JWT["audience"], "exp": int(time.time() + expires_in_s), "tenant": tenant}
    return jwt.encode(said | {"scope": " ".join(scopes)}, str(JWT["secret"]), "HS256")


BOTH_WAYS = pytest.mark.parametrize("shown", ["key", "jwt"])


def shown_by(tenant: str, shown: str) -> str:
    """Return the key of a tenant with every scope but ``admin``; the office has every scope."""
    scopes = SCOPES if tenant == "office" else [scope for scope in SCOPES if scope != "admin"]
    return tenant if shown == "key" else signed(tenant, *scopes)


UUID_ = UUID("11111111-2222-4333-8444-555555555555")
EXPECTED = {"route": "a", "customParameters": {"secret": "of one"}}
WAV = base64.b64encode(reference_wav()).decode()
SECTIONS: dict[str, Any] = {
    "auth": {"api_keys": KEYS, "jwt": JWT},
    "routes": {
        "a": {"tenant": "one", "dialogue": {"audio": True}}, "also-one": {"tenant": "one"}, "b": {"tenant": "two"},
        "default": {},
    },
    "webrtc": {"addresses": ["127.0.0.1"]},
    "audiosocket": {"port": 0},
    "carriers": {"freeswitch": {"esl": {"host": "127.0.0.1", "port": 1, "password": "x"}}},
    "sip": {
        "port": 0, "rtp_ports": "42000-42099", "allowed_targets": ["ann@127.0.0.1"],
        "trunks": {"office": {"addresses": ["127.0.0.0/8"], "route": "a"}},
    },
}  # fmt: skip

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/calls"): {"json": {"to": "sip:ann@127.0.0.1:9", "route": "a"}},
    ("POST", "/v1/calls/{id}/messages"): {"json": {"type": "end"}},
    ("POST", "/v1/calls/{id}/words"): {"json": {"text": "Hello."}},
    ("POST", "/v1/rooms/{name}/legs"): {"json": {"to": "sip:ann@127.0.0.1:9", "route": "a"}},
    ("PATCH", "/v1/rooms/{name}/legs/{leg}"): {"json": {"muted": True}},
    ("POST", "/v1/calls/{id}/supervise"): {"json": {"mode": "join", "to": "sip:ann@127.0.0.1:9"}},
    ("PATCH", "/v1/calls/{id}/supervise/{leg}"): {"json": {"mode": "join"}},
    ("POST", "/v1/tokens"): {"json": {"scope": "call", "route": "a"}},
    ("GET", "/v1/dialogue"): {"params": {"route": "a"}},
    ("POST", "/v1/webrtc/offer"): {"json": {"sdp": CHROMIUM, "type": "offer", "route": "b"}},
    ("POST", "/whip/{route}"): {"data": CHROMIUM, "headers": {"Content-Type": "application/sdp"}},
    ("PATCH", "/whip/{route}/{id}"): {
        "data": "a=ice-ufrag:x\r\n", "headers": {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*"},
    },
    ("POST", "/v1/calls/attach"): {"json": {"dialect": "freeswitch", "call": "c1", "route": "b"}},
    ("PUT", "/v1/calls/expected/{uuid}"): {"json": {"route": "b"}},
    ("POST", "/v1/calls/expected/{uuid}"): {"data": {"route": "b"}},
    ("POST", "/v1/tts"): {"json": {"text": "Hi.", "speaker": "one--anna"}},
    ("POST", "/v1/tts/stream"): {"json": {"text": "Hi.", "speaker": "one--anna"}},
    ("POST", "/v1/audio/speech"): {"json": {"model": "tts-1", "input": "Hi.", "voice": "one--anna"}},
}  # fmt: skip
"""The bodies to send where an empty request would not reach the other tenant's thing."""

ROOM_RECORDING = f"RM{7:032x}"

ONCE_OR_UPGRADED = {
    "/v1/handoffs/{callSid}", "/v1/dialogue", "/v1/audio/{id}", "/ws/tts", "/v1/calls/{id}/listen",
    "/v1/calls/{id}/recording",
}  # fmt: skip
"""Is taken once; are no upgrades; the call is not over."""

NOT_ASKED = {("GET", "/ws/tts"), ("GET", "/v1/events")}
"""A message of the socket names the voice, and the events have no end: both have tests of their own."""


def wanted(routes: list[Route]) -> list[Route]:
    return [route for route in routes if route.scope is not None]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass
class House:
    """A gateway with something of tenant ``one`` behind every route."""

    made: Gateway
    http: aiohttp.ClientSession
    call_id: str
    browser_id: str

    async def ask(self, route: Route, key: str) -> tuple[int, str, dict[str, Any]]:
        """Status, text, and the error if the answer is one."""
        which = (route.method, route.path)
        call_id = self.browser_id if route.path.startswith("/whip") else self.call_id
        call_id = ROOM_RECORDING if route.path.startswith("/v1/recordings") else call_id
        leg = self.call_id if route.path.startswith("/v1/rooms") else "VX0"
        names = {"id": call_id, "leg": leg, "name": "team", "route": "a", "uuid": str(UUID_), "callSid": "left"}
        names |= {"voice_id": "one--anna", "model_id": "tone"}
        more = dict(BODIES.get(which, {}))
        if route.path == "/v1/webrtc/offer":
            more["json"] = more["json"] | {"callId": self.browser_id}  # takes the call over
        headers = {**more.pop("headers", {}), **bearer(key)}
        async with self.http.request(route.method, route.path.format(**names), headers=headers, **more) as answer:
            if answer.content_type == "text/event-stream":
                return answer.status, "", {}
            text = (await answer.read()).decode("latin-1")
            error = (await answer.json())["error"] if answer.status >= 400 else {}
            return answer.status, text, error

    def state(self) -> object:
        """Everything of tenant ``one`` that somebody could change."""
        assert self.made.audiosocket is not None and self.made.sip is not None
        return (
            [(session.call_id, session.turns.speaking()) for session in self.made.directory],
            len(self.made.webrtc),
            self.made.audiosocket.expected.get(UUID_),
            len(self.made.sip.outgoing),
            list(self.made.state.handoffs._by_call),
            [(leg.name, leg.muted) for room in self.made.call_parts.conferences for leg in room.legs],
        )


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    # The browser of this call sends nothing. Its call must outlast all requests of a test, on a slow machine too.
    monkeypatch.setattr("gateway.webrtc.signalling.CONNECT_S", 600.0)
    records = {"database_url": f"sqlite:///{tmp_path}/records.sqlite3"}
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    (recordings / f"{ROOM_RECORDING}.wav").write_bytes(reference_wav())
    (recordings / f"{ROOM_RECORDING}.json").write_text('{"room": "team", "tenant": "one", "legs": []}')
    async with (
        api_gateway(tmp_path, records=records, recording={"folder": str(recordings)}, **SECTIONS) as (
            made,
            engine,
            url,
        ),
        aiohttp.ClientSession(url) as http,
    ):
        session = made.calls.begin(replace(CALL, route="a"), Leg())
        leg, _ = await made.webrtc.answer(CHROMIUM, ANYONE, route="a")
        assert made.audiosocket is not None
        made.audiosocket.expected.put(UUID_, ExpectedCall("a"))
        made.state.handoffs.leave("asterisk", "left", Handoff("VX", "ended", "secret", "", "a"))
        body = {"voice_id": "anna", "transcript": "One.", "audio": WAV}
        async with http.post("/v1/voices", json=body, headers=bearer("one")) as answer:
            assert (await answer.json())["voice_id"] == "one--anna"
        await until(lambda: session.call_id in made.dialogue.observers._sinks, "a call that can be watched")
        await session.rooms.join("team")
        yield House(made, http, session.call_id, leg.call_id)
        session.end("test over", hang_up=True)
        await until(lambda: session.call_id not in [call.call_id for call in made.directory], "the call's end")


async def test_every_served_route_has_a_row_and_every_row_is_served(house: House) -> None:
    served = [(route.method, route.resource.canonical) for route in house.made.app.router.routes()]
    assert set(served) == set(ACCESS) and len(served) == len(ACCESS)
    assert {(route.method, route.path): route.access for route in house.made.app[ROUTES]} == ACCESS


def test_a_route_without_a_row_cannot_be_declared() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    for method, path in (("GET", "/v1/everything"), ("PUT", "/v1/usage"), ("HEAD", "/metrics")):
        with pytest.raises(LookupError, match=f"{method} {path} has no row"):
            Route(method=method, path=path, handler=handler, summary="A new route")


def test_the_rows_without_a_scope_are_those_that_need_no_key() -> None:
    for (method, path), access in ACCESS.items():
        assert (access.scope is None) == (access.owner in ("anyone", "carrier")), (method, path)
        assert (access.scope == "admin") == (access.owner == "operator"), (method, path)
        assert (access.owner == "carrier") == path.startswith("/webhooks/"), (method, path)
        if access.owner == "anyone":  # nothing of /v1 but the browser's questions before its own requests
            assert method == "OPTIONS" or not path.startswith(("/v1", "/ws", "/whip", "/metrics")), path
        if any(name in path for name in ("{id}", "{uuid}", "{callSid}", "{voice_id}", "{route}")):
            assert access.owner in ("object", "anyone", "carrier"), (method, path)


async def test_without_a_key_every_route_that_wants_a_scope_is_closed(house: House) -> None:
    before = house.state()
    for route in wanted(house.made.app[ROUTES]):
        for key in ("", "nobody's"):
            status, _, error = await house.ask(route, key)
            assert (status, error["code"]) == (401, "unauthorized"), (route.method, route.path)
    assert house.state() == before


@BOTH_WAYS
async def test_nothing_of_one_tenant_is_read_or_changed_by_another(house: House, shown: str) -> None:
    stranger = shown_by("two", shown)
    before = house.state()
    wrong = {}
    for route in wanted(house.made.app[ROUTES]):
        which, owner = (route.method, route.path), route.access.owner
        status, text, error = await house.ask(route, stranger)
        of_the_other = any(secret in text for secret in ('"a"', '"one"', '"one--', house.call_id, house.browser_id))
        if owner == "operator":
            ok = status == 403 and error["code"] == "missing_scope"
        elif owner == "object" and which not in NOT_ASKED:
            ok = status == 404
        else:
            ok = status not in (401, 403, 404) and not of_the_other
        if not ok or house.state() != before:
            wrong[which] = (status, error, house.state())
    assert not wrong


@BOTH_WAYS
async def test_the_owner_and_an_admin_reach_what_others_do_not(house: House, shown: str) -> None:
    """Every 404 above is one for the stranger only."""
    reads = [route for route in wanted(house.made.app[ROUTES]) if route.method == "GET"]
    for key in ("one", "office"):
        for route in reads:
            if route.path in ONCE_OR_UPGRADED:
                continue
            status, text, error = await house.ask(route, shown_by(key, shown))
            assert status == (403 if route.scope == "admin" and key == "one" else 200), (key, route.path, error)
            if route.access.owner == "list" and route.path not in ("/v1/events", "/v1/records"):
                assert any(own in text for own in ('"a"', "one--anna", house.call_id))
    for method, path, status in (
        ("GET", "/v1/handoffs/{callSid}", 200), ("POST", "/v1/calls/expected/{uuid}", 404),
        ("DELETE", "/v1/calls/expected/{uuid}", 204), ("DELETE", "/v1/voices/{voice_id}", 204),
        ("POST", "/v1/calls/{id}/messages", 202), ("DELETE", "/whip/{route}/{id}", 200),
    ):  # fmt: skip
        (route,) = (r for r in wanted(house.made.app[ROUTES]) if (r.method, r.path) == (method, path))
        assert (await house.ask(route, shown_by("one", shown)))[0] == status, path
    assert len(house.made.webrtc) == 0


@BOTH_WAYS
async def test_a_key_without_the_scope_of_a_route_is_told_which(house: House, shown: str) -> None:
    before = house.state()
    for route in wanted(house.made.app[ROUTES]):
        for scope in set(SCOPES) - {"admin"}:  # which means all
            status, _, error = await house.ask(route, f"only-{scope}" if shown == "key" else signed("two", scope))
            assert (status == 403 and error["code"] == "missing_scope") == (scope != route.scope), (route, scope)
            if scope != route.scope:
                assert error["param"] == route.scope and error["message"].endswith(f"the key has {scope}")
    assert house.state() == before


async def test_a_body_of_another_type_is_refused_by_every_route_that_reads_one(house: House) -> None:
    """A page of another site may send forms and text without being asked, but not what says that it is JSON."""
    before, tried = house.state(), set()
    for route in wanted(house.made.app[ROUTES]):
        if route.method in ("POST", "PUT", "PATCH"):
            path = route.path.format(id=house.call_id, route="a", uuid=UUID_, leg="VX0", name="team")
            headers = bearer("office") | {"Content-Type": "text/plain"}
            async with house.http.request(route.method, path, headers=headers, data=b'{"type":"end"}') as answer:
                assert answer.status == 415, path
                error = (await answer.json())["error"]
            assert error["message"].startswith(f"Content-Type is text/plain, expected {(route.takes or (JSON,))[0]}"), (
                error
            )
            tried.add(path)
    assert len(tried) > 10 and house.state() == before


async def test_events_are_those_of_own_calls(house: House) -> None:
    async with (
        house.http.get("/v1/events", headers=bearer("two")) as theirs,
        house.http.get("/v1/events", headers=bearer("one")) as ours,
    ):
        for answer in (theirs, ours):
            assert await answer.content.readline() == b": connected\n"
        mine = house.made.calls.begin(replace(CALL, route="b", call_sid="c2"), Leg())
        house.made.dialogue.observers.inject(house.call_id, b'{"type":"text","token":"Hello.","last":true}')
        for answer, own in ((theirs, mine.call_id), (ours, house.call_id)):
            await answer.content.readline()
            assert own.encode() in await answer.content.readline()
        mine.end("over", hang_up=True)


async def test_a_call_and_a_socket_speak_with_no_voice_of_another_tenant(house: House) -> None:
    async with house.http.ws_connect("/ws/tts", headers=bearer("two")) as socket:
        await socket.send_json({"text": "Hi.", "speaker": "one--anna"})
        assert (await socket.receive_json())["error"]["code"] == "not_found"
    failed = {}
    for route in ("a", "b"):
        session = house.made.calls.begin(replace(CALL, route=route, call_sid=route), Leg())
        await until(lambda s=session: s.call_id in house.made.dialogue.observers._sinks, "a call that can be watched")  # type: ignore[misc]
        async with house.made.dialogue.observers.subscribe(session.call_id) as events:
            session.on_message(Text(token="Hi.", last=True, voice="one--anna"))
            async for event in events:
                if '"failed"' in event or '"started"' in event or '"finished"' in event:
                    failed[route] = '"failed"' in event
                    break
        session.end("over", hang_up=True)
    assert failed == {"a": False, "b": True}


async def test_a_browser_gets_no_more_by_a_signed_token_than_that_allows(house: House) -> None:
    async def ask(path: str, shown: str, **body: Any) -> tuple[int, dict[str, Any]]:
        method = "POST" if body else "GET"
        async with house.http.request(method, path, headers=bearer(shown), json=body or None) as answer:
            return answer.status, await answer.json()

    one = signed("one", "browser", "read", expires_in_s=100)
    status, made = await ask("/v1/tokens", one, scope="read", route="a", ttl_s=3600)
    assert status == 201 and 60 < made["expiresInS"] <= 130, "it outlives what it was made with"
    status, calls = await ask("/v1/calls", made["token"])
    assert status == 200 and house.call_id in [call["callId"] for call in calls["calls"]]
    assert (await ask("/v1/tokens", one, scope="read", route="b"))[0] == 404
    assert (await ask("/v1/tokens", one, scope="lead", route="a"))[0] == 403
    assert (await ask("/v1/tokens", made["token"], scope="read", route="a"))[0] == 403
    status, refused = await ask("/v1/calls", signed("one", "read", expires_in_s=-60))
    assert (status, refused["error"]["code"]) == (401, "expired_token")

    async with house.http.post("/login", data={"key": one, "page": "/"}, allow_redirects=False) as answer:
        session = answer.cookies["talkspurt_session"].value
    assert answer.status == 303 and one not in session
    assert (await ask("/v1/calls", session))[0] == 200 and (await ask("/metrics", session))[0] == 403


async def test_a_browsers_token_sees_only_the_records_of_what_it_was_made_for(house: House) -> None:
    async def records(key: str) -> list[str]:
        async with house.http.get("/v1/records", headers=bearer(key)) as answer:
            assert answer.status == 200
            ids = [record["id"] for record in (await answer.json())["records"]]
        async with house.http.get("/v1/records?format=csv", headers=bearer(key)) as answer:
            assert [row["id"] for row in csv.DictReader((await answer.text()).splitlines())] == ids
        return ids

    async def token(**asked: str) -> str:
        async with house.http.post("/v1/tokens", json={"scope": "read", **asked}, headers=bearer("one")) as answer:
            assert answer.status in (200, 201), await answer.text()
            return str((await answer.json())["token"])

    other = house.made.calls.begin(replace(CALL, route="a"), Leg())

    async def of_the_tenant() -> bool:
        return {house.call_id, other.call_id} <= set(await records("one"))

    await until(of_the_tenant, "both records")
    async with house.http.post(
        "/v1/tts", json={"text": "Hi.", "speaker": "one--anna"}, headers=bearer("one")
    ) as answer:
        assert answer.status == 200

    async def requests_too() -> bool:
        return any(not each.startswith("VX") for each in await records("one"))

    await until(requests_too, "the record of a request")
    of_route = await records(await token(route="a"))
    assert {house.call_id, other.call_id} <= set(of_route) and all(each.startswith("VX") for each in of_route)
    assert await records(await token(route="a", call=other.call_id)) == [other.call_id]
    async with house.http.get("/v1/usage", headers=bearer(await token(route="a"))) as answer:
        assert answer.status == 403
    other.end("test over", hang_up=True)
    await until(lambda: other.call_id not in [call.call_id for call in house.made.directory], "the call's end")


@pytest.mark.parametrize("of", ["call", "route"])
async def test_a_browsers_token_of_one_call_or_route_reaches_no_other_call_by_any_route(house: House, of: str) -> None:
    route_name = "a" if of == "call" else "also-one"
    other = house.made.calls.begin(replace(CALL, route=route_name, call_sid="c9"), Leg())
    await until(lambda: other.call_id in house.made.dialogue.observers._sinks, "a call that can be watched")
    body = {"scope": "read", "route": route_name, "call": other.call_id if of == "call" else ""}
    async with house.http.post("/v1/tokens", json=body, headers=bearer("one")) as answer:
        token = (await answer.json())["token"]
    before, wrong = house.state(), {}
    for route in wanted(house.made.app[ROUTES]):
        which, owner = (route.method, route.path), route.access.owner
        status, text, error = await house.ask(route, token)
        others = any(theirs in text for theirs in (house.call_id, house.browser_id, "one--anna"))
        if route.scope != "read":
            ok = status == 403 and error["code"] == "missing_scope"
        elif owner == "object":  # of the house's first call
            ok = status == 404
        else:
            ok = status == 200 and not others
        if not ok or house.state() != before:
            wrong[which] = (status, error)
    assert not wrong
    async with house.http.get(f"/v1/calls/{other.call_id}", headers=bearer(token)) as answer:
        assert answer.status == 200
    other.end("test over", hang_up=True)
    await until(lambda: other.call_id not in [call.call_id for call in house.made.directory], "the call's end")


@BOTH_WAYS
async def test_admin_means_every_scope(house: House, shown: str) -> None:
    key = "only-admin" if shown == "key" else signed("two", "admin")
    for route in wanted(house.made.app[ROUTES]):
        if route.method == "GET" and route.path not in ("/v1/events", *ONCE_OR_UPGRADED):
            status, _, error = await house.ask(route, key)
            assert status != 403, (route.path, error)
