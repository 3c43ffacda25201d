"""The only frame timer of the process. It sends the due frames of all calls.

A timerfd fires every slot (2 ms) of one absolute timetable. A slot that fires late catches up, because due times belong
to the calls' own timetables and never move. Nothing awaits in a tick: a full socket buffer is a counted stall of that
call. The timer is armed only while a call has something due, so idle calls cost nothing.

``loop.call_at`` is not used: uvloop rounds it to 1 ms, and one timer per call costs a wake-up per frame.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
import time
from collections.abc import Callable
from typing import Protocol

from gateway.histogram import Histogram

log = logging.getLogger(__name__)

SLOT_S = 0.002

_WATCH_S = 1.0
_AFTER_ERROR_SLOTS = 10  # a frame

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class Paced(Protocol):
    """The part of a call that provides frames to the ticker."""

    late_s: float
    """Lateness of the last frame of ``pop_due``, seconds."""

    def pop_due(self, now: float) -> bytes | None: ...

    def deadline(self, now: float) -> float | None: ...


class Handle:
    """One call's place in the timetable."""

    __slots__ = ("after", "begins", "errors", "paced", "pacing_error", "send", "slot")

    def __init__(
        self,
        paced: Paced,
        send: Callable[[bytes, float], bool],
        after: Callable[[float], None],
        pacing_error: Histogram,
    ) -> None:
        self.paced = paced
        self.pacing_error = pacing_error
        self.send = send
        self.after = after
        self.slot: int | None = None
        """Slot of the next visit. Older entries in the wheel are stale."""
        self.errors = 0
        self.begins = False
        """True if the next visit is for a frame that was due on arrival, like the first one of a talkspurt."""


