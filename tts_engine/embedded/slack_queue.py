"""Jobs for a few worker threads, the most urgent first: who hears silence before who has sound in hand.

Order at every take (slack is what ``Playhead`` says at that moment):

1. a call that speaks and has less than ``guard_s`` in hand: a gap is worse than a later start;
2. first sound somebody waits for, the short before the long, but each 100 ms of waiting outweighs 100 ms of work;
3. the rest by slack; utterances nobody waits for (``ahead``) come last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tts_engine.synthesizer import Playhead


@dataclass(slots=True, eq=False)
class Job:
    """One step of work. ``run`` is called in a worker thread."""

    run: Callable[[], None]
    drop: Callable[[], None]
    """Called instead of ``run`` when the queue is closed first."""
    playhead: Playhead
    cost_s: float
    """Expected seconds of work."""
    queued_at: float = field(default=0.0)
    """Monotonic second."""


class SlackQueue:
    """Shared by all threads. ``clock`` is monotonic seconds."""

    def __init__(self, *, size: int, guard_s: float, clock: Callable[[], float]) -> None:
        """
        Args:
            size: jobs that may wait at once.
            guard_s: seconds in hand under which a speaking call goes before first sounds.
        """
        self._size = size
        self._guard_s = guard_s
        self._clock = clock
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def short_of_sound(self, seconds: float) -> int:
        """Jobs that wait whose slack is ``seconds`` or less."""
        with self._changed:
            now = self._clock()
            return sum(job.playhead.slack_s(now) <= seconds for job in self._jobs)

    def put(self, job: Job, *, force: bool = False) -> bool:
        """Queue a job; False when full. ``force`` is for the next step of what has begun, which must not be lost."""
        with self._changed:
            if self._closed or (len(self._jobs) >= self._size and not force):
                return False
            job.queued_at = self._clock()
            self._jobs.append(job)
            self._changed.notify()
            return True

    def discard(self, job: Job) -> bool:
        """Take a job back; False when a worker already has it."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def take(self) -> Job | None:
        """The most urgent job; waits for one. None: closed."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            # A scan and not a heap: slack changes with every millisecond, and the list is a few hundred long at most.
            now = self._clock()
            at = min(range(len(self._jobs)), key=lambda i: self._urgency(self._jobs[i], now))
            return self._jobs.pop(at)

    def close(self) -> None:
        """Wake all workers and drop what still waits."""
        with self._changed:
            self._closed = True
            dropped, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in dropped:
            job.drop()

    def _urgency(self, job: Job, now: float) -> tuple[int, float]:
        slack_s = job.playhead.slack_s(now)
        if job.playhead.delivered_s and slack_s < self._guard_s:
            return 0, slack_s
        if slack_s <= 0:
            return 1, job.queued_at + job.cost_s
        return 2, slack_s
