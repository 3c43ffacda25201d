"""Decisions of a session that ``Turns`` does not make."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gateway.seams.call_record import Said
from gateway.seams.end_cause import UNKNOWN
from gateway.seams.leg import TransferStart
from gateway.seams.messages import Cancel, End, Inbound, Record, Text, Transfer
from tests.gateway.call.interleavings import POLICIES, SCRIPTED, run_all, scripted, scripted_call
from tests.gateway.call.virtual_session import VirtualSession


def test_a_cut_that_a_false_alarms_time_decided_is_counted_from_the_callers_onset() -> None:
    (lines,) = run_all(scripted, ["duration: onset in speech"])
    assert [line.partition(" ")[2] for line in lines if " cut " in line] == ["cut speech 0.064"]


async def _streams_on(token_s: float) -> list[str]:
    """A manager that continues its story while the caller speaks for 3.2 s, and answers the prompt."""
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
    assert not [line for line in lines[cut:prompt] if " frame " in line], "no speech over the caller"
    finished = [line for line in lines if "event='finished'" in line]
    assert len(finished) == 1 and "turn='t2'" in finished[0]


async def _recorded(name: str) -> list[str]:
    """Milliseconds of a recording; those that the manager was told were heard; how much they may differ."""
    call = await scripted_call(name)
    lines = await call.finish()
    told = [int(ms) for line in lines for ms in re.findall(r"'(?:heardMs|audioMs)': (\d+)", line)]
    recorded = call.recorded
    assert all(at + length_s <= after + 1e-6 for (at, length_s), (after, _) in pairwise(recorded))
    # Where speech pauses and continues, the frame under way is heard again. The manager is told whole frames.
    cuts = sum("clear" in line for line in lines) + 3 * ("on_hold" in name)
    made_ms = round(sum(length_s for _, length_s in recorded) * 1000)
    repeated_ms = 200 * cuts if "words" in name.partition(":")[0] else 0  # after a doubt, the last word is said again
    return [str(made_ms), str(sum(told)), str(20 * (cuts + len(told)) + repeated_ms)]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_recording_has_what_the_caller_heard_and_nothing_that_was_cut(policy: str) -> None:
    names = [name for name in SCRIPTED if name.startswith(f"{policy}: ") and "breaks" not in name]
    for name, (made, told, apart) in zip(names, run_all(_recorded, names), strict=True):
        assert abs(int(made) - int(told)) <= int(apart), name


def lines_of(scene: Callable[[VirtualSession], Awaitable[None]], **fields: Any) -> list[str]:
    """Return the lines that leave a call in which the scene happens, without the times."""

    async def call(_: object) -> list[str]:
        made = VirtualSession(fields.pop("route", {}), **fields)
        await made.run(0.01)
        await scene(made)
        return [line.partition(" ")[2] for line in await made.finish()]

    return run_all(call, [None])[0]


def test_what_was_told_before_the_manager_was_there_is_told_first() -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(0.5)

    lines = lines_of(scene, route={"welcome_greeting": "hello there", "events": ["speaker-events"]})
    assert [line for line in lines if line.startswith("tell TurnEvent")][0].startswith("tell TurnEvent(turn='greeting'")


def test_a_call_that_continues_another_one_is_not_greeted_again() -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(0.5)

    route = {"welcome_greeting": "hello there", "events": ["speaker-events"]}
    assert not [line for line in lines_of(scene, route=route, greets=False) if "greeting" in line]


def test_a_caller_who_hangs_up_ends_every_turn_and_its_work_and_then_the_line() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one two three four ", turn="a"), Text(token="five ", last=True, turn="b"))
        await call.run(0.1)

    lines = lines_of(scene)
    assert [line for line in lines if "interrupted" in line and "TurnEvent" in line] == [
        "tell TurnEvent(turn='a', event='interrupted', data={'reason': 'hangup', 'heardMs': 100})",
        "tell TurnEvent(turn='b', event='interrupted', data={'reason': 'hangup', 'heardMs': 0})",
    ]
    assert "closed a" in lines and "Ended(reason='hangup'" in lines[-4]
    assert lines[-3:-1] == ["ended by caller", "line closed"]


def test_a_slow_engine_costs_pauses_and_no_words_and_the_next_turn_has_none() -> None:
    async def scene(call: VirtualSession) -> None:
        call.engine_s = 1.0  # for a word that lasts 0.2 s
        call.say(Text(token="one two three four five six", last=True, turn="slow"))
        await call.run(8.0)
        call.engine_s = 0.0
        call.say(Text(token="seven eight nine", last=True, turn="quick"))
        await call.run(2.0)

    lines = lines_of(scene)
    heard = [line for line in lines if line.startswith("frame ")]
    assert heard == [f"frame slow/{word}" for word in range(1, 7) for _ in range(10)] + [
        f"frame quick/{word}" for word in range(1, 4) for _ in range(10)
    ]
    over = lines.index("turn ended finished")
    gaps = [at for at, line in enumerate(lines) if line.startswith("gap ")]
    assert 1 <= len(gaps) <= 5 and max(gaps) < over, "none but between the slow words"
    assert f"'gaps': {len(gaps)}" in next(line for line in lines if "'slow', event='finished'" in line)


def test_the_engine_is_read_on_when_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.call.speech.BUFFER_S", 3.0)

    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="a b c d e f g h i j k l m n o p q r s t u", last=True))
        await call.run(0.1)
        assert 3.0 < call.session.speech.playout.buffered_s() < 3.4, "the buffer holds 3 s"
        await call.run(1.0)
        assert 2.8 < call.session.speech.playout.buffered_s() < 3.4
        await call.run(4.0)

    assert any("event='finished', data={'audioMs': 4200" in line for line in lines_of(scene))


def test_a_turn_whose_engine_breaks_fails_and_the_call_goes_on() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one two "))
        await call.run(0.1)
        call.spoken[0].fail()
        await call.run(0.1)
        call.say(Text(token="three", last=True))
        await call.run(1.0)

    lines = lines_of(scene)
    assert any("turn='t1', event='failed'" in line for line in lines)
    assert any("turn='t2', event='finished'" in line for line in lines)


def test_a_manager_that_pauses_a_recording_which_is_not_there_is_told() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Record(state="pause"))

    assert any("code='not_recording'" in line and "field='state'" in line for line in lines_of(scene))


def test_a_lost_recording_is_told_and_the_call_goes_on() -> None:
    async def scene(call: VirtualSession) -> None:
        call.session.caller.on_recording_lost("disk_full")
        call.say(Text(token="one", last=True))
        await call.run(1.0)

    lines = lines_of(scene)
    assert any("code='recording_lost'" in line for line in lines)
    assert any("turn='t1', event='finished'" in line for line in lines)


def test_a_key_that_the_leg_tells_is_not_taken_from_the_audio_too() -> None:
    async def scene(call: VirtualSession) -> None:
        call.session.caller.on_dtmf_heard("1")
        call.session.on_digit("2")
        call.session.caller.on_dtmf_heard("2")

    assert [line for line in lines_of(scene) if "Dtmf" in line] == ["tell Dtmf(digit='1')", "tell Dtmf(digit='2')"]


def test_the_end_comes_when_all_is_said_and_leaves_a_handoff() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="good bye", last=True), End(handoff_data="{}"))
        await call.run(0.3)
        assert call.session.ending.handoff is None
        await call.run(0.5)
        assert call.session.ending.handoff is not None and call.session.ending.handoff.handoff_data == "{}"

    assert "hang_up end {}" in lines_of(scene)


def test_a_call_without_a_manager_leaves_the_reason_to_whoever_goes_on_with_it() -> None:
    async def scene(call: VirtualSession) -> None:
        call.session.on_dialogue_failed("no answer")
        await call.run(0.1)
        assert call.session.ending.handoff is not None
        assert (call.session.ending.handoff.reason, call.session.ending.handoff.handoff_data) == (
            "dialogue_failed",
            None,
        )

    assert "hang_up dialogue_failed None" in lines_of(scene)


@pytest.mark.parametrize("first", ["hangup_by_api", "end"])
def test_what_a_call_leaves_is_decided_with_its_end(first: str) -> None:
    """The manager's line breaks for good, and a transfer succeeds, before the rest of an ended call is gone."""

    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.UNDER_WAY
        if first == "end":
            call.say(End(handoff_data="{}"))
        else:
            call.say(Transfer(target="+4930123"))
            call.session.end(first, hang_up=True)
        left = call.session.ending.handoff
        assert (left is not None) == (first == "end")
        call.session.on_dialogue_failed("no answer")
        call.session.on_transferred("")
        assert call.session.ending.handoff is left
        await call.run(0.1)

    assert [
        line for line in lines_of(scene, calling={"allowed_targets": ["+4930*"]}) if line.startswith("hang_up")
    ] == ["hang_up end {}" if first == "end" else "hang_up hangup_by_api None"]


