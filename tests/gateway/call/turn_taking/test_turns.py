"""The rules of turn-taking, each on the virtual clock."""

import gc
import itertools
import weakref
from collections.abc import Callable

import pytest

from gateway.call.turn_taking.barge_in import CallerEvent as Caller
from gateway.call.turn_taking.barge_in import Policy, Rules
from gateway.call.turn_taking.speakable import lexicon
from gateway.call.turn_taking.turn import LIVE, TRANSITIONS, Event, Place, State, TurnDefaults, Work
from gateway.seams.messages import (
    Cancel,
    Caption,
    Commit,
    Discard,
    Dtmf,
    End,
    Error,
    Info,
    Interrupt,
    Mark,
    MarkReached,
    SendDigits,
    Text,
    TurnEvent,
)
from tests.gateway.call.turn_taking.virtual_call import VirtualCall
from tts_engine.api import AudioChunk, TextSpan
from tts_engine.speech_marks import without_marks


def told(call: VirtualCall, kind: type) -> list:
    return [message for message in call.told if isinstance(message, kind)]


def test_every_state_can_end_and_no_terminal_state_goes_on() -> None:
    for place, work in itertools.product(Place, Work):
        exits = {event for (source, event) in TRANSITIONS if source == (place, work)}
        assert (exits == set()) == (place not in LIVE)
        if place in LIVE:
            assert Event.CUT in exits
            assert (Event.FAIL in exits) == (work in (Work.STREAMING, Work.MAKING)), "what is not made cannot fail"


def test_text_is_completed_once_and_sound_is_asked_for_once_in_any_order() -> None:
    for place, first in itertools.product(LIVE, (Event.COMPLETE, Event.MAKE)):
        (second,) = {Event.COMPLETE, Event.MAKE} - {first}
        between = TRANSITIONS[State(place, Work.WRITING), first]
        assert (between, first) not in TRANSITIONS
        assert TRANSITIONS[between, second] == State(place, Work.MAKING)


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", [State(place, work) for place in Place for work in Work])
def test_a_missing_transition_is_a_bug_and_says_so(state: State, event: Event) -> None:
    call = VirtualCall()
    call.say(Text(token="hello", last=True))
    turn = call.turns.live[0]
    turn.state = state
    if (state, event) in TRANSITIONS:
        turn.apply(event)
        assert turn.state == TRANSITIONS[state, event]
    else:
        with pytest.raises(
            RuntimeError, match=f"{event.name} is not possible: turn t1 is {state.place.value}, {state.work.value}"
        ):
            turn.apply(event)


def test_waiting_for_the_turn_before_is_no_latency() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True), Text(token="three", last=True))
    call.work_all()
    call.run(1.0)
    first, second = call.first_packets
    assert not first.follows and second.follows and second.total_s < 0.01
    call.say(Text(token="four", last=True))  # into silence
    call.run(0.5)
    call.work_all()
    call.run(0.5)
    assert not call.first_packets[2].follows
    assert call.first_packets[2].total_s == pytest.approx(0.5, abs=0.021)


def test_captions_follow_the_sound_word_by_word_and_joined_are_what_was_heard() -> None:
    call = VirtualCall()
    call.say(Text(token="one two, three four", last=True))
    call.work_all()
    seen = []
    for _ in range(8):
        call.run(0.098)  # half a word
        call.follow()
        seen.append("".join(caption.text for caption in told(call, Caption)))
    assert seen[1] == "one" and "one two," in seen and seen == sorted(seen, key=len)
    call = VirtualCall()
    call.say(Text(token="one two, three four", last=True))
    call.work_all()
    call.run(0.3)
    call.say(Cancel())
    (interrupt,) = told(call, Interrupt)
    assert "".join(caption.text for caption in told(call, Caption)) == interrupt.utterance_until_interrupt == "one two,"
    assert isinstance(call.told[call.told.index(interrupt) - 2], Caption)  # before the turn's end is told


def test_a_turn_is_accepted_started_and_finished_once() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t1") == ["accepted", "started", "finished"]
    assert len(call.sent) == 30
    assert call.gaps == []


def test_speech_starts_before_the_text_is_complete() -> None:
    call = VirtualCall()
    call.say(Text(token="one two "))
    call.work_all()
    call.run(0.1)
    assert call.sent
    call.say(Text(token="three", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t1") == ["accepted", "started", "finished"]
    assert call.turns.live == []


def test_the_next_turn_follows_without_a_hole_and_in_order() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True), Text(token="three", last=True))
    call.work_all()
    call.run(2.0)
    assert [frame for _, frame in call.sent] == [b"t1"] * 20 + [b"t2"] * 10
    times = [at for at, _ in call.sent]
    assert max(b - a for a, b in itertools.pairwise(times)) < 0.023


