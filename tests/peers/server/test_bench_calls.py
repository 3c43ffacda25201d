"""The load against a real ``talkspurt serve`` on the tone engine; figures are compared with figures, not clocks."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from talkspurt.bench.calls import (
    ROUTE,
    Arrivals,
    Bursts,
    CallLoad,
    CallLoadSettings,
    Conversations,
    Pattern,
    Silent,
    Talking,
)
from talkspurt.bench.load import STANDARD, LoadTurn, TurnSupply, read_load
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator import kernel_arrivals
from talkspurt.simulator.peer_socket import PeerSocketError

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ServerUnderTest]:
    async with serving(None, overrides(route=ROUTE, calls=10, engine__kind="tone")) as running:
        yield running


def short_turns(pause_s: float = 0.0) -> TurnSupply:
    return TurnSupply((LoadTurn((f"Go on {n}.",), pause_s) for n in range(10_000)), "short")


async def run(
    server: ServerUnderTest, pattern: Pattern, source: TurnSupply, seconds: float = 1.5, **settings: float
) -> CallLoad:
    load = CallLoad(CallLoadSettings(calls=3, seconds=seconds, **settings), source, pattern)  # type: ignore[arg-type]
    await load.run(server.address, measured=lambda begins: None)
    return load


async def test_conversations_are_measured_whole(server: ServerUnderTest) -> None:
    load = await run(server, Conversations(), short_turns())
    figures = load.figures()
    assert figures["errors_by_kind"] == {}
    assert figures["turns"] >= 3
    assert {turn.outcome for turn, _ in load.turns} == {"finished"}
    assert figures["first_packet_ms"]["n"] == figures["server_first_packet_ms"]["n"] == figures["turns"]
    assert figures["first_packet_ms"]["p50"] > 0
    assert figures["frames"] > 0
    assert figures["arrival_clock"] == "kernel"


async def test_where_the_kernel_tells_no_arrival_the_process_does_and_says_so(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_arrivals, "_SO_TIMESTAMPNS", 9999)
    figures = (await run(server, Conversations(), short_turns(), seconds=0.5)).figures()
    assert figures["errors_by_kind"] == {} and figures["frames"] > 0
    assert figures["arrival_clock"] == "process"


async def test_audio_that_came_is_the_audio_that_the_gateway_says_it_sent(server: ServerUnderTest) -> None:
    load = await run(server, Conversations(), short_turns(), tokens_per_s=0.0)
    came = sum(sum(spurt.samples) for call in load.calls for spurt in call.leg.spurts) / 8
    assert came == sum(turn.reported["audioMs"] for turn, _ in load.turns)


async def test_cancelled_turns_are_cut_and_counted(server: ServerUnderTest) -> None:
    text = "A turn that lasts for seconds and seconds when it is not interrupted by anybody at all."
    source = TurnSupply((LoadTurn((f"{text} {n}",), 0.0) for n in range(100)), "long")
    load = await run(server, Conversations(), source, cancel_share=1.0)
    figures = load.figures()
    assert {turn.outcome for turn, _ in load.turns} == {"interrupted"}
    assert figures["cut_ms"]["n"] == figures["turns"]
    assert figures["errors_by_kind"] == {}
    heard = [turn.heard_text for turn, _ in load.turns]
    assert all(heard) and all(turn.text.startswith(turn.heard_text) for turn, _ in load.turns)


async def test_a_burst_starts_every_call_in_one_instant(server: ServerUnderTest) -> None:
    load = await run(server, Bursts(), short_turns(), seconds=1.0)
    assert len(load.turns) % 3 == 0
    # One call after the other would wait for speech to end in between.
    first = sorted((turn for turn, _ in load.turns), key=lambda turn: turn.sent_at)[:3]
    assert max(turn.sent_at for turn in first) < min(turn.ended_at or 0.0 for turn in first)


async def test_arrivals_go_to_idle_calls_and_an_excess_is_an_error(server: ServerUnderTest) -> None:
    load = await run(server, Arrivals(200.0), read_load(STANDARD), seconds=0.5)
    assert load.errors["no idle call for an arrival"] > 0
    assert len(load.turns) >= 3


async def test_talking_calls_send_all_the_time(server: ServerUnderTest) -> None:
    load = await run(server, Talking(["Go on.", "Go on now."], ramp_s=0.5), short_turns(), seconds=3.0, uplink=False)
    figures = load.figures()
    assert figures["errors_by_kind"] == {}
    assert figures["turns"] > 3  # the next one follows by itself
    assert figures["frames"] > 0


async def test_silent_calls_send_nothing(server: ServerUnderTest) -> None:
    load = await run(server, Silent(), read_load(STANDARD), seconds=0.3)
    assert load.figures()["frames"] == 0 and load.figures()["errors"] == 0


async def test_the_kernel_knows_the_gateway_and_its_engine(server: ServerUnderTest) -> None:
    assert len(server.engine_pids()) == 1
    gateway_s, engine_s = server.cpu_s()
    assert gateway_s > 0 and engine_s > 0
    assert server.rss_mb() > 50


async def test_a_server_that_nobody_runs_is_one_clear_error(server: ServerUnderTest) -> None:
    with pytest.raises(PeerSocketError, match="cannot connect"):
        await run(ServerUnderTest("127.0.0.1:1", 0), Silent(), read_load(STANDARD), seconds=0.1)


async def test_the_collector_is_off_during_a_step_only(server: ServerUnderTest) -> None:
    seen = []
    load = CallLoad(CallLoadSettings(calls=1, seconds=0.05), read_load(STANDARD), Silent())
    await load.run(server.address, measured=lambda begins: seen.append(gc.isenabled()))
    assert seen == [False, False] and gc.isenabled()