def test_a_stepped_clock_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine goes back to 1970 in mid-call; before, it was today."""

    async def scene(call: VirtualSession) -> None:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        call.say(Text(token="one two three", last=True))
        await call.run(2.0)
        session = call.session
        record = session.metering.ended(session.metering.begun("", numbers=False), "", UNKNOWN, failed=False)
        assert record.endedAt is not None and record.endedAt - record.startedAt == pytest.approx(2.0, abs=0.1)

    assert any("event='finished'" in line for line in lines_of(scene))


HUMAN = {"fallback": {"transfer": "sip:desk@pbx.example"}}  # no list names the operator's own target


@pytest.mark.parametrize(
    ("started", "problem", "target", "reason"),
    [
        (TransferStart.HANDED_OVER, "", "sip:desk@pbx.example", "dialogue_failed"),
        (TransferStart.UNDER_WAY, "", "sip:desk@pbx.example", "dialogue_failed"),
        (TransferStart.UNDER_WAY, "486 Busy Here", "", "dialogue_failed"),
        (TransferStart.REFUSED, "", "", "dialogue_failed"),
    ],
)
def test_a_call_without_a_manager_goes_to_the_routes_human(
    started: TransferStart, problem: str, target: str, reason: str
) -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = started
        call.session.on_dialogue_failed("no answer")
        await call.run(0.1)
        assert (call.session.ending.handoff is None) == (started is TransferStart.UNDER_WAY)
        call.session.on_transferred(problem)
        await call.run(0.1)
        left = call.session.ending.handoff
        assert left is not None and (left.reason, left.transfer_target) == (reason, target)

    lines = lines_of(scene, route=HUMAN)
    assert [line for line in lines if "sip:desk" in line] == ["dialogue_failed sip:desk@pbx.example"], "tried once"
    assert "dialogue failed" in lines, "it is counted"
    assert "hang_up dialogue_failed None" in lines, "the next party of the call learns why"


@pytest.mark.parametrize("problem", ["", "486 Busy Here"])
def test_a_transfer_that_the_lost_manager_had_begun_is_awaited_first(problem: str) -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.UNDER_WAY
        call.say(Transfer(target="+4930123"))
        call.session.on_dialogue_failed("no answer")
        call.session.on_transferred(problem)
        call.session.on_transferred("486 Busy Here")
        await call.run(0.1)

    lines = lines_of(scene, route=HUMAN, calling={"allowed_targets": ["+4930*"]})
    assert [line for line in lines if line.startswith("hang_up")] == [
        "hang_up dialogue_failed None" if problem else "hang_up transferred None"
    ]
    assert ("dialogue_failed sip:desk@pbx.example" in lines) == bool(problem)


def test_a_denied_human_is_not_called() -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.HANDED_OVER
        call.session.on_dialogue_failed("no answer")
        await call.run(0.1)
        assert call.session.ending.handoff is not None and not call.session.ending.handoff.transfer_target

    lines = lines_of(scene, route=HUMAN, calling={"denied_targets": ["*@pbx.example"]})
    assert "hang_up dialogue_failed None" in lines and "dialogue_failed sip:desk@pbx.example" not in lines


def test_the_callers_audio_is_worked_on_until_the_caller_who_cut_us_has_finished() -> None:
    """Nothing is left to interrupt after the cut, but turns wait for the end of what the caller says."""

    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one two three four five", last=True))
        await call.run(0.1)
        assert call.vad_wanted
        call.utters("word", 20)
        await call.run(0.5)
        assert call.session.turns.live == [] and call.vad_wanted
        await call.run(1.0)
        assert not call.vad_wanted

    assert any("Interrupt(" in line for line in lines_of(scene))


def test_a_leg_of_any_kind_hears_of_a_transfer_only_when_the_policy_lets_it_through() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one two three four five", last=True))
        await call.run(0.1)
        call.say(Transfer(target="+88216123456"), Transfer(target="0049 30-123"), Transfer(target="+4930123"))
        await call.run(1.0)

    route = {"calling": {"calls_per_minute": 1}, "dialogue": {"transfer_wait_s": 0}}
    lines = lines_of(scene, route=route, calling={"allowed_targets": ["+4930*"]})
    assert [line for line in lines if line.startswith(("transfer", "call rejected"))] == [
        "call rejected target_not_allowed", "transfer +4930123", "call rejected rate_limited",
    ]  # fmt: skip
    told = [line for line in lines if "Error(" in line]
    assert "an international number" in told[0] and "882" not in told[0]
    assert any("event='finished'" in line for line in lines), "the call continues, and so does its speech"


SALES = Transfer(target="+4930123")
TEN_WORDS = "one two three four five six seven eight nine ten"  # two seconds


def transferring(scene: Callable[[VirtualSession], Awaitable[None]], **fields: Any) -> list[str]:
    return lines_of(scene, calling={"allowed_targets": ["+4930*"]}, **fields)


def test_a_transfer_waits_until_the_speech_before_it_has_been_heard() -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.HANDED_OVER
        call.say(Text(token="one moment please"), SALES, Text(token=TEN_WORDS, last=True, turn="behind"))
        await call.run(2.0)

    lines = transferring(scene)
    assert "frame t1/3" in lines and not any("turn='behind', event='finished'" in line for line in lines)
    finished = next(index for index, line in enumerate(lines) if "turn='t1', event='finished'" in line)
    assert lines.index("transfer +4930123") > finished
    assert "hang_up transferred None" in lines


@pytest.mark.parametrize("by", ["the caller", "cancel", "the bound"])
def test_a_transfer_waits_no_longer_for_speech_that_is_cut_or_too_long(by: str) -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.HANDED_OVER
        call.say(Text(token=TEN_WORDS, last=True), replace(SALES, commit=True))
        await call.run(0.3)
        assert not any("transfer" in line for line in call.lines)
        if by == "the caller":
            call.utters("word", 20)
        elif by == "cancel":
            call.say(Cancel())
        await call.run(0.5)
        assert any(line.endswith("transfer +4930123") for line in call.lines)

    transferring(scene, route={"dialogue": {"transfer_wait_s": 0.5}} if by == "the bound" else {})


def test_a_transfer_that_waited_for_speech_is_not_made_again_when_its_time_is_up() -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.UNDER_WAY
        call.say(Text(token="one moment please", last=True), SALES)
        await call.run(2.0)

    lines = transferring(scene, route={"dialogue": {"transfer_wait_s": 1.5}})
    assert lines.count("transfer +4930123") == 1


def test_a_transfer_that_waits_is_not_the_one_whose_end_the_leg_tells() -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.HANDED_OVER
        call.say(Text(token="one moment please", last=True), SALES)
        await call.run(0.3)
        call.session.on_transferred("408 Request Timeout")
        await call.run(2.0)

    lines = transferring(scene)
    assert lines.count("transfer +4930123") == 1 and not any("transfer_failed" in line for line in lines)


def test_a_transfer_that_waits_is_off_when_the_caller_hangs_up() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token=TEN_WORDS, last=True), SALES)
        await call.run(0.3)

    assert not any("transfer" in line for line in transferring(scene))


@pytest.mark.parametrize(("problem", "reason"), [("", "transferred"), ("486 Busy Here", "end")])
def test_an_end_behind_a_transfer_waits_for_its_outcome(problem: str, reason: str) -> None:
    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.UNDER_WAY
        call.say(Text(token="one moment please", last=True), SALES, End())
        await call.run(2.0)
        assert not any("hang_up" in line for line in call.lines)
        call.session.on_transferred(problem)
        await call.run(0.1)

    assert [line for line in transferring(scene) if "hang_up" in line] == [f"hang_up {reason} None"]


def test_text_that_comes_before_the_utterance_is_open_is_fed_when_it_is() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one "), Text(token="two", last=True))
        await call.run(1.0)

    lines = lines_of(scene)
    begins = lines.index("engine t1 ahead=False language=en-US speed=1.0")
    assert lines[begins + 1 : begins + 4] == ["feed t1 'one '", "feed t1 'two'", "end_text t1"]


async def _in_two_languages(_: int) -> list[str]:
    route = {"voice": "ada", "languages": [{"code": "de-DE", "voice": "anna"}, {"code": "fr-FR"}]}
    call = VirtualSession(route)
    await call.run(0.01)
    for lang in ("", "de-DE", "fr-FR"):
        call.say(Text(token="one two", last=True, lang=lang))
        await call.run(1.0)
    await call.finish()
    return [f"{asked.language} {asked.voice}" for asked in call.asked]


def test_a_language_of_the_route_has_its_own_voice_where_it_names_one() -> None:
    assert run_all(_in_two_languages, [0]) == [["en-US ada", "de-DE anna", "fr-FR ada"]]


def test_the_turns_of_a_route_have_its_priority() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one", last=True))
        await call.run(1.0)
        assert [request.priority for request in call.asked] == [8]

    lines_of(scene, route={"priority": 8})


def test_a_turn_that_is_cancelled_before_its_work_starts_opens_no_utterance() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one "), Cancel())
        await call.run(0.1)
        call.say(Text(token="two", last=True))
        await call.run(1.0)

    assert [line.split()[1] for line in lines_of(scene) if line.startswith(("engine", "closed"))] == ["t2", "t2"]


def test_the_clock_is_read_once_for_all_that_a_digit_leads_to() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(Text(token="one two three ", last=True), Text(token="four", last=True))
        await call.run(0.1)
        before = call.ticker.readings
        call.session.on_digit("1")
        assert call.ticker.readings == before + 1

    assert any("Interrupt(" in line for line in lines_of(scene))


@contextmanager
def unrecorded(call: VirtualSession) -> Iterator[None]:
    """The beginning of the call's record is not kept while the block lasts."""
    kept = asyncio.get_running_loop().create_future()
    call.session.wait_until_metered(kept)
    try:
        yield
    finally:
        kept.set_result(None)