def test_cancel_reports_the_words_heard_including_the_one_under_way() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three four", last=True))
    call.work_all()
    call.run(0.5)  # words last 0.2 s: two whole ones and half of the third
    call.say(Cancel())
    (interrupt,) = told(call, Interrupt)
    assert interrupt.utterance_until_interrupt == "one two three"
    assert interrupt.utterance_remaining == " four"
    assert interrupt.duration_until_interrupt_ms == pytest.approx(500, abs=22)
    assert call.flushes == [call.now]
    sent = len(call.sent)
    call.run(1.0)
    assert len(call.sent) == sent
    assert call.events("t1") == ["accepted", "started", "interrupted"]


INTERRUPTIONS: dict[str, Callable[[VirtualCall], None]] = {
    "cancel": lambda call: call.say(Cancel()),
    "cancel of a turn": lambda call: call.say(Cancel(turn="a")),
    "digit": lambda call: call.turns.on_digit("1", call.now),
    "speech": lambda call: call.turns.on_caller(Caller.SPEECH, call.now, onset=call.now),
    "preempted": lambda call: call.say(Text(token="other", last=True, turn="b")),
    "engine error": lambda call: call.turns.on_failed(
        call.turns.live[0], code="BROKEN", description="broken", now=call.now
    ),
    "hang-up": lambda call: call.turns.close("hangup", call.now),
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_the_phone_is_silent_before_the_manager_learns_of_the_interruption(name: str) -> None:
    call = VirtualCall(lead_s=0.1)
    call.say(Text(token="one two three four five", last=True, turn="a", preemptible=True))
    call.work_all()
    call.run(0.4)
    before = list(call.told)

    INTERRUPTIONS[name](call)

    news = [message for message in call.told[: call.told_before_flush] if message not in before]
    assert call.flushes and not call.ended_before_flush
    assert [message for message in news if not isinstance(message, TurnEvent) or message.event != "accepted"] == []
    assert len(call.told) > call.told_before_flush


def test_cancel_of_one_turn_leaves_the_others() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True, turn="a"), Text(token="three", last=True, turn="b"))
    call.work_all()
    call.run(0.1)
    call.say(Cancel(turn="a"))
    call.work_all()
    call.run(1.0)
    assert call.events("a") == ["accepted", "started", "interrupted"]
    assert call.events("b") == ["accepted", "started", "finished"]


def test_an_unknown_turn_is_an_error_and_a_dead_one_is_not() -> None:
    call = VirtualCall()
    call.say(Cancel(turn="nobody"))
    (error,) = told(call, Error)
    assert (error.code, error.field, error.turn) == ("unknown_turn", "turn", "nobody")
    call.say(Text(token="one", last=True, turn="a"))
    call.work_all()
    call.run(1.0)
    call.say(Cancel(turn="a"))
    assert len(told(call, Error)) == 1


def test_a_repeated_id_is_an_error() -> None:
    call = VirtualCall()
    call.say(Text(token="one", last=True, turn="a"), Text(token="two", last=True, turn="a"))
    assert [error.code for error in told(call, Error)] == ["repeated_turn"]


def test_only_a_preemptible_turn_is_cut_by_the_next_and_without_interrupt() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True, preemptible=True))
    call.work_all()
    call.run(0.1)
    call.say(Text(token="four", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t1") == ["accepted", "started", "interrupted"]
    assert call.events("t2") == ["accepted", "started", "finished"]
    assert told(call, Interrupt) == []

    call = VirtualCall()
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.1)
    call.say(Text(token="four", last=True, preemptible=True))
    call.work_all()
    call.run(2.0)
    assert call.events("t1")[-1] == "finished"


def test_a_key_is_told_first_and_cuts_what_it_may() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.1)
    call.turns.on_digit("5", call.now)
    kinds = [type(message) for message in call.told]
    assert kinds.index(Dtmf) < kinds.index(Interrupt)


