"""The hops by which a trunk's calls leave: lists of proxies, outbound proxies, routes of registrars, and registrars."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.seams.originate import Attempt, CallOrder
from gateway.seams.sip_state import ProxyState, TrunkState
from sip_bridge.config import RegistrationConfig, SipConfig, TrunkConfig
from sip_bridge.message.sip import Headers, Request, Response, Uri
from sip_bridge.registration import loose_route, service_route
from tests.sip_bridge.phone import Bridge, Phone, bridge, offer, until
from tests.sip_bridge.test_outgoing import fresh, next_of, reply
from tests.sip_bridge.virtual_bridge import VirtualBridge

PROXIES = ["sip:127.0.0.8:7001", "sip:127.0.0.9:7000"]


async def listening(*_: object) -> None: ...


class TwoProxies(VirtualBridge):
    """A bridge whose trunk has two proxies; those in ``dead`` do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **trunk: Any) -> None:
        super().__init__(trunk={"proxy": PROXIES, **trunk})
        self.dead: set[tuple[str, int]] = set()
        self.status = 200
        self.answers["OPTIONS"] = None
        monkeypatch.setattr(self.bridge.endpoint, "start", listening)

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        super().sendto(data, to)
        asked = self.sent[-1]
        if isinstance(asked, Request) and asked.method == "OPTIONS" and to not in self.dead:
            asyncio.get_running_loop().call_soon(self.answer, asked, self.status)

    def hops(self) -> list[str]:
        """The proxies that the next call may use."""
        return [str(hop.uri) for hop in self.bridge.hops.hops("office")]

    async def close(self) -> None:
        await self.bridge._pings["office"].close()


@pytest.mark.virtual_time
async def test_a_proxy_that_does_not_answer_is_left_out_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TwoProxies(monkeypatch)
    await world.bridge.start()
    await world.run(1)
    assert world.hops() == PROXIES
    world.dead = {("127.0.0.8", 7001)}
    await world.run(100)
    states = tuple(ProxyState(proxy, answers) for proxy, answers in zip(PROXIES, (False, True), strict=True))
    assert world.bridge.state.trunks == (TrunkState("office", True, states),)
    assert world.hops() == PROXIES[1:]
    world.dead = set()
    await world.run(100)
    assert world.hops() == PROXIES
    world.status = 503
    await world.run(100)
    assert world.bridge.state.trunks[0].answers is False
    assert world.hops() == PROXIES  # better than no call at all
    await world.close()


@pytest.mark.virtual_time
async def test_other_workers_know_the_proxies_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = TwoProxies(monkeypatch), TwoProxies(monkeypatch)
    first.dead = {("127.0.0.9", 7000)}
    await first.bridge.start()
    await first.run(10)
    await other.bridge.start()
    monkeypatch.setattr(type(other.bridge), "is_first", property(lambda bridge: bridge is first.bridge))
    other.bridge.hear({}, first.bridge.found)
    assert other.hops() == PROXIES[:1]
    await first.close()
    await other.close()


@asynccontextmanager
async def with_phones(count: int, **settings: Any) -> AsyncIterator[tuple[Bridge, list[Phone]]]:
    """A bridge and some phones; ``{0}`` and ``{1}`` in the settings are their addresses."""
    phones = [Phone(0) for _ in range(count)]
    addresses = [f"127.0.0.1:{phone.port}" for phone in phones]

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        return value.format(*addresses) if isinstance(value, str) else value

    try:
        async with bridge(allowed_targets=["*@*"], **filled(settings)) as made:
            for phone in phones:
                phone.server = ("127.0.0.1", made.bridge.endpoint.port)
            yield made, phones
    finally:
        for phone in phones:
            phone.__exit__(None, None, None)


async def place(made: Bridge, **order: Any) -> Attempt:
    return await made.bridge.outgoing.place(CallOrder(**{"target": "+4930111", "trunk": "office", **order}))


async def registered(phone: Phone, made: Bridge, *headers: tuple[str, str], status: int = 200) -> Request:
    """The phone answers our REGISTER."""
    register = await phone.asked("REGISTER")
    granted = [("Contact", f"{register.headers.get('Contact')};expires=600")] if status == 200 else []
    phone.answer(register, status, *granted, *headers)
    return register


async def test_an_outbound_proxy_is_visited_and_the_number_stays_at_the_proxy() -> None:
    trunk = {"proxy": "sip:carrier.example", "outbound_proxy": "sip:{0}"}
    async with with_phones(1, trunk=trunk) as (made, (proxy,)):
        attempt = await place(made)
        invite = await fresh(proxy, "INVITE")
        assert invite.uri == "sip:+4930111@carrier.example"
        assert invite.headers.all("Route") == (f"<sip:127.0.0.1:{proxy.port};lr>",)
        reply(proxy, invite, 486)
        ack = await fresh(proxy, "ACK")
        assert ack.headers.all("Route") == invite.headers.all("Route")
        await until(lambda: attempt.state == "failed")