def test_a_leg_that_rings_is_not_answered_before_the_record_is_kept() -> None:
    async def rings(_: object) -> list[str]:
        call = VirtualSession({})
        with unrecorded(call):
            await call.run(0.1)  # the manager is there
            assert not call.session.ready.done()
        await call.run(0.001)
        assert call.session.ready.done()
        return await call.finish()

    run_all(rings, [None])


def test_speech_is_made_and_waits_until_the_record_is_kept_whatever_the_leg_says_of_hold() -> None:
    async def scene(call: VirtualSession) -> None:
        with unrecorded(call):
            call.say(Text(token="one", last=True))
            call.session.on_hold(True)
            call.session.on_hold(False)
            await call.run(1.0)
            assert any("feed t1" in line for line in call.lines) and not any("frame" in line for line in call.lines)
        await call.run(1.0)

    assert lines_of(scene).count("frame t1/1") == 10


def test_a_call_that_is_over_at_once_is_hung_up_when_its_record_is_kept() -> None:
    async def scene(call: VirtualSession) -> None:
        with unrecorded(call):
            call.session.end("end", hang_up=True)
            await call.run(1.0)
            assert not any("hang_up" in line for line in call.lines)
        await call.run(0.001)
        assert any("hang_up" in line for line in call.lines)

    lines_of(scene)


