"""The one timer around pure code, on an event loop whose time is a number."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.media.timer import DeadlineTimer


class Handle:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when, self.call = when, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """An event loop's timers, and the clock beside it. ``early_s``: how much too early the loop fires them."""

    early_s = 0.0

    def __init__(self) -> None:
        self.now = 100.0
        self.set: list[Handle] = []

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        self.set.append(Handle(self.now + delay, call))
        return self.set[-1]

    def until(self, when: float) -> None:
        while due := [each for each in self.set if not each.cancelled and each.when - self.early_s <= when]:
            first = min(due, key=lambda each: each.when)
            self.set.remove(first)
            self.now = max(self.now, first.when - self.early_s)
            first.call()
        self.now = when


class Work:
    def __init__(self, *due: float) -> None:
        self.due = list(due)
        self.called: list[float] = []

    def deadline(self) -> float | None:
        return min(self.due, default=None)

    def on_timer(self, now: float) -> None:
        self.called.append(now)
        self.due = [each for each in self.due if each > now]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_it_calls_at_every_deadline(clock: Clock) -> None:
    work = Work(101.0, 103.0)
    DeadlineTimer(work, clock=clock.monotonic).arm()
    clock.until(110.0)
    assert work.called == [101.0, 103.0] and not clock.set


def test_an_earlier_deadline_moves_it_forward_and_a_later_one_sets_nothing(clock: Clock) -> None:
    work = Work(105.0)
    timer = DeadlineTimer(work, clock=clock.monotonic)
    timer.arm()
    work.due.append(102.0)
    timer.arm()
    work.due = [104.0]
    timer.arm()
    assert [each.when for each in clock.set if not each.cancelled] == [102.0]
    clock.until(110.0)
    assert work.called == [102.0, 104.0]


def test_a_loop_that_fires_too_early_does_not_make_it_spin(clock: Clock) -> None:
    clock.early_s = 0.0005
    work = Work(101.0)
    DeadlineTimer(work, clock=clock.monotonic).arm()
    clock.until(102.0)
    assert work.called == [101.0]


def test_a_deadline_that_has_passed_is_met_at_once(clock: Clock) -> None:
    work = Work(90.0)
    DeadlineTimer(work, clock=clock.monotonic).arm()
    clock.until(100.0)
    assert work.called == [100.0]


def test_closed_it_calls_no_more(clock: Clock) -> None:
    work = Work(101.0)
    timer = DeadlineTimer(work, clock=clock.monotonic)
    timer.arm()
    timer.close()
    timer.arm()
    clock.until(110.0)
    assert work.called == []


def test_what_it_calls_may_close_it(clock: Clock) -> None:
    work = Work(101.0, 102.0)
    timer = DeadlineTimer(work, clock=clock.monotonic)
    work.on_timer = lambda now: timer.close()  # type: ignore[method-assign]
    timer.arm()
    clock.until(110.0)
    assert clock.set == []