@pytest.mark.parametrize(("can_clear", "heard"), [(True, "one"), (False, "one two")])
def test_what_the_peer_cannot_take_back_of_a_cut_turn_is_heard(can_clear: bool, heard: str) -> None:
    call = VirtualCall(lead_s=0.04, can_clear=can_clear)
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.19)  # 10 ms before "two", of which a frame has been sent
    call.turns.on_digit("5", call.now)
    (interrupt,) = told(call, Interrupt)
    assert interrupt.utterance_until_interrupt == heard
    assert interrupt.utterance_until_interrupt + interrupt.utterance_remaining == "one two three"
    (cut,) = (m for m in told(call, TurnEvent) if m.event == "interrupted")
    assert cut.data["heardMs"] == interrupt.duration_until_interrupt_ms
    assert call.flushes, "the fade follows what still sounds"


def test_a_key_that_may_not_cut_is_dropped_unless_the_route_reports_it() -> None:
    for report, expected in (("none", 0), ("dtmf", 1), ("any", 1), ("speech", 0)):
        call = VirtualCall(TurnDefaults(interruptible="speech", report_input=report))  # type: ignore[arg-type]
        call.say(Text(token="one two three", last=True))
        call.work_all()
        call.run(0.1)
        call.turns.on_digit("5", call.now)
        assert len(told(call, Dtmf)) == expected
        assert told(call, Interrupt) == []


def test_speech_drops_only_what_was_accepted_before_its_onset() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True), Text(token="queued", last=True))
    call.work_all()
    call.run(0.2)
    onset = call.now
    call.run(0.05)
    call.say(Text(token="answer", last=True))
    call.turns.on_caller(Caller.SPEECH, call.now, onset=onset)
    call.work_all()
    call.run(1.0)
    assert call.events("t1")[-1] == "interrupted"
    assert call.events("t2")[-1] == "interrupted"
    assert call.events("t3")[-1] == "finished"
    assert len(told(call, Interrupt)) == 1