GOODBYE = Text(token=TEN_WORDS, last=True)
WITHDRAWABLE: dict[str, End | Transfer] = {"transfer": SALES, "end": End(handoff_data="{}")}


def interrupted(
    *messages: Inbound, also: Callable[[VirtualSession], None] = lambda call: None, **fields: Any
) -> list[str]:
    """A manager that sends messages, and a caller who speaks over the first words; what came of it in 6 s."""

    async def scene(call: VirtualSession) -> None:
        call.transfers_are = TransferStart.HANDED_OVER
        call.say(*messages)
        await call.run(0.3)
        also(call)
        call.utters("word", 20)
        await call.run(5.7)
        left = [line for line in call.lines if "hang_up" in line or line.split()[1] == "transfer"]
        call.note(f"left {len(left)}")

    return transferring(scene, **fields)


def count(lines: list[str], text: str) -> int:
    return sum(text in line for line in lines)


@pytest.mark.parametrize("what", WITHDRAWABLE)
@pytest.mark.parametrize("barge_in", [{}, {"false_alarm_ms": 300}], ids=["onset", "duration"])
def test_an_interruption_by_speech_withdraws_what_has_not_begun(what: str, barge_in: dict[str, Any]) -> None:
    lines = interrupted(GOODBYE, WITHDRAWABLE[what], barge_in=barge_in)
    assert "left 0" in lines and count(lines, "Withdrawn") == 1
    told = next(index for index, line in enumerate(lines) if f"Withdrawn(what='{what}')" in line)
    assert any("tell Interrupt(" in line for line in lines[:told])


