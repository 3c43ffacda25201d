"""The one supervisor of a process: it owns every long-lived task and thread, and watches its end.

An end that the owner did not ask for is logged and counted. A task or thread is then restarted after a pause, which
doubles with each failure in a row. ``Need`` says what else follows. ``states`` shows all, for ``/v1/health`` and
the metrics. Short tasks, which belong to a call, a connection or a request and are awaited by it, do not come here.
Their threads are here (``SteadyThreads``), because they must outlive a shortage of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

log = logging.getLogger(__name__)

FAILURES = 5
"""Failures in a row after which calls are refused, if they need the task."""
WELL_S = 10.0
"""A run of this length ends a row of failures."""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""First and longest pause before a restart."""
_OF_LOOP = 8
"""Most threads of a loop's own pool. Its work is seldom and waits for a disk or a name server."""
_AT_ONCE_S = 1.0  # a task whose first run returns sooner has nothing to do


class Need(StrEnum):
    """The part of the server that depends on a task or thread."""

    PROCESS = "process"
    """Its end ends the process."""
    CALLS = "calls"
    """After ``FAILURES`` in a row the process is not ready for calls."""
    OTHER = "other"
    """Nothing that a caller hears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedState:
    """The state of a supervised task or thread."""

    name: str
    need: Need
    running: bool
    restarts: int
    failures_in_a_row: int
    failing: bool
    """True after ``FAILURES`` in a row, until a run lasts ``WELL_S``."""


class Supervised(ABC):
    """A supervised task or thread."""

    def __init__(self, supervisor: Supervisor, name: str, need: Need, pause_s: float) -> None:
        self.name = name
        self.need = need
        self._supervisor = supervisor
        self._pause_s = pause_s
        self._restarts = self._failures = 0
        self._begun: float | None = None
        self.over = False

    @property
    def state(self) -> SupervisedState:
        """The present state."""
        well = self._begun is not None and self._now() - self._begun >= WELL_S
        failures = 0 if well else self._failures
        return SupervisedState(
            name=self.name,
            need=self.need,
            running=self._begun is not None,
            restarts=self._restarts,
            failures_in_a_row=failures,
            failing=failures >= FAILURES,
        )

    def _now(self) -> float:
        return time.monotonic()

    @abstractmethod
    def cancel(self) -> None:
        """End it, as its owner."""

    def _starts(self) -> None:
        self._begun = self._now()

    def _ended(self, error: BaseException | None) -> float:
        """Note an end that no one asked for. Return the pause before the restart, seconds."""
        begun, self._begun = self._begun, None
        if begun is not None and self._now() - begun >= WELL_S:
            self._failures = 0
        pause_s = min(self._pause_s * 2.0**self._failures, LONGEST_PAUSE_S)
        self._failures += 1
        extra = {"task": self.name, "failures": self._failures}
        if self.need is Need.PROCESS:
            log.critical("background task ended, and the process with it", extra=extra, exc_info=error)
            self._supervisor.end_process(self.name)
        else:
            log.error("background task ended, restarting", extra={**extra, "next_try_s": pause_s}, exc_info=error)
        self._restarts += 1
        self._supervisor.restarts[self.name] += 1
        return pause_s

    def _over(self) -> None:
        self._begun = None
        self._supervisor.forget(self)


class SupervisedTask(Supervised):
    """A supervised task. Make it with ``Supervisor.task``."""

    def __init__(
        self, supervisor: Supervisor, name: str, work: Callable[[], Awaitable[None]], need: Need, pause_s: float
    ) -> None:
        super().__init__(supervisor, name, need, pause_s)
        self._work = work
        self._now = asyncio.get_running_loop().time  # type: ignore[method-assign]
        self.task = asyncio.create_task(self._keep(), name=f"supervisor of {name}")
        self.task.add_done_callback(lambda _: self._over())

    async def _keep(self) -> None:
        begun, first = self._now(), True
        while True:
            self._starts()
            # The work has a task of its own, so that a cancellation from inside is told from the owner's.
            run = asyncio.create_task(_awaited(self._work), name=self.name)
            try:
                await asyncio.wait({run})
            finally:
                if not run.done():
                    run.cancel()
                    await asyncio.wait({run})
                elif not run.cancelled():
                    run.exception()  # its owner has ended it at the same time, so no one else asks for it
            error = asyncio.CancelledError() if run.cancelled() else run.exception()
            if error is None and first and self._now() - begun < _AT_ONCE_S:
                return
            first = False
            pause_s = self._ended(error)
            if self.need is Need.PROCESS:
                return
            await asyncio.sleep(pause_s)

    def cancel(self) -> None:
        self.task.cancel()

    async def aclose(self) -> None:
        """End it, and wait for its end."""
        self.cancel()
        await asyncio.wait({self.task})


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


class SupervisedThread(Supervised):
    """A supervised thread. Make it with ``Supervisor.thread``."""

    def __init__(self, supervisor: Supervisor, name: str, work: Callable[[], None], need: Need, pause_s: float) -> None:
        super().__init__(supervisor, name, need, pause_s)
        self._work = work
        self._cancelled = threading.Event()
        self.thread = threading.Thread(target=self._keep, name=name, daemon=True)
        self.thread.start()

    def _keep(self) -> None:
        try:
            while not self._cancelled.is_set():
                self._starts()
                try:
                    self._work()
                    return  # its owner told it to
                except BaseException as error:  # SystemExit and the like too: no one else would see the thread end
                    pause_s = self._ended(error)
                if self.need is Need.PROCESS:
                    return
                self._cancelled.wait(pause_s)
        finally:
            self._over()

    def cancel(self) -> None:
        """Do not restart it. ``work`` must be told to return by its owner."""
        self._cancelled.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread after ``work`` was told to return. Return False if it still runs."""
        self.cancel()
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """True while the thread runs or waits for its restart."""
        return self.thread.is_alive()


