"""The one timer, on the real clock: asserted by counts and ratios, never by one sleep."""

import asyncio
import time

import pytest

from gateway.histogram import Histogram
from gateway.media.playout import Playout, Track
from gateway.media.ticker import SLOT_S, Ticker


def talking(seconds: float) -> Playout:
    made = Playout(ptime_s=0.02)
    track = Track()
    track.push([b"x"] * int(seconds / 0.02), now=time.monotonic(), ptime_s=0.02)
    track.done = True
    made.add(track)
    return made


async def test_many_calls_get_every_frame_in_real_time_and_none_early() -> None:
    errors, lateness = Histogram(), Histogram()
    ticker = Ticker(lateness=lateness)
    sent: dict[int, list[float]] = {index: [] for index in range(40)}
    begun = time.monotonic()
    for index in range(40):

        def send(frame: bytes, now: float, index: int = index) -> bool:
            sent[index].append(time.monotonic())
            return True

        ticker.wake(ticker.add(talking(0.6), send, lambda now: None, pacing_error=errors), now=time.monotonic())
    await asyncio.sleep(0.8)
    ticker.close()
    for times in sent.values():
        assert len(times) == 30
        for frame, at in enumerate(times):
            assert at - times[0] > frame * 0.02 - SLOT_S - 0.02  # one frame may be late, the timetable stays
    assert errors.count == 40 * 30
    assert max(times[-1] for times in sent.values()) - begun < 2 * 0.6


async def test_the_timer_sleeps_when_nothing_is_due() -> None:
    lateness = Histogram()
    ticker = Ticker(lateness=lateness)
    handle = ticker.add(talking(0.04), lambda frame, now: True, lambda now: None)
    ticker.wake(handle, now=time.monotonic())
    await asyncio.sleep(0.1)
    ticks = lateness.count
    assert ticks >= 2
    await asyncio.sleep(0.1)
    assert lateness.count == ticks
    ticker.close()


async def test_a_removed_call_sends_nothing_more() -> None:
    ticker = Ticker()
    sent = []
    handle = ticker.add(talking(1.0), lambda frame, now: bool(sent.append(frame)), lambda now: None)
    ticker.wake(handle, now=time.monotonic())
    await asyncio.sleep(0.05)
    ticker.remove(handle)
    count = len(sent)
    assert count
    await asyncio.sleep(0.06)
    assert len(sent) == count
    ticker.close()


async def test_a_call_far_behind_does_not_starve_the_others() -> None:
    ticker = Ticker(max_sends=5)
    order: list[str] = []
    behind, other = talking(2.0), talking(0.1)
    behind.pacer.begin(time.monotonic() - 1.0)
    behind.pacer.lead_s = 2.0
    for playout, name in ((behind, "behind"), (other, "other")):
        handle = ticker.add(playout, lambda frame, now, name=name: bool(order.append(name)) or True, lambda now: None)
        ticker.wake(handle, now=time.monotonic())
    await asyncio.sleep(0.1)
    ticker.close()
    assert order.index("other") <= 5
    assert order.count("behind") == pytest.approx(100, abs=2)


async def test_every_frame_of_a_tick_gets_the_ticks_time() -> None:
    ticker = Ticker()
    times: list[float] = []
    for _ in range(3):
        handle = ticker.add(talking(0.02), lambda frame, now: not times.append(now), lambda now: None)
        ticker.wake(handle, now=time.monotonic())
    tick = time.monotonic() + 0.5
    ticker.on_timer(now=tick)
    ticker.close()
    assert times == [tick] * 3