def test_an_interruption_withdraws_a_transfer_and_the_end_after_it() -> None:
    lines = interrupted(GOODBYE, SALES, End())
    assert "left 0" in lines and count(lines, "Withdrawn") == 2


@pytest.mark.parametrize("what", WITHDRAWABLE)
def test_commit_keeps_it(what: str) -> None:
    lines = interrupted(GOODBYE, replace(WITHDRAWABLE[what], commit=True))
    assert "left 0" not in lines and not count(lines, "Withdrawn")


def test_a_second_end_may_commit_the_first() -> None:
    lines = interrupted(GOODBYE, End(handoff_data="{}"), End(commit=True))
    assert "left 0" not in lines and not count(lines, "Withdrawn") and count(lines, "hang_up end {}") == 1


@pytest.mark.parametrize("what", WITHDRAWABLE)
def test_without_extensions_nothing_is_withdrawn(what: str) -> None:
    lines = interrupted(GOODBYE, WITHDRAWABLE[what], dialogue={"extensions": False})
    assert "left 0" not in lines and not count(lines, "Withdrawn")


@pytest.mark.parametrize("gone", ["closed", "lost", "failed"])
@pytest.mark.parametrize("what", WITHDRAWABLE)
def test_without_a_manager_nothing_is_withdrawn(what: str, gone: str) -> None:
    def leaves(call: VirtualSession) -> None:
        match gone:
            case "closed":
                call.session.on_dialogue_closed()
            case "lost":
                call.session.on_dialogue_lost()
            case "failed":
                call.session.on_dialogue_failed("gone")

    lines = interrupted(GOODBYE, WITHDRAWABLE[what], also=leaves)
    assert "left 0" not in lines and not count(lines, "Withdrawn")