def test_the_tail_of_a_cut_stream_is_dropped_and_the_next_answer_is_not() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three four "))
    call.work_all()
    call.run(0.1)
    call.turns.on_digit("1", call.now)
    call.say(Text(token="tail "), Text(token="end", last=True))
    assert call.dropped == 2
    call.say(Text(token="answer", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t2") == ["accepted", "started", "finished"]


def test_stale_tokens_end_with_time_or_with_a_new_prompt() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three "))
    call.work_all()
    call.run(0.1)
    call.turns.on_digit("1", call.now)
    call.run(0.31)
    call.say(Text(token="late but new", last=True))
    assert call.events("t2") == ["accepted"]

    call = VirtualCall()
    call.say(Text(token="one two three "))
    call.work_all()
    call.run(0.1)
    call.turns.on_digit("1", call.now)
    call.turns.expect_answer()
    call.say(Text(token="answer", last=True))
    assert call.events("t2") == ["accepted"]


def cut_by_speech(tail: bool = True) -> VirtualCall:
    """An open untagged turn, or one that is complete, was cut; the caller speaks on."""
    call = VirtualCall()
    call.say(Text(token="one two three ", last=not tail))
    call.work_all()
    call.run(0.1)
    call.turns.on_caller(Caller.SPEECH, call.now, onset=call.now - 0.1)
    return call


@pytest.mark.parametrize("every_s", [0.05, 0.18])
def test_after_a_cut_by_speech_the_tail_is_dropped_as_long_as_it_flows_until_the_prompt(every_s: float) -> None:
    call = cut_by_speech()
    tail = round(5 / every_s)
    for _ in range(tail):
        call.run(every_s)
        call.say(Text(token="tail "))
    assert call.dropped == tail and call.events("t2") == []
    call.turns.expect_answer()
    call.say(Text(token="answer ", last=True))
    assert call.dropped == tail and call.events("t2") == ["accepted"]


@pytest.mark.parametrize("cut", ["digit", "cancel"])
def test_an_answer_at_once_to_a_digit_or_behind_a_cancel_is_spoken(cut: str) -> None:
    call = VirtualCall()
    call.say(Text(token="one two three ", last=True))
    call.work_all()
    call.run(0.1)
    if cut == "digit":
        call.turns.on_digit("1", call.now)
    else:
        call.say(Cancel())
    call.say(Text(token="answer", last=True))
    call.work_all()
    call.run(1.0)
    assert call.dropped == 0
    assert call.events("t1")[-1] == "interrupted" and call.events("t2") == ["accepted", "started", "finished"]


def test_after_a_cut_by_speech_a_pause_of_the_stream_ends_its_tail() -> None:
    call = cut_by_speech()
    call.run(0.2)
    call.say(Text(token="tail "))
    call.run(0.31)
    call.say(Text(token="something new "))
    assert call.dropped == 1 and call.events("t2") == ["accepted"]


def test_after_a_digit_the_window_does_not_slide() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three "))
    call.work_all()
    call.run(0.1)
    call.turns.on_digit("1", call.now)
    for token in ("tail ", "answer "):
        call.run(0.2)
        call.say(Text(token=token))
    assert call.dropped == 1 and call.events("t2") == ["accepted"]


def test_after_a_cancel_nothing_is_dropped() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three "))
    call.work_all()
    call.run(0.1)
    call.say(Cancel(), Text(token="answer "))
    assert call.dropped == 0 and call.events("t2") == ["accepted"]
    call = cut_by_speech()
    call.say(Cancel(), Text(token="answer "))
    assert call.dropped == 0 and call.events("t2") == ["accepted"], "the manager knows of the cut"


def test_an_untagged_turn_waits_for_the_caller_to_finish_and_is_made_meanwhile() -> None:
    call = cut_by_speech(tail=False)
    call.say(Text(token="answer", last=True))
    call.work_all()
    sent = len(call.sent)
    call.run(2.0)
    assert len(call.sent) == sent and "t2" in call.jobs
    call.turns.on_caller(Caller.SILENCE, call.now)
    call.run(1.0)
    assert call.events("t2") == ["accepted", "started", "finished"]
    assert call.first_packets[-1].total_s < 0.01, "the caller's words do not count as our latency"


@pytest.mark.parametrize("fields", [{"turn": "a"}, {"interruptible": "dtmf"}, {"interruptible": "none"}])
def test_a_tagged_turn_and_one_that_speech_may_not_cut_begin_over_the_caller(fields: dict[str, str]) -> None:
    call = cut_by_speech(tail=False)
    call.say(Text(token="answer", last=True, **fields))  # type: ignore[arg-type]
    call.work_all()
    call.run(0.1)
    assert call.events(fields.get("turn", "t2")) == ["accepted", "started"]


def test_turns_wait_for_one_caller_once_and_no_longer_than_the_bound() -> None:
    call = cut_by_speech(tail=False)
    call.say(Text(token="answer", last=True))
    call.work_all()
    assert call.turns.deadline() == pytest.approx(call.now + 4.0)
    call.run(4.0)
    assert call.events("t2") == ["accepted"]
    call.turns.on_caller(Caller.DEADLINE, call.now)
    assert call.turns.deadline() is None
    call.say(Text(token="more", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t2")[-1] == call.events("t3")[-1] == "finished"


def test_tagged_tokens_of_a_dead_turn_are_always_dropped() -> None:
    call = VirtualCall()
    call.say(Text(token="one two ", turn="a"))
    call.work_all()
    call.run(0.1)
    call.say(Cancel(turn="a"))
    call.run(2.0)
    call.say(Text(token="ghost", turn="a", last=True))
    assert call.dropped == 1
    assert told(call, Error) == []


def test_a_held_turn_is_made_ahead_and_heard_only_after_commit() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True, turn="h", hold=True))
    call.work_all()
    call.run(1.0)
    assert call.sent == [] and "h" in call.jobs
    call.say(Commit(turn="h"))
    call.run(0.01)
    assert call.sent
    call.run(1.0)
    assert call.events("h") == ["accepted", "started", "finished"]


def test_discard_drops_a_held_turn_and_too_many_are_refused() -> None:
    call = VirtualCall(TurnDefaults(held_turns=1))
    call.say(Text(token="one", last=True, turn="h", hold=True), Text(token="two", last=True, turn="i", hold=True))
    assert [error.code for error in told(call, Error)] == ["too_many_held"]
    call.say(Discard(turn="h"))
    assert call.events("h") == ["accepted", "interrupted"]


def test_marks_come_when_everything_before_them_was_heard() -> None:
    call = VirtualCall()
    call.say(Mark(name="idle"))
    assert told(call, MarkReached) == [MarkReached(name="idle", cleared=False)]
    call.say(Text(token="one two ", turn="a"), Mark(name="middle"), Text(token="three", last=True, turn="a"))
    call.say(Mark(name="end"))
    call.work_all()
    call.run(0.3)
    assert len(told(call, MarkReached)) == 1
    call.run(0.2)
    assert told(call, MarkReached)[1:] == [MarkReached(name="middle", cleared=False)]
    call.say(Cancel())
    assert told(call, MarkReached)[2:] == [MarkReached(name="end", cleared=True)]


def test_end_lets_queued_speech_finish_and_can_be_told_not_to() -> None:
    call = VirtualCall()
    call.say(Text(token="good bye", last=True), End(handoff_data="{}"))
    call.work_all()
    call.run(0.3)
    assert call.hung_up == []
    call.run(0.3)
    assert call.hung_up == ["{}"]
    assert call.events("t1")[-1] == "finished"

    call = VirtualCall(TurnDefaults(end_drain=False))
    call.say(Text(token="good bye", last=True), End(handoff_data="x"))
    assert call.hung_up == ["x"]
    assert call.events("t1")[-1] == "interrupted"


def test_an_empty_turn_finishes_in_its_place() -> None:
    call = VirtualCall()
    call.say(Text(token="", last=True), Text(token="one", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t1") == ["accepted", "finished"]
    assert call.events("t2") == ["accepted", "started", "finished"]


def test_a_failed_turn_says_so_and_the_next_one_speaks() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True), Text(token="three", last=True))
    call.work("t1", 1)
    call.run(0.1)
    call.turns.on_failed(call.jobs["t1"].turn, code="INTERNAL", description="engine is gone", now=call.now)
    call.work_all()
    call.run(1.0)
    assert call.events("t1") == ["accepted", "started", "failed"]
    assert call.events("t2") == ["accepted", "started", "finished"]


def test_a_starved_turn_counts_a_gap_with_its_length_and_fills_nothing() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True))
    call.work("t1", 1)
    call.run(0.5)
    call.work_all()
    call.run(0.5)
    assert len(call.sent) == 20
    (gap,) = call.gaps
    assert gap == pytest.approx(0.3, abs=0.01)


