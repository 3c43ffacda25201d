"""The search for the most calls that a gateway carries."""

from __future__ import annotations

from typing import Any

import pytest

from talkspurt.bench.search import passes, search


def step(calls: int, p99_ms: float = 2.0, gaps: int = 0, errors: int = 0) -> dict[str, Any]:
    return {"calls": calls, "pacing_error_ms": {"p99": p99_ms}, "gaps": gaps, "errors": errors}


@pytest.mark.parametrize(("carries", "found"), [(720, 700), (300, 300), (299, 275), (24, 0), (0, 0)])
def test_the_most_calls_are_found_to_within_25(carries: int, found: int) -> None:
    steps: list[dict[str, Any]] = []
    for calls in search(300, steps):
        steps.append(step(calls, p99_ms=2.0 if calls <= carries else 5.1))
    assert max((each["calls"] for each in steps if passes(each)), default=0) == found
    assert len({each["calls"] for each in steps}) == len(steps) <= 8


def test_a_gap_an_error_and_no_frame_at_all_do_not_pass() -> None:
    assert passes(step(300))
    assert not passes(step(300, gaps=1))
    assert not passes(step(300, errors=1))
    assert not passes({**step(300), "pacing_error_ms": None})
