"""The memory of the plotted figures: what each step has, and how many there are."""

from __future__ import annotations

from pathlib import Path

import aiohttp
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.http.metrics_history import STEP_S, STEPS, FiguresView, MetricsHistory
from tests.gateway.http.api_gateway import api_gateway


async def shown(history: MetricsHistory) -> FiguresView:
    answer = await history.show(make_mocked_request("GET", "/v1/figures"))
    assert answer.text is not None
    return FiguresView.model_validate_json(answer.text)


async def test_a_step_has_the_sums_over_all_labels_and_its_age() -> None:
    registry = CollectorRegistry()
    buckets = (0.1, 0.2)
    first = Histogram("talkspurt_first_packet_seconds", "", ["transport"], buckets=buckets, registry=registry)
    other = Histogram("talkspurt_first_packet_stage_seconds", "", ["stage"], buckets=buckets, registry=registry)
    active = Gauge("talkspurt_calls_active", "", ["transport"], registry=registry)
    gaps = Counter("talkspurt_gaps", "", registry=registry)
    for transport, wait in (("sip", 0.05), ("twilio", 0.15), ("twilio", 5.0)):
        first.labels(transport).observe(wait)
        other.labels("engine").observe(wait)
        active.labels(transport).inc()
    gaps.inc(2)

    async def metrics() -> bytes:
        return generate_latest(registry)

    now = 1000.0
    history = MetricsHistory(metrics, lambda: (3, 4), clock=lambda: now)
    await history.take()
    now += 7.5
    view = await shown(history)
    assert view.bounds == {"talkspurt_first_packet_seconds": [0.1, 0.2]}
    (step,) = view.steps
    assert step.ageS == 7.5
    assert step.buckets == {"talkspurt_first_packet_seconds": [1.0, 2.0, 3.0]}
    assert step.values == {"talkspurt_calls_active": 3.0, "talkspurt_gaps_total": 2.0, "active": 3.0, "queued": 4.0}


async def test_an_hour_is_kept_and_no_more() -> None:
    async def metrics() -> bytes:
        return b"talkspurt_calls_active 1.0\n"

    now = 0.0
    history = MetricsHistory(metrics, lambda: (0, 0), clock=lambda: now)
    for _ in range(STEPS + 5):
        now += STEP_S
        await history.take()
    view = await shown(history)
    assert len(view.steps) == STEPS
    assert (view.steps[0].ageS, view.steps[-1].ageS) == (3600 - STEP_S, 0)


async def test_the_whole_server_takes_its_own_figures(tmp_path: Path) -> None:
    async with api_gateway(tmp_path) as (made, _, url), aiohttp.ClientSession() as http:
        await made.http.history.take()
        async with http.get(f"{url}/v1/figures") as answer:
            view = FiguresView.model_validate(await answer.json())
    (step,) = view.steps
    assert "active" in step.values
    for family, counts in step.buckets.items():
        assert len(counts) == len(view.bounds[family]) + 1 and counts == sorted(counts)
