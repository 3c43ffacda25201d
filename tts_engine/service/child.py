"""A child process, from both sides. The parent starts it, watches it, restarts it and ends it. The child ties its life
and its priority to the parent. The module knows neither speech nor recognition: the engine and the embedded recogniser
are both such children.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tts_engine.errors import Unavailable
from tts_engine.supervision import SUPERVISOR, Need, SupervisedTask

log = logging.getLogger(__name__)

_MAX_BACKOFF_FACTOR = 32
_STARTS = 3
"""Number of processes that a first start tries, if a signal ends each before it serves."""
_DESCRIPTORS = 8
"""Upper bound of the files that a check of a child, or the start of one, opens at once."""
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that this process gets when the thread that started it ends."""


class _Killed(Unavailable):
    """A signal ended the process before it served."""


# -- the parent's side


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTimes:
    """Time limits of a child, seconds."""

    start_s: float
    """The time from the child's start until it serves. After that it is killed."""
    hang_s: float
    """The time for an answer while the child serves. After that it is killed. The child is asked again after each
    quarter of this time."""
    end_s: float
    """The time from SIGTERM until the child is killed."""
    restart_backoff_s: float
    """The pause before the child is restarted. It doubles with each failure in a row, up to 32 times this pause."""


class ChildProcess(ABC):
    """A child process that is restarted when it ends or hangs.

    Start it from the main thread, because the kernel ends the child together with the thread that started it.
    """

    def __init__(self, name: str, module: str, *, times: ChildTimes) -> None:
        """
        Args:
            name: the child's name, for log and errors.
            module: the module that ``python -m`` runs in the child. It gets two arguments, the file that holds
                ``settings`` and the parent's process id, and must begin with ``die_with``.
        """
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix="talkspurt-"))  # mode 0700
        """A folder that only the parent and the child can read. ``aclose`` removes it."""
        self.restarts = 0
        self.ready = False
        """True while a process serves."""
        self._module, self._times = module, times
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: SupervisedTask | None = None
        self._unasked = False
        """True while this process cannot ask the child; that is logged once."""

    @abstractmethod
    def settings(self) -> str:
        """Return the child's settings, as JSON."""

    @abstractmethod
    async def warm(self) -> None:
        """Return when the process serves, and for no other reason. If the process ends, this is cancelled."""

    @abstractmethod
    async def answers(self) -> bool:
        """Return whether a process that serves is still alive, within ``hang_s``. An exception is no verdict."""

    @property
    def pid(self) -> int | None:
        """Process id of the running child. None: no child runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self, *, is_needed: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Start the child and wait until it serves. If a signal ends its process before that, as the kernel does when
        memory is short, another process is started. A process that ends by itself has said what it lacks, and none
        follows.

        Args:
            is_needed: asked when signals have ended ``_STARTS`` processes. False: return without a child, and start
                further processes in the background. None: it is needed.

        Raises:
            Unavailable: the child could not be started, ended, or did not serve within ``start_s``. Nothing is left
                behind.
        """
        try:
            await self._first(is_needed)
        except BaseException:
            await self.aclose()
            raise
        self.begin()

    async def _first(self, is_needed: Callable[[], Awaitable[bool]] | None) -> None:
        pause_s = self._times.restart_backoff_s
        for left in reversed(range(_STARTS)):
            try:
                await self._spawn()
            except _Killed as exc:
                log.error("child process did not start", extra={"child": self.name, "error": str(exc)})
                if not left and (is_needed is None or await is_needed()):
                    raise
                await asyncio.sleep(pause_s)
                pause_s *= 2
            else:
                return

    def begin(self) -> None:
        """Start the child without waiting for it, instead of ``start``. A child that does not come up is started
        again."""
        self._supervisor = SUPERVISOR.task(f"{self.name} process", self._supervise, need=Need.CALLS)

    async def aclose(self) -> None:
        """End the child, and kill it if that takes longer than ``end_s``. Idempotent."""
        if self._supervisor is not None:
            await self._supervisor.aclose()
        self.ready = False
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(self._times.end_s):
                    await process.wait()
            except TimeoutError:
                log.error("child process did not end, killed", extra={"child": self.name, "pid": process.pid})
            finally:
                await _kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _spawn(self) -> None:
        """Start a process and wait until it serves. Raises Unavailable. A process that does not serve is killed."""
        if not _can_open_files():
            raise Unavailable(f"{self.name} process cannot be started: this process can open no more files")
        try:
            process = await self._created()
        except OSError as exc:
            raise Unavailable(f"{self.name} process cannot be started: {exc}") from exc
        self._process = process
        ended = asyncio.create_task(process.wait())
        warm = asyncio.create_task(self.warm())
        try:
            async with asyncio.timeout(self._times.start_s):
                await asyncio.wait({ended, warm}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await _kill(process)
            raise Unavailable(f"{self.name} was not warm within {self._times.start_s:g} s (start_s)") from None
        finally:
            ended.cancel()
            warm.cancel()
            await asyncio.wait({ended, warm})
        if process.returncode is not None:
            kind = _Killed if process.returncode < 0 else Unavailable
            raise kind(f"{self.name} process ended with code {process.returncode} before it was warm")
        if warm.cancelled() or warm.exception() is not None:
            await _kill(process)
            await warm  # raises
        self.ready = True

    async def _created(self) -> asyncio.subprocess.Process:
        file = self.folder / "settings.json"
        file.write_text(self.settings())
        # The child imports from where we did: from an installed package, or from a source tree that a tool put into
        # sys.path.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        command = (sys.executable, "-m", self._module, str(file), str(os.getpid()))
        # The child has a session of its own: Ctrl-C in the gateway's terminal reaches only the gateway, which then ends
        # the child.
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, env=env, start_new_session=True
        )

    async def _supervise(self) -> None:
        first_s = backoff_s = self._times.restart_backoff_s
        longest_s = first_s * _MAX_BACKOFF_FACTOR
        while True:
            begun = time.monotonic()
            try:
                if not self.ready:
                    await self._spawn()
                    log.log(
                        logging.WARNING if self.restarts else logging.INFO,
                        "child process serves",
                        extra={"child": self.name, "pid": self.pid, "restarts": self.restarts},
                    )
                await self._until_it_ends()
                self.ready = False
                if time.monotonic() - begun > longest_s:
                    backoff_s = first_s  # the child ran well, so this failure begins a new row
            except Unavailable as exc:
                extra = {"child": self.name, "error": str(exc), "next_try_s": backoff_s}
                log.error("child process did not start", extra=extra)
            except Exception:  # the child must be restarted whatever fails here
                log.exception("child process could not be watched", extra={"child": self.name, "next_try_s": backoff_s})
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, longest_s)
            self.restarts += 1
            SUPERVISOR.not_started(f"{self.name} process")

    async def _until_it_ends(self) -> None:
        process = self._process
        assert process is not None
        ended, asked = asyncio.create_task(process.wait()), asyncio.create_task(self._until_it_hangs())
        try:
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                log.error("child process does not answer, killed", extra={"child": self.name, "pid": process.pid})
                await _kill(process)
        finally:
            ended.cancel()
            asked.cancel()
            await asyncio.wait({ended, asked})
        extra = {"child": self.name, "pid": process.pid, "code": process.returncode}
        log.error("child process ended", extra=extra)

    async def _until_it_hangs(self) -> None:
        while True:
            await asyncio.sleep(self._times.hang_s / 4)
            if await self._hangs():
                return

    async def _hangs(self) -> bool:
        """Ask the child once. Return True only if the child itself did not answer.

        A connection to the child needs a file descriptor of this process. If we can open none before, during or after
        the question, the child may be healthy.
        """
        if not _can_open_files():
            self._cannot_ask("this process can open no more files")
            return False
        asking, starved = asyncio.ensure_future(self.answers()), False
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=self._times.hang_s / 20)
                starved = starved or not _can_open_files()
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        if asking.cancelled() or (error := asking.exception()) is not None:
            self._cannot_ask("cancelled" if asking.cancelled() else f"{type(error).__name__}: {error}")
            return False
        answered = asking.result()
        if not answered and starved:
            self._cannot_ask("this process can open no more files")
            return False
        self._unasked = False
        return not answered

    def _cannot_ask(self, why: str) -> None:
        if not self._unasked:
            log.error("child process cannot be asked for its health", extra={"child": self.name, "error": why})
        self._unasked = True


def _can_open_files() -> bool:
    """Return whether this process can open a few more files now."""
    opened: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:
            pass
        await process.wait()


# -- the child's side


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent is gone, however the parent ended. Only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent died before the call above
        sys.exit(1)


def yield_cpu(nice: int) -> None:
    """Take less of a busy CPU than the parent does, by ``nice``. 0: as much as the parent.

    A process with its own session has its own autogroup (sched(7)). ``nice`` counts only inside an autogroup; between
    autogroups the value of the group counts. So we set both.
    """
    total = os.nice(nice)
    try:
        Path("/proc/self/autogroup").write_text(str(total))
    except OSError:
        pass  # a kernel without autogroups has only the process's own value
