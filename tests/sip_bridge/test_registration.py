"""Registering, at a registrar of few words that can be told to misbehave. Datagrams go on the virtual clock."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.seams.originate import CallOrder
from sip_bridge.config import RegistrationConfig, SipConfig
from sip_bridge.dialog.transaction import Act, Key
from sip_bridge.io.client import Client
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.local import LocalAddress, Peer
from sip_bridge.message.digest import DigestVerdict, ServerAuth
from sip_bridge.message.sip import Address, Headers, Request, Response, Uri, response_to
from sip_bridge.registration import Registration, granted, instance
from sip_bridge.trunks import SourceStanding
from tests.sip_bridge.phone import Bridge, Phone, offer
from tests.virtual_loop import VirtualLoop
from tests.waiting import until


class Registrar:
    """Checks passwords and keeps one contact. ``answers`` overrides the next answers, in order."""

    user = "bot"

    def __init__(self, *, grant_s: int = 60, nonce_lifetime_s: float = 60.0) -> None:
        self.endpoint = Endpoint(self, methods=("REGISTER",))
        self.requests: list[Request] = []
        self.good: list[Request] = []
        self.answers: list[Callable[[Request], Response]] = []
        self.contact = ""
        self.grant_s = grant_s
        self.auth = ServerAuth("registrar", b"0123456789abcdef", nonce_lifetime_s=nonce_lifetime_s)
        self.clock = time.time

    def standing(self, peer: Peer) -> SourceStanding:
        return SourceStanding.KNOWN

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        self.requests.append(request)
        self.endpoint.respond(key, self.answers.pop(0)(request) if self.answers else self.judge(request))

    def judge(self, request: Request) -> Response:
        verdict, _ = self.auth.check(
            request.headers.all("Authorization"),
            {self.user: "secret"},
            method="REGISTER",
            uri=request.uri,
            now=self.clock(),
        )
        if verdict is not DigestVerdict.GOOD:
            challenges = self.auth.challenges(now=self.clock(), stale=verdict is DigestVerdict.STALE)
            return response_to(request, 401, to_tag="r", headers=[("WWW-Authenticate", each) for each in challenges])
        self.good.append(request)
        asked = int(request.headers.get("Expires") or 0)
        self.contact = request.headers.get("Contact") or "" if asked else ""
        expires = [("Contact", f"{self.contact};expires={min(asked, self.grant_s)}")] if asked else []
        return response_to(request, 200, to_tag="r", headers=expires)

    def on_ack(self, request: Request) -> None: ...
    def on_cancel(self, invite: Key, cancel: Request) -> None: ...
    def on_response(self, key: Key | None, response: Response) -> None: ...
    def on_failed(self, key: Key, reason: Act) -> None: ...
    def on_disconnected(self, peer: Peer) -> None: ...

    def needs_connection(self, peer: Peer) -> bool:
        return False


class Ours:
    """An endpoint whose only business is asking."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(self)
        self.client = Client(self.endpoint)
        self.registration: Registration | None = None

    def standing(self, peer: Peer) -> SourceStanding:
        return SourceStanding.KNOWN

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        self.endpoint.respond(key, response_to(request, 481))

    def on_ack(self, request: Request) -> None: ...
    def on_cancel(self, invite: Key, cancel: Request) -> None: ...

    def on_response(self, key: Key | None, response: Response) -> None:
        self.client.on_response(key, response)

    def on_failed(self, key: Key, reason: Act) -> None:
        self.client.on_failed(key, reason)

    def needs_connection(self, peer: Peer) -> bool:
        return self.registration is not None and self.registration.peer == peer

    def on_disconnected(self, peer: Peer) -> None:
        if self.registration is not None and self.registration.peer == peer:
            self.registration.renew()


