"""Below and beyond the capacity of a simulated card: turns that have begun play without gaps, and the card stays busy.

The loads are shares of what a closed loop of clients gets from the same card.
"""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from tests.tts_engine.cosyvoice.token2wav.simulation import SOUND_S, Device, Outcome, Simulation, arrivals, capacity

LARGE, H200, SMALL = Device(), Device(blocks=1220), Device(blocks=178, slower=4.0)
"""64 GB and 110 GB of an H200, and a card with a quarter of the memory whose batches take four times as long."""
NAMES = {LARGE: "64 GB", H200: "110 GB", SMALL: "a small card"}


@cache
def sound_at_most(device: Device, mean_s: float) -> float:
    return capacity(device=device, mean_s=mean_s, clients=128 if device.slower == 1 else 32)


def at_load(load: float, device: Device, mean_s: float) -> tuple[Outcome, float]:
    """Return the outcome, and the sound that was made as a share of the capacity."""
    lengths = Simulation(seed=99)
    length_s = fmean(lengths._length(mean_s) for _ in range(5000)) * SOUND_S
    most = sound_at_most(device, mean_s)
    outcome = arrivals(load * most / length_s, mean_s=mean_s, device=device)
    return outcome, outcome.sound_s / most


@pytest.mark.parametrize("load", [0.9, 1.2, 1.5, 2.0])
@pytest.mark.parametrize(
    ("device", "mean_s"), [(LARGE, 8.0), (H200, 5.0), (SMALL, 8.0)], ids=lambda one: NAMES.get(one)
)
def test_turns_that_have_begun_play_without_gaps_at_any_load(device: Device, mean_s: float, load: float) -> None:
    outcome, share = at_load(load, device, mean_s)
    assert outcome.with_a_gap <= 0.02 * len(outcome.heard) if device is SMALL else outcome.with_a_gap == 0
    assert outcome.recomputed == 0
    assert all(turn.done for turn in outcome.heard)
    assert outcome.first_ms(0.95) <= 650, "half a second in the queue, and the rest"
    assert outcome.refused <= 0.1 * len(outcome.turns) if load < 1 else share >= 0.85
    assert all(0.1 <= turn.retry_after_s <= 10 for turn in outcome.turns if turn.refused)


@pytest.mark.parametrize(("calls", "p95_ms"), [(1, 60), (32, 60), (128, 80), (200, 100)])
def test_calls_in_conversation_hear_their_first_sound_soon(calls: int, p95_ms: float) -> None:
    simulation = Simulation(H200)
    simulation.conversations(calls, 15.0)
    simulation.clock.run(60.0)
    outcome = simulation.outcome()
    assert (outcome.refused, outcome.with_a_gap) == (0, 0)
    assert outcome.first_ms(0.95) <= p95_ms


def test_more_calls_than_the_card_can_speak_are_refused_in_part_and_no_other_has_a_gap() -> None:
    simulation = Simulation(H200)
    simulation.conversations(300, 15.0)
    simulation.clock.run(60.0)
    outcome = simulation.outcome()
    assert 0 < outcome.refused < 0.4 * len(outcome.turns)
    assert outcome.with_a_gap == 0


@pytest.mark.parametrize(("turns", "p95_ms"), [(32, 90), (128, 350)])
def test_a_burst_is_heard_soon_and_without_gaps(turns: int, p95_ms: float) -> None:
    simulation = Simulation(H200)
    simulation.burst(turns)
    simulation.clock.run(60.0)
    outcome = simulation.outcome()
    assert (outcome.refused, outcome.with_a_gap) == (0, 0)
    assert outcome.first_ms(0.95) <= p95_ms


def test_calls_are_let_in_before_answers_of_the_speech_api() -> None:
    simulation = Simulation(LARGE)
    simulation.poisson(60.0, 15.0, mean_s=8.0)
    simulation.conversations(60, 15.0)
    simulation.clock.run(60.0)
    answers, calls = (fmean(t.refused for t in simulation.turns if t.priority == priority) for priority in (3, 5))
    assert answers > 0.4 and calls < answers / 3