def test_digits_wait_for_the_speech_before_them_and_make_no_events() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True, speaker_events=True))
    call.say(Text(token="one", last=True), SendDigits(digits="12"))
    call.work_all()
    call.run(1.0)
    assert [frame for _, frame in call.sent] == [b"t1"] * 10 + [b"t2"] * 10
    assert call.events("t2") == []
    assert infos(call) == [
        ("agentSpeaking", "on"), ("tokensPlayed", "one"), ("agentSpeaking", "off"), ("tokensPlayed", "12")
    ]  # fmt: skip


@pytest.mark.parametrize("silent_s", [0.0, 0.3])
def test_the_agent_keeps_speaking_while_a_new_turn_takes_over(silent_s: float) -> None:
    call = VirtualCall(TurnDefaults(speaker_events=True))
    call.say(Text(token="one two three", last=True, preemptible=True))
    call.work_all()
    call.run(0.1)
    call.say(Text(token="four", last=True))
    call.run(silent_s)
    assert infos(call) == [("agentSpeaking", "on")]
    call.work_all()
    call.run(1.0)
    assert infos(call) == [("agentSpeaking", "on"), ("agentSpeaking", "off")]


@pytest.mark.parametrize(
    "newcomer", [SendDigits(digits="12"), Text(token="", last=True)], ids=["touch tones", "no word"]
)
def test_the_agent_is_silent_where_no_speech_takes_over(newcomer: SendDigits | Text) -> None:
    call = VirtualCall(TurnDefaults(speaker_events=True))
    call.say(Text(token="one two three", last=True, preemptible=True))
    call.work_all()
    call.run(0.1)
    call.say(newcomer)
    call.work_all()
    call.run(0.05)
    assert infos(call) == [("agentSpeaking", "on"), ("agentSpeaking", "off")]


def test_the_agent_is_silent_once_the_turn_that_takes_over_is_cancelled() -> None:
    call = VirtualCall(TurnDefaults(speaker_events=True))
    call.say(Text(token="one two three", last=True, preemptible=True))
    call.work_all()
    call.run(0.1)
    call.say(Text(token="four", last=True), Cancel())
    assert infos(call) == [("agentSpeaking", "on"), ("agentSpeaking", "off")]


def test_a_greeting_is_played_in_one_piece() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    call.instructions.greet("Good morning. How are you?", "any", call.now)
    call.work_all()
    for _ in range(100):
        call.run(0.02)
        call.follow()
    assert infos(call) == [("tokensPlayed", "Good morning. How are you?")]


def test_of_a_greeting_that_is_cut_the_heard_part_is_played() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    call.instructions.greet("Good morning. How are you?", "any", call.now)
    call.work_all()
    call.run(0.5)
    call.follow()
    call.turns.on_digit("1", call.now)
    assert infos(call) == [("tokensPlayed", "Good morning. How")]


