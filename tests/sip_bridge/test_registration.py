"""Registering, at a registrar of few words that can be told to misbehave."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from sip_bridge.config import RegistrationConfig
from sip_bridge.io.client import Client
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.local import LocalAddress, Peer
from sip_bridge.message.digest import ServerAuth, Verdict
from sip_bridge.message.sip import Headers, Request, Response, Uri, response_to
from sip_bridge.registration import Registration, granted
from sip_bridge.transaction import Act, Key, Timing
from sip_bridge.trunks import Standing

FAST = Timing(t1=0.02, t2=0.08, t4=0.1)


class Registrar:
    """Checks passwords and keeps one contact. ``answers`` overrides the next answers, in order."""

    def __init__(self, *, grant_s: int = 60, nonce_lifetime_s: float = 60.0) -> None:
        self.endpoint = Endpoint(self, timing=FAST, methods=("REGISTER",))
        self.requests: list[Request] = []
        self.good: list[Request] = []
        self.answers: list[Callable[[Request], Response]] = []
        self.contact = ""
        self.grant_s = grant_s
        self.auth = ServerAuth("registrar", b"0123456789abcdef", nonce_lifetime_s=nonce_lifetime_s)
        self.clock = time.time

    def standing(self, peer: Peer) -> Standing:
        return Standing.KNOWN

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        self.requests.append(request)
        self.endpoint.respond(key, self.answers.pop(0)(request) if self.answers else self.judge(request))

    def judge(self, request: Request) -> Response:
        verdict, _ = self.auth.check(
            request.headers.all("Authorization"),
            {"bot": "secret"},
            method="REGISTER",
            uri=request.uri,
            now=self.clock(),
        )
        if verdict is not Verdict.GOOD:
            challenges = self.auth.challenges(now=self.clock(), stale=verdict is Verdict.STALE)
            return response_to(request, 401, to_tag="r", headers=[("WWW-Authenticate", each) for each in challenges])
        self.good.append(request)
        asked = int(request.headers.get("Expires") or 0)
        self.contact = request.headers.get("Contact") or "" if asked else ""
        expires = [("Contact", f"{self.contact};expires={min(asked, self.grant_s)}")] if asked else []
        return response_to(request, 200, to_tag="r", headers=expires)

    def on_ack(self, request: Request) -> None: ...
    def on_cancel(self, invite: Key) -> None: ...
    def on_response(self, key: Key | None, response: Response) -> None: ...
    def on_failed(self, key: Key, reason: Act) -> None: ...


class Ours:
    """An endpoint whose only business is asking."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(self, timing=FAST)
        self.client = Client(self.endpoint)

    def standing(self, peer: Peer) -> Standing:
        return Standing.KNOWN

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        self.endpoint.respond(key, response_to(request, 481))

    def on_ack(self, request: Request) -> None: ...
    def on_cancel(self, invite: Key) -> None: ...

    def on_response(self, key: Key | None, response: Response) -> None:
        self.client.on_response(key, response)

    def on_failed(self, key: Key, reason: Act) -> None:
        self.client.on_failed(key, reason)


@asynccontextmanager
async def registering(
    registrar: Registrar | None = None, *, at: str = "", **config: object
) -> AsyncIterator[tuple[Registration, asyncio.Queue[bool], Ours]]:
    ours = Ours()
    changes: asyncio.Queue[bool] = asyncio.Queue()
    await ours.endpoint.start("127.0.0.1", 0)
    if registrar:
        await registrar.endpoint.start("127.0.0.1", 0)
        at = f"sip:127.0.0.1:{registrar.endpoint.port}{at}"
    registration = Registration(
        RegistrationConfig.model_validate(
            {"registrar": at, "username": "bot", "password": "secret", "retry_s": 0.02, **config}
        ),
        ours.client,
        LocalAddress("127.0.0.1", ours.endpoint.port),
        on_change=lambda changed: changes.put_nowait(changed.registered),
    )
    registration.start()
    try:
        yield registration, changes, ours
    finally:
        await registration.close()
        await ours.endpoint.close()
        if registrar:
            await registrar.endpoint.close()
        assert len(ours.client) == 0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_registers_with_its_password_and_says_goodbye(transport: str) -> None:
    registrar = Registrar()
    async with registering(registrar, at=f";transport={transport}") as (registration, changes, ours):
        assert await asyncio.wait_for(changes.get(), 5)
        contact = Uri.parse(registrar.contact.strip("<>"))
        assert (contact.user, contact.host, contact.port) == ("bot", "127.0.0.1", ours.endpoint.port)
        assert contact.params.get("transport", "udp") == transport
        first, second = registrar.requests
        assert str(second.to) == "<sip:bot@127.0.0.1>" and second.uri == "sip:127.0.0.1"
        assert first.call_id == second.call_id and first.cseq.number < second.cseq.number
        assert registration.peer == Peer(transport.upper(), "127.0.0.1", registrar.endpoint.port)
    assert registrar.contact == "" and not registration.registered
    assert registrar.good[-1].headers.get("Expires") == "0"


