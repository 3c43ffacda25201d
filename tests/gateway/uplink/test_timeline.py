"""Both sides of a call on one time axis: the network's jitter, clocks that differ, cuts, pauses. Time is a number."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.uplink.timeline import BOT, CALLER, KEPT_S, Samples, Timeline

RATE = 8000
BEGAN = 500.0


class Taken:
    """A timeline, and what it has given out."""

    def __init__(self) -> None:
        self.given: list[Samples] = []
        self.timeline = Timeline(rate=RATE, started=BEGAN, out=self.given.append)

    def all(self) -> NDArray[np.int16]:
        self.timeline.finish(None)
        return np.concatenate(self.given)

    def spans(self, side: int) -> list[tuple[float, float]]:
        """Return start and end of each sound, seconds."""
        return spans(self.all()[:, side])


def spans(side: NDArray[np.int16]) -> list[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], side != 0, [0])))) / RATE
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def loud(seconds: float = 0.02) -> NDArray[np.float32]:
    return np.full(round(seconds * RATE), 0.5, np.float32)


def says(taken: Taken, arrivals: Iterable[float]) -> None:
    """The caller's packets of 20 ms, by when they come."""
    for at in arrivals:
        taken.timeline.caller(loud(), at=BEGAN + at)


def test_what_the_network_held_back_is_where_it_was_said() -> None:
    """It stayed behind by the whole delay until the caller fell silent."""
    taken = Taken()
    says(taken, [0.1 + 0.02 * number for number in range(50)])
    says(taken, [1.5] * 21)  # 420 ms come at once
    says(taken, [1.52 + 0.02 * number for number in range(50)])
    assert taken.spans(CALLER) == [(pytest.approx(0.08), pytest.approx(2.5))]


def test_a_late_first_packet_is_moved_to_where_it_was_said() -> None:
    taken = Taken()
    says(taken, [1.08] + [1.0 + 0.02 * number for number in range(1, 100)])
    assert taken.spans(CALLER) == [(pytest.approx(0.98), pytest.approx(2.98))]


def test_a_pause_of_the_caller_stays_as_long_as_it_was() -> None:
    taken = Taken()
    says(taken, [0.02 + 0.02 * number for number in range(50)])
    says(taken, [2.02 + 0.02 * number for number in range(50)])
    assert taken.spans(CALLER) == [(0.0, 1.0), (pytest.approx(2.0), pytest.approx(3.0))]


@pytest.mark.parametrize("parts_per_million", [-500, 500])
def test_both_sides_stay_together_however_long_the_call_and_whatever_the_clocks(parts_per_million: int) -> None:
    """Ten minutes, in which the caller's clock would be off by 300 ms; every second both sides click at once."""
    taken = Taken()
    drift = 1 + parts_per_million / 1e6
    click = np.zeros(RATE // 10, np.float32)
    click[0] = 0.5
    rng = np.random.default_rng(1)
    for number in range(6000):
        said = 0.1 * number * drift
        pcm = click if number % 10 == 0 else np.zeros(RATE // 10, np.float32)
        taken.timeline.caller(pcm, at=BEGAN + said + 0.1 * drift + float(rng.choice([0.0, 0.0, 0.03])))
        if number % 10 == 0:
            taken.timeline.bot(click, at=BEGAN + said)
    made = taken.all()
    clicks = [np.flatnonzero(made[:, side]) / RATE for side in (CALLER, BOT)]
    assert len(clicks[CALLER]) > 590 and len(clicks[BOT]) == 600
    apart = [float(np.abs(clicks[BOT] - at).min()) for at in clicks[CALLER]]
    assert max(apart) <= 0.02


def test_frames_that_were_sent_ahead_and_cut_are_not_there() -> None:
    taken = Taken()
    for number in range(20):
        taken.timeline.bot(loud(), at=BEGAN + 1.0 + 0.02 * number)
    taken.timeline.unheard(0.25)
    taken.timeline.bot(loud(), at=BEGAN + 2.0)
    assert taken.spans(BOT) == [(1.0, 1.15), (2.0, 2.02)]


def test_a_pause_is_silence_on_both_sides_until_it_ends_and_twice_is_once() -> None:
    taken = Taken()
    for number in range(500):
        at = BEGAN + 0.02 * number
        if number in (100, 110):
            taken.timeline.pause(at)
        if number in (300, 310):
            taken.timeline.resume(at)
        taken.timeline.caller(loud(), at=at + 0.02)
        taken.timeline.bot(loud(), at=at)
    made = taken.all()
    for side in (CALLER, BOT):
        assert spans(made[:, side]) == [(0.0, 2.0), (pytest.approx(6.0), 10.0)]


def test_what_was_said_in_a_pause_and_comes_after_it_is_silence() -> None:
    taken = Taken()
    says(taken, [0.02 + 0.02 * number for number in range(50)])
    taken.timeline.pause(BEGAN + 1.0)
    taken.timeline.resume(BEGAN + 1.4)
    says(taken, [1.5] * 25)  # half a second at once: 400 ms of it were said in the pause
    made = taken.all()
    assert spans(made[:, CALLER]) == [(0.0, 1.0), (pytest.approx(1.4), pytest.approx(1.5, abs=0.011))]


def test_sound_is_kept_for_seconds_and_then_given_out_in_order() -> None:
    taken = Taken()
    for number in range(round(50 * KEPT_S)):
        taken.timeline.caller(loud(), at=BEGAN + 0.02 * (number + 1))
    taken.timeline.release(BEGAN + 3.0)
    assert [len(samples) for samples in taken.given] == [3.0 * RATE]
    assert taken.spans(CALLER) == [(0.0, pytest.approx(KEPT_S, abs=0.03))]


def test_a_key_is_muted_where_it_was_placed_and_on_its_side_only() -> None:
    taken = Taken()
    for number in range(100):
        taken.timeline.caller(loud(), at=BEGAN + 0.02 * (number + 1))
        taken.timeline.bot(loud(), at=BEGAN + 0.02 * number)
        if number == 49:
            taken.timeline.mute(CALLER, before_s=0.1, after_s=0.05)
    made = taken.all()
    assert spans(made[:, CALLER]) == [(0.0, 0.9), (1.05, 2.0)]
    assert spans(made[:, BOT]) == [(0.0, 2.0)]