def test_segments_of_tokens_played_join_to_the_tokens() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True, speaker_events=True))
    call.say(Text(token="Hello there, how are you? ", last=True))
    call.work_all()
    call.run(3.0)
    assert played(call) == "Hello there, how are you? "
    assert infos(call)[0] == ("agentSpeaking", "on") and infos(call)[-1] == ("agentSpeaking", "off")


def test_tokens_played_has_the_time_of_each_word_and_how_it_is_known() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    call.say(Text(token="one <b>two</b> three", last=True))
    ends = (3, 7, 13)
    spans = [TextSpan(end - 3, end, at * 1600, (at + 1) * 1600, exact=at < 2) for at, end in enumerate(ends)]
    turn = call.jobs["t1"].turn
    call.turns.on_chunk(turn, AudioChunk(frames=[b"x"] * 30, first_sample=0, samples=4800, spans=spans), call.now)
    call.turns.on_engine_done(turn, call.now)
    call.run(1.0)
    (info,) = told(call, Info)
    assert (info.turn, info.value) == ("t1", "one <b>two</b> three")
    assert [(word.text[-3:], word.at_ms, word.end_ms, word.timing) for word in info.words] == [
        ("one", 0, 200, "exact"), ("two", 200, 400, "exact"), ("ree", 400, 600, "estimated")
    ]  # fmt: skip


def test_words_of_tokens_played_are_those_that_were_heard_before_a_cut() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.25)  # in the second word
    call.turns.on_digit("1", call.now)
    assert played(call) == "one two"
    assert [word.text for info in told(call, Info) for word in info.words] == ["one", "two"]


def infos(call: VirtualCall) -> list[tuple[str, str]]:
    return [(info.name, info.value) for info in told(call, Info)]


def played(call: VirtualCall) -> str:
    return "".join(info.value for info in told(call, Info) if info.name == "tokensPlayed")


def clause(call: VirtualCall) -> None:
    """Three words of 0.2 s that all came with the first 20 ms of their clause, as the engine has them; and a fourth."""
    call.say(Text(token="one two three, four", last=True))
    turn = call.jobs["t1"].turn
    ends = (3, 7, 14)
    spans = [TextSpan(end - 3, end, at * 1600, (at + 1) * 1600) for at, end in enumerate(ends)]
    chunks = [AudioChunk(frames=[b"a"], first_sample=0, samples=160, spans=spans)]
    chunks.append(AudioChunk(frames=[b"b"] * 29, first_sample=160, samples=29 * 160))
    chunks.append(AudioChunk(frames=[b"c"] * 10, first_sample=4800, samples=1600, spans=[TextSpan(15, 19, 4800, 6000)]))
    for chunk in chunks:
        call.turns.on_chunk(turn, chunk, call.now)
    call.turns.on_engine_done(turn, call.now)


def test_tokens_are_played_when_the_last_word_of_their_segment_has_been_heard() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    clause(call)
    begin = call.now
    seen = {}
    for _ in range(500):
        call.run(0.002)
        call.follow()
        seen.setdefault(played(call), call.now - begin)
    assert list(seen) == ["", "one two three,", "one two three, four"]
    assert seen["one two three,"] == pytest.approx(0.6, abs=0.005)
    assert seen["one two three, four"] == pytest.approx(0.8, abs=0.005), "with the end of the turn"


@pytest.mark.parametrize("heard_s", [0.05, 0.3, 0.59, 0.61, 0.7])
def test_tokens_played_agree_with_the_interrupt_behind_them(heard_s: float) -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    clause(call)
    call.run(heard_s)
    call.follow()
    before = played(call)
    call.playout.pacer.path_delay_s = 0.05  # a mark came late: less has been heard than was thought
    call.turns.on_digit("1", call.now)
    (interrupt,) = told(call, Interrupt)
    assert interrupt.utterance_until_interrupt == played(call)
    assert before == ("one two three," if heard_s > 0.6 else "")


def test_text_over_the_limit_is_refused_and_the_call_goes_on() -> None:
    call = VirtualCall(TurnDefaults(turn_chars=10))
    call.say(Text(token="x" * 11, last=True), Text(token="fine", last=True))
    assert [error.code for error in told(call, Error)] == ["turn_too_long"]
    call.work_all()
    call.run(1.0)
    assert [outcome for _, outcome, _ in call.ended_turns] == ["finished"]


def test_with_marks_a_turn_is_finished_when_the_peer_says_so() -> None:
    call = VirtualCall(lead_s=0.1, has_marks=True)
    call.say(Text(token="one", last=True))
    call.work_all()
    call.run(0.15)
    assert len(call.sent) == 10, "ahead of real time by the lead"
    assert call.events("t1") == ["accepted", "started"]
    call.run(0.1)
    assert call.events("t1") == ["accepted", "started", "finished"]


