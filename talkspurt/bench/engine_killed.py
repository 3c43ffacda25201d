"""Calls in conversation while one of several engines is killed. Measures what callers heard of it, and when the engine
spoke again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from talkspurt.bench.calls import CallLoad, Conversations, LoadedCall
from talkspurt.bench.server_metrics import counted
from talkspurt.bench.server_process import ServerUnderTest
from talkspurt.simulator.figures import summary

_LOOK_S = 0.5
"""Time between two questions to the server about which engines have spoken, seconds."""
_ASK_S = 5.0
_SPOKEN = re.compile(r'^talkspurt_engine_first_chunk_seconds_count\{[^}]*worker="(\d+)"[^}]*\} (\S+)$', re.MULTILINE)


def spoken_by(exposition: str, engines: int) -> list[int]:
    """Return for each of a server's engines the number of turns that its process has begun to speak; 0 without an
    answer."""
    counts = [0] * engines
    for worker, count in _SPOKEN.findall(exposition):
        counts[int(worker)] += int(float(count))
    return counts


def engine_processes(server: ServerUnderTest) -> list[int]:
    """Return the process ids of the engines that the server has started."""
    return [pid for pid in server.engine_pids() if _runs_an_engine(pid)]


def _runs_an_engine(pid: int) -> bool:
    try:
        return b"talkspurt.engines" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@dataclass(slots=True)
class _AtTheKill:
    """A call at the moment of the kill."""

    call: LoadedCall
    speaking: bool
    """True if the caller heard a turn."""
    gaps: int
    """Number of gaps so far."""


@dataclass(slots=True)
class EngineKilled(Conversations):
    """The standard load; ``kill_s`` seconds after its start an engine gets SIGKILL."""

    server: ServerUnderTest
    session: aiohttp.ClientSession
    kill_s: float
    killed_at: float = 0.0
    away: bool = False
    """True if the killed engine was seen not to answer, or to have spoken nothing."""
    used_again_s: float | None = None
    """Seconds from the kill until each engine was seen to have spoken. None: that was not seen."""
    moved: float = 0.0
    """Number of turns that have continued at another engine since the kill."""
    _calls: list[_AtTheKill] = field(default_factory=list)
    _first_packets: int = 0
    _watching: asyncio.Task[None] | None = None

    def start(self, load: CallLoad) -> None:
        Conversations.start(self, load)
        self._watching = asyncio.create_task(self._kill_and_watch(load), name="engine killed")

    async def _kill_and_watch(self, load: CallLoad) -> None:
        await asyncio.sleep(self.kill_s)
        engines = engine_processes(self.server)
        moved = counted(await self._metrics(), "talkspurt_moved_turns_total")
        self._calls = [_AtTheKill(call, call.leg.turn_under_way, len(call.leg.gaps)) for call in load.calls]
        self._first_packets = len(load.first_packets_ms)
        self.killed_at = time.monotonic()
        os.kill(engines[0], signal.SIGKILL)
        while True:
            await asyncio.sleep(_LOOK_S)
            with suppress(aiohttp.ClientError, TimeoutError):
                exposition = await self._metrics()
                self.moved = counted(exposition, "talkspurt_moved_turns_total") - moved
                least = min(spoken_by(exposition, len(engines)))
                self.away = self.away or not least
                if self.away and least and self.used_again_s is None:
                    self.used_again_s = time.monotonic() - self.killed_at

    async def _metrics(self) -> str:
        timeout = aiohttp.ClientTimeout(total=_ASK_S)
        async with self.session.get(f"http://{self.server.address}/metrics", timeout=timeout) as answer:
            return await answer.text()

    async def aclose(self) -> None:
        """Stop watching. Raises an error of the watching task."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    def figures(self, load: CallLoad) -> dict[str, Any]:
        """Return what callers heard after the kill. ``load`` has ended."""
        rate = load.calls[0].leg.playout.sample_rate
        gaps = [[gap / rate * 1000 for gap in was.call.leg.gaps[was.gaps :]] for was in self._calls]
        sent = [turn for call in load.calls if call.call is not None for turn in call.call.turns.values()]
        new = [turn for turn in sent if turn.sent_at > self.killed_at]
        return {
            "speaking_at_the_kill": sum(was.speaking for was in self._calls),
            "moved_turns": self.moved,
            "turns_sent": len(sent),
            "turns_lost": _count(sent, lambda turn: turn.outcome != "finished"),
            "new_turns": len(new),
            "new_turns_failed": _count(new, lambda turn: turn.outcome != "finished"),
            "callers_with_gaps": sum(bool(one) for one in gaps),
            "most_gaps_of_a_caller": max(map(len, gaps), default=0),
            "gap_ms_after_the_kill": summary([gap for one in gaps for gap in one]),
            "first_packet_ms_after_the_kill": summary(load.first_packets_ms[self._first_packets :]),
            "used_again_s": self.used_again_s and round(self.used_again_s, 1),
        }


def _count(turns: Sequence[Any], condition: Callable[[Any], bool]) -> int:
    return sum(map(condition, turns))
