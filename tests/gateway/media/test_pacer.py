"""The timetable and the played position, on the virtual clock."""

from typing import Any

import pytest

from gateway.media.pacer import Pacer
from gateway.media.playout import FirstFrame, Gap, PlayedOut, Playout, Resumed, StartPolicy, Track

P = 0.02


def playout(
    *frames: bytes, lead_s: float = 0.0, done: bool = True, now: float = 10.0, is_clip: bool = False, **kw: Any
) -> tuple:
    made = Playout(ptime_s=P, lead_s=lead_s, **kw)  # type: ignore[arg-type]
    track = Track(is_clip=is_clip)
    track.push(frames, now=now, ptime_s=P)
    track.done = done
    made.add(track)
    return made, track


def test_late_tick_delays_one_frame_and_keeps_the_timetable() -> None:
    made, _ = playout(b"a", b"b", b"c")
    assert made.pop_due(10.000) == b"a"
    assert made.pop_due(10.019) is None
    assert made.pop_due(10.033) == b"b"  # 13 ms late
    assert made.deadline(10.033) == pytest.approx(10.040)  # not 10.053


def all_due(made: Playout, now: float) -> list[bytes]:
    """The frames that a visit of the ticker sends."""
    frames = []
    while (due := made.deadline(now)) is not None and due <= now and (frame := made.pop_due(now)) is not None:
        frames.append(frame)
    return frames


def test_what_a_late_tick_sends_at_once_was_due_and_the_rest_comes_in_its_own_time() -> None:
    made, track = playout(b"a", b"b", b"c", b"d", b"e")
    assert all_due(made, 10.000) == [b"a"]
    assert made.heard_frames(track, 10.0599) == 1, "what has not been sent is not heard"
    assert all_due(made, 10.0599) == [b"b", b"c"]  # 39.9 ms late; "d" is due in 0.1 ms
    assert made.heard_frames(track, 10.0599) == pytest.approx(2.995), "their places are heard, not their lateness"
    assert all_due(made, 10.060) == [b"d"]
    assert made.deadline(10.060) == pytest.approx(10.080)
    assert not track.gaps and made.pacer.sounds_s == pytest.approx(10.060)


def test_a_tick_that_no_phone_can_hide_begins_a_talkspurt_and_is_a_gap() -> None:
    made, track = playout(b"a", b"b", b"c")
    all_due(made, 10.000)
    assert all_due(made, 10.061) == [b"b"]  # 41 ms late
    gap = made.events[-1]
    assert gap == Gap(track, gap.length_s) and gap.length_s == pytest.approx(0.041)
    assert made.heard_frames(track, 10.071) == pytest.approx(1.5), "what is heard late counts as heard late"
    assert made.deadline(10.061) == pytest.approx(10.081)


def test_lateness_does_not_add_up() -> None:
    made, track = playout(*[b"x"] * 100)
    sent = 0
    for n in range(0, 100, 5):
        for late_s in (0.0, 0.021, 0.039):
            sent += len(all_due(made, 10.0 + n * P + late_s))
        sent += len(all_due(made, 10.0 + (n + 3) * P)) + len(all_due(made, 10.0 + (n + 4) * P))
        assert (sent, made.deadline(10.0 + (n + 4) * P)) == (n + 5, pytest.approx(10.0 + (n + 5) * P))
    assert not track.gaps


@pytest.mark.parametrize(
    ("lead_s", "late_s", "gaps"),
    [(0.0, 0.001, 0), (0.0, 0.039, 0), (0.0, 0.041, 1), (0.02, 0.019, 0), (0.02, 0.021, 1), (0.04, 0.001, 1)],
)
def test_an_engine_that_is_late_makes_a_gap_when_neither_lead_nor_phone_can_hide_it(
    lead_s: float, late_s: float, gaps: int
) -> None:
    made, track = playout(b"a", lead_s=lead_s, done=False)
    at, now = 10.020 + late_s, 10.000
    while (due := made.deadline(now)) is not None and due < at:
        now = due
        made.pop_due(now)
    track.push([b"b", b"c"], now=at, ptime_s=P)
    assert made.deadline(at) == at, "a frame was not due before it came: no tick is late here"
    assert b"b" in all_due(made, at) and track.gaps == gaps
    assert made.heard_frames(track, at) == pytest.approx(1 + (0.0 if gaps else late_s / P))


