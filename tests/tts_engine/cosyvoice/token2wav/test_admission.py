"""The three tests that a new clause has to pass, and the length of first chunks. Times are numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_engine.cosyvoice.token2wav.admission import Admission, ClauseLoad

SOUNDS_S = (0.2, 0.5, 0.8)


def measured(*, clauses: int = 1000, blocks: int = 10_000, first_chunk_s: float = 1.0) -> Admission:
    """A device on which a chunk takes a hundredth of a second for each clause of a full batch."""
    admission = Admission(clauses=clauses, blocks=blocks, first_chunk_s=first_chunk_s)
    for rows in (1, 2, 4, 8, 16, 32):
        for _ in range(100):
            admission.observe("chunk", rows, 0.01 * rows)
    return admission


def load(speaking: int, *, silent: int = 0, free: int = 5000, in_hand_s: float = 5.0, waiting: int = 0) -> ClauseLoad:
    return ClauseLoad([in_hand_s] * speaking, silent, free, waiting)


# -- memory


def test_clauses_are_let_in_as_far_as_their_blocks_fit_the_cache() -> None:
    admission = measured(blocks=60)
    for _ in range(500):
        admission.departed(0.0, 4.0)
    assert admission.held_blocks == pytest.approx(2.5, rel=0.01), "half of four seconds, and half a block"
    assert admission.judge(load(22), now=0.0).short is None
    verdict = admission.judge(load(24), now=0.0)
    assert verdict.short == "memory" and "24 clauses fill the cache" in verdict.reason


def test_long_clauses_count_more_than_their_share_because_they_stay_longer() -> None:
    admission = measured()
    for _ in range(1000):
        admission.departed(0.0, 1.0)
        admission.departed(0.0, 9.0)
    assert admission.held_blocks == pytest.approx(0.5 + (1 + 81) / 2 / (2 * 5), rel=0.05)


def test_each_open_clause_keeps_a_block_for_its_next_second() -> None:
    admission = measured()
    assert admission.judge(load(30, free=31), now=0.0).short is None
    assert admission.judge(load(30, free=30), now=0.0).short == "memory"
    assert admission.judge(load(30, free=1), now=0.0, goes_on=True).short is None, "its caller would hear a gap"
    assert admission.judge(load(30, free=0), now=0.0, goes_on=True).short == "memory"


# -- places


def test_places_are_a_bound_of_their_own_and_speaking_turns_come_first() -> None:
    admission = measured(clauses=10)
    assert admission.judge(load(9), now=0.0).short is None
    verdict = admission.judge(load(9, silent=1), now=0.0)
    assert verdict.short == "places" and verdict.retry_after_s == 1.0 and "10 clauses" in verdict.reason
    waiting = load(5, waiting=5)
    assert admission.judge(waiting, now=0.0).short == "places"
    assert admission.judge(waiting, now=0.0, goes_on=True).short is None


# -- the long run


def test_clauses_take_no_more_than_the_time_of_the_device() -> None:
    admission = measured()
    assert admission.sound_s == pytest.approx(0.01)
    # Within seven seconds: four chunks of each, 0.08 s for the new clause, and a batch that may have begun.
    assert admission.judge(load(164, in_hand_s=3.0), now=0.0).short is None
    assert admission.judge(load(166, in_hand_s=3.0), now=0.0).short == "time"
    assert admission.judge(load(166, in_hand_s=3.0), now=0.0, goes_on=True).short is None
    assert admission.judge(load(112, in_hand_s=3.0), now=0.0, ahead=True).short is None
    verdict = admission.judge(load(114, in_hand_s=3.0), now=0.0, ahead=True)
    assert verdict.short == "time", "what is made ahead leaves a part to callers who wait"


def test_sound_in_hand_leaves_time_to_others() -> None:
    admission = measured()
    most = [
        next(n for n in range(1, 2000) if admission.judge(load(n, in_hand_s=in_hand_s), now=0.0).short == "time")
        for in_hand_s in (3.0, 4.0, 5.0, 6.0)
    ]
    assert most == [166, 221, 331, 661]


def test_first_and_last_chunks_count_at_what_they_really_take_and_only_where_there_was_one() -> None:
    admission = measured()
    for _ in range(500):
        admission.departed(0.0, 2.0, cut=False)
        admission.observe("first", 2, 0.016)
        admission.observe("whole", 4, 0.08)
    assert admission.sound_s == pytest.approx(0.01 + (0.008 + 0.02) / 2, rel=0.01)
    for number in range(1000):
        admission.departed(0.0, 2.0, cut=number % 2 == 0)
    assert admission.sound_s == pytest.approx(0.01 + (0.008 + 0.01) / 2, rel=0.02)


def test_a_slower_device_lets_fewer_in() -> None:
    admission = measured()
    for _ in range(100):
        admission.observe("chunk", 16, 0.32)
    assert admission.judge(load(162), now=0.0).short is None
    assert admission.judge(load(165), now=0.0).short == "time"


def test_a_calibrated_device_is_known_before_the_first_caller_and_small_batches_say_nothing_of_full_ones() -> None:
    admission = Admission(clauses=1000, blocks=10_000, first_chunk_s=1.0)
    for rows in (1, 16, 32):
        admission.calibrate("chunk", rows, 0.1 * rows / 16)
    assert admission.sound_s == pytest.approx(1.3 * 0.1 / 16), "the language model will run beside"
    for _ in range(100):
        admission.observe("chunk", 1, 0.1)
    assert admission.sound_s == pytest.approx(1.3 * 0.1 / 16)


# -- demand


def test_sound_that_is_due_before_the_device_can_make_it_keeps_others_out() -> None:
    admission = measured()
    assert admission.judge(load(60, in_hand_s=2.5), now=0.0).short is None
    verdict = admission.judge(load(60, in_hand_s=0.0), now=0.0)
    assert verdict.short == "demand" and "within 0.5 s" in verdict.reason
    # 60 chunks, and a batch of 32 that may have begun: 0.92 s.
    assert verdict.retry_after_s == pytest.approx(0.92 + 0.01 - 0.5, abs=0.02)


def test_listeners_keep_half_a_second_of_sound_when_another_clause_begins() -> None:
    admission = measured()
    # With 0.9 s in hand, each of 30 speakers needs a chunk within 0.5 s to keep its reserve; with 1.1 s it does not.
    assert admission.judge(load(30, in_hand_s=1.1), now=0.0).short is None
    assert admission.judge(load(30, in_hand_s=0.9), now=0.0).short == "demand"
    assert admission.judge(load(15, in_hand_s=0.9), now=0.0).short is None


@pytest.mark.parametrize("first_chunk_s", [0.5, 1.0, 2.0])
def test_a_burst_is_let_in_as_far_as_its_first_sounds_come_in_time(first_chunk_s: float) -> None:
    admission = measured(first_chunk_s=first_chunk_s)
    let_in = next(n for n in range(1, 1000) if admission.judge(load(0, silent=n), now=0.0).short)
    # The first horizon is half of the time, and the longest batch may have begun.
    assert let_in * 0.01 <= first_chunk_s / 2 - 0.32 + 0.011 or let_in == 1
    assert let_in <= 95


def test_with_a_long_first_chunk_s_only_places_and_memory_bound_the_clauses() -> None:
    admission = measured(first_chunk_s=1000)
    assert admission.judge(load(500, in_hand_s=0.0), now=0.0).short is None
    assert admission.judge(load(500, in_hand_s=0.0, free=10), now=0.0).short == "memory"


def test_a_device_too_slow_for_one_call_serves_one() -> None:
    slow = Admission(clauses=10, blocks=100, first_chunk_s=1.0)
    slow.observe("chunk", 1, 5.0)
    assert slow.judge(load(0), now=0.0).short is None
    assert slow.judge(load(1), now=0.0).short == "time"


def test_before_anything_was_measured_places_and_memory_are_the_only_bounds() -> None:
    admission = Admission(clauses=3, blocks=100, first_chunk_s=1.0)
    assert admission.judge(load(2), now=0.0).short is None
    assert admission.judge(load(3), now=0.0).short == "places"


def test_the_retry_delay_follows_the_pace_of_departures() -> None:
    admission = measured()
    for at in range(11):
        admission.departed(at / 5, 5.0)
    assert admission.judge(load(331), now=2.0).retry_after_s == pytest.approx(1 / 2.2, rel=0.01)
    assert admission.judge(load(340), now=2.0).retry_after_s == pytest.approx(3 / 2.2, rel=0.01)
    assert admission.judge(load(340), now=8.0).retry_after_s == 1.0, "that is long ago"


# -- the first chunk


def test_an_idle_engine_takes_the_shortest_and_a_burst_longer_ones() -> None:
    admission = Admission(clauses=1000, blocks=10_000, first_chunk_s=1.0)
    for rows in (1, 16, 32):
        admission.observe("chunk", rows, 0.01 + 0.001 * rows)

    def place(silent: int) -> int:
        return admission.first_chunk(load(0, silent=silent), SOUNDS_S, slack_s=0.0)

    assert [place(silent) for silent in (1, 16, 200, 2000)] == [0, 0, 1, 2]


def test_a_caller_with_sound_in_hand_gets_the_longest_and_so_does_one_on_a_busy_device() -> None:
    """No one waits for the first, and fewer chunks are less work."""
    admission = Admission(clauses=1000, blocks=10_000, first_chunk_s=1.0)
    admission.observe("chunk", 16, 0.02)
    assert admission.first_chunk(load(0, silent=1), SOUNDS_S, slack_s=0.0) == 0
    assert admission.first_chunk(load(0, silent=1), SOUNDS_S, slack_s=0.9) == 2
    assert admission.first_chunk(load(0, silent=1), SOUNDS_S, slack_s=1e6) == 2
    assert admission.first_chunk(load(700, silent=1), SOUNDS_S, slack_s=0.0) == 2


@given(st.integers(1, 64), st.integers(0, 64), st.floats(0, 2), st.floats(0.001, 0.2))
def test_more_load_never_makes_a_first_chunk_shorter(
    silent: int, speaking: int, in_hand_s: float, batch_s: float
) -> None:
    admission = Admission(clauses=1000, blocks=10_000, first_chunk_s=1.0)
    admission.observe("chunk", 16, batch_s)
    one = load(speaking, silent=silent, in_hand_s=in_hand_s)
    more = load(speaking + 16, silent=silent, in_hand_s=in_hand_s)
    place = admission.first_chunk(one, SOUNDS_S, slack_s=0.0)
    assert admission.first_chunk(more, SOUNDS_S, slack_s=0.0) >= place