async def test_refreshes_before_what_was_granted_is_over() -> None:
    registrar = Registrar(grant_s=1)
    async with registering(registrar) as (registration, changes, _):
        await until(lambda: len(registrar.good) == 3)
        assert registration.registered and changes.qsize() == 1
        assert [request.headers.get("Expires") for request in registrar.good] == ["600"] * 3


async def test_an_interval_too_brief_is_raised_to_what_the_registrar_wants() -> None:
    registrar = Registrar(grant_s=9000)
    registrar.answers = [lambda request: response_to(request, 423, headers=[("Min-Expires", "7200")])]
    async with registering(registrar) as (_, changes, _):
        assert await asyncio.wait_for(changes.get(), 5)
        assert registrar.good[-1].headers.get("Expires") == "7200"


async def test_a_wrong_password_is_not_tried_in_a_loop() -> None:
    registrar = Registrar()
    async with registering(registrar, password="wrong", retry_s=600) as (registration, changes, _):
        await until(lambda: registration.status)
        assert registration.status == 401 and len(registrar.requests) == 2
        assert changes.empty()


async def test_a_stale_nonce_is_answered_with_the_fresh_one() -> None:
    registrar = Registrar(nonce_lifetime_s=60)
    old = iter([0.0, -100.0])  # the first challenge, after the first check, is made with a clock that is behind
    registrar.clock = lambda: time.time() + next(old, 0.0)
    async with registering(registrar) as (_, changes, _):
        assert await asyncio.wait_for(changes.get(), 5)
        assert len(registrar.requests) == 3


async def test_failures_are_tried_again_and_a_lost_registration_is_told() -> None:
    registrar = Registrar(grant_s=1)
    failing = [lambda request: response_to(request, 503)] * 3
    registrar.answers = list(failing)
    async with registering(registrar) as (registration, changes, _):
        assert await asyncio.wait_for(changes.get(), 5)
        registrar.answers = list(failing)
        assert not await asyncio.wait_for(changes.get(), 5)
        assert registration.status == 503
        assert await asyncio.wait_for(changes.get(), 5)


async def test_the_registrar_says_when_to_come_again() -> None:
    registrar = Registrar()
    registrar.answers = [lambda request: response_to(request, 503, headers=[("Retry-After", "600 (busy)")])]
    async with registering(registrar) as (registration, _, _):
        await until(lambda: registration.status == 503)
        await asyncio.sleep(0.1)  # five pauses of retry_s
        assert len(registrar.requests) == 1


@pytest.mark.parametrize(
    ("at", "status"),
    [("sip:127.0.0.1:9", 408), ("sip:127.0.0.1:9;transport=tcp", 503), ("sip:nowhere.invalid", 503)],
)
async def test_nobody_there_is_a_status(at: str, status: int) -> None:
    async with registering(at=at, retry_s=600) as (registration, changes, _):
        await until(lambda: registration.status)
        assert registration.status == status and changes.empty()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([("Contact", "<sip:bot@192.0.2.1:5060>;expires=50"), ("Expires", "70")], 50),
        ([("Contact", "<sip:x@192.0.2.9>;expires=9, <sip:bot@192.0.2.1:5060>;expires=50")], 50),
        ([("Contact", "<sip:bot@203.0.113.1:1024>;expires=40")], 40),
        ([("Contact", "<sip:x@192.0.2.9>;expires=9, <sip:y@192.0.2.9>;expires=9")], 0),
        ([("Contact", "<sip:bot@192.0.2.1:5060>"), ("Expires", "70")], 70),
        ([("Contact", "<sip:bot@192.0.2.1:5060>;expires=never")], 600),
        ([("Contact", "nonsense")], 600),
        ([], 600),
    ],
)
def test_what_is_granted(headers: list[tuple[str, str]], seconds: int) -> None:
    response = Response(200, "OK", Headers(headers))
    assert granted(response, Uri.parse("sip:bot@192.0.2.1:5060"), asked_s=600) == seconds
