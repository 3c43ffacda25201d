"""The thread that writes the recordings of all calls. A disk may block a writer for seconds or for good; here that
blocks recordings only.

A recording is given up when its oldest work has waited for ``hang_s``, which also bounds its queue.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from tts_engine.supervision import SUPERVISOR, SupervisedThread

log = logging.getLogger(__name__)

_CLOSE_S = 5.0  # longest wait at shutdown for the rest to be written

Act = Callable[[], None]


class Written(Protocol):
    """The file of a recording."""

    @property
    def begun(self) -> bool:
        """True if it exists."""
        ...

    def give_up(self) -> None:
        """Close it after an error."""
        ...


class RecordingThread:
    """The recording thread. It starts with the first recording.

    Args:
        hang_s: longest time that the disk may keep a recording waiting.
        clock: monotonic seconds.
    """

    def __init__(self, *, hang_s: float, clock: Callable[[], float]) -> None:
        self.hang_s = hang_s
        self.clock = clock
        self._queue: SimpleQueue[RecordingQueue | None] = SimpleQueue()
        self._thread: SupervisedThread | None = None

    def work_on(self, recording: RecordingQueue) -> None:
        """Let the thread do the oldest work in a recording's queue."""
        self._queue.put(recording)
        if self._thread is None:
            try:
                self._thread = SUPERVISOR.thread("recordings", self._run)
            except RuntimeError as exc:  # tried again with the next work, until the recording is given up
                log.error("recordings cannot be written", extra={"why": str(exc)})

    def _run(self) -> None:
        while (recording := self._queue.get()) is not None:
            recording.work()

    def close(self) -> None:
        """Complete the waiting work, unless the disk hangs, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            if not self._thread.join(_CLOSE_S):
                log.error("recording disk does not answer; unfinished recordings stay incomplete")


class RecordingQueue:
    """The pending work of one call's recording, in order. The uplink's thread fills it, the ``RecordingThread`` empties
    it. After a recording is given up it holds no audio, however long the disk hangs."""

    def __init__(self, thread: RecordingThread) -> None:
        self._thread = thread
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, Sequence[Act]]] = deque()  # the first entry is being worked on
        self._working = False
        self._error: OSError | None = None
        self._when_lost: Callable[[OSError], None] | None = None

    def put(self, acts: Sequence[Act]) -> None:
        """Queue work, unless an earlier step has failed."""
        if self._error is None:
            self._put(acts)

    def _put(self, acts: Sequence[Act]) -> None:
        with self._lock:
            self._waiting.append((self._thread.clock(), acts))
        self._thread.work_on(self)

    def end(self, acts: Sequence[Act], when_lost: Callable[[OSError], None]) -> None:
        """Queue the last work of a recording that no one asks for ``trouble`` any more.

        Args:
            when_lost: called once in the ``RecordingThread`` if this or earlier work fails.
        """
        with self._lock:
            self._when_lost = when_lost
        self._put([self._check, *acts])

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    @property
    def trouble(self) -> OSError | None:
        """The reason to give the recording up. None: there is none."""
        thread = self._thread
        with self._lock:
            if self._waiting and thread.clock() - self._waiting[0][0] > thread.hang_s:
                return TimeoutError(errno.ETIMEDOUT, f"the disk has not answered for {thread.hang_s:g} s")
            return self._error

    @property
    def idle(self) -> bool:
        """True if no work waits."""
        return not self._waiting

    def give_up(self, recorder: Written) -> None:
        """Drop the waiting work and close the file."""
        with self._lock:
            self._waiting.clear()
            has_file = recorder.begun or self._working
        if has_file:
            self._put([recorder.give_up])

    def work(self) -> None:
        """Do the oldest work; runs in the ``RecordingThread``."""
        with self._lock:
            first = self._waiting[0] if self._waiting else None
            self._working = first is not None
        if first is None:
            return  # the recording was given up
        try:
            for act in first[1]:
                act()
        except OSError as exc:
            self._error = exc
        except Exception:  # an internal error in one recording must not stop the others
            log.exception("recording failed")
            self._error = OSError("internal error")
        with self._lock:
            self._working = False
            lost, self._when_lost = (self._when_lost, None) if self._error is not None else (None, self._when_lost)
            if self._error is not None:
                self._waiting.clear()
            elif self._waiting and self._waiting[0] is first:
                self._waiting.popleft()
        if lost is not None and self._error is not None:
            lost(self._error)