def test_a_late_tick_between_two_turns_keeps_the_timetable_and_a_later_turn_has_its_own() -> None:
    made, first = playout(b"a")
    second, third = Track(), Track()
    second.push([b"b"], now=10.0, ptime_s=P)
    second.done = third.done = True
    made.add(second)
    all_due(made, 10.000)
    assert all_due(made, 10.027) == [b"b"]
    assert [type(event) for event in made.events] == [FirstFrame, FirstFrame, PlayedOut]
    assert made.events[1] == FirstFrame(second, 10.027, first.first_arrival_s + P)
    assert made.deadline(10.027) == pytest.approx(10.040), "the end of a turn is told when it is heard"
    all_due(made, 10.040)
    assert made.events[-1] == PlayedOut(second, 10.040) and made.idle
    third.push([b"c", b"d"], now=10.045, ptime_s=P)
    made.add(third)
    assert all_due(made, 10.045) == [b"c"]
    assert made.deadline(10.045) == pytest.approx(10.065), "no one had waited for it"


def test_a_frame_is_never_early() -> None:
    made, _ = playout(*[b"x"] * 50)
    now, sent = 10.0, []
    while len(sent) < 50:
        if made.pop_due(now) is not None:
            sent.append(now)
        now += 0.0007
    for index, at in enumerate(sent):
        assert 0 <= at - (10.0 + index * P) < 0.0007 + 1e-9


def test_the_lead_goes_out_at_once_and_the_rest_in_real_time() -> None:
    made, _ = playout(*[b"x"] * 20, lead_s=0.1)
    burst = 0
    while made.pop_due(10.0) is not None:
        burst += 1
    assert burst == 6  # 100 ms ahead and the frame that is due
    assert made.deadline(10.0) == pytest.approx(10.02)


def test_position_moves_with_time_and_stops_at_what_was_sent() -> None:
    made, track = playout(*[b"x"] * 3)
    for now in (10.0, 10.02, 10.04):
        made.pop_due(now)
    assert made.heard_frames(track, 10.03) == pytest.approx(1.5)
    assert made.heard_frames(track, 99.0) == 3


def test_a_track_is_played_out_when_its_last_frame_has_been_heard() -> None:
    made, track = playout(b"a", b"b")
    made.pop_due(10.0)
    made.pop_due(10.02)
    assert [type(event) for event in made.events] == [FirstFrame]
    assert made.deadline(10.02) == pytest.approx(10.04)
    made.pop_due(10.04)
    assert made.events[-1] == PlayedOut(track, 10.04)
    assert made.idle and made.deadline(10.04) is None


def test_marks_teach_the_path_delay() -> None:
    pacer = Pacer(ptime_s=P, lead_s=0.1)
    pacer.begin(10.0)
    for _ in range(50):
        pacer.sent()
    for _ in range(20):
        assert pacer.learn_delay(10, now=10.2 + 0.08) == pytest.approx(0.08)
    assert pacer.path_delay_s == pytest.approx(0.08, abs=0.001)
    assert pacer.played_frames(10.28) == pytest.approx(10, abs=0.1)


def test_marks_of_a_cleared_generation_are_not_progress() -> None:
    marks: list[str] = []
    made, track = playout(b"a", has_marks=True, send_mark=marks.append)
    made.pop_due(10.0)
    made.frame_sent()
    made.flushed(10.005)
    made.remove(track, 10.005)
    made.events.clear()
    made.mark_reached(marks[0], 10.006)
    assert not made.events


def test_of_two_tracks_that_are_sent_again_neither_counts_as_heard_before_it_is() -> None:
    made, first = playout(*[b"a"] * 4, lead_s=0.2)
    second = Track()
    second.push([b"b"] * 4, now=10.0, ptime_s=P)
    second.done = True
    made.add(second)
    assert len(all_due(made, 10.0)) == 8
    made.flushed(10.025)  # one frame has been heard, and a part of the next
    assert all_due(made, 10.5) == [b"a"] * 3 + [b"b"] * 4
    assert made.heard_frames(first, 10.51) == pytest.approx(1.5)
    assert made.heard_frames(second, 10.57) == pytest.approx(0.5)


def test_a_track_that_was_heard_before_a_clear_has_ended_and_waits_for_no_mark() -> None:
    made, track = playout(b"a", lead_s=0.1, has_marks=True, mark_timeout_s=5.0)
    following = Track()
    following.push([b"b"], now=10.0, ptime_s=P)
    made.add(following)
    all_due(made, 10.0)
    made.suspended = True
    made.flushed(10.03)  # the first is heard, and its mark will not be believed
    made.events.clear()
    assert made.deadline(10.03) == pytest.approx(10.03)
    assert made.pop_due(10.032) is None
    assert [type(event) for event in made.events] == [PlayedOut] and made.events[0].track is track


