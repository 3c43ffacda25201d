"""Admission on a simulated device with the real scheduler, on a virtual clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from statistics import fmean

import pytest

from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.token2wav.admission import LATE_S, Admission, ClauseLoad
from tts_engine.cosyvoice.token2wav.scheduler import Candidate, SchedulerConfig, Shape, choose


def batch_s(shape: Shape, rows: int) -> float:
    """About an H200 without last chunks: at most 16 / 0.027 = 595 seconds of sound a second, 99 turns of 6 s."""
    return 0.0085 + 0.00115 * rows


@dataclass(eq=False)
class Turn:
    asked_at: float
    chunks_left: int
    chunks: int = 0
    first_at: float | None = None
    dry_at: float = 0.0
    gaps: int = 0
    submitted_at: float = field(default=0.0)


@dataclass
class Outcome:
    turns: list[Turn]
    refused: list[float]

    @property
    def gaps(self) -> int:
        return sum(turn.gaps for turn in self.turns)

    @property
    def worst_first_s(self) -> float:
        return max(self.firsts_s)

    @property
    def firsts_s(self) -> list[float]:
        return [turn.first_at - turn.asked_at for turn in self.turns if turn.first_at is not None]


def simulate(
    admission: Admission,
    *,
    turns_per_s: float,
    seconds: float = 20.0,
    burst: int = 0,
    seen: float = 1.0,
    config: SchedulerConfig | None = None,
) -> Outcome:
    """Turns of 3 to 9 s arrive at random, ``burst`` of them in the first instant; each chunk is a second of sound.

    Args:
        seen: share of what a batch costs that the measurement sees; the rest is spent elsewhere.
    """
    rng, config = random.Random(1), config or SchedulerConfig()
    arrivals = [0.0] * burst
    at = 0.0
    while turns_per_s and at < seconds:
        at += rng.expovariate(turns_per_s)
        arrivals.append(at)
    arrivals.reverse()
    now, live, out = 0.0, [], Outcome([], [])
    while live or arrivals:
        while arrivals and arrivals[-1] <= now:
            asked = arrivals.pop()
            silent = sum(turn.first_at is None for turn in live)
            verdict = admission.judge(ClauseLoad(len(live) - silent, silent), now=now)
            if verdict.admitted:
                live.append(Turn(asked, length := rng.randint(3, 9), length, submitted_at=now))
                out.turns.append(live[-1])
            else:
                out.refused.append(verdict.retry_after_s)
        candidates = [
            Candidate(
                owner=turn,
                shape="chunk",
                slack_s=0.0 if turn.first_at is None else turn.dry_at - now,
                since=turn.submitted_at,
                begins=turn.chunks - turn.chunks_left < 2,
            )
            for turn in live
            if turn.first_at is None or turn.dry_at - now < 4.0
        ]
        chosen = choose(candidates, config)
        if not chosen:
            now += 0.01
            continue
        took = batch_s(chosen[0].shape, len(chosen))
        now += took
        admission.observe(chosen[0].shape, len(chosen), took * seen)
        for candidate in chosen:
            turn = candidate.owner
            if turn.first_at is None:
                turn.first_at = turn.dry_at = now
            elif turn.dry_at - now < LATE_S:
                admission.late(len(live), now)
            turn.gaps += now > turn.dry_at + 1e-9
            turn.dry_at = max(turn.dry_at, now) + 1.0
            turn.submitted_at = now
            turn.chunks_left -= 1
            if not turn.chunks_left:
                live.remove(turn)
                admission.departed(now, turn.chunks)
    return out


def settings(**fields: float) -> CosyVoiceConfig:
    """Beyond the bounds of a configuration too."""
    return CosyVoiceConfig.model_construct(**fields)  # type: ignore[arg-type]


UNGUARDED = settings(max_clauses=10**6, busy_share=1e9, first_chunk_s=1e9)


def test_under_twice_the_capacity_who_is_let_in_hears_no_gap() -> None:
    unguarded = simulate(Admission(UNGUARDED), turns_per_s=200)
    assert unguarded.gaps > 100 and not unguarded.refused
    guarded = simulate(Admission(settings(max_clauses=10**6)), turns_per_s=200)
    assert guarded.gaps == 0
    assert guarded.worst_first_s < 1.5 < unguarded.worst_first_s
    assert 0.3 < len(guarded.refused) / (len(guarded.refused) + len(guarded.turns)) < 0.7
    assert all(0.1 <= delay <= 10 for delay in guarded.refused)


@pytest.mark.parametrize(("turns_per_s", "more"), [(90, 1.0), (150, 1.2), (200, 1.2)])
def test_batches_that_fill_up_while_many_are_short_of_sound_let_more_in_and_first_sounds_wait_for_them(
    turns_per_s: float, more: float
) -> None:
    config = SchedulerConfig()
    crowd = settings(max_clauses=10**6)
    alone, filled = (
        simulate(Admission(crowd), turns_per_s=turns_per_s, config=c) for c in (replace(config, riding_rows=0), config)
    )
    assert filled.gaps == 0
    assert len(filled.turns) > more * len(alone.turns)
    assert fmean(alone.firsts_s) < fmean(filled.firsts_s)
    assert filled.worst_first_s < 0.1
    if turns_per_s == 90:
        assert alone.refused and not filled.refused


def test_late_chunks_close_the_door_where_the_steps_do_not_show_what_is_short() -> None:
    blind = simulate(Admission(UNGUARDED), turns_per_s=200, seen=0.3)
    heeding = simulate(Admission(settings(max_clauses=10**6)), turns_per_s=200, seen=0.3)
    assert heeding.refused
    assert heeding.gaps < blind.gaps / 20
    assert heeding.worst_first_s < blind.worst_first_s


def test_one_late_chunk_among_a_few_closes_no_door_but_as_many_as_clauses_do() -> None:
    admission = Admission(settings())
    admission.late(4, now=100.0)
    admission.late(4, now=100.1)
    assert admission.judge(ClauseLoad(speaking=3, silent=0), now=100.1).admitted
    admission.late(4, now=100.2)
    assert not admission.judge(ClauseLoad(speaking=3, silent=0), now=100.2).admitted
    alone = Admission(settings())
    alone.late(1, now=100.0)
    assert not alone.judge(ClauseLoad(speaking=1, silent=0), now=100.0).admitted


def test_a_late_chunk_of_one_among_many_closes_no_door() -> None:
    admission = Admission(settings())
    admission.late(120, now=100.0)
    admission.late(120, now=101.5)
    assert admission.judge(ClauseLoad(speaking=119, silent=0), now=101.5).admitted
    for hundredth in range(3):
        admission.late(120, now=101.6 + hundredth / 100)
    assert not admission.judge(ClauseLoad(speaking=119, silent=0), now=101.7).admitted


def test_after_late_chunks_the_door_opens_again_step_by_step() -> None:
    admission = Admission(settings())
    admission.late(70, now=99.9)
    admission.late(70, now=100.0)
    admission.late(70, now=100.5)  # within the same second: the same event
    admission.late(70, now=100.6)
    assert admission.judge(ClauseLoad(speaking=59, silent=0), now=100.5).admitted
    assert not admission.judge(ClauseLoad(speaking=61, silent=0), now=100.5).admitted
    assert admission.judge(ClauseLoad(speaking=61, silent=0), now=100.5, goes_on=True).admitted
    assert admission.judge(ClauseLoad(speaking=85, silent=0), now=110.0).admitted


def test_a_moment_of_late_sound_beside_a_few_is_forgotten() -> None:
    admission = Admission(settings())
    for tenth in range(4):
        admission.late(4, now=100.0 + tenth / 10)
    assert not admission.judge(ClauseLoad(speaking=6, silent=0), now=109.0).admitted
    assert admission.judge(ClauseLoad(speaking=60, silent=0), now=110.5).admitted


def test_a_device_that_was_calibrated_is_known_before_the_first_caller() -> None:
    admission = Admission(settings(first_chunk_s=0.2))
    for rows in (1, 2, 4, 8):
        admission.calibrate("chunk", rows, batch_s("chunk", rows))
    assert admission.cost_s("chunk") == batch_s("chunk", 8) / 8
    # A single call at a time says nothing about what a full batch costs.
    for _ in range(100):
        admission.observe("chunk", 1, batch_s("chunk", 1))
    assert admission.cost_s("chunk") == pytest.approx(batch_s("chunk", 8) / 8)
    # Everything twice as slow: half as many.
    for _ in range(200):
        admission.observe("chunk", 7, 2 * batch_s("chunk", 8))
    assert admission.cost_s("chunk") == pytest.approx(2 * batch_s("chunk", 8) / 8, rel=0.01)


def test_within_capacity_nobody_is_refused() -> None:
    assert not simulate(Admission(settings(max_clauses=10**6)), turns_per_s=50).refused


def test_a_burst_is_let_in_as_far_as_its_first_sounds_come_in_time() -> None:
    admission = Admission(settings(max_clauses=10**6, first_chunk_s=0.2))
    admission.observe("chunk", 8, batch_s("chunk", 8))
    outcome = simulate(admission, turns_per_s=0, burst=100)
    assert 85 <= len(outcome.turns) <= 92  # 2.2 ms each
    assert outcome.worst_first_s < 0.25
    assert outcome.gaps == 0 and outcome.refused


def measured(**fields: float) -> Admission:
    admission = Admission(settings(**{"max_clauses": 100} | fields))
    admission.observe("chunk", 10, 0.1)  # a hundredth of the device for each second of sound
    return admission


def test_a_turn_that_speaks_goes_on_where_a_new_one_is_refused() -> None:
    admission = measured()
    full = ClauseLoad(speaking=90, silent=0)
    assert not admission.judge(full, now=0.0).admitted
    assert admission.judge(full, now=0.0, goes_on=True).admitted
    assert not admission.judge(ClauseLoad(speaking=100, silent=0), now=0.0, goes_on=True).admitted


def test_who_goes_on_has_the_next_free_place() -> None:
    load = ClauseLoad(speaking=50, silent=0, waiting=50)
    assert not measured().judge(load, now=0.0).admitted
    assert measured().judge(load, now=0.0, goes_on=True).admitted


def test_turns_nobody_waits_for_leave_a_quarter_free() -> None:
    admission = measured()
    assert admission.judge(ClauseLoad(speaking=55, silent=0), now=0.0, ahead=True).admitted
    assert not admission.judge(ClauseLoad(speaking=56, silent=0), now=0.0, ahead=True).admitted
    assert admission.judge(ClauseLoad(speaking=56, silent=0), now=0.0).admitted


def test_the_retry_delay_follows_the_pace_of_departures() -> None:
    admission = measured(busy_share=0.905)
    for at in range(11):
        admission.departed(at / 5, 5.0)
    # A clause of 5 s takes a hundredth, and another for a fifth of the time: 75 fit. 11 left in the last 5 s.
    assert admission.judge(ClauseLoad(speaking=74, silent=0), now=2.0).admitted
    assert admission.judge(ClauseLoad(speaking=75, silent=0), now=2.0).retry_after_s == pytest.approx(1 / 2.2, rel=0.01)
    assert admission.judge(ClauseLoad(speaking=78, silent=0), now=2.0).retry_after_s == pytest.approx(4 / 2.2, rel=0.01)
    assert admission.judge(ClauseLoad(speaking=78, silent=0), now=8.0).retry_after_s == 1.0, "that is long ago"


def test_a_device_too_slow_for_one_call_serves_one() -> None:
    slow = Admission(settings())
    slow.observe("chunk", 1, 5.0)
    assert slow.judge(ClauseLoad(speaking=0, silent=0), now=0.0).admitted
    assert not slow.judge(ClauseLoad(speaking=1, silent=0), now=0.0).admitted


def test_before_anything_was_measured_places_are_the_only_bound() -> None:
    admission = Admission(settings(max_clauses=2))
    assert admission.judge(ClauseLoad(speaking=1, silent=0), now=0.0).admitted
    verdict = admission.judge(ClauseLoad(speaking=1, silent=1), now=0.0)
    assert not verdict.admitted and verdict.retry_after_s == 1.0 and "2 clauses" in verdict.reason


def test_a_slower_device_lets_fewer_in() -> None:
    admission = measured()
    for _ in range(50):
        admission.observe("chunk", 10, 0.2)
    assert admission.share(1) == pytest.approx(0.024, rel=0.01)
    assert not admission.judge(ClauseLoad(speaking=60, silent=0), now=0.0).admitted


def test_short_clauses_cost_more_for_a_second_of_sound_than_long_ones() -> None:
    short, long = measured(), measured()
    for admission, length_s in ((short, 0.2), (long, 20.0)):
        admission.observe("whole", 2, 0.04)  # two chunks' work each
        for _ in range(300):
            admission.departed(0.0, length_s)
    assert short.share(10) == pytest.approx(10 * (0.01 + 0.03), rel=0.02), "no shorter than a second"
    assert long.share(10) == pytest.approx(10 * (0.01 + 0.03 / 20), rel=0.02)


def test_clauses_that_are_cut_cost_no_last_chunk() -> None:
    admission = measured()
    admission.observe("whole", 2, 0.04)
    for number in range(400):
        admission.departed(0.0, 2.0, cut=number % 2 == 0)
    assert admission.share(10) == pytest.approx(10 * (0.01 + (0.01 + 0.01) / 2), rel=0.02)
    for _ in range(400):
        admission.departed(0.0, 2.0)
    assert admission.share(10) == pytest.approx(10 * (0.01 + (0.01 + 0.02) / 2), rel=0.02)


def test_a_burst_after_a_burst_is_no_more_than_the_first() -> None:
    admission = measured()
    for _ in range(70):
        admission.departed(1.0, 5.0)
    assert admission.judge(ClauseLoad(speaking=0, silent=70), now=1.1).admitted
