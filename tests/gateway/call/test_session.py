"""What a session does beside what ``Turns`` decides."""

from __future__ import annotations

import pytest

from gateway.seams.messages import Text
from tests.gateway.call.interleavings import run_all, scripted
from tests.gateway.call.virtual_session import VirtualSession


def test_a_cut_that_a_false_alarms_time_decided_is_counted_from_the_callers_onset() -> None:
    (lines,) = run_all(scripted, ["duration: onset in speech"])
    assert [line.partition(" ")[2] for line in lines if " cut " in line] == ["cut speech 0.064"]


async def _streams_on(token_s: float) -> list[str]:
    """A manager that goes on with its story while the caller speaks for 3.2 s, and answers the prompt."""
    call = VirtualSession({}, recogniser=True, lead_ms=100)
    call.says = ["Stop it."]
    call.partials = 0.0
    await call.run(0.01)
    call.say(Text(token="once upon a time "))
    await call.run(0.5)
    call.utters("word", 100)
    while not any("Prompt(" in line for line in call.lines):
        call.say(Text(token="there "))
        await call.run(token_s)
    call.say(Text(token="the answer", last=True))
    await call.run(2.0)
    return await call.finish()


@pytest.mark.parametrize("token_s", [0.05, 0.18])
def test_a_story_that_streams_on_is_silent_while_the_caller_speaks_and_the_answer_is_not(token_s: float) -> None:
    (lines,) = run_all(_streams_on, [token_s])
    assert sum("Interrupt(" in line for line in lines) == 1
    cut = next(index for index, line in enumerate(lines) if "Interrupt(" in line)
    prompt = next(index for index, line in enumerate(lines) if "Prompt(" in line)
    assert not [line for line in lines[cut:prompt] if " frame " in line], "nobody talks over the caller"
    finished = [line for line in lines if "event='finished'" in line]
    assert len(finished) == 1 and "turn='t2'" in finished[0]
