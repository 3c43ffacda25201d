"""Decides which clauses run next in the token-to-wave thread, with which tokens, slots and blocks. Pure: it takes time
and demand, and returns a batch, which the runner computes.

What runs next, and why:

1. The job whose listener hears silence first (earliest deadline first). If any order lets all sound come in time, this
   one does (Liu and Layland, 1973), and ``admission`` lets a clause begin only if its demand fits.
2. A first chunk is awaited now, and so is the next chunk of a clause whose sound ends within ``tight_s``, about the
   time of two batches. Awaited jobs run in the order of arrival, those of higher priority a little earlier.
3. With more than ``enough_s`` in hand, the oldest clause comes first: it ends, and its blocks are free.
4. Jobs of one shape run as one batch. Awaited chunks take along only as many others as the prepared batch size has room
   for, and none that are longer. While a full batch of clauses is short of sound, it is filled with these, since it
   makes several times as much sound a second as a small one.
5. A batch without awaited chunks runs in stages, and awaited chunks run between its stages while its own listeners can
   wait.

A job makes one chunk (25 tokens, a second of audio) of one clause. With the caches, a chunk costs the same at every
position in the clause, so chunks do not grow: a larger chunk would only be later. A clause's first chunk begins with
the tokens of the prompt after its last shared chunk, at least three. A chunk depends on three tokens of look-ahead, so
shared chunks do not depend on the clause.

A short first chunk may end before its 25 tokens are complete. The second chunk then starts again at the end of the
shared part, because under the chunk mask the beginning of a chunk attends to its end. A short first chunk takes less
work and is heard sooner, but the second chunk adds less audio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.token2wav.admission import ClauseLoad
from tts_engine.cosyvoice.token2wav.block_manager import BlockManager
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.errors import Exhausted, InvalidRequest
from tts_engine.synthesizer import Hearing

Shape = Literal["chunk", "whole"]
"""``chunk``: one chunk on top of the caches. ``whole``: a last chunk, computed with everything before it."""

CHUNK_ROWS = (1, 2, 4, 8, 16, 32)
"""Batches of chunks that the runner prepares."""

WHOLE_CHUNKS = 32
"""See ``SchedulerConfig.whole_chunks``; the runner prepares batches up to that."""

_NEVER_S = 1e5
"""With more seconds in hand, no caller waits for the sound yet (``Hearing.slack_s``)."""

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Batch sizes and bounds."""

    sizes: Sequence[int] = CHUNK_ROWS
    """Numbers of clauses for which batches of chunks are prepared, in order. Others run in the next larger one."""
    chunk_rows: int = 16
    """Most clauses in a batch of chunks that are not awaited. On an H200 it takes 24 ms; a single clause takes 10."""
    burst_rows: int = 32
    """Most clauses in a batch of awaited chunks. It takes 41 ms."""
    whole_rows: int = 4
    """Most clauses in a batch of last chunks of shape ``whole``."""
    whole_chunks: int = WHOLE_CHUNKS
    """Most chunks in such a batch of more than two clauses, with prompts and padding. As many take 39 ms on an H200."""
    tight_s: float = 0.1
    """A clause with fewer seconds of sound in hand is as urgent as a first chunk. A slower device has a larger value,
    see ``Scheduler.slower``."""
    short_s: float = 1.0
    """A clause with fewer seconds of sound in hand is short of sound."""
    enough_s: float = 1.5
    """With more seconds of sound in hand, the oldest clause comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[Owner]):
    """A job that could run now."""

    owner: Owner
    shape: Shape
    slack_s: float
    """Seconds until the caller hears silence. 0: a caller waits for a first chunk."""
    since: float
    """Monotonic second at which the job was submitted, earlier by ``Hearing.head_start_s``."""
    opened_at: float = 0.0
    """Monotonic second at which the clause began."""
    size: int = 1
    """Number of tokens that are fed for ``chunk``; of chunks that are computed, with the prompt's, for ``whole``."""

    def awaited(self, config: SchedulerConfig) -> bool:
        """Return whether the caller needs the sound now."""
        return self.slack_s <= config.tight_s

    def rank(self, config: SchedulerConfig) -> tuple[float, float]:
        """Return the place in the order; the lowest runs first."""
        if self.awaited(config):
            return 0.0, self.since
        if self.slack_s <= config.enough_s:
            return self.slack_s, self.since
        return (config.enough_s if self.slack_s < _NEVER_S else _NEVER_S), self.opened_at