def test_a_lost_mark_ends_the_turn_after_the_timeout() -> None:
    call = VirtualCall(lead_s=0.1, has_marks=True)
    call.say(Text(token="one", last=True))
    call.work_all()
    call.run(0.15)
    call.peer_marks.clear()
    call.run(2.0)
    assert call.events("t1") == ["accepted", "started"]
    call.run(5.0)
    assert call.events("t1") == ["accepted", "started", "finished"]


def test_hang_up_ends_every_turn() -> None:
    call = VirtualCall()
    call.say(Text(token="one two", last=True), Text(token="three "), Text(token="h", turn="h", hold=True))
    call.work_all()
    call.run(0.1)
    call.turns.close("hangup", call.now)
    assert {outcome for _, outcome, _ in call.ended_turns} == {"interrupted"}
    assert len(call.ended_turns) == 3


def test_a_false_alarm_pauses_and_goes_on_where_it_was() -> None:
    call = VirtualCall(TurnDefaults(barge_in=Rules(policy=Policy.DURATION, lasts_s=0.5)))
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.2)
    sent = len(call.sent)
    call.turns.on_caller(Caller.SPEECH, call.now, onset=call.now - 0.1)
    call.run(0.3)
    assert len(call.sent) == sent, "silent while in doubt"
    call.turns.on_caller(Caller.SILENCE, call.now)
    call.run(1.0)
    assert call.events("t1") == ["accepted", "started", "finished"]
    assert told(call, Interrupt) == [] and call.gaps == []
    assert len(call.sent) in (30, 31), "the frame under way is said again, nothing is lost"


def test_speech_that_goes_on_is_an_interruption_from_its_onset() -> None:
    call = VirtualCall(TurnDefaults(barge_in=Rules(policy=Policy.DURATION, lasts_s=0.5)))
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.25)
    call.turns.on_caller(Caller.SPEECH, call.now, onset=call.now)
    call.run(0.5)
    call.turns.on_caller(Caller.DEADLINE, call.now)
    (interrupt,) = told(call, Interrupt)
    assert interrupt.utterance_until_interrupt == "one two"
    assert call.events("t1") == ["accepted", "started", "interrupted"]


def test_a_suspicion_pauses_and_what_was_no_word_is_spoken_on_after() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.2)
    sent = len(call.sent)
    call.turns.on_caller(Caller.SUSPECTED, call.now, onset=call.now - 0.1)
    call.run(0.3)
    assert len(call.sent) == sent, "silent while in doubt"
    call.turns.on_caller(Caller.SILENCE, call.now)
    call.run(1.0)
    assert call.events("t1") == ["accepted", "started", "finished"]
    assert told(call, Interrupt) == [] and call.gaps == []


def test_a_turn_that_nobody_has_heard_ends_no_pause_for_the_caller() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True), Text(token="draft", last=True, turn="h", hold=True))
    call.work_all()
    call.run(0.2)
    call.turns.on_caller(Caller.SUSPECTED, call.now, onset=call.now - 0.1)
    sent = len(call.sent)
    call.say(Discard(turn="h"))
    call.run(0.3)
    assert len(call.sent) == sent, "the caller may be speaking still"
    call.say(Cancel(turn="t1"), Text(token="four", last=True))
    call.work_all()
    call.run(0.3)
    assert len(call.sent) > sent, "what was being said is gone, and the pause with it"


def test_a_suspicion_that_was_right_reports_what_was_heard_before_the_pause() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True))
    call.work_all()
    call.run(0.25)
    onset = call.now
    call.turns.on_caller(Caller.SUSPECTED, call.now, onset=onset)
    call.run(0.4)
    call.turns.on_caller(Caller.SPEECH, call.now, onset=onset)
    (interrupt,) = told(call, Interrupt)
    assert interrupt.utterance_until_interrupt == "one two"
    call.turns.on_caller(Caller.SILENCE, call.now)
    call.say(Text(token="an answer", last=True))
    call.work_all()
    call.run(1.0)
    assert call.events("t2")[-1] == "finished", "the pause is over"


