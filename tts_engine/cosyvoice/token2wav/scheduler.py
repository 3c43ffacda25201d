"""Decides which clauses run next in the token-to-wave thread, with which tokens, slots and blocks. Pure: it takes time
and demand, and returns a batch, which the runner computes.

A job makes one chunk (25 tokens, a second of audio) of one clause. Jobs of the same shape run as one batch. With the
caches, a chunk costs the same at every position in the clause, so chunks do not grow: a larger chunk would only be
later. A clause's first chunk begins with the tokens of the prompt after its last shared chunk, at least three. A chunk
depends on three tokens of look-ahead, so shared chunks do not depend on the clause.

A short first chunk may end before its 25 tokens are complete. The second chunk then starts again at the end of the
shared part, because under the chunk mask the beginning of a chunk attends to its end. A short first chunk takes less
work and is heard sooner, but the second chunk adds less audio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.token2wav.block_manager import BlockManager
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.errors import Exhausted, InvalidRequest
from tts_engine.synthesizer import Hearing

Shape = Literal["chunk", "whole"]
"""``chunk``: one chunk on top of the caches. ``whole``: a last chunk, computed with everything before it."""

_BURST_SHARE = 0.75
"""Share of ``burst_rows`` that makes a burst: a batch that is emptier takes as long as a full one."""

_MANY = 4
"""It is worth while to wait for clauses if they are this many times as many."""

_BATCH_STEPS = 10
"""A batch of a few first chunks takes as long as so many steps of the language model or more: on an H200 9 to 16 ms
beside steps of 0.7 to 1."""

_FEW_STEPS = 3
"""First chunks always wait for clauses that lack so few tokens: 2 ms, in place of a batch of their own behind the other
one."""

_LOOK_S = 0.002
"""Interval at which a waiting batch checks again whether waiting pays, seconds."""

_BATCH_TOKENS = 180
"""Padding of so many tokens takes as long as a batch by itself does: on an H100 one of a whole chunk takes 10 ms, one
of 16 25 and one of 32 44."""

CHUNK_ROWS = (1, 2, 4, 8, 16, 32)
"""Batches of chunks that the runner prepares."""

WHOLE_CHUNKS = 32
"""See ``SchedulerConfig.whole_chunks``; the runner prepares batches up to that."""

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Batch sizes and bounds."""

    sizes: Sequence[int] = CHUNK_ROWS
    """Numbers of clauses for which batches of chunks are prepared, in order. Others run in the next larger one."""
    chunk_rows: int = 16
    """Most clauses in a batch of chunks. On an H200 it takes 28 ms; a single clause takes 12."""
    burst_rows: int = 32
    """Most clauses while three quarters of so many are awaited, as when many begin at once. It takes 48 ms."""
    calm_rows: int = 8
    """Most clauses while none of them is short of sound, so that a first chunk that arrives meanwhile waits half as
    long."""
    calm_s: float = 1.0
    """A clause with more seconds of sound in hand is not short."""
    riding_rows: int = 16
    """A batch with half as many awaited clauses or fewer is filled up to so many, while as many are short of sound
    (``calm_s``). On an H200 16 take three times as long as one. 0: an awaited clause is not made slower by others."""
    whole_rows: int = 4
    """Most clauses in a batch of last chunks of shape ``whole``."""
    whole_chunks: int = WHOLE_CHUNKS
    """Most chunks in such a batch of more than two clauses, with prompts and padding. As many take 39 ms on an H200."""
    tight_s: float = 0.1
    """A clause with fewer seconds of sound in hand is as urgent as a first chunk."""
    burst_tight_s: float = 0.16
    """The same for second chunks while first and second ones fill a batch of ``burst_rows``: such a batch takes up to
    75 ms beside the language model, and one may have just begun."""
    gather_s: float = 0.015
    """A first chunk waits no longer than this for those of others (``gathering``)."""
    hold_s: float = 0.03
    """Few chunks that no one awaits stand still while a clause that came less than so long ago is drawn for
    (``holding``)."""
    patient_s: float = 0.3
    """With more seconds of sound in hand, last chunks let first chunks run between their stages, which may take 40
    ms. Other chunks, which take less time, do so down to ``tight_s``. All let several such batches run one after the
    other."""


