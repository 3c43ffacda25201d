"""Runs a real ``talkspurt serve`` as a child process, and reads its figures from the kernel. Linux only."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tts_engine.service.child import die_with

_READY = re.compile(r"is ready: https?://([^\s\"/]+)/?\"?\}?\s*$")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_S = 120.0
_STOP_S = 15.0


class ServerFailed(Exception):
    """The server did not start, or has ended."""


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """The server's address and its processes."""

    address: str
    """``host:port``."""
    pid: int
    """The gateway's process id. 0: we did not start the server, and know nothing about its processes."""

    def gateway_pids(self) -> list[int]:
        """Return the gateway's processes: one, or a supervisor and its workers."""
        return [self.pid, *(pid for pid in _descendants(self.pid) if _is_worker(pid))] if self.pid else []

    def engine_pids(self) -> list[int]:
        """Return all other descendants of the gateway: the engine's processes."""
        return [pid for pid in _descendants(self.pid) if not _is_worker(pid)] if self.pid else []

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor time in seconds that the gateway and the engine have used so far."""
        return sum(map(_cpu_s, self.gateway_pids())), sum(map(_cpu_s, self.engine_pids()))

    def rss_mb(self) -> float:
        """Return the resident memory of all its processes, MB (1e6 bytes)."""
        return sum(map(_rss_bytes, [*self.gateway_pids(), *self.engine_pids()])) / 1e6

    def gateway_rss_mb(self) -> float:
        """Return the resident memory of the gateway alone, MB (1e6 bytes)."""
        return _rss_bytes(self.pid) / 1e6

    def pin(self, *, gateway: set[int], engine: set[int]) -> None:
        """Bind the processes, with all their threads, to cores. Several workers are not pinned, because there is no
        core for each."""
        if len(self.gateway_pids()) > 1:
            return
        for pid, cores in [(self.pid, gateway), *((pid, engine) for pid in self.engine_pids())]:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)


def dies_with_us() -> Callable[[], None]:
    """Return a ``preexec_fn`` that has the kernel kill the child when this process is gone, however it ended. It holds
    for whichever program runs in the child. Start the child from the main thread."""
    return partial(die_with, os.getpid())


def overrides(*, route: str, calls: int, **more: str) -> dict[str, str]:
    """Return environment variables that prepare any configuration for a load: a route for a manager that dials in, and
    enough calls.

    ``more`` are further keys; two underscores join sections: ``engine__kind="tone"``.
    """
    keys = {
        "server__host": "127.0.0.1",
        "server__drain_s": "1",
        f"routes__{route}": "{}",
        "limits__calls": str(calls + 10),
        "limits__connections_per_address": str(calls + 100),
        "carriers__twilio__verify": "false",
        "log__level": "warning",
        **more,
    }
    return {f"TALKSPURT__{key.upper()}": value for key, value in keys.items()}


@asynccontextmanager
async def serving(
    config: Path | None,
    environment: Mapping[str, str],
    *,
    program: Sequence[str] = ("-m", "talkspurt"),
    start_s: float = _START_S,
) -> AsyncIterator[ServerUnderTest]:
    """Run ``talkspurt serve`` on a free port until the block is left.

    Args:
        environment: further variables. ``PYTHONPATH`` and ``PYTHONSAFEPATH`` make it the server of another checkout.
        program: the program that Python runs; it takes the arguments of ``talkspurt``.
        start_s: longest time until the server is ready, seconds. A GPU engine compiles at its first start.

    Raises:
        ServerFailed: the server does not start, or ends by itself.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "serve", "--port", "0", *(["-c", str(config)] if config else [])),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
        preexec_fn=dies_with_us(),
    )
    try:
        try:
            address = await asyncio.wait_for(_ready(process), start_s)
        except TimeoutError as exc:
            raise ServerFailed(f"the server was not ready within {start_s:g} s") from exc
        yield ServerUnderTest(address, process.pid)
        if process.returncode is not None:
            raise ServerFailed(f"the server ended by itself with code {process.returncode}")
    finally:
        await _stop(process)


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if found := _READY.search(line.decode(errors="replace")):
            return found.group(1)
    raise ServerFailed(f"the server ended with code {await process.wait()} before it was ready; see above")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.communicate(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


# --- /proc ---


def machine_cpu_s() -> float:
    """Return the processor time in seconds that everything on this machine has used so far, over all cores."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _first_line("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _first_line(path: str) -> str:
    with open(path) as file:
        return file.readline()


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third one (state) on. Empty: the process is gone."""
    try:
        # The second field is the name in parentheses, which may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _is_worker(pid: int) -> bool:
    try:
        return b"talkspurt.workers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _cpu_s(pid: int) -> float:
    """Return the user and system time of all threads of a process, seconds."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def _rss_bytes(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
