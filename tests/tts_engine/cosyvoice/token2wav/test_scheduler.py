"""Who runs next, by urgency; virtual time throughout."""

from __future__ import annotations

from tts_engine.cosyvoice.token2wav.scheduler import Candidate, SchedulerConfig, Shape, choose, victim

CONFIG = SchedulerConfig(chunk_rows=4, burst_rows=8, calm_rows=3)


def candidate(owner: str, shape: Shape, slack_s: float, since: float = 0.0) -> Candidate[str]:
    return Candidate(owner=owner, shape=shape, slack_s=slack_s, since=since)


def owners(*candidates: Candidate[str]) -> list[str]:
    return [c.owner for c in choose(candidates, CONFIG)]


def test_a_first_chunk_goes_before_every_clause_with_sound_in_hand() -> None:
    assert owners(candidate("a", "chunk", 0.3, 0.0), candidate("b", "chunk", 0.0, 5.0)) == ["b"]


def test_the_clause_with_least_sound_in_hand_goes_first() -> None:
    assert owners(candidate("a", "chunk", 0.9), candidate("b", "chunk", 0.2), candidate("c", "chunk", 0.5)) == [
        "b",
        "c",
        "a",
    ]


def test_a_clause_about_to_run_dry_is_not_put_behind_first_chunks_that_came_later() -> None:
    dry = candidate("dry", "chunk", 0.05, 1.0)
    later = candidate("later", "chunk", 0.0, 2.0)
    earlier = candidate("earlier", "chunk", 0.0, 0.5)
    assert owners(dry, later) == ["dry", "later"]
    assert owners(later, dry, earlier) == ["earlier", "dry", "later"]


def test_first_chunks_are_served_in_the_order_they_came_and_by_the_batch() -> None:
    waiting = [candidate(str(n), "chunk", 0.0, float(n)) for n in (3, 1, 2)]
    assert owners(*waiting) == ["1", "2", "3"]
    more = [candidate(str(n), "chunk", 0.0, float(n)) for n in range(4, 10)]
    assert owners(*more[:2], *waiting) == ["1", "2", "3", "4"]
    assert owners(*more, *waiting) == [str(n) for n in range(1, 9)], "many make a larger batch"


def test_a_batch_of_clauses_with_plenty_in_hand_is_smaller() -> None:
    calm = [candidate(str(n), "chunk", 2.0 + n) for n in range(6)]
    short = [candidate(str(n), "chunk", 0.5 + n) for n in range(6)]
    assert len(owners(*calm)) == CONFIG.calm_rows
    assert len(owners(*short)) == CONFIG.chunk_rows


def test_who_is_not_awaited_takes_only_what_is_left_of_a_power_of_two() -> None:
    awaited = [candidate(str(n), "chunk", 0.0, float(n)) for n in range(3)]
    others = [candidate("late", "chunk", 0.9), candidate("early", "chunk", 0.5)]
    assert owners(*others, *awaited) == ["0", "1", "2", "early"]
    assert owners(*others, *awaited[:2]) == ["0", "1"]
    assert owners(*others, awaited[0]) == ["0"]


def test_what_nobody_waits_for_comes_last() -> None:
    assert owners(candidate("ahead", "chunk", 1e6), candidate("spoken", "whole", 3.0)) == ["spoken"]


def test_nothing_to_do_is_an_empty_batch() -> None:
    assert owners() == []


def test_the_clause_with_most_sound_in_hand_gives_up_its_cache() -> None:
    assert victim([("a", (0.4, 1)), ("b", (3.0, 2))], (0.0, 3)) == "b"


def test_no_clause_gives_up_its_cache_to_a_less_urgent_one() -> None:
    assert victim([("a", (0.4, 1))], (0.5, 2)) is None
    assert victim([], (0.0, 1)) is None


def test_of_equally_urgent_clauses_the_older_keeps_its_cache() -> None:
    assert victim([("old", (0.0, 1))], (0.0, 2)) is None
    assert victim([("young", (0.0, 3))], (0.0, 2)) == "young"
