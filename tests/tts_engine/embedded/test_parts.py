"""The small parts under the engine: silence, cache, urgency."""

import numpy as np
import pytest

from tts_engine.embedded.slack_queue import SlackJob, SlackQueue
from tts_engine.pipeline.clause_cache import ClauseCache, SpokenClause
from tts_engine.pipeline.silence import SilenceTrimmer
from tts_engine.synthesizer import Playhead

RATE = 8000


def sound(ms: int, level: float = 0.5) -> np.ndarray:
    return np.full(ms * RATE // 1000, level, np.float32)


@pytest.mark.parametrize("size", [40, 333, 800, 10**6])
def test_silence_at_the_ends_goes_and_inside_stays(size: int) -> None:
    clause = np.concatenate((sound(300, 0), sound(200), sound(150, 0.001), sound(100), sound(400, 0)))
    trimmer = SilenceTrimmer(RATE)
    parts = [trimmer.push(clause[at : at + size]) for at in range(0, len(clause), size)]
    heard = np.concatenate([*parts, trimmer.finish()])
    assert trimmer.trimmed is not None
    # 5 ms windows that straddle a piece's edge are measured in two halves
    assert trimmer.trimmed / 8 == pytest.approx(290, abs=5)
    assert len(heard) / 8 == pytest.approx(10 + 450 + 10, abs=10)
    np.testing.assert_array_equal(heard, clause[trimmer.trimmed : trimmer.trimmed + len(heard)])


def test_nothing_but_silence_leaves_nothing() -> None:
    trimmer = SilenceTrimmer(RATE)
    assert len(trimmer.push(sound(300, 0.002))) == len(trimmer.finish()) == 0
    assert trimmer.trimmed is None


def test_cache_forgets_what_was_least_recently_used_and_counts_bytes() -> None:
    cache = ClauseCache(1000)
    clauses = {key: SpokenClause(np.zeros(100, np.float32), ()) for key in "abc"}
    cache.put("a", clauses["a"])
    cache.put("b", clauses["b"])
    assert cache.get("a") is clauses["a"]
    cache.put("c", clauses["c"])
    assert cache.get("b") is None and cache.get("a") and cache.get("c")
    cache.put("c", clauses["c"])
    assert cache.bytes == 800
    cache.put("huge", SpokenClause(np.zeros(251, np.float32), ()))
    assert cache.get("huge") is None and cache.bytes == 800


def job(*, slack_s: float | None = None, cost_s: float = 0.01, ahead: bool = False, priority: int = 5) -> SlackJob:
    playhead = Playhead(ahead=ahead, priority=priority)
    if slack_s is not None:
        playhead.delivered_s, playhead.played_at = slack_s, 100.0
    return SlackJob(lambda job: None, lambda: None, playhead, cost_s)


def test_who_runs_dry_goes_first_then_first_sounds_then_the_rest() -> None:
    queue = SlackQueue(size=10, guard_s=0.08, clock=lambda: 100.0)
    held, lots, little = job(ahead=True), job(slack_s=3.0), job(slack_s=0.3)
    long, short, dry = job(cost_s=0.02), job(cost_s=0.01), job(slack_s=0.05)
    for each in (held, lots, long, little, dry, short):
        assert queue.put(each)
    assert [queue.take() for _ in range(6)] == [dry, short, long, little, lots, held]


def test_a_first_sound_of_higher_priority_goes_before_one_that_came_a_little_earlier() -> None:
    now = 100.0
    queue = SlackQueue(size=10, guard_s=0.08, clock=lambda: now)
    early, http = job(priority=3), job(priority=3)
    queue.put(early)
    now += 0.11
    queue.put(http)
    call, dry = job(), job(slack_s=0.15)
    for each in (call, dry):
        queue.put(each)
    assert [queue.take() for _ in range(4)] == [dry, early, call, http]


def test_a_clause_that_may_never_be_heard_comes_last_until_it_is_known_to_be_needed() -> None:
    queue = SlackQueue(size=10, guard_s=0.08, clock=lambda: 100.0)
    draft, speaks_on = job(cost_s=0.001), job(slack_s=0.01)
    draft.playhead.tentative = speaks_on.playhead.tentative = True
    first, lots = job(), job(slack_s=3.0)
    for each in (draft, speaks_on, lots, first):
        queue.put(each)
    assert queue.short_of_sound(3.0) == 2, "no clause makes room for it"
    assert queue.take() is first
    speaks_on.playhead.tentative = False
    assert [queue.take() for _ in range(3)] == [speaks_on, lots, draft]


def test_slack_is_looked_at_when_a_worker_is_free_not_when_the_job_came() -> None:
    now = 100.0
    queue = SlackQueue(size=10, guard_s=0.08, clock=lambda: now)
    speaking, first = job(slack_s=0.3), job()
    queue.put(speaking)
    queue.put(first)
    now = 100.25
    assert queue.take() is speaking


def test_a_first_sound_that_has_waited_is_not_overtaken_by_shorter_ones() -> None:
    now = 100.0
    queue = SlackQueue(size=10, guard_s=0.08, clock=lambda: now)
    long, short = job(cost_s=0.02), job(cost_s=0.001)
    queue.put(long)
    now = 100.5
    queue.put(short)
    assert queue.take() is long


def test_somebody_is_short_of_sound_who_hears_silence_now_or_soon() -> None:
    queue = SlackQueue(size=10, guard_s=0.08, clock=lambda: 100.0)
    for each in (job(), job(slack_s=0.15), job(slack_s=3.0), job(ahead=True)):
        queue.put(each)
    assert (queue.short_of_sound(0), queue.short_of_sound(0.2), queue.short_of_sound(3.0)) == (1, 2, 3)


def test_queue_is_bounded_gives_back_and_drops_on_close() -> None:
    dropped = []
    queue = SlackQueue(size=2, guard_s=0.08, clock=lambda: 100.0)
    first, second, third = job(), job(), job()
    third.drop = lambda: dropped.append(third)
    assert queue.put(first) and queue.put(second) and not queue.put(third)
    assert queue.put(third, force=True)
    assert queue.discard(first) and not queue.discard(first)
    assert queue.take() is second
    queue.close()
    assert dropped == [third]
    assert queue.take() is None and not queue.put(first)