def test_a_manager_that_closed_without_end_ends_the_call_even_if_the_caller_speaks() -> None:
    lines = interrupted(GOODBYE, also=lambda call: call.session.on_dialogue_closed())
    assert "left 0" not in lines and not count(lines, "Withdrawn")


def test_a_manager_that_is_back_is_told_of_a_withdrawal() -> None:
    def comes_back(call: VirtualSession) -> None:
        call.session.on_dialogue_lost()
        call.session.on_dialogue_resumed()

    assert count(interrupted(GOODBYE, End(), also=comes_back), "Withdrawn") == 1


def test_speech_that_may_not_interrupt_withdraws_nothing() -> None:
    lines = interrupted(replace(GOODBYE, interruptible="dtmf"), End())
    assert "left 0" not in lines and not count(lines, "Withdrawn")


@pytest.mark.parametrize("what", WITHDRAWABLE)
def test_a_key_withdraws_nothing(what: str) -> None:
    lines = interrupted(GOODBYE, WITHDRAWABLE[what], also=lambda call: call.session.on_digit("1"))
    assert "left 0" not in lines and not count(lines, "Withdrawn")


def test_a_goodbye_that_came_after_the_onset_is_cut_with_the_rest() -> None:
    lines = interrupted(Text(token=TEN_WORDS, last=True, turn="a"), Text(token="bye", last=True, turn="b"), End())
    assert count(lines, "turn='b', event='interrupted'") == 1


