"""The one timer. Time is a number, but in the test that the kernel's timer calls us: there nothing may be early."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.histogram import Histogram
from gateway.media.ticker import SLOT_S, Ticker
from tests.waiting import PATIENCE_S

START = 1e6
"""Far enough ahead of the clock of this machine: the timer that is armed for it does not fire."""
LATE_S = 1e-4
"""The delay of each tick."""


class Timetable:
    """One call's frames, each due at its own second."""

    def __init__(self, *due: float) -> None:
        self._due = list(due)
        self.late_s = 0.0

    def pop_due(self, now: float) -> bytes | None:
        if not self._due or self._due[0] > now:
            return None
        self.late_s = now - self._due.pop(0)
        return b"x"

    def deadline(self, now: float) -> float | None:
        return self._due[0] if self._due else None


def talking(frames: int, begins: float = START) -> Timetable:
    return Timetable(*(begins + number * 0.02 for number in range(frames)))


class Timed(Ticker):
    """Its timer is fired by hand, at times of the test's own; between them the loop has no turn."""

    def __init__(self, *, lateness: Histogram | None = None, max_sends: int = 50) -> None:
        super().__init__(lateness=lateness, max_sends=max_sends)
        self._slots = 0

    def pass_by(self, seconds: float, *, called: bool = True) -> None:
        for _ in range(round(seconds / SLOT_S)):
            self._slots += 1
            if called:
                self.on_timer(now=START + self._slots * SLOT_S + LATE_S)


@pytest.fixture
async def closing() -> AsyncIterator[Callable[[Timed], Timed]]:
    tickers: list[Timed] = []

    def keep(ticker: Timed) -> Timed:
        tickers.append(ticker)
        return ticker

    yield keep
    for ticker in tickers:
        ticker.close()


async def test_many_calls_get_every_frame_on_their_own_timetable(closing: Callable[[Timed], Timed]) -> None:
    errors = Histogram()
    ticker = closing(Timed())
    sent: dict[int, list[float]] = {index: [] for index in range(40)}
    for index in range(40):

        def send(frame: bytes, now: float, index: int = index) -> bool:
            sent[index].append(now)
            return True

        begins = START + index * 0.0007
        ticker.wake(ticker.add(talking(30, begins), send, lambda now: None, pacing_error=errors), now=begins)
    ticker.pass_by(0.7)
    for index, times in sent.items():
        due = [START + index * 0.0007 + frame * 0.02 for frame in range(30)]
        assert len(times) == 30
        assert all(0 <= at - wanted < SLOT_S + 2 * LATE_S for at, wanted in zip(times, due, strict=True))
    assert errors.count == 40 * 30


async def test_a_late_tick_sends_what_is_due_and_the_next_frame_at_its_own_time(
    closing: Callable[[Timed], Timed],
) -> None:
    ticker = closing(Timed())
    sent: list[int] = []

    def send(frame: bytes, now: float) -> bool:
        sent.append(round((now - START) * 1000))
        return True

    ticker.wake(ticker.add(talking(6), send, lambda now: None), now=START)
    ticker.pass_by(0.03)
    ticker.pass_by(0.036, called=False)
    ticker.pass_by(0.1)
    assert sent == [2, 20, 68, 68, 80, 100]


async def test_frames_pass_whoever_works_long_on_the_loop(closing: Callable[[Timed], Timed]) -> None:
    class Worked(Timed):
        at = START

        def now(self) -> float:  # type: ignore[override]
            return self.at

    lateness = Histogram()
    ticker, sent = Worked(lateness=lateness), list[float]()
    closing(ticker)

    def send(frame: bytes, now: float) -> bool:
        ticker.catch_up()  # whatever a send does: a tick is not begun within a tick
        sent.append(now - START)
        return True

    ticker.wake(ticker.add(talking(3), send, lambda now: None), now=START)
    for passed_ms in range(60):
        ticker.at = START + passed_ms / 1000
        ticker.catch_up()
    assert len(sent) == 3
    assert all(0 <= at - due < 2 * SLOT_S for at, due in zip(sent, (0.0, 0.02, 0.04), strict=True))
    await asyncio.sleep(0)
    assert (lateness.count, lateness.total) == (1, pytest.approx(0.059)), "messages waited for 59 ms"


async def test_what_is_due_at_once_does_not_wait_for_the_next_slot(closing: Callable[[Timed], Timed]) -> None:
    class Worked(Timed):
        def now(self) -> float:  # type: ignore[override]
            return begins

    begins, lateness = START + 0.0007, Histogram()
    ticker, sent = Worked(lateness=lateness), list[float]()
    closing(ticker)

    def send(frame: bytes, now: float) -> bool:
        sent.append(now)
        return True

    ticker.wake(ticker.add(talking(2, begins), send, lambda now: None), now=begins)
    ticker.catch_up()
    assert sent == [begins]
    await asyncio.sleep(0)
    assert (lateness.count, lateness.total) == (1, 0.0)
    ticker.pass_by(0.03)
    assert [round(at - begins, 4) for at in sent] == [0.0, 0.0214]  # the second one in its own slot