class Wire:
    """A stand-in for the socket of datagrams: it brings each of them to the endpoint at its address."""

    _at: dict[tuple[str, int], Endpoint] = {}

    def __init__(self, endpoint: Endpoint, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._at[self._address] = endpoint
        endpoint._loop, endpoint.port = asyncio.get_running_loop(), port
        endpoint._datagrams.transport = self  # type: ignore[assignment]

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        del self._at[self._address]

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        if to in self._at:
            asyncio.get_running_loop().call_soon(self._at[to]._datagrams.datagram_received, data, self._address)


async def listen(endpoint: Endpoint, port: int) -> None:
    if isinstance(asyncio.get_running_loop(), VirtualLoop):
        Wire(endpoint, port)
    else:
        await endpoint.start("127.0.0.1", 0)


@asynccontextmanager
async def registering(
    registrar: Registrar | None = None, *, at: str = "", retry_s: float = 0.02, **config: object
) -> AsyncIterator[tuple[Registration, asyncio.Queue[bool], Ours]]:
    ours = Ours()
    changes: asyncio.Queue[bool] = asyncio.Queue()
    await listen(ours.endpoint, 5060)
    if registrar:
        await listen(registrar.endpoint, 5070)
        at = f"sip:127.0.0.1:{registrar.endpoint.port}{at}"
    registration = Registration(
        RegistrationConfig.model_validate({"registrar": at, "username": "bot", "password": "secret", **config}),
        ours.client,
        LocalAddress("127.0.0.1", ours.endpoint.port),
        on_change=lambda changed: changes.put_nowait(changed.registered),
    )
    patched = pytest.MonkeyPatch()
    patched.setattr("sip_bridge.registration.RETRY_S", retry_s)
    registration.start()
    try:
        yield registration, changes, ours
    finally:
        await registration.close()
        patched.undo()
        await ours.endpoint.close()
        if registrar:
            await registrar.endpoint.close()
        assert len(ours.client) == 0


async def changed(changes: asyncio.Queue[bool]) -> bool:
    """Return the next change."""
    await until(lambda: not changes.empty(), "a change")
    return changes.get_nowait()


@pytest.mark.virtual_time
async def test_registers_with_its_password_and_says_goodbye() -> None:
    await registers_and_says_goodbye("udp")


async def test_registers_over_a_connection() -> None:
    await registers_and_says_goodbye("tcp")


async def test_a_first_hop_without_outbound_support_is_asked_without_it() -> None:
    """RFC 5626 section 5.2: 439. What was learned is kept."""
    registrar = Registrar(grant_s=3600)

    def refused(request: Request) -> Response:
        assert "outbound" in request.headers.tokens("Supported")
        return response_to(request, 439, to_tag="r")

    registrar.answers = [refused]
    async with registering(registrar, at=";transport=tcp") as (registration, changes, _):
        assert await changed(changes)
        for request in registrar.requests[1:]:
            assert "outbound" not in request.headers.tokens("Supported")
            assert "reg-id" not in (request.headers.get("Contact") or "")
        before = len(registrar.requests)
        registration.renew()
        await until(lambda: len(registrar.good) == 2)
        assert all("outbound" not in each.headers.tokens("Supported") for each in registrar.requests[before:])


@pytest.mark.parametrize(
    ("more", "uri"),
    [
        ({}, "sip:pbx.example"),
        ({"outbound_proxy": "sip:edge.example"}, "sip:pbx.example:5080"),
        ({"outbound_proxy": "sip:edge.example", "domain": "home.example"}, "sip:home.example"),
    ],
)
async def test_a_proxy_in_between_learns_the_port_of_the_registrar(more: dict[str, str], uri: str) -> None:
    config = {"registrar": "sip:pbx.example:5080", "username": "bot", **more}
    local = LocalAddress("127.0.0.1", 5060)
    registration = Registration(RegistrationConfig.model_validate(config), Ours().client, local)
    assert registration._uri == uri


def test_the_gateway_has_the_same_name_after_a_restart_and_another_one_elsewhere() -> None:
    one, again, other = (LocalAddress("192.0.2.1", port) for port in (5060, 5060, 5062))
    assert instance(one) == instance(again) != instance(other)


async def registers_and_says_goodbye(transport: str) -> None:
    registrar = Registrar()
    async with registering(registrar, at=f";transport={transport}") as (registration, changes, ours):
        assert await changed(changes)
        told = Address.parse(registrar.contact)
        contact = told.uri
        assert (contact.user, contact.host, contact.port) == ("bot", "127.0.0.1", ours.endpoint.port)
        assert contact.params.get("transport", "udp") == transport
        # The flow is named over a connection only (RFC 5626).
        named = {"reg-id": "1", "+sip.instance": f'"<{instance(registration._local)}>"'} if transport == "tcp" else {}
        assert told.params == named
        first, second = registrar.requests
        expected = {"path", "outbound"} if named else {"path"}
        assert set(first.headers.tokens("Supported")) == set(second.headers.tokens("Supported")) == expected
        assert str(second.to) == "<sip:bot@127.0.0.1>" and second.uri == "sip:127.0.0.1"
        assert first.call_id == second.call_id and first.cseq.number < second.cseq.number
        assert registration.peer == Peer(transport.upper(), "127.0.0.1", registrar.endpoint.port)
    assert registrar.contact == "" and not registration.registered
    assert registrar.good[-1].headers.get("Expires") == "0"


@pytest.mark.virtual_time
async def test_refreshes_before_what_was_granted_is_over() -> None:
    registrar = Registrar(grant_s=1)
    async with registering(registrar) as (registration, changes, _):
        await until(lambda: len(registrar.good) == 3)
        assert registration.registered and changes.qsize() == 1
        assert [request.headers.get("Expires") for request in registrar.good] == ["600"] * 3


@pytest.mark.virtual_time
async def test_an_interval_too_brief_is_raised_to_what_the_registrar_wants() -> None:
    registrar = Registrar(grant_s=9000)
    registrar.answers = [lambda request: response_to(request, 423, headers=[("Min-Expires", "7200")])]
    async with registering(registrar) as (_, changes, _):
        assert await changed(changes)
        assert registrar.good[-1].headers.get("Expires") == "7200"


@pytest.mark.virtual_time
async def test_a_wrong_password_is_not_tried_in_a_loop() -> None:
    registrar = Registrar()
    async with registering(registrar, password="wrong", retry_s=600) as (registration, changes, _):
        await until(lambda: registration.status)
        assert registration.status == 401 and len(registrar.requests) == 2
        assert changes.empty()


@pytest.mark.virtual_time
async def test_a_refusal_is_logged_once_and_again_when_it_is_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sip_bridge.registration")
    registrar = Registrar()
    registrar.answers = [lambda request, status=status: response_to(request, status) for status in (404, 404, 403)]
    async with registering(registrar) as (_, changes, _):
        assert await changed(changes)
        logged = [(each.levelname, each.message, vars(each)["status"]) for each in caplog.records]
        assert logged == [
            ("WARNING", "not registered", 404),
            ("WARNING", "not registered", 403),
            ("INFO", "registered", 200),
        ]


@pytest.mark.virtual_time
async def test_a_stale_nonce_is_answered_with_the_fresh_one() -> None:
    registrar = Registrar(nonce_lifetime_s=60)
    old = iter([0.0, -100.0])  # the first challenge, after the first check, is made with a clock that is behind
    registrar.clock = lambda: time.time() + next(old, 0.0)
    async with registering(registrar) as (_, changes, _):
        assert await changed(changes)
        assert len(registrar.requests) == 3


@pytest.mark.virtual_time
async def test_failures_are_tried_again_and_a_lost_registration_is_told() -> None:
    registrar = Registrar(grant_s=1)
    failing = [lambda request: response_to(request, 503)] * 3
    registrar.answers = list(failing)
    async with registering(registrar) as (registration, changes, _):
        assert await changed(changes)
        registrar.answers = list(failing)
        assert not await changed(changes)
        assert registration.status == 503
        assert await changed(changes)


@pytest.mark.virtual_time
async def test_the_registrar_says_when_to_come_again() -> None:
    registrar = Registrar()
    registrar.answers = [lambda request: response_to(request, 503, headers=[("Retry-After", "600 (busy)")])]
    async with registering(registrar) as (registration, _, _):
        await until(lambda: registration.status == 503)
        await asyncio.sleep(599)
        assert len(registrar.requests) == 1


@pytest.mark.virtual_time
async def test_a_registrar_that_does_not_answer_is_a_status() -> None:
    async with registering(at="sip:127.0.0.1:9", retry_s=600) as (registration, changes, _):
        await asyncio.sleep(33)
        assert registration.status == 408 and changes.empty()


@pytest.mark.parametrize("at", ["sip:127.0.0.1:9;transport=tcp", "sip:nowhere.invalid"])
async def test_nobody_there_is_a_status(at: str) -> None:
    async with registering(at=at, retry_s=600) as (registration, changes, _):
        await until(lambda: registration.status)
        assert registration.status == 503 and changes.empty()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([("Contact", "<sip:bot@192.0.2.1:5060>;expires=50"), ("Expires", "70")], 50),
        ([("Contact", "<sip:x@192.0.2.9>;expires=9, <sip:bot@192.0.2.1:5060>;expires=50")], 50),
        ([("Contact", "<sip:bot@203.0.113.1:1024>;expires=40")], 40),
        ([("Contact", "<sip:x@192.0.2.9>;expires=9, <sip:y@192.0.2.9>;expires=9")], 0),
        ([("Contact", "<sip:bot@203.0.113.1:1024>;expires=40, <sip:bot@203.0.113.9:5060>;expires=30")], 30),
        ([("Contact", "<sip:x@192.0.2.9>;expires=9, <sip:bot@192.0.2.1>;expires=60")], 60),
        ([("Contact", '<sip:bot@192.0.2.1:5060>;q=1;expires="50"')], 50),
        ([("Contact", "<sip:bot@192.0.2.1:5060>"), ("Expires", "70")], 70),
        ([("Contact", "<sip:bot@192.0.2.1:5060>;expires=never")], 600),
        ([("Contact", "nonsense")], 600),
        ([], 600),
    ],
)
def test_what_is_granted(headers: list[tuple[str, str]], seconds: int) -> None:
    response = Response(200, "OK", Headers(headers))
    assert granted(response, Uri.parse("sip:bot@192.0.2.1:5060"), asked_s=600) == seconds