def test_after_a_withdrawal_the_call_takes_new_turns_and_a_new_end() -> None:
    async def scene(call: VirtualSession) -> None:
        call.say(GOODBYE, End())
        await call.run(0.3)
        call.utters("word", 20)
        await call.run(3.0)
        call.say(Text(token="of course", last=True, turn="again"), End(handoff_data="later"))
        await call.run(3.0)
        assert any("turn='again', event='finished'" in line for line in call.lines)

    assert count(transferring(scene), "hang_up end later") == 1


async def _asked_and_answered(with_recogniser: bool) -> list[tuple[int | None, int | None]]:
    """The caller speaks until 3.2 s and gets two turns; then presses a key and gets a third."""
    call = VirtualSession({"events": ["speaker-events"]}, recogniser=with_recogniser, logged=True)
    call.says, call.partials = ["Where is my parcel?"], 0.0
    await call.run(0.01)
    call.utters("word", 100)
    await call.run(5.0)
    call.say(Text(token="on the way", last=True), Text(token="anything else", last=True))
    await call.run(5.0)
    call.session.on_digit("1")
    await call.run(1.0)
    call.say(Text(token="thank you", last=True))
    await call.run(3.0)
    await call.finish()
    record = call.session.record(failed=False)
    assert record is not None
    said = sorted((entry for entry in record.entries if isinstance(entry, Said)), key=lambda entry: entry.turn)
    return [(entry.callerStoppedMs, entry.startedMs) for entry in said]


@pytest.mark.parametrize("with_recogniser", [True, False])
def test_the_record_has_when_the_caller_had_stopped_before_the_first_turn_that_follows(with_recogniser: bool) -> None:
    (turns,) = run_all(_asked_and_answered, [with_recogniser])
    (stopped, heard), (between, _), (pressed, answered) = turns
    assert stopped is not None and heard is not None
    assert 3000 <= stopped <= 3300, "the end of the sound, not the end of the silence that proves it"
    assert heard >= 5000
    assert between is None, "it follows a turn"
    assert pressed is not None and answered is not None and 1000 <= answered - pressed <= 1100