def test_who_interrupts_the_second_turn_has_not_interrupted_the_first_whose_mark_was_late() -> None:
    call = VirtualCall(lead_s=0.1, has_marks=True)
    call.say(Text(token="one", last=True), Text(token="two three", last=True))
    call.work_all()
    call.run(0.19)
    assert call.peer_marks, "the first has been sent, and is nearly heard"
    call.peer_marks.clear()  # its mark is late, and void when it comes
    call.run(0.06)
    onset = call.now
    call.turns.on_caller(Caller.SUSPECTED, call.now, onset=onset)
    call.run(0.3)
    call.turns.on_caller(Caller.SPEECH, call.now, onset=onset)
    assert call.events("t1")[-1] == "finished"
    (interrupt,) = told(call, Interrupt)
    assert (interrupt.turn, interrupt.utterance_until_interrupt) == ("t2", "two")


SSML = 'Hello <break time="1s"/><prosody rate="slow">slow <sub alias="World">W</sub> end</prosody> now'


def test_markup_split_over_tokens_is_not_spoken_and_heard_text_is_the_tokens() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    for at in range(0, len(SSML), 3):
        call.say(Text(token=SSML[at : at + 3]))
    call.say(Text(token="", last=True))
    assert without_marks(call.jobs["t1"].text) == "Hello slow World end now"
    call.work_all()
    call.run(0.5)  # in the third word
    call.say(Cancel())
    (cut,) = told(call, Interrupt)
    assert cut.utterance_until_interrupt == SSML[: SSML.index("</sub>")]
    assert cut.utterance_until_interrupt + cut.utterance_remaining == SSML
    assert "".join(info.value for info in told(call, Info)) == cut.utterance_until_interrupt


def test_a_finished_turn_of_markup_has_been_heard_whole() -> None:
    call = VirtualCall(TurnDefaults(tokens_played=True))
    call.say(Text(token=SSML, last=True))
    call.work_all()
    call.run(2.0)
    assert call.events("t1") == ["accepted", "started", "finished"]
    assert "".join(info.value for info in told(call, Info)) == SSML


def test_a_turn_of_markup_alone_says_nothing_and_finishes() -> None:
    call = VirtualCall()
    call.say(Text(token='<break time="1s"/>', last=True), Text(token="one", last=True))
    call.work_all()
    call.run(0.5)
    assert [call.events(turn) for turn in ("t1", "t2")] == [
        ["accepted", "finished"],
        ["accepted", "started", "finished"],
    ]
    assert "t1" not in call.jobs


def test_what_might_have_become_a_tag_is_spoken_when_the_turn_is_complete() -> None:
    call = VirtualCall()
    call.say(Text(token="one <br"))
    assert call.jobs["t1"].text == "one "
    call.say(Text(token="", last=True))
    assert (call.jobs["t1"].text, call.jobs["t1"].ended) == ("one <br", True)


def test_a_lexicon_changes_what_is_spoken_and_not_what_is_told() -> None:
    call = VirtualCall(TurnDefaults(lexicon=lexicon((("nginx", "engine x"),)), tokens_played=True))
    call.say(Text(token="Restart Ngi"), Text(token="nx now", last=True))
    assert call.jobs["t1"].text == "Restart engine x now"
    call.work_all()
    call.run(0.3)  # in "engine"
    call.say(Cancel())
    (cut,) = told(call, Interrupt)
    assert cut.utterance_until_interrupt == "Restart Nginx"


def test_a_turn_that_has_ended_is_freed_without_a_collection_of_garbage() -> None:
    call = VirtualCall()
    call.say(Text(token="one two three", last=True), Text(token="four", last=True))
    call.work_all()
    first, second = (weakref.ref(job.turn) for job in call.jobs.values())
    gc.disable()
    try:
        call.jobs.clear()
        call.run(2.0)
        call.say(Text(token="five", last=True))  # the one before it may still be asked for
        call.work_all()
        call.jobs.clear()
        call.run(2.0)
        assert call.events("t2") == ["accepted", "started", "finished"]
        assert first() is None and second() is None
    finally:
        gc.enable()


def test_a_managers_pause_in_mid_turn_is_not_the_engines_lateness() -> None:
    """A manager that looks something up within a turn would else delay the first sound of all later turns."""
    call = VirtualCall()
    call.say(Text(turn="slow", token="Let me check. "))
    call.work_all()
    call.run(5.0)
    call.say(Text(turn="slow", token="All is well. ", last=True))
    call.work_all()
    assert call.jobs["slow"].turn.track.needed_s == 0.0

    call.say(Text(turn="whole", token="Let me check. All is well.", last=True))
    call.work("whole", 3)
    call.run(5.0)
    call.work_all()
    assert call.jobs["whole"].turn.track.needed_s > 3.0, "here the engine was late"