class Ticker:
    """Sends due frames of all calls on one timetable of 2 ms slots. Use it only on its event loop.

    Args:
        lateness: observes how late the event loop comes to each tick, seconds. ``catch_up`` may have sent the tick's
            frames in time, but messages wait as long.
        max_sends: most frames of one call in one tick. The rest waits for the next slot, so that other calls get
            theirs.
    """

    def __init__(self, *, lateness: Histogram | None = None, max_sends: int = 50) -> None:
        self._loop = asyncio.get_running_loop()
        self._lateness = lateness or Histogram()
        self._max_sends = max_sends
        self._wheel: dict[int, list[Handle]] = {}
        self._armed_slot: int | None = None
        self._due_since_s = 0.0
        """Due time of the call that the timer is armed for, if it is within the slot."""
        self._in_tick = self._closed = self._turn_awaited = False
        # PyDLL keeps the interpreter lock. If it were released for a call of a microsecond, it might come back
        # milliseconds later.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._fd, self._on_readable)

    now = staticmethod(time.monotonic)
    """Clock of all deadlines: CLOCK_MONOTONIC seconds, unrounded (uvloop's clock has steps of 1 ms)."""

    def add(
        self,
        paced: Paced,
        send: Callable[[bytes, float], bool],
        after: Callable[[float], None],
        *,
        pacing_error: Histogram | None = None,
    ) -> Handle:
        """Return the handle of a new call. ``wake`` puts it into a slot.

        Args:
            send: sends one frame; receives the frame and the time of the tick.
            after: called at the end of each visit, with its time.
            pacing_error: observes the lateness of each frame, seconds.
        """
        return Handle(paced, send, after, pacing_error or Histogram())

    def wake(self, handle: Handle, *, now: float) -> None:
        """Read the call's deadline again and join its slot. Call this after something was pushed, cut or finished."""
        deadline = handle.paced.deadline(now)
        if deadline is None:
            return
        slot = int(now / SLOT_S)
        if deadline > now or self._in_tick or (handle.slot is not None and handle.slot <= slot):
            self._enqueue(handle, _slot(max(deadline, now)))
        else:  # leaves in this slot; other frames due now leave in the next one, after the first frames of other calls
            handle.begins = True
            self._enqueue(handle, slot, since=now)

    def remove(self, handle: Handle) -> None:
        """Remove a call. Its pending visit does nothing."""
        handle.after = _nothing
        handle.send = _drop
        handle.paced = _SILENT

    def _enqueue(self, handle: Handle, slot: int, *, since: float = 0.0) -> None:
        if handle.slot is not None and handle.slot <= slot:
            return  # the earlier visit reads the deadline again
        handle.slot = slot
        if (visits := self._wheel.get(slot)) is None:
            self._wheel[slot] = [handle]
        else:
            visits.append(handle)
        if not self._in_tick and (self._armed_slot is None or slot < self._armed_slot):
            self._due_since_s = since
            self._arm(slot)

    def _arm(self, slot: int | None) -> None:
        self._armed_slot = slot
        when = 0.0 if slot is None else slot * SLOT_S
        whole = int(when)
        spec = struct.pack("qqqq", 0, 0, whole, int((when - whole) * 1e9))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, spec, None)

    def _on_readable(self) -> None:
        # Setting the timer again clears the expirations (timerfd_create(2)), so nothing has to be read.
        self.on_timer(now=time.monotonic())

    def catch_up(self) -> None:
        """Send due frames; called between the parts of long work on the loop."""
        slot = self._armed_slot
        if slot is not None and not self._in_tick and (now := self.now()) >= slot * SLOT_S:
            if not self._turn_awaited:
                self._turn_awaited = True
                self._loop.call_soon(self._next_turn, self._due_s(slot))
            self._visit_due(now)

    def _next_turn(self, due_s: float) -> None:
        self._turn_awaited = False
        self._lateness.observe(max(0.0, self.now() - due_s))

    def _due_s(self, slot: int) -> float:
        return max(slot * SLOT_S, self._due_since_s)

    def on_timer(self, *, now: float) -> None:
        """Visit every call whose slot has come, in the event loop's turn for it."""
        if self._armed_slot is not None:
            self._lateness.observe(max(0.0, now - self._due_s(self._armed_slot)))
        self._visit_due(now)

    def _visit_due(self, now: float) -> None:
        wheel = self._wheel
        current = int(now / SLOT_S)
        self._in_tick = True
        try:
            for slot in sorted(slot for slot in wheel if slot <= current):
                for handle in wheel.pop(slot):
                    if handle.slot == slot:
                        handle.slot = None
                        self._visit_alone(handle, now)
        finally:
            self._in_tick = False
            self._arm(min(wheel, default=None))

    def _visit_alone(self, handle: Handle, now: float) -> None:
        """Visit a call. An internal error in it must not take the frames of the others; it is tried again in the next
        slot."""
        try:
            self._visit(handle, now)
        except Exception:
            handle.errors += 1
            if handle.errors == 1:  # one call could fail 500 times a second
                log.exception("frame of a call could not be sent")
            self._enqueue(handle, int(now / SLOT_S) + _AFTER_ERROR_SLOTS)

    async def watch(self) -> None:
        """Check that the timer fires. Return only by an error.

        Raises:
            RuntimeError: the timer is closed, or a due tick did not come.
        """
        late = False
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._closed:
                raise RuntimeError("the timer is closed")
            slot = self._armed_slot
            before, late = late, slot is not None and self.now() - slot * SLOT_S > _WATCH_S
            if before and late:  # twice: after a long stop of the process, this task may run before the tick
                raise RuntimeError(f"a tick is {self.now() - (slot or 0) * SLOT_S:.1f} s late")

    def _visit(self, handle: Handle, now: float) -> None:
        paced = handle.paced
        due = None
        most, handle.begins = 1 if handle.begins else self._max_sends, False
        for _ in range(most):
            frame = paced.pop_due(now)
            if frame is not None:
                handle.pacing_error.observe(paced.late_s)
                handle.send(frame, now)
            due = paced.deadline(now)
            if frame is None or due is None or due > now:
                break
        if due is not None:
            # A deadline that has passed without a frame is handled by the next slot, not in a loop here.
            self._enqueue(handle, _slot(due) if due > now else int(now / SLOT_S) + 1)
        handle.after(now)  # calls ``wake`` for an earlier slot if it changes anything

    def close(self) -> None:
        """Stop the timer."""
        self._closed = True
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


def _slot(at: float) -> int:
    """Return the first slot at or after a time, so that nothing is early."""
    return -int(-at // SLOT_S)


def _nothing(_now: float) -> None:
    return None


def _drop(_frame: bytes, _now: float) -> bool:
    return False


class _Silent:
    late_s = 0.0

    def pop_due(self, now: float) -> bytes | None:
        return None

    def deadline(self, now: float) -> float | None:
        return None


_SILENT = _Silent()
