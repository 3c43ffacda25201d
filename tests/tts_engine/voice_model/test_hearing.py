"""The reports to a model's process about those who hear a clause."""

import math

import pytest

from tts_engine.pipeline.shared_clause import SharedPlayhead
from tts_engine.synthesizer import Playhead
from tts_engine.voice_model.hearing import HeardPosition, RemoteHearing


def playing(*, delivered_s: float, played_s: float, at: float) -> Playhead:
    playhead = Playhead(priority=7)
    playhead.delivered_s, playhead.played_s, playhead.played_at = delivered_s, played_s, at
    return playhead


@pytest.mark.parametrize(
    "playhead",
    [Playhead(), Playhead(ahead=True), playing(delivered_s=3.0, played_s=1.0, at=99.0), SharedPlayhead()],
    ids=["awaited", "ahead", "playing", "nobody"],
)
@pytest.mark.parametrize("later_s", [0.0, 0.7, 30.0])
def test_a_remote_hearing_is_the_hearing_itself(playhead: Playhead, later_s: float) -> None:
    remote, now = RemoteHearing(HeardPosition.of(playhead, 100.0)), 100.0 + later_s
    assert remote.slack_s(now) == pytest.approx(playhead.slack_s(now))
    for name in ("ahead", "tentative", "speaks", "head_start_s"):
        assert getattr(remote, name) == getattr(playhead, name)


def test_who_plays_more_than_can_be_looked_ahead_plays() -> None:
    remote = RemoteHearing(HeardPosition.of(playing(delivered_s=60.0, played_s=0.0, at=100.0), 100.0))
    assert remote.slack_s(145.0) == pytest.approx(15.0)


def test_the_most_urgent_listener_counts() -> None:
    shared = SharedPlayhead()
    shared.listeners = (playing(delivered_s=5.0, played_s=0.0, at=100.0), Playhead(ahead=True))
    assert RemoteHearing(HeardPosition.of(shared, 100.0)).slack_s(101.0) == pytest.approx(4.0)


def test_time_alone_changes_nothing_and_everything_else_is_told() -> None:
    playhead = playing(delivered_s=5.0, played_s=0.0, at=100.0)
    told = HeardPosition.of(playhead, 100.0)
    assert not HeardPosition.of(playhead, 103.3).differs(told)
    playhead.played_s, playhead.played_at = 3.0, 103.0004  # a position that is where it was expected
    assert not HeardPosition.of(playhead, 103.3).differs(told)
    playhead.played_at = 103.1
    assert HeardPosition.of(playhead, 103.3).differs(told)

    awaited = Playhead(ahead=True)
    told = HeardPosition.of(awaited, 100.0)
    assert told.dry_at == -math.inf
    awaited.ahead = False
    assert HeardPosition.of(awaited, 100.0).differs(told)


def test_whatever_a_model_is_told_of_changes_the_state() -> None:
    shared, playhead = SharedPlayhead(), playing(delivered_s=5.0, played_s=0.0, at=100.0)
    states = [shared.state]
    shared.listeners = (playhead,)
    for name, value in {
        "delivered_s": 6.0,
        "played_s": 1.0,
        "played_at": 101.0,
        "ahead": True,
        "tentative": True,
    }.items():
        states.append(shared.state)
        assert shared.state == states[-1]
        setattr(playhead, name, value)
    shared.listeners = (playhead, Playhead())
    assert not any(state == shared.state for state in states) and len({str(state) for state in states}) == 6
