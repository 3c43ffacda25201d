"""Writes the recordings of all calls in a thread of their own. A disk may block whoever writes to it, for seconds or
for good; here it blocks recordings only.

A recording whose oldest work has waited for ``hang_s`` is given up, which also bounds what waits.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from gateway.uplink.recorder import Recorder

log = logging.getLogger(__name__)

_CLOSE_S = 5.0  # at the end of the server, for what still has to be written

Act = Callable[[], None]


class RecordingThread:
    """The thread. It begins with the first recording.

    Args:
        hang_s: for so long the disk may leave a recording waiting.
        clock: monotonic seconds.
    """

    def __init__(self, *, hang_s: float, clock: Callable[[], float]) -> None:
        self.hang_s = hang_s
        self.clock = clock
        self._queue: SimpleQueue[RecordingQueue | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def work_on(self, recording: RecordingQueue) -> None:
        """Let the thread do what waits longest in a recording's queue."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="recordings", daemon=True)
            self._thread.start()
        self._queue.put(recording)

    def _run(self) -> None:
        while (recording := self._queue.get()) is not None:
            recording.work()

    def close(self) -> None:
        """Complete what waits, unless the disk hangs, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=_CLOSE_S)
            if self._thread.is_alive():
                log.error("the disk of the recordings hangs; those under way are not complete")


class RecordingQueue:
    """What is to be done with one call's recording, in order. The uplink's thread fills it, the ``RecordingThread``
    empties it. It holds no sound of a recording that was given up, however long the disk hangs."""

    def __init__(self, thread: RecordingThread) -> None:
        self._thread = thread
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, Sequence[Act]]] = deque()  # the first is being worked on
        self._working = False
        self._error: OSError | None = None

    def put(self, acts: Sequence[Act]) -> None:
        """Queue what is to be done, unless something has failed already."""
        if self._error is None:
            self._put(acts)

    def _put(self, acts: Sequence[Act]) -> None:
        with self._lock:
            self._waiting.append((self._thread.clock(), acts))
        self._thread.work_on(self)

    @property
    def trouble(self) -> OSError | None:
        """Why the recording has to be given up. None: nothing is wrong."""
        thread = self._thread
        with self._lock:
            if self._waiting and thread.clock() - self._waiting[0][0] > thread.hang_s:
                return TimeoutError(errno.ETIMEDOUT, f"the disk has not answered for {thread.hang_s:g} s")
            return self._error

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def give_up(self, recorder: Recorder) -> None:
        """Forget what waits, and let go of the file."""
        with self._lock:
            self._waiting.clear()
            has_file = recorder.begun or self._working
        if has_file:
            self._put([recorder.give_up])

    def work(self) -> None:
        """Do what waits longest; in the ``RecordingThread``."""
        with self._lock:
            first = self._waiting[0] if self._waiting else None
            self._working = first is not None
        if first is None:
            return  # it was given up
        try:
            for act in first[1]:
                act()
        except OSError as exc:
            self._error = exc
        except Exception:  # after a bug in one recording, the others must still be written
            log.exception("recording")
            self._error = OSError("internal error")
        with self._lock:
            self._working = False
            if self._error is not None:
                self._waiting.clear()
            elif self._waiting and self._waiting[0] is first:
                self._waiting.popleft()
