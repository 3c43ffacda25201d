"""The timetable and the played position, on the virtual clock."""

from typing import Any

import pytest

from gateway.media.pacer import Pacer
from gateway.media.playout import FirstFrame, PlayedOut, Playout, StartPolicy, Track

P = 0.02


def playout(*frames: bytes, lead_s: float = 0.0, done: bool = True, now: float = 10.0, **kw: Any) -> tuple:
    made = Playout(ptime_s=P, lead_s=lead_s, **kw)  # type: ignore[arg-type]
    track = Track()
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
        policy.observe(0.15)
    made, track = playout(b"a", done=False, start=policy)
    assert made.pop_due(10.1) is None
    assert made.deadline(10.1) == pytest.approx(10.15)
    assert made.pop_due(10.15) == b"a"
    for _ in range(300):
        policy.observe(9.0)
    assert policy.delay_s == 0.4, "bounded"
    for _ in range(300):
        policy.observe(0.0)
    assert policy.delay_s == 0.0, "an engine that keeps up starts at once"


def test_a_whole_utterance_does_not_wait() -> None:
    policy = StartPolicy(quantile=0.9, max_delay_s=0.4)
    for _ in range(20):
        policy.observe(0.15)
    made, _ = playout(b"a", done=True, start=policy)
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
