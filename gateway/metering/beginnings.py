"""Queues the beginnings of records for the file: a call says nothing before its beginning is written.

The loop adds one for each call, and the thread of the records takes all waiting ones at once. No call waits longer than
a limit, and while the file is known to take nothing, no call waits at all.
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
    """The beginnings for one file. The thread calls ``take``, then ``tell_written``; the rest runs on the loop.

    Args:
        wait_s: longest wait for a beginning.
        on_late: called for each call or request that continues without its beginning.
    """

    def __init__(self, *, wait_s: float, on_late: Callable[[], None]) -> None:
        self._wait_s = wait_s
        self._on_late = on_late
        self._untaken: deque[Beginning] = deque()
        self._file_hangs = False
        """True if a wait has timed out since the file last took something."""

    def add(self, record: MeterRecord) -> asyncio.Future[None]:
        """Queue a beginning. The future is done when the file has it, or after a wait in vain."""
        loop = asyncio.get_running_loop()
        beginning = Beginning(record, loop.create_future(), None)
        if self._file_hangs:
            self._stop_waiting(beginning)
        else:
            beginning.bound = loop.call_later(self._wait_s, self._stop_waiting, beginning)
        self._untaken.append(beginning)
        return beginning.over

    def take(self) -> Sequence[Beginning]:
        """Return all waiting beginnings."""
        return [self._untaken.popleft() for _ in range(len(self._untaken))]

    def tell_written(self, beginnings: Sequence[Beginning]) -> None:
        """Tell the loop that the file has taken or refused these beginnings."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            beginnings[0].over.get_loop().call_soon_threadsafe(self._written, beginnings)

    def _written(self, beginnings: Sequence[Beginning]) -> None:
        self._file_hangs = False
        for beginning in beginnings:
            if beginning.bound is not None:
                beginning.bound.cancel()
            _end(beginning)

    def _stop_waiting(self, beginning: Beginning) -> None:
        self._file_hangs = True
        if not beginning.over.done():
            self._on_late()
        _end(beginning)


def _end(beginning: Beginning) -> None:
    if not beginning.over.done():
        beginning.over.set_result(None)
