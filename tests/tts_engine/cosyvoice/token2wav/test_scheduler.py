"""The choice of the next batch by urgency, with its tokens, slots and blocks; virtual time throughout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from tts_engine.cosyvoice.token2wav.block_manager import BlockManager
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.cosyvoice.token2wav.scheduler import (
    Batch,
    BatchRow,
    Candidate,
    Scheduler,
    SchedulerConfig,
    Shape,
    choose,
)
from tts_engine.errors import Exhausted, InvalidRequest
from tts_engine.synthesizer import Playhead

CONFIG = SchedulerConfig(chunk_rows=4, burst_rows=8)


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
    assert owners(*more[:2], *waiting) == ["1", "2", "3", "4", "5"]
    assert owners(*more, *waiting) == [str(n) for n in range(1, 9)]


def test_who_is_not_awaited_takes_only_what_is_left_of_a_prepared_size() -> None:
    awaited = [candidate(str(n), "chunk", 0.0, float(n)) for n in range(3)]
    others = [candidate("late", "chunk", 2.9), candidate("early", "chunk", 0.5)]
    assert owners(*others, *awaited) == ["0", "1", "2", "early"]
    assert owners(*others, *awaited[:2]) == ["0", "1"]
    assert owners(*others, awaited[0]) == ["0"]


def test_beyond_enough_sound_in_hand_the_oldest_clause_goes_first_and_what_is_made_ahead_last() -> None:
    def clause(owner: str, slack_s: float, opened_at: float) -> Candidate[str]:
        return replace(candidate(owner, "chunk", slack_s), opened_at=opened_at)

    ahead = clause("ahead", 1e6, 0.0)
    assert owners(ahead, clause("young", 2.0, 9.0), clause("old", 8.0, 1.0), clause("short", 1.4, 5.0)) == [
        "short", "old", "young", "ahead",
    ]  # fmt: skip


def test_a_slow_device_awaits_a_chunk_before_two_of_its_batches_make_it_late() -> None:
    queue = Queue(clauses=8)
    queue.scheduler.slower(0.02)
    assert queue.scheduler.config.tight_s == CONFIG.tight_s
    queue.scheduler.slower(0.2)
    rich, poor = queue.open(60, slack_s=0.9), queue.open(60, slack_s=0.35)
    for clause in (rich, poor):
        queue.submit(clause)
    batch = queue.next_batch()
    assert batch is not None and not batch.staged
    assert [job.rendering for job in batch.jobs] == [poor]


def test_while_a_full_batch_is_short_of_sound_the_shortest_ride_with_the_few_that_are_awaited() -> None:
    awaited = [first(str(n), 11, since=float(n)) for n in range(3)]
    others = [first(name, 25, slack_s) for name, slack_s in (("c", 0.9), ("a", 0.5), ("b", 0.7))]
    assert owners(*others, awaited[0]) == ["0", "a", "b", "c"]
    assert owners(*others, *awaited[:2]) == ["0", "1", "a", "b"]
    assert owners(*others[:2], awaited[0]) == ["0"], "fewer than a full batch are short of sound"
    assert owners(*(replace(c, slack_s=1.5) for c in others), awaited[0]) == ["0"], "they can wait"
    last = [candidate(f"last {n}", "whole", 0.5) for n in range(3)]
    assert owners(*last, awaited[0]) == ["0"], "a batch has one shape"


@pytest.mark.parametrize(("lengths", "together"), [((8, 8, 8, 8, 8), 4), ((10, 10, 10, 10), 3), ((12, 12, 12), 2)])
def test_short_last_chunks_make_larger_batches(lengths: tuple[int, ...], together: int) -> None:
    last = [Candidate(owner=n, shape="whole", slack_s=1.0 + n, since=0.0, size=c) for n, c in enumerate(lengths)]
    assert [c.owner for c in choose(last, CONFIG)] == list(range(together))


def test_last_chunks_of_like_length_go_together_but_never_before_an_awaited_one() -> None:
    def last(owner: str, slack_s: float, chunks: int) -> Candidate[str]:
        return Candidate(owner=owner, shape="whole", slack_s=slack_s, since=0.0, size=chunks)

    leader, long, near = last("leader", 0.5, 6), last("long", 0.6, 16), last("near", 3.0, 7)
    assert owners(long, near, leader, last("as long", 2.0, 6)) == ["leader", "as long", "near"]
    assert owners(long, near, last("awaited", 0.0, 6), last("too", 0.05, 24)) == ["awaited", "too"]


def first(owner: str, tokens: int, slack_s: float = 0.0, since: float = 0.0) -> Candidate[str]:
    return Candidate(owner=owner, shape="chunk", slack_s=slack_s, since=since, size=tokens)


def test_no_chunk_makes_an_awaited_shorter_one_as_long_as_itself() -> None:
    short = [first(str(n), 11, since=float(n)) for n in range(2)]
    assert owners(*short, first("calm", 25, slack_s=0.9)) == ["0", "1"]
    assert owners(*short, first("long", 25, since=5.0)) == ["0", "1"]
    assert owners(first("long", 25), *(replace(c, since=5.0) for c in short)) == ["long", "0", "1"]
    assert owners(first("short", 11, slack_s=0.8), first("long", 25, slack_s=0.9)) == ["short", "long"]


def test_a_short_first_chunk_is_fed_again_with_the_rest_of_its_chunk() -> None:
    queue = Queue(first_hops=(8, 15, 22))
    clause = queue.open(60)
    assert queue.scheduler.first_hops(clause.voice) == [8, 15, 22]
    queue.submit(clause)
    (row,) = queue.run()
    assert row.tokens == [1050, 1051, 1052, *range(11)], "three of the prompt, the hop, three of look-ahead"
    assert (row.source, row.start, row.length, row.valid, row.skip, row.frames) == (queue.voice.slot, 50, 11, 14, 6, 16)
    assert (queue.scheduler.hop(clause), queue.scheduler.missing(clause)) == (14, 17 - 52)
    queue.submit(clause)
    (row,) = queue.run()
    assert (row.source, row.start, row.length, row.valid) == (queue.voice.slot, 50, 25, 28)
    assert (row.begins, row.skip, row.frames) == (False, 22, 28)
    queue.submit(clause)
    (row,) = queue.run()
    assert (row.source, row.start, row.length, row.frames) == (0, 75, 25, 50)


@pytest.mark.parametrize(("prompt_tokens", "longest"), [(0, 25), (2, 25), (3, 22), (20, 22), (60, 22)])
def test_the_longest_first_chunk_fills_the_chunk_in_which_the_prompt_ends(prompt_tokens: int, longest: int) -> None:
    queue = Queue(first_hops=(8, 22), prompt_tokens=prompt_tokens)
    clause = queue.open(60)
    assert queue.scheduler.first_hops(clause.voice) == [8, longest]
    clause.first_hop = longest
    queue.submit(clause)
    (row,) = queue.run()
    assert (row.length, row.frames) == (25, 2 * longest)


def test_what_nobody_waits_for_comes_last() -> None:
    assert owners(candidate("ahead", "chunk", 1e6), candidate("spoken", "whole", 3.0)) == ["spoken"]


def test_nothing_to_do_is_an_empty_batch() -> None:
    assert owners() == []


class Queue:
    """A scheduler over few blocks, one voice, and clauses of which it is told the sound in hand."""

    def __init__(
        self,
        *,
        blocks: int = 12,
        taken: int = 0,
        clauses: int = 4,
        finalize: Literal["upstream", "causal"] = "causal",
        config: SchedulerConfig = CONFIG,
        first_hops: Sequence[int] = (22,),
        prompt_tokens: int = 53,
    ) -> None:
        self.blocks = BlockManager(clauses=clauses, voices=1, blocks=blocks, chunk_tokens=25, max_chunks=8, room=22)
        self.blocks._take(taken)  # other clauses have them
        self.scheduler = Scheduler(config, self.blocks, finalize=finalize, first_hops=first_hops)
        self.voice: Voice = self.blocks.place(list(range(1000, 1000 + prompt_tokens)), now=0.0)
        self.blocks.keep("voice", self.voice)

    def open(self, tokens: int, *, slack_s: float = 0.0, priority: int = 5) -> Rendering:
        playhead = Playhead(priority=priority)
        if slack_s:
            playhead.played_at, playhead.delivered_s = 0.0, slack_s
        rendering = self.scheduler.open(self.voice, playhead, now=0.0)
        rendering.tokens += range(tokens)
        return rendering

    def submit(self, rendering: Rendering, *, final: bool = False, since: float = 0.0) -> None:
        def undelivered(result: Any) -> None:
            raise AssertionError("the scheduler only carries this")

        self.scheduler.submit(rendering, final=final, now=since, deliver=undelivered)

    def next_batch(self) -> Batch | None:
        return self.scheduler.next_batch(self.scheduler.jobs, now=0.0)

    def run(self) -> list[BatchRow]:
        """The next batch, as if it had run."""
        batch = self.next_batch()
        assert batch is not None
        for job, row in zip(batch.jobs, batch.rows, strict=True):
            if self.scheduler.advance(job, row):
                self.scheduler.done(job)
        return list(batch.rows)


def test_first_chunks_of_calls_go_before_those_of_http_and_speakers_before_both() -> None:
    queue = Queue(clauses=8)
    http, call, dry = queue.open(60, priority=3), queue.open(60, priority=5), queue.open(60, slack_s=0.05)
    early = queue.open(60, priority=3)
    for rendering, since in ((early, 9.8), (http, 10.0), (call, 10.05), (dry, 10.05)):
        queue.submit(rendering, since=since)
    batch = queue.next_batch()
    assert batch is not None
    assert [job.rendering for job in batch.jobs] == [dry, early, call, http]


def test_a_clause_is_fed_from_the_end_of_the_shared_prompt_on_and_chunk_by_chunk() -> None:
    queue = Queue()
    clause = queue.open(60)
    assert queue.scheduler.hop(clause) == 22
    queue.submit(clause)
    (row,) = queue.run()
    assert (row.slot, row.source, row.start, row.begins) == (clause.slot, queue.voice.slot, 50, True)
    assert row.tokens == [1050, 1051, 1052, *range(25)], "three of the prompt, the hop, three of look-ahead"
    assert (row.length, row.valid, row.skip, row.frames) == (25, 28, 6, 44)
    assert row.blocks == [*queue.voice.blocks, *clause.blocks]
    queue.submit(clause)
    (row,) = queue.run()
    assert (row.source, row.start, row.begins, row.tokens) == (0, 75, False, list(range(22, 50)))
    assert (row.skip, row.frames, clause.sounded) == (0, 50, 47)
    assert queue.scheduler.is_last(clause)
    queue.submit(clause, final=True)
    (row,) = queue.run()
    assert (row.length, row.valid, row.final, row.frames) == (13, 13, True, 26)
    assert clause.sounded == 60 and not queue.scheduler.jobs


def test_a_whole_last_chunk_holds_prompt_and_clause_and_needs_no_block() -> None:
    queue = Queue(finalize="upstream")
    clause = queue.open(10)
    queue.submit(clause, final=True)
    free = queue.blocks.free_blocks
    (row,) = queue.run()
    assert row.tokens == [*range(1000, 1053), *range(10)]
    assert (row.length, row.skip, row.frames, row.blocks) == (63, 106, 20, [])
    assert queue.blocks.free_blocks == free


def test_without_a_free_block_what_is_made_ahead_gives_up_its_cache_and_is_fed_again_later() -> None:
    queue = Queue(blocks=8)
    ahead = queue.scheduler.open(queue.voice, Playhead(ahead=True), now=0.0)
    ahead.tokens += range(150)
    for _ in range(3):
        queue.submit(ahead)
        queue.run()
    caller = queue.open(60)
    queue.submit(caller)
    queue.run()
    assert (ahead.blocks, ahead.fed) == ([], 50) and caller.blocks
    queue.scheduler.close(caller)
    queue.submit(ahead)
    (row,) = queue.run()
    assert (row.frames, row.start, row.length) == (0, 50, 25), "it only catches up"
    assert queue.scheduler.recomputed_chunks == 1 and len(queue.scheduler.jobs) == 1


@pytest.mark.parametrize("slack_s", [0.0, 0.5, 3.0])
def test_a_clause_that_is_heard_keeps_its_cache_and_others_wait_until_it_has_ended(slack_s: float) -> None:
    queue = Queue(blocks=8)
    oldest, later = queue.open(150, slack_s=slack_s), queue.open(60)
    queue.submit(oldest)
    queue.run()
    queue.submit(later)
    assert queue.next_batch() is None, "five blocks are free, and the oldest may need five more"
    for _ in range(5):
        queue.submit(oldest)
        (row,) = queue.run()
        assert row.frames == 50
    queue.scheduler.close(oldest)
    queue.scheduler.sweep()
    assert queue.next_batch() is not None


def test_what_has_enough_sound_leaves_a_block_to_each_clause_that_has_not() -> None:
    queue = Queue(blocks=8 + 2)
    oldest, rich, poor = queue.open(150), queue.open(60, slack_s=3.0), queue.open(60, slack_s=0.3)
    queue.submit(oldest)
    queue.run()
    queue.submit(rich)
    assert queue.next_batch() is None, "two blocks are spare, and two clauses will need one each"
    queue.submit(poor)
    batch = queue.next_batch()
    assert batch is not None and [job.rendering for job in batch.jobs] == [poor]


def test_what_a_clause_that_left_asked_for_is_not_made() -> None:
    queue = Queue()
    free = queue.blocks.free_blocks, queue.blocks.free_slots
    leaves, stays = queue.open(60), queue.open(60)
    queue.submit(leaves)
    queue.submit(stays)
    batch = queue.next_batch()
    assert batch is not None and len(batch.jobs) == 2
    queue.scheduler.close(leaves)
    queue.scheduler.close(leaves)
    assert queue.scheduler.sweep() == [leaves]
    assert [queue.scheduler.advance(job, row) for job, row in zip(batch.jobs, batch.rows, strict=True)] == [False, True]
    assert [job.rendering for job in queue.scheduler.jobs] == [stays]
    queue.scheduler.close(stays)
    queue.scheduler.sweep()
    assert queue.scheduler.idle and queue.scheduler.silent == queue.scheduler.open_clauses == 0
    assert (queue.blocks.free_blocks, queue.blocks.free_slots) == free


def test_between_the_stages_of_a_long_batch_only_awaited_chunks_go_and_only_while_its_own_callers_can_wait() -> None:
    queue = Queue(finalize="upstream")
    long = queue.open(10, slack_s=1.0)
    queue.submit(long, final=True)
    (running,) = queue.scheduler.jobs
    awaited, calm, whole = queue.open(60), queue.open(60, slack_s=2.0), queue.open(10)
    queue.submit(awaited)
    queue.submit(calm)
    queue.submit(whole, final=True)
    assert [job.rendering for job in queue.scheduler.urgent([running], now=0.0)] == [awaited]
    assert queue.scheduler.urgent([running], now=0.8) == [], "its own caller has 0.2 s left"


def test_between_two_stages_one_batch_goes_behind_the_other_only_while_the_long_ones_callers_can_wait_for_both() -> (
    None
):
    queue = Queue()
    calm = queue.open(60, slack_s=0.5)
    queue.submit(calm)
    running = list(queue.scheduler.jobs)
    for _ in range(2):
        queue.submit(queue.open(60))
    _, ends, waits = queue.scheduler.jobs
    assert queue.scheduler.urgent(running, now=0.0, again=True, ending=[ends]) == [waits]
    assert queue.scheduler.urgent(running, now=0.25, again=True, ending=[ends]) == []
    assert queue.scheduler.urgent(running, now=0.25) == [ends, waits]


def test_chunks_that_nobody_awaits_run_in_stages_and_awaited_ones_go_between_them() -> None:
    queue = Queue()
    calm = queue.open(60, slack_s=0.5)
    queue.submit(calm)
    batch = queue.next_batch()
    assert batch is not None and batch.staged
    awaited = queue.open(60)
    queue.submit(awaited)
    (urgent,) = queue.scheduler.urgent(batch.jobs, now=0.0)
    between = queue.scheduler.next_batch([urgent], now=0.0, running=batch.jobs)
    assert between is not None and not between.staged
    assert [job.rendering for job in between.jobs] == [awaited]
    assert queue.scheduler.urgent(batch.jobs, now=0.45) == [], "0.05 s are left to the caller of the batch itself"


def test_what_goes_between_two_stages_takes_no_cache_of_the_batch_under_way() -> None:
    queue = Queue(blocks=8, taken=5)  # and two are the prompt's
    ahead = queue.scheduler.open(queue.voice, Playhead(ahead=True), now=0.0)
    ahead.tokens += range(60)
    queue.submit(ahead)
    batch = queue.next_batch()
    assert batch is not None and ahead.blocks
    awaited = queue.open(60)
    queue.submit(awaited)
    urgent = queue.scheduler.urgent(batch.jobs, now=0.0)
    assert queue.scheduler.next_batch(urgent, now=0.0, running=batch.jobs) is None
    assert ahead.blocks
    assert queue.scheduler.next_batch(urgent, now=0.0) is not None, "after the batch it takes them"


@pytest.mark.parametrize("asks", [False, True])
def test_a_clause_that_no_batch_has_begun_gives_its_place_back_at_once(asks: bool) -> None:
    queue = Queue(clauses=1)
    clause = queue.open(60)
    with pytest.raises(Exhausted, match="1 clauses"):
        queue.open(60)
    seen = []
    if asks:
        queue.submit(clause)
        seen = list(queue.scheduler.jobs)
    queue.scheduler.close(clause)
    assert queue.scheduler.idle
    queue.open(60)
    assert queue.scheduler.next_batch(seen, now=0.0) is None, "seen before the clause was closed"


def test_a_clause_in_a_batch_keeps_its_place_until_the_batch_is_swept() -> None:
    queue = Queue(clauses=1)
    clause = queue.open(60)
    queue.submit(clause)
    assert queue.next_batch() is not None
    queue.scheduler.close(clause)
    with pytest.raises(Exhausted, match="1 clauses"):
        queue.open(60)
    assert queue.scheduler.sweep() == [clause]
    queue.open(60)


@pytest.mark.parametrize("seed", range(100))
def test_places_are_given_back_however_clauses_leave(seed: int) -> None:
    chance = random.Random(seed)
    queue = Queue(clauses=4, blocks=12)
    free = queue.blocks.free_blocks, queue.blocks.free_slots
    held: list[Rendering] = []
    batch: Batch | None = None
    for _ in range(200):
        match chance.randrange(5):
            case 0 if queue.scheduler.open_clauses < 4:
                held.append(queue.open(150, slack_s=chance.choice([0.0, 0.5, 3.0])))
            case 1 if idle := [r for r in held if all(job.rendering is not r for job in queue.scheduler.jobs)]:
                one = chance.choice(idle)
                if one.sounded < 100:
                    queue.submit(one)
            case 2 if held:
                gone = held.pop(chance.randrange(len(held)))
                queue.scheduler.close(gone)
                running = [job.rendering for job in batch.jobs] if batch is not None else []
                assert (gone in queue.scheduler.renderings) <= any(gone is r for r in running)
            case 3 if batch is None:
                batch = queue.next_batch()
            case 4 if batch is not None:
                for job, row in zip(batch.jobs, batch.rows, strict=True):
                    if queue.scheduler.advance(job, row):
                        queue.scheduler.done(job)
                queue.scheduler.sweep()
                batch = None
        slots = [r.slot for r in queue.scheduler.renderings if r.slot]
        assert len(slots) == len(set(slots)), "two clauses in one place"
        blocks = [block for r in queue.scheduler.renderings for block in r.blocks]
        assert len(blocks) == len(set(blocks)), "two clauses in one block"
    for rendering in held:
        queue.scheduler.close(rendering)
    queue.scheduler.sweep()
    assert queue.scheduler.idle and queue.scheduler.silent == queue.scheduler.open_clauses == 0
    assert (queue.blocks.free_blocks, queue.blocks.free_slots) == free


def test_prompt_and_clause_beyond_the_caches_are_refused() -> None:
    queue = Queue()
    with pytest.raises(InvalidRequest, match="203 speech tokens; 200 are the most"):
        queue.submit(queue.open(150), final=True)


def wait_s(*, shape: Shape, rows: int, batch_s: float, stages: int, in_hand_s: float, arrives_s: float) -> float:
    """For how long a first chunk that is awaited from ``arrives_s`` on waits for a batch that began at 0 and takes
    ``batch_s``, in equal stages. The callers of the batch have ``in_hand_s`` of sound."""
    queue = Queue(blocks=200, clauses=32, finalize="upstream", config=SchedulerConfig())
    for _ in range(rows):
        queue.submit(queue.open(60 if shape == "chunk" else 10, slack_s=in_hand_s), final=shape == "whole")
    batch = queue.next_batch()
    assert batch is not None and batch.staged and (batch.shape, len(batch.jobs)) == (shape, rows)
    awaited: Rendering | None = None
    for stage in range(1, stages + 1):
        now = stage * batch_s / stages
        if awaited is None and now >= arrives_s:
            awaited = queue.open(60)
            queue.submit(awaited, since=arrives_s)
        running, jobs = batch.jobs, queue.scheduler.urgent(batch.jobs, now=now)
        if stage == stages:
            for job, row in zip(batch.jobs, batch.rows, strict=True):
                assert queue.scheduler.advance(job, row)
                queue.scheduler.done(job)
            running, jobs = [], queue.scheduler.jobs
        between = queue.scheduler.next_batch(jobs, now=now, running=running)
        if between is not None:
            assert [job.rendering for job in between.jobs] == [awaited]
            return now - arrives_s
    raise AssertionError("it was never made")


CHUNKS_8, CHUNKS_16, LAST_2 = ("chunk", 8, 0.0163, 5), ("chunk", 16, 0.0258, 5), ("whole", 2, 0.0394, 10)
"""Shape, rows, seconds and stages of batches, as an H200 took for them."""


@pytest.mark.parametrize(
    ("batch", "in_hand_s", "longest_s"),
    [
        (CHUNKS_8, 2.0, 0.0163 / 5),
        (LAST_2, 2.0, 0.0394 / 10),
        (CHUNKS_16, 0.5, 0.0258 / 5),
        (CHUNKS_16, 0.105, 0.0258),
        (LAST_2, 0.31, 0.0394),
    ],
    ids=["8 chunks", "2 last chunks", "16 chunks", "16 chunks whose callers run short", "2 last ones, the same"],
)
def test_an_awaited_first_chunk_waits_for_one_stage_of_what_runs_unless_its_callers_run_short(
    batch: tuple[Shape, int, float, int], in_hand_s: float, longest_s: float
) -> None:
    """The wait is at most 5 ms after 8 chunks or 2 last chunks, and 5.2 ms after 16 chunks."""
    shape, rows, batch_s, stages = batch
    waits = [
        wait_s(shape=shape, rows=rows, batch_s=batch_s, stages=stages, in_hand_s=in_hand_s, arrives_s=n * 5e-4 + 1e-6)
        for n in range(int(batch_s / 5e-4))
    ]
    assert max(waits) <= longest_s
    assert max(waits) > longest_s / 2, "nothing is measured else"