async def test_a_lost_connection_is_registered_again_at_once() -> None:
    """The granted 3600 s would pass first: without a connection the registrar's calls cannot come."""
    registrar, ours = Registrar(grant_s=3600), Ours()
    await registrar.endpoint.start("127.0.0.1", 0)
    await ours.endpoint.start("127.0.0.1", 0)
    address = f"sip:127.0.0.1:{registrar.endpoint.port};transport=tcp"
    config = RegistrationConfig(registrar=address, username="bot", password=SecretStr("secret"))
    changes: list[bool] = []
    ours.registration = registration = Registration(
        config,
        ours.client,
        LocalAddress("127.0.0.1", ours.endpoint.port),
        on_change=lambda each: changes.append(each.registered),
    )
    registration.start()
    try:
        await until(lambda: registration.registered)
        for connection in list(registrar.endpoint._connections.values()):
            connection.close()
        await until(lambda: changes == [True, False, True])
        assert len(registrar.good) == 2
    finally:
        await registration.close()
        await ours.endpoint.close()
        await registrar.endpoint.close()


@asynccontextmanager
async def registered_trunk(**trunk: Any) -> AsyncIterator[tuple[Bridge, Phone, Registrar]]:
    """A bridge whose one trunk is an account at a registrar, and a phone at the registrar's address."""
    registrar = Registrar(grant_s=600)
    registrar.user = "auth-7"
    await registrar.endpoint.start("127.0.0.1", 0)
    with Phone(0) as phone:
        config = SipConfig.model_validate(
            {
                "port": 0,
                "rtp_ports": "42000-42999",
                "trunks": {"carrier": {"proxy": f"sip:127.0.0.1:{phone.port}", **trunk}},
                "registrations": [
                    {
                        "registrar": f"sip:127.0.0.1:{registrar.endpoint.port}", "trunk": "carrier",
                        "username": "bot", "auth_username": "auth-7", "password": "secret", "domain": "carrier.example",
                    }
                ],
                "allowed_targets": ["*@127.0.0.1"],
            }
        )  # fmt: skip
        made = Bridge(config, ready=True)
        await made.bridge.start()
        phone.server = ("127.0.0.1", made.bridge.endpoint.port)
        try:
            await until(lambda: made.bridge.registrations[0].registered)
            yield made, phone, registrar
            for call in made.bridge:
                call.hang_up("test is over")
            await made.empty()
        finally:
            await made.bridge.aclose()
            await registrar.endpoint.close()