def test_a_peer_that_returns_no_marks_is_waited_for_less_each_time_until_one_comes() -> None:
    names: list[str] = []
    made, _ = playout(b"a", has_marks=True, mark_timeout_s=5.0, send_mark=names.append)
    now, waits = 10.0, []
    for number in range(6):
        if number:
            track = Track()
            track.push([b"a"], now=now, ptime_s=P)
            track.done = True
            made.add(track)
        all_due(made, now)
        made.pop_due(now)
        ended = now + P
        while not made.events or not isinstance(made.events[-1], PlayedOut):
            due = made.deadline(now)
            assert due is not None
            now = max(now, due)
            made.pop_due(now)
        waits.append(round(now - ended, 2))
        made.events.clear()
        if number == 3:  # a late one, which shows that the peer has marks after all
            made.mark_reached(names[-1], now)
    assert waits == [5.0, 1.25, 0.31, 0.2, 5.0, 1.25]


def test_a_track_that_was_dropped_from_its_first_frame_on_tells_that_it_begins_again() -> None:
    made, track = playout(b"a", b"b", lead_s=0.1)
    all_due(made, 10.0)
    made.flushed(10.0)
    made.events.clear()
    assert all_due(made, 10.01) == [b"a", b"b"]
    assert list(made.events) == [Resumed(track)]


def test_the_owners_of_the_last_frames_are_no_more_than_these_frames_need() -> None:
    made, _ = playout(lead_s=0.02)
    for number in range(20):
        track = Track()
        track.push([b"x"], now=10.0, ptime_s=P)
        track.done = True
        made.add(track)
        assert all_due(made, 10.0 + P * number)
    assert len(made._history_tracks) <= len(made._history) + 1


def test_how_late_a_frame_was_counts_from_when_it_came_or_was_due() -> None:
    made, track = playout(b"a", b"b", done=False)
    for now, late_s in ((10.003, 0.0), (10.028, 0.005)):
        assert made.pop_due(now) and made.late_s == pytest.approx(late_s)
    track.push([b"c"], now=10.05, ptime_s=P)
    assert made.pop_due(10.052) == b"c" and made.late_s == pytest.approx(0.002), "it did not exist before 10.05"


def test_a_mark_follows_the_frame_that_it_is_about() -> None:
    wire: list[str] = []
    made, track = playout(b"a", b"b", lead_s=0.1, has_marks=True, send_mark=wire.append)
    while (frame := made.pop_due(10.0)) is not None:
        wire.append(frame.decode())
        made.frame_sent()
    assert wire == ["a", "b", "0.1"]

    made, track = playout(b"a", done=False, has_marks=True, send_mark=wire.append)
    assert made.pop_due(10.0) == b"a"
    made.frame_sent()
    track.done = True  # the engine tells its end only now
    wire.clear()
    made.pop_due(10.01)
    assert wire == ["0.1"]


def test_what_a_flush_threw_away_of_other_tracks_is_sent_again() -> None:
    made, first = playout(b"a", b"b", lead_s=0.2)
    second = Track()
    second.push([b"c", b"d"], now=10.0, ptime_s=P)
    second.done = True
    made.add(second)
    sent = [made.pop_due(10.0) for _ in range(4)]
    assert sent == [b"a", b"b", b"c", b"d"]
    assert made.remove(first, 10.01)
    made.flushed(10.01)
    assert [made.pop_due(10.02), made.pop_due(10.02)] == [b"c", b"d"]
    assert made.heard_frames(second, 10.03) == pytest.approx(0.5)


def test_what_cannot_be_recalled_is_neither_sent_again_nor_begun_before_it_has_played_out() -> None:
    made, first = playout(b"a", b"b", b"c", b"d", b"e", b"f", lead_s=0.04, can_clear=False)
    assert [made.pop_due(10.0) for _ in range(4)] == [b"a", b"b", b"c", None]
    assert made.flushed(10.01) == b"c"  # the last that is heard: a fade follows it
    made.events.clear()
    assert made.pop_due(10.02) == b"d"
    assert made.remove(first, 10.03)


