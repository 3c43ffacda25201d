"""Beginnings of records on their way to the file, and who waits for them: a call says nothing before its own is there.

The loop adds one with each call, and the thread of the records takes all that wait at once. Nobody waits for longer
than a bound, and while the file is known to take nothing, nobody waits at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.metering.record import MeterRecord


@dataclass(slots=True)
class Beginning:
    """The beginning of one record."""

    record: MeterRecord
    over: asyncio.Future[None]
    """Done when the wait is over, in either way."""
    bound: asyncio.TimerHandle | None


class Beginnings:
    """Those of one file. The thread calls ``take``, then ``tell_written``; everything else is the loop's.

    Args:
        wait_s: how long a beginning is waited for.
        on_late: told of each call or request that goes on without its beginning.
    """

    def __init__(self, *, wait_s: float, on_late: Callable[[], None]) -> None:
        self._wait_s = wait_s
        self._on_late = on_late
        self._untaken: deque[Beginning] = deque()
        self._hangs = False
        """Whether somebody has waited in vain since the file last took something."""

    def add(self, record: MeterRecord) -> asyncio.Future[None]:
        """Put a beginning behind the others. The future is done when the file has it, or it was waited for in vain."""
        loop = asyncio.get_running_loop()
        beginning = Beginning(record, loop.create_future(), None)
        if self._hangs:
            self._go_on_without(beginning)
        else:
            beginning.bound = loop.call_later(self._wait_s, self._go_on_without, beginning)
        self._untaken.append(beginning)
        return beginning.over

    def take(self) -> Sequence[Beginning]:
        """Return those that nobody has taken."""
        return [self._untaken.popleft() for _ in range(len(self._untaken))]

    def tell_written(self, beginnings: Sequence[Beginning]) -> None:
        """Let the loop know that the file has what was taken, or that it refused."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            beginnings[0].over.get_loop().call_soon_threadsafe(self._written, beginnings)

    def _written(self, beginnings: Sequence[Beginning]) -> None:
        self._hangs = False
        for beginning in beginnings:
            if beginning.bound is not None:
                beginning.bound.cancel()
            _end(beginning)

    def _go_on_without(self, beginning: Beginning) -> None:
        self._hangs = True
        if not beginning.over.done():
            self._on_late()
        _end(beginning)


def _end(beginning: Beginning) -> None:
    if not beginning.over.done():
        beginning.over.set_result(None)
