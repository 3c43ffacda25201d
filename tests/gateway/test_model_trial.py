"""A model on trial: who gets it, what is counted, and when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.model_trial import ACTIVE, ModelTrials, Trial, TrialTerms
from gateway.seams.leg import CallInfo


class Counted:
    """Everything that was counted, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def model_turn(self, model: str) -> None:
        self.lines.append(f"turn {model}")

    def model_failure(self, model: str, kind: str) -> None:
        self.lines.append(f"{kind} {model}")

    def trial_returned(self, reason: str) -> None:
        self.lines.append(f"returned {reason}")


def call(number: int = 1, **fields: object) -> CallInfo:
    return CallInfo(**{"call_id": f"VX{number:032x}", "route": "r", "transport": "t", **fields})  # type: ignore[arg-type]


def terms(**fields: object) -> TrialTerms:
    return TrialTerms(**{"model": "next", "percent": 100.0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("percent", [0.0, 0.5, 10.0, 50.0, 100.0])
def test_the_share_of_calls_is_the_percentage(percent: float) -> None:
    trial = Trial(terms(percent=percent))
    taken = sum(trial.takes(call(number)) for number in range(10_000))
    assert taken == pytest.approx(percent * 100, abs=150)  # three standard deviations at 50 %


def test_a_caller_always_has_the_same_model_and_another_trial_takes_others() -> None:
    one, other = Trial(terms(percent=50.0, key="from")), Trial(terms(model="third", percent=50.0, key="from"))
    first = [one.takes(call(number, from_=f"+1555{number % 100}")) for number in range(200)]
    assert first[:100] == first[100:]
    assert first[:100] != [other.takes(call(number, from_=f"+1555{number}")) for number in range(100)]


@pytest.mark.parametrize(
    ("key", "fields"),
    [("route", {"route": "vip"}), ("to", {"to": "vip"}), ("tier", {"custom_parameters": {"tier": "vip"}})],
)
def test_calls_are_chosen_by_a_value_of_the_key(key: str, fields: dict[str, Any]) -> None:
    trial = Trial(terms(percent=0.0, key=key, values=frozenset({"vip"})))
    assert trial.takes(call(**fields))
    assert not trial.takes(call())


def test_a_call_keeps_its_model_until_the_trial_ends() -> None:
    counted = Counted()
    trials = ModelTrials(counted)
    before = trials.of_call(call(1))
    trials.begin(terms())
    during = trials.of_call(call(2))
    assert [trials.model_of_turn(one) for one in (before, during)] == ["", "next"]
    trials.stop()
    assert trials.of_call(call(3)) is None
    assert trials.model_of_turn(during) == ""
    assert counted.lines == [f"turn {ACTIVE}", "turn next", f"turn {ACTIVE}"]


def test_a_new_trial_stops_the_one_before() -> None:
    trials = ModelTrials()
    trials.begin(terms())
    first = trials.of_call(call())
    trials.begin(terms(model="third"))
    assert trials.model_of_turn(first) == ""
    assert trials.model_of_turn(trials.of_call(call())) == "third"


@pytest.mark.parametrize(("kind", "reason"), [("error", "errors"), ("gap", "gaps")])
def test_too_many_failures_end_the_trial(kind: str, reason: str) -> None:
    counted = Counted()
    trials = ModelTrials(counted)
    trials.begin(terms(max_error_ratio=0.1, max_gap_ratio=0.1, min_turns=20))
    mine = trials.of_call(call())
    for _ in range(30):
        trials.model_of_turn(mine)
    for _ in range(3):
        getattr(trials, kind)("next")
    assert trials.current is not None, "3 of 30 is the bound, not above it"
    getattr(trials, kind)("next")
    assert trials.current is None and trials.latest is not None and trials.latest.ended == reason
    assert trials.model_of_turn(mine) == ""
    getattr(trials, kind)("next")  # of a turn that was under way
    assert counted.lines.count(f"returned {reason}") == 1


def test_an_early_error_ends_nothing_but_a_model_that_fails_each_turn_is_out_soon() -> None:
    trials = ModelTrials()
    trials.begin(terms(max_error_ratio=0.1, min_turns=20))
    mine = trials.of_call(call())
    failed = 0
    while trials.model_of_turn(mine):
        trials.error("next")
        failed += 1
    assert failed == 3


def test_failures_of_long_ago_and_of_the_active_model_do_not_count() -> None:
    counted = Counted()
    trials = ModelTrials(counted)
    trials.begin(terms(max_error_ratio=0.1, max_gap_ratio=0.1, min_turns=20, window_turns=50))
    mine = trials.of_call(call())
    for _ in range(10):
        trials.error("next")
        trials.gap("embedded")
        for _ in range(50):
            trials.model_of_turn(mine)
    assert trials.current is not None
    assert trials.current.error_ratio == trials.current.gap_ratio == 0
    assert counted.lines.count(f"gap {ACTIVE}") == 10