def test_what_cannot_be_recalled_of_a_cut_track_counts_as_heard() -> None:
    made, track = playout(b"a", b"b", b"c", b"d", lead_s=0.04, can_clear=False)
    assert [made.pop_due(10.0) for _ in range(3)] == [b"a", b"b", b"c"]
    assert made.heard_frames(track, 10.01) == pytest.approx(0.5)
    assert made.remove(track, 10.01), "part of it still sounds"
    assert made.heard_frames(track, 10.01) == 3

    made, track = playout(b"a", b"b", b"c", b"d", lead_s=0.04)
    assert [made.pop_due(10.0) for _ in range(3)] == [b"a", b"b", b"c"]
    assert made.remove(track, 10.01)
    assert made.heard_frames(track, 99.0) == pytest.approx(0.5), "the peer was told to throw the rest away"


def test_the_start_waits_as_long_as_the_engine_has_needed() -> None:
    policy = StartPolicy(quantile=0.9, max_delay_s=0.4)
    for _ in range(20):
        policy.observe(0.15, 10.0)
    made, track = playout(b"a", done=False, start=policy)
    assert made.pop_due(10.1) is None
    assert made.deadline(10.1) == pytest.approx(10.15)
    assert made.pop_due(10.15) == b"a"
    for _ in range(300):
        policy.observe(9.0, 11.0)
    assert policy.delay_s(11.0) == 0.4, "bounded"
    for _ in range(300):
        policy.observe(0.0, 12.0)
    assert policy.delay_s(12.0) == 0.0, "an engine that keeps up starts at once"


def test_a_bad_moment_is_forgotten_after_two_minutes() -> None:
    policy = StartPolicy(quantile=0.9, max_delay_s=0.4)
    policy.observe(0.3, 10.0)
    for second in range(11, 19):
        policy.observe(0.0, float(second))
    assert policy.delay_s(19.0) == 0.3
    assert policy.delay_s(131.0) == 0.0
    assert policy.delay_s(999.0) == 0.0, "nothing is known any more"


def test_a_listener_who_waits_for_text_does_not_wait_for_the_engine() -> None:
    made, track = playout(b"a", b"b", done=False)
    track.push([b"c"], now=13.2, ptime_s=P, text_at=13.0)
    assert track.needed_s == 0.0
    track.push([b"d"], now=13.5, ptime_s=P, text_at=13.0)
    assert track.needed_s == pytest.approx(0.3 - P)


def test_a_whole_utterance_does_not_wait() -> None:
    policy = StartPolicy(quantile=0.9, max_delay_s=0.4)
    for _ in range(20):
        policy.observe(0.15, 10.0)
    made, _ = playout(b"a", done=True, start=policy)
    assert made.pop_due(10.0) == b"a"


@pytest.mark.parametrize("is_clip", [False, True])
def test_a_late_clip_delays_no_turn(is_clip: bool) -> None:
    policy = StartPolicy(quantile=0.9, max_delay_s=0.4)
    for _ in range(20):
        made, track = playout(b"a", done=False, start=policy, is_clip=is_clip)
        track.push([b"b"], now=13.0, ptime_s=P)
        track.done = True
        assert all_due(made, 20.0) and all_due(made, 21.0)
        made.pop_due(30.0)
    assert policy.delay_s(30.0) == (0.0 if is_clip else 0.4)


def test_a_clip_waits_for_no_engine() -> None:
    policy = StartPolicy(quantile=0.9, max_delay_s=0.4)
    for _ in range(20):
        policy.observe(0.3, 10.0)
    made, _ = playout(b"a", done=False, start=policy, is_clip=True)
    assert made.pop_due(10.0) == b"a"


def test_a_peer_that_tells_when_it_began_to_play_sets_the_position() -> None:
    made, track = playout(*[b"x"] * 5, lead_s=1.0)
    while made.pop_due(10.0) is not None:
        pass
    made.playback_started(10.13)
    assert made.heard_frames(track, 10.10) == 0
    assert made.heard_frames(track, 10.13 + 2.5 * P) == pytest.approx(2.5)
    assert made.heard_frames(track, 99.0) == 5, "no more than was sent"


def test_a_peer_that_has_played_all_ends_the_track_unless_more_is_on_its_way() -> None:
    made, track = playout(*[b"x"] * 5, lead_s=1.0)
    while made.pop_due(10.0) is not None:
        pass
    made.playback_started(10.5)
    made.events.clear()
    made.playback_completed(10.05)
    assert not made.events, "said of what came before: this cannot have been played yet"
    made.playback_completed(10.45)
    assert list(made.events) == [PlayedOut(track, 10.45)]
    assert made.idle or made.pacer.running


def test_running_dry_in_the_middle_of_a_track_does_not_end_it() -> None:
    made, track = playout(b"a", done=False)
    made.pop_due(10.0)
    made.pop_due(10.05)
    made.playback_completed(10.06)
    assert PlayedOut(track, 10.06) not in made.events
