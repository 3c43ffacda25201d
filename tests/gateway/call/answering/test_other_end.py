"""Outgoing calls through a whole session on the virtual clock."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.call.journal import Journal
from gateway.http.call_api.calls import view
from gateway.seams.end_cause import UNKNOWN
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Answered
from gateway.seams.uplink import LineTone
from tests.gateway.call.virtual_session import VirtualSession
from tests.virtual_loop import VirtualLoop

Scene = Callable[[VirtualSession], Awaitable[None]]


def verdicts_of(scene: Scene, *, says: str = "", direction: str = "outbound", **route: Any) -> list[tuple[float, str]]:
    """Play a scene; return the counted verdicts with their times. ``says``: what the recogniser hears."""

    async def played() -> list[str]:
        call = VirtualSession(route, recogniser=bool(says), direction=direction)
        call.says, call.partials = [says], 0.0
        await scene(call)
        return await call.finish()

    loop = VirtualLoop()
    try:
        lines = loop.run_until_complete(played())
    finally:
        loop.close()
    found = [line.partition(" answered by ") for line in lines if " answered by " in line]
    told = re.findall(r"tell Answered\(by='(\w+)'", "\n".join(lines))
    assert [by for by, _ in itertools.groupby(told)] == [by for *_, by in found]  # the manager hears of each
    return [(float(at), by) for at, _, by in found]


def spoken(*utterances: tuple[str, float]) -> Scene:
    """Return a scene of sounds and silences, each with its seconds."""

    async def scene(call: VirtualSession) -> None:
        for kind, seconds in utterances:
            if kind != "silence":
                call.utters(kind, round(seconds / 0.032))
            await call.run(seconds)

    return scene


def line_tone(kind: Any, length_s: float = 0.4) -> LineTone:
    return LineTone(kind=kind, length_s=length_s, ago_s=0.0, hz=(1000,))


def test_a_short_hello_and_a_pause_are_a_person() -> None:
    ((at, by),) = verdicts_of(spoken(("silence", 0.5), ("word", 0.6), ("silence", 3.0)))
    assert by == "human"
    assert at == pytest.approx(0.5 + 0.6 + 0.8, abs=0.1)


def test_speech_without_a_pause_is_a_machine() -> None:
    ((at, by),) = verdicts_of(spoken(("silence", 0.5), ("word", 6.0), ("silence", 3.0)))
    assert by == "machine"
    assert at - 0.5 < 4.0


def test_a_person_who_speaks_for_long_and_then_waits_is_no_machine() -> None:
    found = verdicts_of(spoken(("silence", 0.5), ("word", 4.5), ("silence", 3.0)))
    assert [by for _, by in found] == ["machine", "human"]
    assert found[-1][0] == pytest.approx(0.5 + 4.5 + 1.2, abs=0.1)


def test_the_pause_begins_with_the_silence_and_not_with_the_end_that_the_vad_reports() -> None:
    async def scene(call: VirtualSession) -> None:
        await spoken(("silence", 0.5), ("word", 0.8))(call)
        silent_since = call.now - 0.2
        call.session.caller.on_lull(since=silent_since, silence_s=0.16)
        await call.run(silent_since + 0.85 - call.now)
        assert view(call.session)["answeredBy"] == "human"

    assert len(verdicts_of(scene)) == 1


def test_words_of_a_greeting_outweigh_its_length() -> None:
    found = verdicts_of(
        spoken(("silence", 0.5), ("word", 1.0), ("silence", 6.0)), says="Please leave a message", language="en-US"
    )
    assert found[-1][1] == "machine"


def test_a_person_comes_after_a_queue() -> None:
    async def scene(call: VirtualSession) -> None:
        call.says = ["Please hold, your call is important to us"]
        await spoken(("silence", 0.5), ("word", 3.5), ("silence", 20.0))(call)
        call.says = ["Hello, this is Ann"]
        await spoken(("word", 1.2), ("silence", 4.0))(call)

    assert [by for _, by in verdicts_of(scene, says="-", language="en-US")][-2:] == ["ivr", "human"]


def test_silence_is_unknown_and_the_first_words_after_it_still_decide() -> None:
    found = verdicts_of(spoken(("silence", 12.0), ("word", 0.6), ("silence", 3.0)))
    assert [by for _, by in found] == ["unknown", "human"]
    assert found[0][0] == pytest.approx(8.0, abs=0.05)


def test_a_ringing_tone_is_no_answer_and_the_wait_begins_again() -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(6.0)
        call.session.caller.on_tone(line_tone("ringback", 2.0), ended_at=call.now)
        await call.run(6.0)

    assert verdicts_of(scene) == []


def test_a_beep_is_a_machine() -> None:
    async def scene(call: VirtualSession) -> None:
        assert view(call.session)["answeredBy"] is None
        await spoken(("silence", 0.5), ("word", 0.6), ("silence", 3.0))(call)
        assert view(call.session)["answeredBy"] == "human"
        call.session.caller.on_tone(line_tone("beep"), ended_at=call.now)
        assert view(call.session)["answeredBy"] == "machine"

    assert [by for _, by in verdicts_of(scene)] == ["human", "machine"]


def test_no_speech_is_looked_for_once_it_is_certain() -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(0.1)
        assert call.vad_wanted
        call.session.caller.on_tone(line_tone("beep"), ended_at=call.now)
        assert not call.vad_wanted

    assert [by for _, by in verdicts_of(scene)] == ["machine"]


def test_the_record_of_a_call_says_who_answered_and_keeps_words_only_if_wanted() -> None:
    for keeps_text in (True, False):
        journal = Journal(keeps_text=keeps_text, begun=0.0)
        journal.told(Answered(by="ivr", confidence=0.95, text="Please hold", waiting=True), 2.0)
        call = CallInfo(call_id="VX1", route="r", transport="test", direction="outbound")
        record = journal.record(call, started_at=0.0, reason="", cause=UNKNOWN, failed=False, now=3.0)
        (entry,) = record.entries
        assert record.answeredBy == "ivr"
        assert entry.model_dump() == {
            "atMs": 2000,
            "kind": "answered",
            "by": "ivr",
            "confidence": 0.95,
            "text": "Please hold" if keeps_text else None,
            "waiting": True,
        }


def test_an_incoming_call_has_no_verdict() -> None:
    assert verdicts_of(spoken(("silence", 0.5), ("word", 0.6), ("silence", 12.0)), direction="inbound") == []
