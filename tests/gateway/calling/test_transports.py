"""A transfer on every carrier of the table: a refused one sends nothing, an allowed one reaches the wire."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gateway.call.session import Session
from gateway.carriers.table import CARRIERS as SERVED
from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted
from gateway.seams.messages import Error, Outbound, Transfer
from talkspurt.build import Gateway
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.test_webhooks import FORMS
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

every = pytest.mark.parametrize("dialect", SERVED)

SPELT, DIALLED = "0049 (30) 5550", "+49305550"
REFUSED = [
    "+88216123456",
    "0088216 123456",
    "tel:%2B88216123456",
    "agent-7",
    "sip:+49305550@evil.example",
    "+49305550,1",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    carriers = {carrier.key: {"verify": False} for carrier in SERVED.values()}
    calling = {"allowed_targets": ["+4930*"]}
    async with api_gateway(tmp_path_factory.mktemp("made"), carriers=carriers, calling=calling) as (gateway, _, _):
        yield gateway


class Api:
    """A carrier's API beside the stream. It writes down who is dialled."""

    def __init__(self) -> None:
        self.dialled: list[str] = []

    def open(self, started: StreamStarted, events: CallEvents) -> Any:
        return self

    def transfer(self, target: str, handoff_data: str | None, reason: str) -> bool:
        self.dialled.append(target)
        return True

    def hang_up(self, reason: str, handoff_data: str | None) -> None: ...

    def carries_dtmf(self, digits: str) -> bool:
        return False

    def send_dtmf(self, digits: str) -> bool:
        return False

    def clear(self) -> None: ...

    def close(self) -> None: ...


class Call:
    """A live call of a carrier, and what its manager is told."""

    def __init__(self, made: Gateway, leg: CarrierLeg, session: Session) -> None:
        self._made = made
        self.leg = leg
        self.session = session
        self.told: list[Outbound] = []
        session.outbox.connect(self)

    def send(self, message: Outbound) -> None:
        self.told.append(message)

    def send_audio(self, pcm: bytes) -> None: ...

    async def aclose(self) -> None: ...

    def refuses(self, target: str) -> None:
        before = refusals(self._made)
        self.session.on_message(Transfer(target=target))
        error = self.told.pop()
        assert isinstance(error, Error) and error.code == "target_not_allowed", (target, error)
        assert not re.search(r"[0-9]", error.description)
        assert self._made.directory.get(self.session.call_id) is self.session, "the call continues"
        assert self.session.ending.handoff is None
        assert refusals(self._made) == before + 1

    async def over(self) -> None:
        self.session.end("test is over", hang_up=True)
        await until(lambda: self._made.directory.get(self.session.call_id) is None)
        await self.leg.aclose()


def refusals(made: Gateway) -> float:
    """Return the metric's count of refusals."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(made.metrics.exposition().decode())
        for sample in family.samples
        if sample.name == "talkspurt_calls_rejected_total" and sample.labels == {"reason": "target_not_allowed"}
    )


async def begun(made: Gateway, dialect: str) -> Call:
    leg = CarrierLeg(CARRIERS[dialect](7, {}))
    await leg.connect(f"ws://127.0.0.1:{made.server.port}/media/{dialect}/default")
    await until(lambda: len(made.directory))
    (session,) = made.directory
    return Call(made, leg, session)


@every
async def test_a_transfer_outside_the_policy_reaches_nobody_and_one_within_it_is_dialled(
    made: Gateway, dialect: str
) -> None:
    call = await begun(made, dialect)
    for target in REFUSED:
        call.refuses(target)
    call.session.on_message(Transfer(target=SPELT))
    if not call.session.seat.leg.dialect.call_outlives_stream:  # type: ignore[attr-defined]
        error = call.told[-1]
        assert isinstance(error, Error) and error.code == "not_supported", "only an API could do it"
        await call.over()
        return
    handoff = call.session.ending.handoff
    assert handoff is not None and handoff.transfer_target == DIALLED
    call_sid = call.session.call.call_sid
    await call.over()
    control = SERVED[dialect].call_control
    if control is None:
        left = await made.state.handoffs.take(dialect, call_sid)  # a dialplan asks for what the call left
        assert left is not None and left.transfer_target == DIALLED
        return
    form = FORMS[dialect] if dialect != "vonage" else {"json": {"status": "disconnected", "uuid": "leg"}}
    address = f"http://127.0.0.1:{made.server.port}/webhooks/{dialect}/default/after?call={call_sid}"
    async with aiohttp.ClientSession() as http, http.post(address, **form) as answer:
        assert DIALLED.lstrip("+") in await answer.text()


@every
async def test_an_api_beside_the_stream_is_told_only_what_the_policy_lets_through(
    made: Gateway, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    monkeypatch.setattr(made.server, "_call_apis", {dialect: api.open})
    call = await begun(made, dialect)
    for target in REFUSED:
        call.refuses(target)
    assert api.dialled == []
    call.session.on_message(Transfer(target=SPELT))
    assert api.dialled == [DIALLED]
    await call.over()
