"""Calls of a whole gateway, from the edge's value to the end: listed, counted, and handed over."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import Rejected
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import Reception
from gateway.seams.messages import Text
from gateway.seams.shared_state import Handoff
from talkspurt.build import Gateway
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.metering.test_store import held
from tests.waiting import PATIENCE_S, until
from voicecodecs.registry import AudioFormat


class Leg:
    """The media of a call without a listener."""

    max_lead_ms = 0
    has_marks = False
    can_clear = True
    in_real_time = True
    refuses_transfers = False
    asks_webhook = False
    outbound = AudioFormat()

    def __init__(self) -> None:
        self.hung_up: list[str] = []
        self.on_frame: Callable[[], None] = lambda: None

    def reception(self) -> Reception | None:
        return None

    def send_frame(self, payload: bytes, now: float) -> bool:
        self.on_frame()
        return True

    def send_mark(self, name: str) -> None: ...

    def send_clear(self) -> None: ...

    def carries_dtmf(self, digits: str) -> bool:
        return False

    def send_dtmf(self, digits: str) -> bool:
        return False

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        self.hung_up.append(reason)

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "") -> Any:
        raise AssertionError("no call here is transferred")


CALL = IncomingCall(
    route="default", transport="telnyx", inbound=AudioFormat(), call_sid="c1", custom_parameters={"lang": "de"}
)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Gateway]:
    routes = {"default": {"parameters": {"lang": "en", "bot": "billing"}}}
    async with api_gateway(tmp_path, routes=routes) as (gateway, _, _):
        yield gateway


def ended(made: Gateway) -> dict[tuple[str, str], float]:
    """Calls by transport and outcome."""
    text = made.metrics.exposition().decode()
    return {
        (sample.labels["transport"], sample.labels["outcome"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "talkspurt_calls_total" and sample.value
    }


async def test_a_call_is_listed_under_its_id_with_what_its_route_adds(made: Gateway) -> None:
    session = made.calls.begin(CALL, Leg())
    assert made.directory.get(session.call_id) is session
    assert session.call.custom_parameters == {"lang": "de", "bot": "billing"}
    session.end("over", hang_up=True)
    await until(lambda: not len(made.directory), "the call's end")
    assert ended(made) == {("telnyx", "completed"): 1}


async def test_a_call_that_no_manager_could_be_had_for_has_failed(made: Gateway) -> None:
    made.calls.begin(CALL, Leg()).on_dialogue_failed("no answer")
    await until(lambda: not len(made.directory), "the call's end")
    assert ended(made) == {("telnyx", "failed"): 1}


async def test_what_a_call_leaves_is_kept_for_its_own_carrier(made: Gateway) -> None:
    session = made.calls.begin(CALL, Leg())
    session.ending.handoff = Handoff(session.call_id, "ended", "data")
    session.end("over", hang_up=True)
    await until(lambda: not len(made.directory), "the call's end")
    assert await made.state.handoffs.take("twilio", "c1") is None
    assert await made.state.handoffs.take("telnyx", "c1") == session.ending.handoff


async def test_a_bug_in_one_call_ends_that_call_only(made: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    other = made.calls.begin(CALL, Leg())

    async def broken(self: object) -> str:
        raise RuntimeError("a bug")

    await asyncio.sleep(0)  # the other one runs already
    monkeypatch.setattr(type(other), "run", broken)
    made.calls.begin(CALL, Leg())
    await until(lambda: len(made.directory) == 1, "the end of the broken call")
    assert made.directory.get(other.call_id) is other
    assert ended(made) == {("telnyx", "failed"): 1}


async def test_a_drain_takes_no_calls_and_hangs_up_what_is_left_at_its_end(made: Gateway) -> None:
    leg = Leg()
    made.calls.begin(CALL, leg)
    await made.calls.drain(0)
    assert leg.hung_up == ["drained"] and not len(made.directory)
    with pytest.raises(Rejected, match="draining"):
        made.calls.begin(CALL, Leg())


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_caller_hears_nothing_before_the_record_is_in_the_file_or_its_disk_hangs(
    tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.store.BEGIN_WAIT_S", 0.05 if hangs else PATIENCE_S)
    url = f"sqlite:///{tmp_path}/records.sqlite3"
    records = {"database_url": url}
    in_the_file: list[int] = []

    def look() -> None:  # as another process sees it, if this one dies now
        with closing(sqlite3.connect(tmp_path / "records.sqlite3")) as file:
            in_the_file.append(file.execute("SELECT count(*) FROM records").fetchone()[0])

    async with api_gateway(tmp_path, records=records, routes={"default": {}}) as (made, _, _):
        leg = Leg()
        leg.on_frame = look
        async with held(made.stores.records):
            session = made.calls.begin(CALL, leg)
            session.on_message(Text(token="Good morning.", last=True))
            await until(lambda: session.speech.playout.buffered_s() > 0, "speech that waits")
            if hangs:
                await until(lambda: in_the_file, "a frame")
            else:
                assert not in_the_file
        await until(lambda: in_the_file, "a frame")
        assert in_the_file[0] == (0 if hangs else 1)
        session.end("done", hang_up=True)
        await until(lambda: leg.hung_up)