async def test_first_frames_leave_before_the_rest_of_anothers_lead(closing: Callable[[Timed], Timed]) -> None:
    ticker, order = closing(Timed()), list[str]()
    for name in "ab":

        def send(frame: bytes, now: float, name: str = name) -> bool:
            order.append(name)
            return True

        ticker.wake(ticker.add(Timetable(START, START, START), send, lambda now: None), now=START)
    ticker.pass_by(SLOT_S)
    assert order == ["a", "b"]
    ticker.pass_by(SLOT_S)
    assert order == ["a", "b", "a", "a", "b", "b"]


async def test_a_call_that_is_late_catches_up_whatever_is_pushed_meanwhile(closing: Callable[[Timed], Timed]) -> None:
    ticker, sent = closing(Timed()), list[float]()

    def send(frame: bytes, now: float) -> bool:
        sent.append(now)
        return True

    handle = ticker.add(talking(4), send, lambda now: None)
    ticker.wake(handle, now=START)
    ticker.pass_by(SLOT_S)
    ticker.pass_by(0.044, called=False)
    ticker.wake(handle, now=START + 0.047)
    ticker.pass_by(SLOT_S)
    assert len(sent) == 3


async def test_nothing_is_armed_when_nothing_is_due(closing: Callable[[Timed], Timed]) -> None:
    lateness = Histogram()
    ticker = closing(Timed(lateness=lateness))
    ticker.wake(ticker.add(talking(2), lambda frame, now: True, lambda now: None), now=START)
    ticker.pass_by(0.1)
    ticks = lateness.count
    assert ticks >= 2
    ticker.pass_by(0.1)
    assert lateness.count == ticks


async def test_a_removed_call_sends_nothing_more(closing: Callable[[Timed], Timed]) -> None:
    ticker = closing(Timed())
    sent: list[bytes] = []
    handle = ticker.add(talking(50), lambda frame, now: not sent.append(frame), lambda now: None)  # type: ignore[func-returns-value]
    ticker.wake(handle, now=START)
    ticker.pass_by(0.05)
    assert len(sent) == 3
    ticker.remove(handle)
    ticker.pass_by(0.5)
    assert len(sent) == 3


async def test_a_call_far_behind_does_not_starve_the_others(closing: Callable[[Timed], Timed]) -> None:
    ticker = closing(Timed(max_sends=5))
    order: list[str] = []
    for timetable, name in ((talking(100, START - 2.0), "behind"), (talking(5), "other")):

        def send(frame: bytes, now: float, name: str = name) -> bool:
            order.append(name)
            return True

        ticker.wake(ticker.add(timetable, send, lambda now: None), now=START)
    ticker.pass_by(0.1)
    assert order.index("other") <= 5
    assert (order.count("behind"), order.count("other")) == (100, 5)


async def test_the_kernels_timer_calls_and_is_never_early() -> None:
    ticker = Ticker()
    sent: list[float] = []
    all_sent = asyncio.Event()

    def send(frame: bytes, now: float) -> bool:
        sent.append(time.monotonic())
        if len(sent) == 10:
            all_sent.set()
        return True

    begun = time.monotonic()
    ticker.wake(ticker.add(talking(10, begun), send, lambda now: None), now=begun)
    async with asyncio.timeout(PATIENCE_S):
        await all_sent.wait()
    ticker.close()
    assert all(at >= begun + number * 0.02 for number, at in enumerate(sent))


async def test_an_error_in_one_call_takes_no_frame_of_another(
    closing: Callable[[Timed], Timed], caplog: pytest.LogCaptureFixture
) -> None:
    ticker, sent = closing(Timed()), []
    fails = True

    def send(frame: bytes, now: float) -> bool:
        if fails:
            raise ValueError("a bug")
        sent.append("first")
        return True

    def send_other(frame: bytes, now: float) -> bool:
        sent.append("second")
        return True

    for each in (send, send_other):
        ticker.wake(ticker.add(talking(5), each, lambda now: None), now=START)
    ticker.pass_by(0.05)
    assert sent == ["second"] * 3
    assert len(caplog.records) == 1  # however often it fails
    fails = False
    ticker.pass_by(0.05)
    assert sent.count("second") == 5 and sent.count("first") >= 2


async def test_a_timer_that_no_longer_fires_ends_the_watch() -> None:
    ticker = Ticker()
    watch = asyncio.create_task(ticker.watch())
    asyncio.get_running_loop().remove_reader(ticker._fd)
    ticker.wake(ticker.add(talking(5, Ticker.now()), lambda frame, now: True, lambda now: None), now=Ticker.now())
    with pytest.raises(RuntimeError, match="late"):
        await asyncio.wait_for(watch, PATIENCE_S)
    ticker.close()


async def test_a_closed_timer_ends_the_watch() -> None:
    ticker = Ticker()
    ticker.close()
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(ticker.watch(), PATIENCE_S)
