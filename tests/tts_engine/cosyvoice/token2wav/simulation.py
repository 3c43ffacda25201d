"""A simulated GPU for the real scheduler, block manager and admission. Pure: virtual time, one thread, seeded chance.

The device takes the times of one H200 with CosyVoice3 of full size (``Device``). Clauses, their listeners and the turns
that wait for a place are generators: a process yields the seconds that it sleeps, or an ``Event`` that it awaits. The
loop of ``WaveWorker`` is repeated here without its thread, and the life of a clause as ``CosyVoiceSynthesizer`` has it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tts_engine.cosyvoice.token2wav.admission import Admission, Resource
from tts_engine.cosyvoice.token2wav.block_manager import BlockManager
from tts_engine.cosyvoice.token2wav.rendering import Rendering
from tts_engine.cosyvoice.token2wav.scheduler import Batch, Job, Scheduler, SchedulerConfig
from tts_engine.synthesizer import Playhead

CHUNK = 25
SOUND_S = 0.04
"""Sound of a speech token, seconds."""
HELD_BACK_S = 0.13
"""End of a first chunk that the vocoder holds back, seconds."""
HOPS = (8, 15, 22)

Process = Generator[Any, Any, None]


class Event:
    """Something that processes await. It happens once."""

    def __init__(self) -> None:
        self.happened = False
        self.waiting: list[Process] = []


class Clock:
    """Runs processes in virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process]] = []
        self._order = itertools.count()

    def start(self, process: Process, *, at: float | None = None) -> None:
        heapq.heappush(self._due, (self.now if at is None else at, next(self._order), process))

    def happen(self, event: Event) -> None:
        event.happened = True
        for process in event.waiting:
            self.start(process)
        event.waiting = []

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, process = heapq.heappop(self._due)
            for wish in process:
                if isinstance(wish, Event):
                    if wish.happened:
                        continue
                    wish.waiting.append(process)
                else:
                    self.start(process, at=self.now + wish)
                break


SIZES = (1, 2, 4, 8, 16, 32)
CHUNK_MS = {
    11: (8.1, 10.2, 11.0, 12.6, 17.3, 26.7),
    18: (9.8, 10.5, 11.4, 13.7, 20.5, 33.2),
    25: (9.9, 10.9, 12.0, 15.3, 23.8, 40.6),
}
"""Batches of chunks by their tokens, for ``SIZES`` of clauses, milliseconds on the idle device."""
BESIDE = 1.4
"""Factor by which the language model's steps make a batch longer while clauses are drawn."""