@pytest.mark.parametrize(
    ("user", "to", "did_from", "called"),
    [
        ("bot", "<sip:+4930999@carrier.example>", "auto", "+4930999"),
        ("+4930999", "<sip:+4930999@carrier.example>", "auto", "+4930999"),
        ("+4930999", "<sip:bot@carrier.example>", "auto", "+4930999"),
        ("+4930999", "<sip:+4930777@carrier.example>", "to", "+4930777"),
    ],
)
async def test_a_call_by_registration_is_for_the_number_that_was_called(
    user: str, to: str, did_from: str, called: str
) -> None:
    async with registered_trunk(did_from=did_from) as (made, phone, _):
        invite = phone.request("INVITE", body=offer(phone.rtp_port))
        phone.send(replace(invite, uri=f"sip:{user}@127.0.0.1", headers=invite.headers.replace("To", to)))
        await until(lambda: made.sessions)
        call = made.session.call
        assert (call.trunk_name, call.caller.to) == ("carrier", called)
        phone.to_tag = (await phone.response(200)).to.tag
        phone.send(phone.request("ACK", cseq=1))


async def test_a_trunk_calls_with_the_account_of_its_registration() -> None:
    async with registered_trunk() as (made, phone, registrar):
        assert registrar.good[0].to.uri == Uri.parse("sip:bot@carrier.example")
        await made.bridge.outgoing.place(CallOrder(target="+4930111", trunk="carrier"))
        invite = await phone.receive()
        assert isinstance(invite, Request) and invite.from_.uri == Uri.parse("sip:bot@carrier.example")
        challenges = registrar.auth.challenges(now=time.time())
        phone.send(response_to(invite, 407, to_tag="a", headers=[("Proxy-Authenticate", each) for each in challenges]))
        while "Proxy-Authorization" not in (again := await phone.receive()).headers:
            pass
        assert isinstance(again, Request) and 'username="auth-7"' in (again.headers.get("Proxy-Authorization") or "")
        phone.send(response_to(again, 486, to_tag="b"))
        await until(lambda: not made.bridge.outgoing.under_way())


