"""A queue of jobs for a few worker threads. The most urgent job comes first: silence is worse than less sound in hand.

``take`` returns jobs in this order. Slack is the number of seconds that ``Hearing`` gives at that moment.

1. jobs of a call that speaks and has less than ``guard_s`` in hand, because a gap is worse than a later start;
2. first sounds that a caller waits for, short ones first; 100 ms of waiting count as much as 100 ms less work, and as
much as two levels of priority;
3. the rest by slack. Utterances that are made ahead (``ahead``) come last, together with sound that may never be heard
(``tentative``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tts_engine.synthesizer import Hearing

_NEVER_S = 1e6
"""Slack of sound that may never be heard, seconds."""


@dataclass(slots=True, eq=False)
class SlackJob:
    """One step of work. A worker thread calls ``run`` with the job itself."""

    run: Callable[[SlackJob], None]
    drop: Callable[[], None]
    """Called instead of ``run`` if the queue is closed before a thread took the job."""
    playhead: Hearing
    cost_s: float
    """Expected work, seconds."""
    queued_at: float = field(default=0.0)
    """Monotonic second at which the job was queued."""


class SlackQueue:
    """The queue. All threads share it. ``clock`` returns monotonic seconds."""

    def __init__(self, *, size: int, guard_s: float, clock: Callable[[], float]) -> None:
        """
        Args:
            size: how many jobs may wait at once.
            guard_s: a speaking call with fewer seconds of sound in hand goes before first sounds.
        """
        self._size = size
        self._guard_s = guard_s
        self._clock = clock
        self._jobs: list[SlackJob] = []
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def short_of_sound(self, seconds: float) -> int:
        """Return how many waiting jobs have a slack of ``seconds`` or less."""
        with self._changed:
            now = self._clock()
            return sum(_slack_s(job.playhead, now) <= seconds for job in self._jobs)

    def put(self, job: SlackJob, *, force: bool = False) -> bool:
        """Queue a job. False: the queue is full. ``force`` ignores the limit, for a next step, which must not be
        lost."""
        with self._changed:
            if self._closed or (len(self._jobs) >= self._size and not force):
                return False
            job.queued_at = self._clock()
            self._jobs.append(job)
            self._changed.notify()
            return True

    def discard(self, job: SlackJob) -> bool:
        """Take a job back. False: a worker already has it."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def take(self) -> SlackJob | None:
        """Wait for a job and return the most urgent one. None: the queue is closed."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            # This is a scan, not a heap, because slack changes all the time and the list has a few hundred entries at
            # most.
            now = self._clock()
            at = min(range(len(self._jobs)), key=lambda i: self._urgency(self._jobs[i], now))
            return self._jobs.pop(at)

    def close(self) -> None:
        """Wake all workers and drop the jobs that still wait."""
        with self._changed:
            self._closed = True
            dropped, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in dropped:
            job.drop()

    def _urgency(self, job: SlackJob, now: float) -> tuple[int, float]:
        slack_s = _slack_s(job.playhead, now)
        if job.playhead.speaks and slack_s < self._guard_s:
            return 0, slack_s
        if slack_s <= 0:
            return 1, job.queued_at + job.cost_s - job.playhead.head_start_s
        return 2, slack_s


def _slack_s(playhead: Hearing, now: float) -> float:
    return _NEVER_S if playhead.tentative else playhead.slack_s(now)