def with_sizes(config: SchedulerConfig, sizes: Sequence[int]) -> SchedulerConfig:
    """Return the same for batches that are prepared for ``sizes``. One that is filled up is filled to such a size."""

    def prepared(rows: int) -> int:
        return max((size for size in sizes if size <= rows), default=0)

    return replace(config, sizes=sizes, calm_rows=prepared(config.calm_rows), riding_rows=prepared(config.riding_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[Owner]):
    """A job that could run now."""

    owner: Owner
    shape: Shape
    slack_s: float
    """Seconds until the caller hears silence. 0: somebody waits for a first chunk."""
    since: float
    """Monotonic second at which the job was submitted, earlier by ``Hearing.head_start_s``."""
    size: int = 1
    """Number of tokens that are fed for ``chunk``; of chunks that are computed, with the prompt's, for ``whole``."""
    begins: bool = False
    """Is it the clause's first or second chunk?"""


def in_burst(candidates: Iterable[Candidate[Any]], config: SchedulerConfig) -> bool:
    """Do first and second chunks, with what is awaited of them soon, fill a batch of ``burst_rows``?"""
    due = sum(c.begins and c.shape == "chunk" and c.slack_s <= config.burst_tight_s for c in candidates)
    return due >= _BURST_SHARE * config.burst_rows


def urgency(c: Candidate[Any], config: SchedulerConfig, *, burst: bool) -> float:
    """Return the seconds that the job can wait. 0: it is awaited now."""
    tight_s = config.burst_tight_s if burst and c.begins else config.tight_s
    return c.slack_s if c.slack_s > tight_s else 0.0


def choose(candidates: Sequence[Candidate[Owner]], config: SchedulerConfig) -> Sequence[Candidate[Owner]]:
    """Return the next batch: jobs of one shape, most urgent first. Empty: there is nothing to do.

    First chunks and clauses with almost no sound left come first, in the order in which they came, those of higher
    priority a little earlier. Then comes the least slack. Jobs that no one awaits must not make an awaited batch
    slower, so they only fill it up to the size that it runs with, and are no longer. But while so many are short of
    sound that they would soon be awaited one after the other, those with the least ride along, whatever their length.
    All rows are computed at the length of the longest. So awaited chunks go together unless the padding would take as
    long as a batch of its own, and of last chunks those whose length is nearest come along.
    """
    wait_s = partial(urgency, config=config, burst=in_burst(candidates, config))
    ranked = sorted(candidates, key=lambda c: (wait_s(c), c.since))
    if not ranked:
        return []
    leader = ranked[0]
    alike = [c for c in ranked if c.shape == leader.shape]
    rows = config.whole_rows
    if leader.shape == "chunk":
        rows = config.calm_rows if leader.slack_s > config.calm_s else config.chunk_rows
    if awaited := sum(wait_s(c) == 0 for c in alike):
        if leader.shape == "chunk":
            together = _padded_little(alike, awaited)
            awaited = sum(wait_s(c) == 0 for c in together)
            if 2 * awaited <= config.riding_rows <= sum(c.slack_s <= config.calm_s for c in alike):
                awaited = config.riding_rows  # who rides along is awaited from now on
            else:
                alike = together
            if awaited >= _BURST_SHARE * config.burst_rows:
                rows = config.burst_rows
        rows = min(rows, next((size for size in config.sizes if size >= awaited), awaited))
    if leader.shape == "whole":
        alike.sort(key=lambda c: (wait_s(c) > 0, abs(c.size - leader.size)))
        while rows > 2 and rows * max(c.size for c in alike[:rows]) > config.whole_chunks:
            rows -= 1
    return alike[:rows]


def _padded_little(ranked: Sequence[Candidate[Owner]], awaited: int) -> list[Candidate[Owner]]:
    """Return those of these chunks that go together. The first ``awaited`` of them are awaited now."""
    sizes = [c.size for c in ranked[:awaited]]
    longest = max(sizes)
    if longest * len(sizes) - sum(sizes) > _BATCH_TOKENS:
        longest = ranked[0].size
    together: list[Candidate[Owner]] = []
    padding = 0
    for c in ranked:
        if c.size <= longest and padding + longest - c.size <= _BATCH_TOKENS:
            together.append(c)
            padding += longest - c.size
    return together


def _nearly_ready(awaited: int, lacking: Sequence[int]) -> bool:
    """Is it worth while that so many clauses wait until those are ready that lack few tokens?

    A clause that is ready some steps after the beginning of a batch waits for the rest of it. So each of them saves the
    rest, and each of those that wait for it loses the steps. A few steps are always worth it, since the device, too,
    takes longer for two batches.
    """
    return any(
        steps <= _FEW_STEPS or count * (_BATCH_STEPS - steps) > awaited * steps
        for count, steps in enumerate(sorted(lacking), start=1)
    )


Urgency = tuple[float, int]
"""Seconds of sound in hand, then the clause's number of arrival. The smaller value is more urgent."""


def victim(holders: Sequence[tuple[Owner, Urgency]], needy: Urgency) -> Owner | None:
    """Return whose cache to drop when none is free: the least urgent clause, if it is less urgent than the needy one.

    That clause is computed again from the voice prompt on when its turn comes, with the same result. The most urgent
    clause can always go on, so the engine never stands still.
    """
    if not holders:
        return None
    owner, urgency = max(holders, key=lambda pair: pair[1])
    return owner if urgency > needy else None


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One chunk that a clause asks for."""

    rendering: Rendering
    shape: Shape
    count: int
    """Number of tokens that become sound."""
    final: bool
    since: float
    deliver: Callable[[Any], None]
    """Takes the sound, or the error. The scheduler only stores this function."""
    begun: bool = False
    """Has a batch begun with it?"""


@dataclass(slots=True, kw_only=True)
class BatchRow:
    """The input of a batch for one clause. The defaults are a row of padding."""

    slot: int = 0
    source: int = 0
    """Slot with whose state the row begins. 0: it continues its own state, or begins without state at ``start`` 0."""
    start: int = 0
    """Number of tokens fed before, from the start of the prompt."""
    length: int = 0
    """Number of tokens fed now."""
    valid: int = 0
    """Number of tokens fed now, with their look-ahead."""
    voice: int = 0
    frames: int = 0
    """Number of frames for the vocoder. 0: the clause only fills its caches again."""
    final: bool = False
    skip: int = 0
    """Number of fed frames before those for the vocoder."""
    begins: bool = False
    """Are these the first frames of the clause that the vocoder gets?"""
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that runs next: jobs of one shape, and a row for each."""

    shape: Shape
    jobs: Sequence[Job]
    rows: Sequence[BatchRow]
    staged: bool
    """Does it run in stages, so that awaited chunks can go between them? No one awaits a chunk of it."""

    @property
    def length(self) -> int:
        """Number of tokens of its longest row."""
        return max(row.length for row in self.rows)


class Scheduler:
    """The clauses of one device, and the chunks that they ask for. Not thread-safe.

    ``first_hops``, ``hop``, ``missing``, ``is_last``, ``busy`` and the counts only read, and may be called from any
    thread.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        finalize: Literal["upstream", "causal"],
        first_hops: Sequence[int],
    ) -> None:
        """``finalize`` and ``first_hops``: see ``CosyVoiceConfig``."""
        self.jobs: list[Job] = []
        """Jobs in the order in which they came."""
        self.renderings: set[Rendering] = set()
        """Open clauses, and closed ones whose places a batch still uses, until the next ``sweep``."""
        self.silent = 0
        """Number of these clauses that have made no sound yet."""
        self.recomputed_chunks = 0
        self.config, self._blocks, self._first_hops = config, blocks, first_hops
        self._chunk = blocks.chunk_tokens
        self._last_is_whole = finalize == "upstream"
        self._closed: list[Rendering] = []
        self._opened = 0

    # -- what a clause asks

    def open(self, voice: Voice, playhead: Hearing, *, now: float) -> Rendering:
        """Begin a clause. Call ``close`` at its end.

        Raises:
            Exhausted: the engine is full, or the voice has made room for another one meanwhile.
        """
        if len(self.renderings) >= (limit := self._blocks.clauses):
            raise Exhausted(f"{limit} clauses are being spoken", retry_after_s=0.5)
        first_hop = self.first_hops(voice)[0]
        rendering = Rendering(voice=voice, playhead=playhead, first_hop=first_hop, order=self._opened, opened_at=now)
        self._blocks.open(rendering, now=now)
        self._opened += 1
        self.renderings.add(rendering)
        self.silent += 1
        return rendering

    @property
    def open_clauses(self) -> int:
        """Number of ``renderings``."""
        return len(self.renderings)

    def hop(self, rendering: Rendering) -> int:
        """Return the number of tokens of the clause's next chunk, unless it is the last. It needs three more tokens."""
        if not rendering.sounded:
            return rendering.first_hop
        return self._chunk - (len(rendering.voice.prompt_tokens) + rendering.sounded) % self._chunk

    def first_hops(self, voice: Voice) -> Sequence[int]:
        """Return the lengths that a first chunk after this prompt may have, shortest first. None goes beyond the chunk
        in which the prompt ends."""
        room = self._chunk - len(voice.prompt_tokens) % self._chunk
        return [room if hop >= self._chunk - LOOK_AHEAD_TOKENS else hop for hop in self._first_hops]

    def missing(self, rendering: Rendering) -> int:
        """Return how many tokens the clause's next chunk lacks, unless it is the last. 0 or less: it can be
        submitted."""
        return self.hop(rendering) + LOOK_AHEAD_TOKENS - (len(rendering.tokens) - rendering.sounded)

    def is_last(self, rendering: Rendering) -> bool:
        """Does one chunk hold all that is left of a clause that gets no more tokens?"""
        left = len(rendering.tokens) - rendering.sounded
        return left < self.hop(rendering) + (LOOK_AHEAD_TOKENS if self._last_is_whole else 1)

    def submit(self, rendering: Rendering, *, final: bool, now: float, deliver: Callable[[Any], None]) -> None:
        """Queue the clause's next chunk: ``hop`` tokens, or those that are left if ``final``.

        ``rendering.tokens`` must have the chunk, and its three tokens of look-ahead unless no more tokens will come.

        Raises:
            InvalidRequest: voice prompt and clause are longer than the caches hold.
        """
        count = len(rendering.tokens) - rendering.sounded if final else self.hop(rendering)
        length = len(rendering.voice.prompt_tokens) + rendering.sounded + count
        if length > (most := self._blocks.max_tokens):
            raise InvalidRequest(f"voice prompt and clause have {length} speech tokens; {most} are the most")
        shape: Shape = "whole" if final and self._last_is_whole else "chunk"
        job = Job(rendering=rendering, shape=shape, count=count, final=final, since=now, deliver=deliver)
        self.jobs.append(job)
        rendering.asked = True

    def close(self, rendering: Rendering) -> None:
        """End the clause and free its places: at once, or at the next ``sweep`` if a batch that has begun may use them.
        Idempotent."""
        if rendering.closed:
            return
        rendering.closed = True
        rendering.voice.clauses -= 1
        if any(job.begun and job.rendering is rendering for job in self.jobs):
            self._closed.append(rendering)
        else:
            self._free([rendering])

    # -- what the device asks

    @property
    def idle(self) -> bool:
        """Is there nothing to run and nothing to free?"""
        return not self.jobs and not self._closed

    def busy(self) -> bool:
        """Does a full batch wait beside the running one?"""
        jobs = list(self.jobs)
        whole = sum(job.shape == "whole" for job in jobs)
        return (len(jobs) - whole) / self.config.chunk_rows + whole / self.config.whole_rows >= 2

    def sweep(self) -> Sequence[Rendering]:
        """Free the places of closed clauses and drop their jobs. Return these clauses."""
        gone, self._closed = self._closed, []
        self._free(gone)
        return gone

    def _free(self, gone: Sequence[Rendering]) -> None:
        for rendering in gone:
            self.renderings.discard(rendering)
            self.silent -= not rendering.sounded
            self._blocks.free(rendering)
        if gone:
            self.jobs = [job for job in self.jobs if job.rendering not in gone]

    def next_batch(self, jobs: Sequence[Job], *, now: float, running: Sequence[Job] = ()) -> Batch | None:
        """Return the next batch of these jobs, with places for all jobs in it.

        None: all caches belong to clauses that wait for their own next tokens.

        Args:
            running: jobs of the batch between whose stages this one goes. They keep their places.
        """
        # A clause may have been closed, and its places freed, since the caller looked at the jobs.
        candidates = [self._candidate(job, now) for job in jobs if job.rendering in self.renderings]
        ready: list[Job] = []
        while not ready:
            burst = in_burst(candidates, self.config)
            chosen = choose(candidates, self.config)
            if not chosen:
                return None
            for candidate in chosen:
                if self._make_room(candidate.owner, [job.rendering for job in (*running, *ready)], now):
                    ready.append(candidate.owner)
            # Jobs without room must not stop jobs of another shape, whose clauses hold that room.
            candidates = [c for c in candidates if c not in chosen]
        for job in ready:
            job.begun = True
        staged = chosen[0].shape == "whole" or urgency(chosen[0], self.config, burst=burst) > 0
        return Batch(chosen[0].shape, ready, [self._row(job) for job in ready], staged)

    def gathering(self, jobs: Sequence[Job], *, now: float, lacking: Sequence[int] = ()) -> tuple[float, Sequence[Job]]:
        """Return for how many seconds awaited ones of these jobs had better wait for others, and the jobs that do not
        wait.

        In a burst the first clauses have their tokens a few steps of the language model before the others. A batch of
        one takes a quarter of the time of a full one, and all others would wait for it. So while only first chunks
        are awaited, too few for the largest batch, and four times as many clauses are still drawn for, or enough of
        them nearly have their tokens, they wait for ``gather_s`` at most.

        Args:
            lacking: how many tokens clauses lack for their first chunks, see ``LmBackend.lacking``.
        """
        awaited = [job for job in jobs if job.rendering.playhead.slack_s(now) <= self.config.tight_s]
        coming = self.silent - sum(not job.rendering.sounded for job in self.jobs)
        if not 0 < len(awaited) < self.config.burst_rows:
            return 0.0, jobs
        many = coming >= _MANY * len(awaited)
        if not (many or _nearly_ready(len(awaited), lacking)):
            return 0.0, jobs
        if any(job.rendering.sounded or job.shape != "chunk" for job in awaited):
            return 0.0, jobs
        wait_s = min(job.since for job in awaited) + self.config.gather_s - now
        if wait_s <= 0:
            return 0.0, jobs
        return wait_s if many else min(wait_s, _LOOK_S), [job for job in jobs if job not in awaited]

    def holding(self, jobs: Sequence[Job], *, now: float) -> float:
        """Return for how many seconds these jobs had better not go on, because somebody's first chunk is drawn for. A
        change may end that earlier.

        What the device does meanwhile makes the steps of the language model longer by a third, and then the first chunk
        waits for the rest of a stage. So as long as all jobs fit into one batch, and these have sound for more than
        ``calm_s``, they stand still for clauses that were let in less than ``hold_s`` ago.
        """
        config = self.config
        if not self.silent or len(self.jobs) > config.calm_rows:
            return 0.0
        if any(job.rendering.playhead.slack_s(now) <= config.calm_s for job in jobs):
            return 0.0
        coming = [r for r in self.renderings if not (r.sounded or r.asked) and now - r.opened_at < config.hold_s]
        awaited = [r.opened_at for r in coming if r.playhead.slack_s(now) <= config.tight_s]
        return max(awaited) + config.hold_s - now if awaited else 0.0

    def urgent(
        self, running: Sequence[Job], *, now: float, again: bool = False, ending: Sequence[Job] = ()
    ) -> Sequence[Job]:
        """Return the jobs that run between two stages of a long batch, in which the jobs ``running`` are left.

        These are awaited chunks. There are none while a clause in the long batch is short of sound.

        So an awaited chunk waits for one stage at most of work that no one awaits: on an H200 3.3 ms behind 8 chunks,
        3.9 behind last chunks of 32 chunks, 5.2 behind 16 chunks (measured batches, divided by their stages). It waits
        for all of a batch of chunks that were awaited before it, and of one whose callers are short of sound.

        Args:
            again: would they run behind a batch that went between the same two stages?
            ending: the jobs of that batch, as long as its sound is not handed out.
        """
        config = self.config
        least_s = config.patient_s if again or running[0].shape == "whole" else config.tight_s
        if min(job.rendering.playhead.slack_s(now) for job in running) <= least_s:
            return []
        others = [self._candidate(job, now) for job in self.jobs if job not in running and job not in ending]
        return [c.owner for c in others if c.slack_s <= config.tight_s and c.shape == "chunk"]

    def advance(self, job: Job, row: BatchRow) -> bool:
        """Note that a batch ran with this row. Return whether it made sound for a caller.

        It did not if the clause has ended meanwhile, or only filled its caches again.
        """
        rendering = job.rendering
        if rendering not in self.renderings:
            return False
        if job.shape == "chunk" and row.length == self._chunk:
            rendering.fed += self._chunk
        if not row.frames:
            self.recomputed_chunks += 1
            return False
        self.silent -= not rendering.sounded
        rendering.sounded += job.count
        return True

    def done(self, job: Job) -> None:
        """Note that the job has been answered."""
        if job in self.jobs:
            self.jobs.remove(job)

    def _candidate(self, job: Job, now: float) -> Candidate[Job]:
        rendering, hearing = job.rendering, job.rendering.playhead
        return Candidate(
            owner=job,
            shape=job.shape,
            slack_s=hearing.slack_s(now),
            since=job.since - hearing.head_start_s,
            size=self._length(job) if job.shape == "chunk" else -(-self._whole_tokens(job) // self._chunk),
            begins=rendering.sounded <= rendering.first_hop,
        )

    def _length(self, job: Job) -> int:
        """Return how many tokens the clause's next chunk is fed: a whole chunk, if the caches lack more than that."""
        r = job.rendering
        return min(len(r.voice.prompt_tokens) + r.sounded + job.count - r.fed, self._chunk)

    def _whole_tokens(self, job: Job) -> int:
        """Return the number of tokens of prompt and clause up to the end of the job's chunk."""
        return len(job.rendering.voice.prompt_tokens) + job.rendering.sounded + job.count

    def _make_room(self, job: Job, running: Sequence[Rendering], now: float) -> bool:
        """Give the clause a slot and the blocks that it writes next. Return False if there is no room now."""
        r = job.rendering
        needed = self._blocks.missing(r) if job.shape == "chunk" else 0
        while self._blocks.free_blocks < needed:
            holders = [
                (o, (o.playhead.slack_s(now), o.order))
                for o in self.renderings
                if o.blocks and o is not r and o not in running
            ]
            loser = victim(holders, (r.playhead.slack_s(now), r.order))
            if loser is None:
                return False
            self._blocks.evict(loser)
        self._blocks.grow(r, needed)
        return True

    def _row(self, job: Job) -> BatchRow:
        """Return what the batch feeds for this clause."""
        r, voice = job.rendering, job.rendering.voice
        prompt = voice.prompt_tokens
        sounded = len(prompt) + r.sounded
        if job.shape == "whole":
            tokens = [*prompt, *r.tokens[: r.sounded + job.count]]
            return BatchRow(
                slot=r.slot,
                voice=voice.index,
                begins=not r.sounded,
                length=len(tokens),
                valid=len(tokens),
                frames=job.count * FRAMES_PER_TOKEN,
                final=True,
                skip=sounded * FRAMES_PER_TOKEN,
                tokens=tokens,
            )
        skip, length = sounded - r.fed, self._length(job)
        catching_up = skip >= self._chunk
        begin, width = r.fed - len(prompt), length + LOOK_AHEAD_TOKENS
        tokens = [*prompt[r.fed : r.fed + width], *r.tokens[max(begin, 0) : max(begin + width, 0)]]
        return BatchRow(
            slot=r.slot,
            source=voice.slot if r.fed and r.fed == voice.shared else 0,
            voice=voice.index,
            begins=not r.sounded,
            start=r.fed,
            length=length,
            valid=len(tokens),
            frames=0 if catching_up else job.count * FRAMES_PER_TOKEN,
            final=job.final and not catching_up,
            skip=0 if catching_up else skip * FRAMES_PER_TOKEN,
            blocks=[*voice.blocks, *r.blocks],
            tokens=tokens,
        )
