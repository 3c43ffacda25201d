"""Speech of a leg that can carry none for a while: ringing, or on hold."""

import pytest

from gateway.media.playout import Playout, Track

PTIME_S = 0.02


def frames(playout: Playout, *, begin: float, end: float) -> list[bytes]:
    """Return the frames sent from ``begin`` to ``end``, a visit each frame."""
    sent = []
    for step in range(round((end - begin) / PTIME_S)):
        frame = playout.pop_due(begin + step * PTIME_S)
        if frame is not None:
            sent.append(frame)
    return sent


def test_what_is_said_while_paused_waits_and_goes_on_at_its_place() -> None:
    playout = Playout(ptime_s=PTIME_S)
    track = Track()
    track.push([bytes([number]) for number in range(20)], now=0.0, ptime_s=PTIME_S)
    track.done = True
    playout.on_hold = True
    playout.add(track)
    assert frames(playout, begin=0.0, end=1.0) == [] and playout.deadline(1.0) is None
    assert playout.heard_frames(track, 1.0) == 0

    playout.on_hold = False
    first = frames(playout, begin=1.0, end=1.1)
    assert first == [bytes([number]) for number in range(5)]
    playout.on_hold = True
    playout.flushed(1.1)
    assert frames(playout, begin=1.1, end=5.0) == []
    assert playout.heard_frames(track, 5.0) == pytest.approx(5)

    playout.on_hold = False
    rest = frames(playout, begin=5.0, end=6.0)
    # The frame that was under way when the pause began was not heard whole.
    assert rest[0] in (first[-1], bytes([5])) and rest[-1] == bytes([19])
    assert playout.heard_frames(track, 6.0) == 20
    assert not track.gaps
