"""The canary against a whole gateway that hums, and what it says when the call is not as it should be."""

from pathlib import Path
from typing import Any

import pytest

from talkspurt.commands.canary import Bounds, Canary, CanaryMetrics, new_sentence, words_understood
from talkspurt.simulator.caller import CallOptions
from tests.gateway.http.api_gateway import api_gateway

SECTIONS: dict[str, Any] = {"carriers": {"twilio": {"verify": False}}, "routes": {"call": {}}}
TEXT = "One two three."


def canary(url: str, metrics: CanaryMetrics, transcript: str = TEXT, **bounds: float) -> Canary:
    options = CallOptions(url=f"{url.replace('http', 'ws')}/media/twilio/call", steps=())
    allowed: Any = {"first_packet_ms": 30_000, "gaps": 1000, "words": 0.6, **bounds}
    listener = lambda pcm: transcript if len(pcm) else ""  # noqa: E731
    return Canary(options, lambda: TEXT, Bounds(**allowed), seconds=30, recogniser=listener, metrics=metrics)


def value(metrics: CanaryMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"talkspurt_canary_{name}", labels)


async def test_a_call_is_measured_and_a_bad_one_says_why(tmp_path: Path) -> None:
    metrics = CanaryMetrics()
    async with api_gateway(tmp_path, **SECTIONS) as (_, _, url):
        good = await canary(url, metrics).call()
        assert (good.problem, good.words) == ("", 1.0)
        assert good.first_packet_ms is not None and good.first_packet_ms > 0
        assert value(metrics, "up") == 1 and value(metrics, "calls_total", outcome="passed") == 1
        assert value(metrics, "first_packet_seconds") == good.first_packet_ms / 1000

        slow = await canary(url, metrics, first_packet_ms=0.001).call()
        assert "the first packet took" in slow.problem and value(metrics, "up") == 0
        other = await canary(url, metrics, transcript="somebody else").call()
        assert other.problem == "0% of the words were understood, expected at least 60%"
    nobody = await canary(url, metrics).call()
    assert nobody.problem and nobody.first_packet_ms is None and value(metrics, "first_packet_seconds") != 0
    assert value(metrics, "calls_total", outcome="failed") == 3


def test_no_cache_answers_for_the_engine() -> None:
    assert len({new_sentence() for _ in range(20)}) > 15


@pytest.mark.parametrize(
    ("heard", "share"),
    [(TEXT, 1.0), ("one, TWO! tree", 2 / 3), ("two one", 1 / 3), ("", 0.0), ("well one two three", 1)],
)
def test_words_count_in_their_order(heard: str, share: float) -> None:
    assert words_understood(TEXT, heard) == pytest.approx(share)
