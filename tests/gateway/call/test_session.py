"""What a session does beside what ``Turns`` decides."""

from __future__ import annotations

from tests.gateway.call.interleavings import run_all, scripted


def test_a_cut_that_a_false_alarms_time_decided_is_counted_from_the_callers_onset() -> None:
    (lines,) = run_all(scripted, ["duration: onset in speech"])
    assert [line.partition(" ")[2] for line in lines if " cut " in line] == ["cut speech 0.064"]