class Supervisor:
    """All supervised tasks and threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Supervised] = []
        self.restarts: Counter[str] = Counter()
        """Restarts by name, including those of tasks that are over."""
        self.on_fatal: Callable[[str], None] | None = None
        """Ends the process. Gets the name of the task that ended; called on any thread. None: it is only logged."""

    def task(
        self, name: str, work: Callable[[], Awaitable[None]], *, need: Need = Need.OTHER, pause_s: float = PAUSE_S
    ) -> SupervisedTask:
        """Run ``work`` in a task, and restart it whenever it ends, until the owner cancels it.

        If the first run returns within a second, ``work`` has nothing to do, and the task is over.

        Args:
            pause_s: the pause before the first restart, seconds.
        """
        made = SupervisedTask(self, name, work, need, pause_s)
        self._add(made)
        return made

    def thread(
        self, name: str, work: Callable[[], None], *, need: Need = Need.OTHER, pause_s: float = PAUSE_S
    ) -> SupervisedThread:
        """Run ``work`` in a daemon thread, and restart it whenever it raises. ``work`` returns only if its owner told
        it to."""
        made = SupervisedThread(self, name, work, need, pause_s)
        self._add(made)
        return made

    def states(self) -> Sequence[SupervisedState]:
        """Return the state of each task and thread, in the order of their names."""
        with self._lock:
            return sorted((each.state for each in self._all), key=lambda state: state.name)

    def why_not_ready(self) -> str:
        """Return the name of a task that calls need and that keeps failing. Empty: there is none."""
        return next((state.name for state in self.states() if state.failing and state.need is Need.CALLS), "")

    def not_started(self, name: str) -> None:
        """Count a process that could not be started, or had to be started again."""
        self.restarts[name] += 1

    def end_process(self, name: str) -> None:
        """End the process, because the task ``name`` has ended."""
        if self.on_fatal is not None:
            self.on_fatal(name)

    def _add(self, made: Supervised) -> None:
        with self._lock:
            if not made.over:  # a thread may have ended meanwhile
                self._all.append(made)

    def forget(self, ended: Supervised) -> None:
        """Drop a task or thread that is over."""
        with self._lock, contextlib.suppress(ValueError):
            ended.over = True
            self._all.remove(ended)


SUPERVISOR = Supervisor()
"""The supervisor of this process."""


class SteadyThreads(ThreadPoolExecutor):
    """A pool that starts its first thread at once. Python's own starts a thread with the first work, and refuses work
    if it cannot start one more, also when others are idle.

    Raises:
        RuntimeError: the first thread cannot be started.
    """

    def __init__(self, threads: int = _OF_LOOP, name: str = "common", **more: Any) -> None:
        super().__init__(threads, thread_name_prefix=name, **more)
        self.submit(_nothing)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def _nothing() -> None: ...


async def start_threads() -> None:
    """Start the common threads of the running loop, before any work needs them. libuv ends the whole process if it
    cannot start its threads with the first look-up of a name, so a name is looked up that every system knows itself."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(SteadyThreads())
    with contextlib.suppress(OSError):
        await loop.getaddrinfo("localhost", 0)