async def test_calls_visit_the_route_that_the_registrar_named() -> None:
    """RFC 3608: the next hop is its first proxy; without the registration the trunk's proxy is called again."""
    registration = {"registrar": "sip:{0}", "username": "bot", "trunk": "office"}
    trunk = {"proxy": "sip:{1}"}
    async with with_phones(2, trunk=trunk, registrations=[registration]) as (made, (registrar, proxy)):
        route = (f"<sip:127.0.0.1:{registrar.port};lr;x=1>", "<sip:serving.example;lr>")
        await registered(registrar, made, ("Service-Route", ", ".join(route)))
        await until(lambda: made.bridge.registrations[0].registered)
        attempt = await place(made)
        invite = await fresh(registrar, "INVITE")
        assert invite.headers.all("Route") == route
        assert invite.uri == f"sip:+4930111@127.0.0.1:{proxy.port}"
        reply(registrar, invite, 200, ("Record-Route", "<sip:127.0.0.1:9;lr>"), body=offer(registrar.rtp_port))
        await until(lambda: attempt.state == "answered")
        made.session.call.abandon()
        made.sessions.clear()
        made.bridge.registrations[0].registered = False
        await place(made)
        invite = await fresh(proxy, "INVITE")
        assert invite.headers.all("Route") == ()
        reply(proxy, invite, 486)
        await fresh(proxy, "ACK")
        await goodbye(made)


async def goodbye(made: Bridge) -> None:
    """End the registrations without their goodbye."""
    for each in made.bridge.registrations:
        each.registered = False
    await until(lambda: not made.bridge.outgoing.under_way())


async def test_an_account_is_registered_at_each_registrar_and_calls_by_one_that_has_it() -> None:
    """Its trunk has no proxy: the registrars take the calls, and each may bring some."""
    registration = {
        "registrar": ["sip:{0}", "sip:{1}"], "username": "bot", "domain": "carrier.example", "trunk": "office",
    }  # fmt: skip
    async with with_phones(2, trunk={"addresses": []}, registrations=[registration]) as (made, (one, two)):
        first, second = await asyncio.gather(registered(one, made, status=403), registered(two, made))
        assert str(first.to.uri) == str(second.to.uri) == "sip:bot@carrier.example"
        await until(lambda: made.bridge.registrations[1].registered)
        assert [each.registered for each in made.bridge.state.registrations] == [False, True]
        attempt = await place(made)
        invite = await fresh(two, "INVITE")
        assert invite.uri == "sip:+4930111@carrier.example" and one.nothing()
        assert str(invite.from_.uri) == "sip:bot@carrier.example"
        reply(two, invite, 486)
        await fresh(two, "ACK")
        await until(lambda: attempt.state == "failed")
        with Phone(made.bridge.endpoint.port) as caller:
            await caller.call()
            assert made.session.call.trunk_name == "office"
            await caller.bye()
        await goodbye(made)


async def test_a_registration_visits_its_outbound_proxy() -> None:
    registration = {
        "registrar": "sip:registrar.invalid", "outbound_proxy": "sip:{0}", "username": "bot", "trunk": "office",
    }  # fmt: skip
    async with with_phones(1, trunk={"addresses": []}, registrations=[registration]) as (made, (proxy,)):
        register = await registered(proxy, made)
        route = (f"<sip:127.0.0.1:{proxy.port};lr>",)
        assert register.uri == "sip:registrar.invalid" and register.headers.all("Route") == route
        await until(lambda: made.bridge.registrations[0].registered)
        await place(made)
        invite = await fresh(proxy, "INVITE")
        assert invite.uri == "sip:+4930111@registrar.invalid" and invite.headers.all("Route") == route
        reply(proxy, invite, 486)
        await next_of(proxy, "ACK")
        await goodbye(made)


@pytest.mark.parametrize(
    ("headers", "routes"),
    [
        (["<sip:a;lr>, <sip:b;lr>"], ("<sip:a;lr>", "<sip:b;lr>")),
        (["<sip:a;lr>", "<sip:b;lr>"], ("<sip:a;lr>", "<sip:b;lr>")),
        (["<sip:a>"], ()),  # a strict router would lose the Request-URI
        (["<sip:a;lr>", "nonsense <"], ()),
        (["<sip:a;lr>"] * 11, ()),
        ([], ()),
    ],
)
def test_the_route_that_a_registrar_names(headers: list[str], routes: tuple[str, ...]) -> None:
    response = Response(200, "OK", Headers([("Service-Route", value) for value in headers]))
    assert service_route(response) == routes


def test_a_proxy_becomes_a_route() -> None:
    assert loose_route(Uri.parse("sip:u@p.example:5070;transport=tcp")) == "<sip:p.example:5070;transport=tcp;lr>"


@pytest.mark.parametrize("name", ["proxy", "outbound_proxy"])
@pytest.mark.parametrize("value", ["sip:a", ["sip:a", "sip:b"], []])
def test_one_proxy_or_a_list(name: str, value: Any) -> None:
    trunk = TrunkConfig.model_validate({"addresses": ["127.0.0.1"], name: value})
    assert trunk.pinged == tuple([value] if isinstance(value, str) else value)


@pytest.mark.parametrize(
    "config",
    [
        {"trunks": {"a": {"addresses": ["127.0.0.1"], "proxy": ["sip:a", "http://b"]}}},
        {"trunks": {"a": {"addresses": ["127.0.0.1"], "outbound_proxy": "b"}}},
        {"trunks": {"a": {"addresses": ["127.0.0.1"], "proxy": [], "ping_s": 5}}},
        {"registrations": [{"username": "u", "registrar": []}]},
        {"registrations": [{"username": "u", "registrar": ["sip:a", "tel:1"]}]},
        {"registrations": [{"username": "u", "registrar": "sip:a", "outbound_proxy": "a"}]},
    ],
)
def test_addresses_that_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"proxy|registrar"):
        SipConfig.model_validate(config)


def test_an_account_without_a_domain_belongs_to_its_first_registrar() -> None:
    config = RegistrationConfig.model_validate({"username": "u", "registrar": ["sip:a.example", "sip:b.example"]})
    assert config.address == "sip:u@a.example" and config.at("sip:b.example").address == "sip:u@b.example"
