import pytest

from talkspurt.simulator.figures import Talkspurt, interarrival_errors_ms, pacing_errors_ms, summary


def spurt(arrivals: list[float], samples: int = 160) -> Talkspurt:
    return Talkspurt(0, arrivals, [samples] * len(arrivals))


def paced(frames: int, *, lead_frames: int = 0) -> list[float]:
    return [5.0 + max(0, n - lead_frames) * 0.020 for n in range(frames)]


def test_summary_of_nothing_is_none() -> None:
    assert summary([]) is None


def test_summary_names_percentiles() -> None:
    assert summary(range(101)) == {"p50": 50, "p95": 95, "p99": 99, "max": 100, "n": 101}


@pytest.mark.parametrize("lead_frames", [0, 5, 10])
def test_a_perfect_timetable_has_no_error_whatever_its_lead(lead_frames: int) -> None:
    errors = pacing_errors_ms(spurt(paced(60, lead_frames=lead_frames)), 8000)
    assert errors.max() == pytest.approx(0, abs=1e-6)


def test_one_late_frame_is_one_error_and_does_not_move_the_others() -> None:
    arrivals = paced(60, lead_frames=5)
    arrivals[40] += 0.007
    errors = pacing_errors_ms(spurt(arrivals), 8000)
    assert errors[40] == pytest.approx(7)
    assert sorted(errors)[-2] == pytest.approx(0, abs=1e-6)


def test_a_clock_that_was_restarted_puts_all_frames_of_one_side_off_the_timetable() -> None:
    arrivals = paced(60)
    late = [at + (0.005 if n >= 20 else 0) for n, at in enumerate(arrivals)]
    assert (pacing_errors_ms(spurt(late), 8000) > 4.9).sum() == 20


def test_frames_of_other_lengths_are_counted_by_their_samples() -> None:
    arrivals = [5.0 + n * 0.040 for n in range(30)]
    assert pacing_errors_ms(spurt(arrivals, 320), 8000).max() == pytest.approx(0, abs=1e-6)


def test_the_opening_burst_is_no_jitter_but_a_burst_later_is() -> None:
    arrivals = paced(30, lead_frames=5)
    assert interarrival_errors_ms(spurt(arrivals), 8000).max() == pytest.approx(0, abs=1e-6)
    arrivals[20] = arrivals[21]
    assert interarrival_errors_ms(spurt(arrivals), 8000).max() == pytest.approx(20)


def test_too_few_frames_tell_no_timetable() -> None:
    assert len(pacing_errors_ms(spurt(paced(10)), 8000)) == 0