class Flow:
    """Stands where a connection with the registrar stands: it hears keep-alives, and answers some."""

    def __init__(self, registration: Registration, answered: list[bool]) -> None:
        self.pings: list[float] = []
        self.heard_at = 0.0
        self._registration, self._answered = registration, answered
        self._loop = asyncio.get_running_loop()

    def ping(self) -> bool:
        self.pings.append(self._loop.time())
        if self._answered and self._answered.pop(0):
            self.heard_at = self._loop.time()
        return True

    def fail(self) -> None:
        self._registration._lost.set()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("flow_s", "answered", "pings"),
    [
        (0, [True, True, False], 3),  # it has answered before
        (30, [False], 1),  # it has promised to answer
        (30, [True] * 100, None),
        (0, [False] * 100, None),  # it does not know keep-alives
    ],
)
async def test_a_flow_that_fails_is_noticed(
    monkeypatch: pytest.MonkeyPatch, flow_s: int, answered: list[bool], pings: int | None
) -> None:
    ours, peer = Ours(), Peer("TCP", "192.0.2.1", 5060)
    config = RegistrationConfig.model_validate({"registrar": "sip:192.0.2.1;transport=tcp", "username": "bot"})
    registration = Registration(config, ours.client, LocalAddress("127.0.0.1", 5060))
    registration.peer, registration.registered, registration._flow_s = peer, True, flow_s
    flow = Flow(registration, answered)
    monkeypatch.setattr(ours.endpoint, "flow", {peer: flow}.get)
    began = asyncio.get_running_loop().time()
    assert await registration._disconnected(1000) == (pings is not None)
    longest = flow_s or 120
    assert len(flow.pings) == pings or (pings is None and len(flow.pings) >= 980 // (longest + 10))
    pauses = [after - before for before, after in zip([began, *flow.pings], flow.pings, strict=False)]
    assert all(0.8 * longest <= pause <= longest + 10.001 for pause in pauses)


async def test_a_keep_alive_is_answered_on_a_connection() -> None:
    registrar = Registrar(grant_s=3600)
    async with registering(registrar, at=";transport=tcp") as (registration, changes, ours):
        assert await changed(changes)
        peer, clock = registration.peer, asyncio.get_running_loop().time
        assert peer is not None and ours.endpoint.flow(replace(peer, port=9)) is None
        before, flow = clock(), ours.endpoint.flow(peer)
        assert flow is not None and flow.ping()
        await until(lambda: flow.heard_at >= before)
        flow.fail()
        assert ours.endpoint.flow(peer) is None