@dataclass(frozen=True, slots=True)
class Device:
    """Times and memory of the simulated card."""

    blocks: int = 710
    """64 GB at 90 MB a block."""
    slower: float = 1.0
    """Factor of all times of the device."""

    def batch_s(self, batch: Batch) -> float:
        """Return the seconds that the batch takes on the idle device."""
        if batch.shape == "whole":
            longest = -(-batch.length // CHUNK)
            return self.slower * (3.0 + 1.2 * longest * len(batch.rows)) / 1e3
        return self.chunk_s(25 if batch.staged else batch.length, len(batch.rows))

    def chunk_s(self, length: int, rows: int) -> float:
        times = CHUNK_MS[min(n for n in CHUNK_MS if n >= length)]
        return self.slower * times[next(place for place, size in enumerate(SIZES) if size >= rows)] / 1e3


def host_s(chance: random.Random) -> float:
    """Return a delay of the host between two pieces of work: 0.6 ms, one of a hundred 5 to 20 ms."""
    return chance.uniform(0.005, 0.02) if chance.random() < 0.01 else 0.0006


@dataclass(eq=False, kw_only=True)
class Turn:
    """A turn: an answer of the speech API (``priority`` 3) or of a call (5)."""

    at: float
    """Second at which it is asked for."""
    clauses: Sequence[int]
    """Speech tokens of each clause."""
    priority: int = 3
    playhead: Playhead = field(init=False)
    asked_at: float = 0.0
    refused: bool = False
    retry_after_s: float = 0.0
    first_s: float | None = None
    """Seconds from the request to the first sound."""
    gaps: list[float] = field(default_factory=list)
    """Silences within the sound, seconds."""
    done: bool = False

    def __post_init__(self) -> None:
        self.playhead = Playhead(priority=self.priority)

    def hear(self, sound_s: float, now: float) -> None:
        """Take sound at second ``now``. The listener plays it at once, and after a gap from where it stopped."""
        playhead = self.playhead
        if playhead.played_at is None:
            playhead.played_at, self.first_s = now, now - self.at
        elif (late_s := now - (playhead.played_at + playhead.delivered_s)) > 0:
            self.gaps.append(late_s)
            playhead.played_at += late_s
        playhead.delivered_s += sound_s


class Simulation:
    """One card, and the turns that are asked of it."""

    def __init__(
        self,
        device: Device | None = None,
        *,
        seed: int = 1,
        clauses: int = 256,
        first_chunk_s: float = 1.0,
        config: SchedulerConfig | None = None,
        wait_s: float = 0.5,
        ahead_s: float = 4.0,
    ) -> None:
        """
        Args:
            wait_s: longest wait of a turn for a place (``engine.speech.admission.wait_ms``).
            ahead_s: with more sound in hand, a turn's next clause does not begin (``engine.speech.ahead_s``).
        """
        self.device, self.chance = device or Device(), random.Random(seed)
        self.clock = Clock()
        self.turns: list[Turn] = []
        self.waiting: list[Turn] = []
        self.blocks = BlockManager(
            clauses=clauses, voices=4, blocks=self.device.blocks, chunk_tokens=CHUNK, max_chunks=64, room=22
        )
        self.scheduler = Scheduler(config or SchedulerConfig(), self.blocks, finalize="upstream", first_hops=HOPS)
        self.voice = self.blocks.place(list(range(53)), now=0.0)
        self.blocks.keep("voice", self.voice)
        self.admission = Admission(clauses=clauses, blocks=self.blocks.spare_blocks, first_chunk_s=first_chunk_s)
        for length in sorted(CHUNK_MS, reverse=True):
            for rows in SIZES:
                work = "first" if length < CHUNK else "chunk"
                self.admission.calibrate(work, rows, self.device.chunk_s(length, rows))  # type: ignore[arg-type]
        self.scheduler.slower(self.device.chunk_s(CHUNK, SIZES[-1]))
        self.wait_s, self.ahead_s = wait_s, ahead_s
        self.retry_after_s = 0.0
        """Retry-After of the latest refusal, seconds."""
        self.drawing = 0
        """Clauses that the language model draws for now."""
        self.sound_s = 0.0
        """Seconds of sound made."""
        self.short: Counter[Resource | None] = Counter()
        """Verdicts of admission by the resource that was short."""
        self._wake = Event()
        self._given: Batch | None = None
        self.clock.start(self._work())

    # -- turns

    def ask(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.turns.append(turn)
            self.clock.start(self._turn(turn), at=turn.at)

    def poisson(self, rate: float, seconds: float, *, mean_s: float, at: float = 0.0) -> None:
        """Ask for ``rate`` answers a second at random times. Their lengths are exponential, 1 to 20 s."""
        turns, end = [], at + seconds
        while (at := at + self.chance.expovariate(rate)) < end:
            turns.append(Turn(at=at, clauses=[self._length(mean_s)]))
        self.ask(turns)

    def closed_loop(self, clients: int, *, mean_s: float) -> None:
        """Let clients ask for their next answer as soon as they have the one before."""

        def client() -> Process:
            while True:
                turn = Turn(at=self.clock.now, clauses=[self._length(mean_s)])
                self.turns.append(turn)
                yield from self._turn(turn)
                if turn.refused:
                    yield 0.25

        for _ in range(clients):
            self.clock.start(client())

    def conversations(self, calls: int, seconds: float) -> None:
        """Let calls speak turns until ``seconds``, with pauses of 2 to 6 s, as ``talkspurt.bench.standard_load``."""

        def call() -> Process:
            pause_s = self.chance.uniform(2, 6)
            yield self.chance.uniform(0, pause_s)
            while self.clock.now < seconds:
                turn = Turn(at=self.clock.now, clauses=self._clauses(), priority=5)
                self.turns.append(turn)
                yield from self._turn(turn)
                yield turn.playhead.slack_s(self.clock.now) + self.chance.uniform(2, 6)

        for _ in range(calls):
            self.clock.start(call())

    def _clauses(self) -> Sequence[int]:
        """Return the speech tokens of a turn of one to three clauses of 5 to 11 words, as random weights speak them:
        0.6 s a word, a third more or less."""
        words = [self.chance.randint(5, 8)]
        for least, most in self.chance.choices(((), ((6, 10),), ((9, 11), (6, 10))), weights=(3, 4, 3))[0]:
            words.append(self.chance.randint(least, most))
        return [max(round(n * 0.6 * self.chance.gammavariate(9, 1 / 9) / SOUND_S), 25) for n in words]

    def burst(self, turns: int, *, at: float = 0.1) -> None:
        """Ask for turns of calls, of 4 to 12 s, 0.3 ms apart."""
        self.ask([Turn(at=at + 3e-4 * n, clauses=[self.chance.randint(100, 300)], priority=5) for n in range(turns)])

    def outcome(self, sound_s: float = 0.0) -> Outcome:
        return Outcome(self.turns, sound_s, self.scheduler.recomputed_chunks, self.short)

    def _length(self, mean_s: float) -> int:
        """Return a random number of tokens, 1 to 20 s of sound, exponential."""
        return min(max(round(self.chance.expovariate(1 / mean_s) / SOUND_S), 25), 500)

    def _turn(self, turn: Turn) -> Process:
        self.waiting.append(turn)
        while True:
            if self._first_of_line() is turn:
                verdict = self.admission.judge(self.scheduler.load(self.clock.now), now=self.clock.now)
                self.short[verdict.short] += 1
                if verdict.short is None:
                    break
                self.retry_after_s = verdict.retry_after_s
            if self.clock.now - turn.at >= self.wait_s:
                self.waiting.remove(turn)
                turn.refused, turn.retry_after_s = True, self.retry_after_s
                return
            yield 0.01
        self.waiting.remove(turn)
        for number, tokens in enumerate(turn.clauses):
            if number:
                yield from self._next_clause(turn)
            yield from self._speak(turn, tokens)
        turn.done = True

    def _next_clause(self, turn: Turn) -> Process:
        """Wait until there is little sound in hand and a place for a later clause of the turn."""
        yield max(turn.playhead.slack_s(self.clock.now) - self.ahead_s, 0.0)
        while self.admission.judge(self.scheduler.load(self.clock.now), now=self.clock.now, goes_on=True).short:
            yield 0.02

    def _first_of_line(self) -> Turn:
        return min(self.waiting, key=lambda turn: (-turn.priority, turn.at))

    def _speak(self, turn: Turn, tokens: int) -> Process:
        now = self.clock.now
        rendering = self.scheduler.open(self.voice, turn.playhead, now=now)
        yield self.chance.uniform(0.005, 0.012) + 0.004  # text front end and prefill
        while len(rendering.tokens) < tokens:
            yield from self._draw(rendering, tokens)
            while len(rendering.tokens) < tokens and self.scheduler.missing(rendering) <= 0:
                if self._waits_for_longer_first_chunk(rendering):
                    break
                yield from self._chunk(turn, rendering, final=False)
        while rendering.sounded < tokens:
            yield from self._chunk(turn, rendering, final=self.scheduler.is_last(rendering))
        self.scheduler.close(rendering)
        self.admission.departed(self.clock.now, tokens * SOUND_S)

    def _draw(self, rendering: Rendering, tokens: int) -> Process:
        """Draw the ids that the clause's next chunk lacks."""
        count = min(max(self.scheduler.missing(rendering), 1), tokens - len(rendering.tokens))
        self.drawing += 1
        yield count * (0.0008 + 0.0018 * min(self.drawing, 128) / 128) * self.device.slower
        self.drawing -= 1
        rendering.tokens += [1] * count

    def _waits_for_longer_first_chunk(self, rendering: Rendering) -> bool:
        hops = self.scheduler.first_hops(rendering.voice)
        if rendering.sounded or rendering.first_hop == hops[-1]:
            return False
        now = self.clock.now
        place = self.admission.first_chunk(
            self.scheduler.load(now),
            [hop * SOUND_S - HELD_BACK_S for hop in hops],
            slack_s=rendering.playhead.slack_s(now),
        )
        rendering.first_hop = max(rendering.first_hop, hops[place])
        return self.scheduler.missing(rendering) > 0

    def _chunk(self, turn: Turn, rendering: Rendering, *, final: bool) -> Process:
        made, begins, before = Event(), not rendering.sounded, rendering.sounded
        self.scheduler.submit(rendering, final=final, now=self.clock.now, deliver=lambda _: self.clock.happen(made))
        self.clock.happen(self._wake)
        yield made
        sound_s = (rendering.sounded - before) * SOUND_S - HELD_BACK_S * (begins - final)
        self.sound_s += sound_s
        turn.hear(sound_s, self.clock.now)

    # -- the device, as in ``WaveWorker``

    def _work(self) -> Process:
        while True:
            self.scheduler.sweep()
            jobs = [job for job in self.scheduler.jobs if job not in self._running]
            batch = self.scheduler.next_batch(jobs, now=self.clock.now, running=self._running) if jobs else None
            if batch is not None:
                yield from self._execute(batch)
            elif self._given is not None:
                yield from self._hand_out()
            elif jobs:
                yield 0.001
            else:
                self._wake = Event()
                yield self._wake

    @property
    def _running(self) -> Sequence[Job]:
        return self._given.jobs if self._given is not None else ()

    def _execute(self, batch: Batch) -> Process:
        stages = 5 if batch.shape == "chunk" else 10
        whole_s = self.device.batch_s(batch) * (BESIDE if self.drawing else 1.0)
        self.admission.observe(
            "first" if batch.shape == "chunk" and batch.length < CHUNK else batch.shape, len(batch.jobs), whole_s
        )
        yield from self._hand_out()
        yield host_s(self.chance)
        if not batch.staged:
            yield whole_s
            self._given = batch
            return
        for stage in range(stages):
            yield whole_s / stages
            if stage < stages - 1:
                again = False
                while True:
                    self.scheduler.sweep()
                    left = [job for job in batch.jobs if job.rendering in self.scheduler.renderings]
                    urgent = self.scheduler.urgent(left, now=self.clock.now, again=again, ending=self._running)
                    running = [*left, *self._running]
                    between = urgent and self.scheduler.next_batch(urgent, now=self.clock.now, running=running)
                    if not between:
                        break
                    yield from self._execute(between)
                    again = True
                yield from self._hand_out()
        self._given = batch

    def _hand_out(self) -> Process:
        batch, self._given = self._given, None
        if batch is None:
            return
        yield 0.0003
        for job, row in zip(batch.jobs, batch.rows, strict=True):
            if self.scheduler.advance(job, row):
                self.scheduler.done(job)
                job.deliver(None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of the turns of a simulation."""

    turns: Sequence[Turn]
    sound_s: float
    """Seconds of sound made in a second."""
    recomputed: int
    short: Counter[Resource | None]

    @property
    def heard(self) -> Sequence[Turn]:
        return [turn for turn in self.turns if turn.first_s is not None]

    @property
    def refused(self) -> int:
        return sum(turn.refused for turn in self.turns)

    @property
    def with_a_gap(self) -> int:
        return sum(any(gap > 0.01 for gap in turn.gaps) for turn in self.heard)

    def first_ms(self, share: float) -> float:
        """Return a quantile of the first sounds, milliseconds."""
        firsts = sorted(turn.first_s or 0.0 for turn in self.heard)
        return 1e3 * firsts[min(int(share * len(firsts)), len(firsts) - 1)]

    def __str__(self) -> str:
        return (
            f"turns {len(self.turns)} refused {self.refused} with a gap {self.with_a_gap} "
            f"first ms {self.first_ms(0.5):.0f}/{self.first_ms(0.95):.0f} sound {self.sound_s:.0f} s/s "
            f"recomputed {self.recomputed} unfinished {sum(not turn.done for turn in self.heard)} {dict(self.short)}"
        )


def capacity(*, mean_s: float, clients: int = 128, seconds: float = 15.0, **options: Any) -> float:
    """Return the seconds of sound that a closed loop of clients gets in a second."""
    simulation = Simulation(**options)
    simulation.closed_loop(clients, mean_s=mean_s)
    simulation.clock.run(5.0)
    before = simulation.sound_s
    simulation.clock.run(5.0 + seconds)
    return (simulation.sound_s - before) / seconds


def arrivals(rate: float, *, mean_s: float = 8.0, seconds: float = 20.0, **options: Any) -> Outcome:
    """Simulate ``rate`` answers a second that arrive at random for ``seconds``, and their ends."""
    simulation = Simulation(**options)
    simulation.poisson(rate, seconds, mean_s=mean_s)
    simulation.clock.run(seconds / 4)
    before = simulation.sound_s
    simulation.clock.run(seconds)
    sound_s = (simulation.sound_s - before) / (0.75 * seconds)
    simulation.clock.run(seconds + 40)
    return simulation.outcome(sound_s)
