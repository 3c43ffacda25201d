"""The times at which the played position is told, on a virtual clock."""

import random

import pytest

from tts_engine.service.position import DRIFT_S, INTERVAL_S, PositionReporter

RATE = 8000


def drive(readings: list[tuple[float, float]]) -> list[tuple[float, int, float]]:
    """Feed ``(at, heard seconds)`` to a reporter as the client does: (time sent, samples, age) of every message."""
    reporter, sent, due = PositionReporter(RATE), [], None
    for at, heard_s in readings:
        if due is not None and due <= at:
            sent.append((due, *reporter.take(now=due)))
            due = None
        delay_s = reporter.offer(round(heard_s * RATE), at=at)
        if delay_s is not None and due is None:
            due = at + delay_s
            if delay_s == 0:
                sent.append((due, *reporter.take(now=due)))
                due = None
    if due is not None:
        sent.append((due, *reporter.take(now=due)))
    return sent


def test_steady_playout_is_told_once() -> None:
    readings = [(10 + n * 0.02, n * 0.02) for n in range(500)]
    assert drive(readings) == [(10.0, 0, 0.0)]


def test_jitter_below_the_drift_is_not_told() -> None:
    jitter = random.Random(1)
    readings = [(10 + n * 0.02 + jitter.uniform(0, 0.9 * DRIFT_S), n * 0.02) for n in range(1, 500)]
    readings[0] = (10.02, 0.02)
    assert len(drive(readings)) == 1


def test_a_stall_is_told_and_so_is_its_end() -> None:
    stalled = [(11 + n * 0.02, 1.0) for n in range(50)]
    after = [(12 + n * 0.02, 1 + n * 0.02) for n in range(50)]
    sent = drive([(10 + n * 0.02, n * 0.02) for n in range(50)] + stalled + after)
    at, samples, _ = sent[1]
    assert at == pytest.approx(11.06) and samples == RATE  # the first reading that is more than 40 ms off
    last_at, last_samples, age_s = sent[-1]
    # From the last message on, what the engine extrapolates is where the listener is, to 40 ms.
    assert (last_samples / RATE) + (13 - (last_at - age_s)) == pytest.approx(2.0, abs=DRIFT_S)


def test_never_more_than_five_a_second_and_the_last_news_is_not_lost() -> None:
    wild = random.Random(2)
    readings = [(10 + n * 0.01, wild.uniform(0, 5)) for n in range(1000)]
    sent = drive(readings)
    gaps = [later[0] - earlier[0] for earlier, later in zip(sent, sent[1:], strict=False)]
    assert len(sent) > 20 and min(gaps) >= INTERVAL_S - 1e-9
    for at, samples, age_s in sent:
        told_of = at - age_s
        # A message tells the newest reading, with its age: what was offered last before it was sent.
        newest = max(read_at for read_at, _ in readings if read_at <= at + 1e-9)
        assert told_of == pytest.approx(newest, abs=0.011)
        assert any(round(heard * RATE) == samples for _, heard in readings)
