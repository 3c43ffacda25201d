from talkspurt.simulator.carrier_playout import CarrierPlayout

FRAME = bytes(range(160))


def playout(*, record: bool = False) -> CarrierPlayout:
    return CarrierPlayout(10.0, record=record)


def test_audio_that_comes_in_time_is_heard_without_a_break() -> None:
    buffer = playout(record=True)
    assert [buffer.write(FRAME, now=10.0 + n * 0.020) for n in range(3)] == [0, 0, 0]
    assert bytes(buffer.heard) == FRAME * 3
    assert buffer.runs_dry_at() == 10.060


def test_a_late_frame_is_heard_after_exactly_the_silence_that_was_missing() -> None:
    buffer = playout(record=True)
    buffer.write(FRAME, now=10.0)
    assert buffer.write(FRAME, now=10.025) == 40  # 5 ms at 8000 Hz
    assert bytes(buffer.heard) == FRAME + b"\xff" * 40 + FRAME


def test_a_burst_ahead_of_real_time_is_played_in_order_and_hides_a_later_delay() -> None:
    buffer = playout()
    for _ in range(5):
        buffer.write(FRAME, now=10.0)
    assert buffer.write(FRAME, now=10.099) == 0
    assert buffer.runs_dry_at() == 10.120


def phone() -> CarrierPlayout:
    """It waits 40 ms, 320 samples, before it plays."""
    return CarrierPlayout(10.0, record=True, delay_s=0.040)


def test_a_phone_hides_frames_that_come_unevenly() -> None:
    buffer = phone()
    assert buffer.write(FRAME, now=10.020) == 160 + 320
    for number, late_ms in enumerate((3, 0, 39, 20, 1), 1):
        assert buffer.write(FRAME, now=10.020 + (number * 20 + late_ms) / 1000) == 0


def test_a_phone_that_ran_dry_is_silent_until_its_buffer_has_filled_again() -> None:
    buffer = phone()
    buffer.write(FRAME, now=10.001)
    silent = buffer.write(FRAME, now=10.071)  # 50 ms late: dry for 10 ms, then 40 of delay
    assert silent == 80 + 320
    assert buffer.write(FRAME, now=10.130) == 0
    assert bytes(buffer.heard[8 + 320 :]) == FRAME + b"\xff" * silent + FRAME + FRAME


def test_missing_samples_are_silence_in_their_place() -> None:
    buffer = phone()
    buffer.write(FRAME, now=10.001)
    assert buffer.write(FRAME, now=10.041, skipped=160) == 160
    assert bytes(buffer.heard[8 + 320 :]) == FRAME + b"\xff" * 160 + FRAME


def test_a_pause_is_counted_once_though_the_clock_and_the_timestamps_tell_it() -> None:
    buffer = phone()
    buffer.write(FRAME, now=10.000)
    assert buffer.write(FRAME, now=11.020, skipped=8000) == 8000


def test_a_mark_comes_back_when_its_audio_has_been_played_and_not_a_sample_before() -> None:
    buffer = playout()
    buffer.write(FRAME, now=10.0)
    buffer.mark("a")
    buffer.write(FRAME, now=10.0)
    buffer.mark("b")
    assert buffer.due_marks(10.0 + 158.9 / 8000) == []
    at = buffer.next_mark_at()
    assert at is not None and 10.020 <= at < 10.0203
    assert buffer.due_marks(at) == ["a"]
    assert buffer.due_marks(11.0) == ["b"]
    assert buffer.next_mark_at() is None


def test_a_mark_on_an_empty_buffer_comes_back_at_once() -> None:
    buffer = playout()
    buffer.write(FRAME, now=10.0)
    assert buffer.due_marks(10.5) == []
    buffer.mark("late")
    assert buffer.due_marks(10.5) == ["late"]


def test_clear_drops_what_is_not_played_and_returns_all_pending_marks() -> None:
    buffer = playout(record=True)
    for name in ("a", "b"):
        buffer.write(FRAME * 2, now=10.0)
        buffer.mark(name)
    assert buffer.clear(now=10.030) == ["a", "b"]  # 30 ms: inside the first of them
    assert not buffer.playing(10.030)
    assert bytes(buffer.heard) == (FRAME * 2)[:240]
    assert buffer.due_marks(11.0) == []


def test_what_follows_a_clear_is_heard_at_once() -> None:
    buffer = playout(record=True)
    buffer.write(FRAME * 10, now=10.0)
    buffer.clear(now=10.020)
    assert buffer.write(FRAME, now=10.020) == 0
    assert bytes(buffer.heard) == FRAME * 2


def test_clear_after_the_end_changes_nothing_that_was_heard() -> None:
    buffer = playout(record=True)
    buffer.write(FRAME, now=10.0)
    assert buffer.clear(now=10.5) == []
    assert bytes(buffer.heard) == FRAME