def choose(candidates: Sequence[Candidate[Owner]], config: SchedulerConfig) -> Sequence[Candidate[Owner]]:
    """Return the next batch: jobs of one shape, most urgent first. Empty: there is nothing to do."""
    ranked = sorted(candidates, key=lambda c: c.rank(config))
    if not ranked:
        return []
    leader = ranked[0]
    alike = [c for c in ranked if c.shape == leader.shape]
    if leader.shape == "whole":
        alike.sort(key=lambda c: (c is not leader, not c.awaited(config), abs(c.size - leader.size)))
        rows = config.whole_rows
        while rows > 2 and rows * max(c.size for c in alike[:rows]) > config.whole_chunks:
            rows -= 1
        return alike[:rows]
    if not leader.awaited(config):
        return alike[: config.chunk_rows]
    if sum(c.slack_s <= config.short_s for c in alike) < config.chunk_rows:
        alike = [c for c in alike if c.size <= leader.size]
        rows = 0
    else:
        rows = config.chunk_rows
    awaited = min(sum(c.awaited(config) for c in alike), config.burst_rows)
    return alike[: max(rows, next((size for size in config.sizes if size >= awaited), awaited))]


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

    # -- what a clause asks

    def open(self, voice: Voice, playhead: Hearing, *, now: float) -> Rendering:
        """Begin a clause. Call ``close`` at its end.

        Raises:
            Exhausted: the engine is full, or the voice has made room for another one meanwhile.
        """
        if len(self.renderings) >= (limit := self._blocks.clauses):
            raise Exhausted(f"{limit} clauses are being spoken", retry_after_s=0.5)
        first_hop = self.first_hops(voice)[0]
        rendering = Rendering(voice=voice, playhead=playhead, first_hop=first_hop, opened_at=now)
        self._blocks.open(rendering, now=now)
        self.renderings.add(rendering)
        self.silent += 1
        return rendering

    @property
    def open_clauses(self) -> int:
        """Number of ``renderings``."""
        return len(self.renderings)

    def slower(self, batch_s: float) -> None:
        """Note that the longest batch of chunks takes ``batch_s`` seconds. A clause must be awaited before two of them
        would make it late."""
        self.config = replace(self.config, tight_s=max(self.config.tight_s, 2 * batch_s))

    def load(self, now: float, *, waiting: int = 0) -> ClauseLoad:
        """Return the open clauses and the free blocks. ``waiting``: see ``ClauseLoad``."""
        in_hand_s = [r.playhead.slack_s(now) for r in self.renderings if r.sounded or r.playhead.speaks]
        silent = len(self.renderings) - len(in_hand_s)
        return ClauseLoad(in_hand_s, silent, self._blocks.spare_blocks, waiting)

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

        None: the blocks that are free are kept for the oldest clause, which waits for its own next tokens.

        Args:
            running: jobs of the batch between whose stages this one goes. They keep their places.
        """
        # A clause may have been closed, and its places freed, since the caller looked at the jobs.
        candidates = [self._candidate(job, now) for job in jobs if job.rendering in self.renderings]
        # Each clause that has less than enough in hand soon needs a block. The others leave it to them.
        short = sum(r.playhead.slack_s(now) <= self.config.enough_s for r in self.renderings)
        ready: list[Job] = []
        while not ready:
            chosen = choose(candidates, self.config)
            if not chosen:
                return None
            for candidate in chosen:
                leaving = short if candidate.slack_s > self.config.enough_s else 0
                if self._make_room(candidate.owner, [job.rendering for job in (*running, *ready)], leaving=leaving):
                    ready.append(candidate.owner)
            # Jobs without room must not stop jobs of another shape, whose clauses hold that room.
            candidates = [c for c in candidates if c not in chosen]
        for job in ready:
            job.begun = True
        staged = chosen[0].shape == "whole" or not chosen[0].awaited(self.config)
        return Batch(chosen[0].shape, ready, [self._row(job) for job in ready], staged)

    def urgent(
        self, running: Sequence[Job], *, now: float, again: bool = False, ending: Sequence[Job] = ()
    ) -> Sequence[Job]:
        """Return the jobs that run between two stages of a long batch, in which the jobs ``running`` are left.

        These are awaited chunks. There are none while a clause in the long batch is short of sound.

        So an awaited chunk waits for one stage at most of work that no caller awaits: on an H200 3.3 ms of 8 chunks,
        3.9 of last chunks of 32 chunks, 5.2 of 16 chunks (measured batches, divided by their stages). It waits for all
        of a batch of chunks that were awaited before it, and of one whose callers are short of sound.

        Args:
            again: True if they would run after a batch that went between the same two stages.
            ending: the jobs of that batch, as long as its sound is not handed out.
        """
        config = self.config
        least_s = config.tight_s * (3 if again or running[0].shape == "whole" else 1)
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
            opened_at=rendering.opened_at,
            size=self._length(job) if job.shape == "chunk" else -(-self._whole_tokens(job) // self._chunk),
        )

    def _length(self, job: Job) -> int:
        """Return how many tokens the clause's next chunk is fed: a whole chunk, if the caches lack more than that."""
        r = job.rendering
        return min(len(r.voice.prompt_tokens) + r.sounded + job.count - r.fed, self._chunk)

    def _whole_tokens(self, job: Job) -> int:
        """Return the number of tokens of prompt and clause up to the end of the job's chunk."""
        return len(job.rendering.voice.prompt_tokens) + job.rendering.sounded + job.count

    def _make_room(self, job: Job, running: Sequence[Rendering], *, leaving: int) -> bool:
        """Give the clause a slot and the blocks that it writes next. Return False if there is no room now.

        A clause that a caller waits for takes the blocks of one that is made ahead of time, if it is not ``running``.
        ``leaving``: number of free blocks that it leaves to others.
        """
        r = job.rendering
        needed = self._blocks.missing(r) if job.shape == "chunk" else 0
        if needed and not r.playhead.ahead:
            for other in self.renderings:
                if self._blocks.safe and self._blocks.fits(r, needed, leaving=leaving):
                    break
                if other.playhead.ahead and other not in running:
                    self._blocks.evict(other)
        if needed and not self._blocks.fits(r, needed, leaving=leaving):
            return False
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
