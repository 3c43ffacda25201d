"""New calls are refused while ticks are late, and come again when they are well in time."""

import pytest

from gateway.call.directory import LocalDirectory
from gateway.call.overload import Overload
from gateway.errors import Rejected
from gateway.histogram import Histogram


def second(lateness: Histogram, *, late_ms: float, late: int, ticks: int = 500) -> None:
    for number in range(ticks):
        lateness.observe(late_ms / 1000 if number < late else 0.0001)


def test_a_hundredth_of_late_ticks_is_too_much_until_they_are_well_in_time() -> None:
    lateness = Histogram()
    overload = Overload(lateness, limit_s=0.02)
    second(lateness, late_ms=30, late=4)
    assert not overload.look(), "less than a hundredth"
    second(lateness, late_ms=30, late=20)
    assert overload.look()
    for _ in range(10):
        second(lateness, late_ms=15, late=20)
        assert overload.look(), "below the limit, and not yet well in time"
    looks = []
    for _ in range(6):
        second(lateness, late_ms=5, late=20)
        looks.append(overload.look())
    assert looks[-1] is False and looks == sorted(looks, reverse=True), "over once the window is"


def test_a_few_ticks_and_a_limit_of_nothing_say_nothing() -> None:
    lateness = Histogram()
    few, never = Overload(lateness, limit_s=0.02), Overload(lateness, limit_s=0)
    second(lateness, late_ms=100, late=50, ticks=50)
    assert not few.look() and not never.look()


def test_without_calls_there_are_no_ticks_and_calls_may_come_again() -> None:
    lateness = Histogram()
    overload = Overload(lateness, limit_s=0.02)
    second(lateness, late_ms=100, late=500)
    assert overload.look()
    assert [overload.look() for _ in range(6)][-1] is False


def test_a_new_call_is_refused_and_told_when_to_come_again() -> None:
    directory: LocalDirectory[object] = LocalDirectory(limit=10)  # type: ignore[type-var]
    directory.check_room()
    directory.overloaded = True
    with pytest.raises(Rejected) as refused:
        directory.check_room()
    assert (refused.value.status, refused.value.code) == (503, "overloaded") and refused.value.retry_after_s > 0
