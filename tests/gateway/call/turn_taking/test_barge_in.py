"""The interruption machine: its table, walked, and the deadlines beside it."""

from __future__ import annotations

import itertools

import pytest

from gateway.call.turn_taking.barge_in import (
    ROWS,
    SUSPENDED,
    TABLE,
    BargeIn,
    CallerEvent,
    CallerState,
    Policy,
    Rules,
    Verdict,
)

CASES = list(itertools.product(Policy, (False, True), CallerState, CallerEvent, (False, True)))
"""Policy, recogniser, state, event, whether speech may cut."""


def test_each_verdict_says_what_becomes_of_our_voice() -> None:
    for (_, _, before, event, _), (after, verdict) in TABLE.items():
        case = f"{before} {event}"
        match verdict:
            case Verdict.SUSPEND:
                assert before not in SUSPENDED and after in SUSPENDED, case
            case Verdict.RESUME:
                assert before in SUSPENDED and after not in SUSPENDED, case
            case Verdict.CUT:
                assert after not in SUSPENDED, case
            case Verdict.NOTHING:
                assert (before in SUSPENDED) == (after in SUSPENDED) or event is CallerEvent.RELEASED, case


def test_nothing_is_cut_or_suspended_where_speech_may_not_and_nothing_was_before() -> None:
    for (_, _, before, event, may_cut), (_, verdict) in TABLE.items():
        if not may_cut and before not in SUSPENDED:
            assert verdict is Verdict.NOTHING, (before, event)


def test_every_row_decides_some_case_and_what_has_none_changes_nothing() -> None:
    first = {next((row for row in ROWS if row.fits(case)), None) for case in CASES}
    assert first == {*ROWS, None}
    for policy, recogniser, state, event, may_cut in CASES:
        if (policy, recogniser, state, event, may_cut) not in TABLE:
            machine = BargeIn(Rules(policy=policy, recogniser=recogniser))
            machine.state = state
            assert machine.on(event, 10.0, onset=9.9, may_cut=may_cut) is Verdict.NOTHING
            assert machine.state is state


@pytest.mark.parametrize(("policy", "recogniser"), list(itertools.product(Policy, (False, True))))
def test_every_suspension_ends_without_another_sound_of_the_caller(policy: Policy, recogniser: bool) -> None:
    """Its deadline ends it, or an answer that is bound to come: the VAD's silence, the recogniser's words or none."""
    answers = [CallerEvent.SILENCE, CallerEvent.NO_WORDS] if recogniser else [CallerEvent.SILENCE]
    for events in itertools.product((CallerEvent.SUSPECTED, CallerEvent.SPEECH, CallerEvent.SILENCE), repeat=4):
        machine = BargeIn(Rules(policy=policy, recogniser=recogniser, lasts_s=0.4))
        for at, event in enumerate(events):
            machine.on(event, float(at), onset=at - 0.1, may_cut=True)
        if machine.suspended and machine.deadline() is not None:
            machine.on(CallerEvent.DEADLINE, 10.0, may_cut=True)
        for event in answers:
            machine.on(event, 11.0, may_cut=True)
        assert not machine.suspended, events


def verdicts(machine: BargeIn, *events: tuple[CallerEvent, float]) -> list[Verdict]:
    return [machine.on(event, now, onset=now - 0.1, may_cut=True) for event, now in events]


def test_policy_onset_suspends_for_a_suspicion_and_cuts_for_speech() -> None:
    machine = BargeIn(Rules())
    assert verdicts(machine, (CallerEvent.SUSPECTED, 1.0), (CallerEvent.SPEECH, 1.05)) == [Verdict.SUSPEND, Verdict.CUT]
    assert machine.onset == pytest.approx(0.9), "from the caller's first sound"
    assert machine.caller_speaks and machine.deadline() is None


def test_a_suspicion_of_which_nothing_more_is_heard_is_given_up() -> None:
    machine = BargeIn(Rules(give_up_s=1.4))
    verdicts(machine, (CallerEvent.SUSPECTED, 1.0))
    assert machine.deadline() == pytest.approx(2.4)
    assert machine.on(CallerEvent.DEADLINE, 2.4, may_cut=True) is Verdict.RESUME
    assert machine.deadline() is None


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [(CallerEvent.WORDS, Verdict.CUT), (CallerEvent.NO_WORDS, Verdict.RESUME), (None, Verdict.RESUME)],
)
def test_a_short_sound_stays_a_pause_until_the_recogniser_answers(answer: CallerEvent | None, verdict: Verdict) -> None:
    machine = BargeIn(Rules(recogniser=True, ask_s=0.5))
    begun = verdicts(
        machine, (CallerEvent.SUSPECTED, 1.0), (CallerEvent.SHORT_SOUND, 1.3), (CallerEvent.DISMISSED, 1.3)
    )
    assert begun == [Verdict.SUSPEND, Verdict.NOTHING, Verdict.NOTHING]
    assert machine.suspended and machine.deadline() == pytest.approx(1.8)
    at = 1.8 if answer is None else 1.5
    assert machine.on(answer or CallerEvent.DEADLINE, at, may_cut=True) is verdict
    assert not machine.suspended


def test_speech_after_a_short_sound_has_its_own_time_for_words() -> None:
    machine = BargeIn(Rules(recogniser=True, ask_s=0.5, words_s=2.0))
    verdicts(machine, (CallerEvent.SUSPECTED, 1.0), (CallerEvent.SHORT_SOUND, 1.3), (CallerEvent.SPEECH, 1.6))
    assert machine.state is CallerState.CONFIRMING and machine.deadline() == pytest.approx(3.6)


def test_policy_duration_cuts_when_speech_has_lasted_from_its_onset() -> None:
    machine = BargeIn(Rules(policy=Policy.DURATION, lasts_s=0.4))
    assert verdicts(machine, (CallerEvent.SPEECH, 1.0)) == [Verdict.SUSPEND]
    assert machine.deadline() == pytest.approx(1.3)
    assert machine.on(CallerEvent.DEADLINE, 1.3, may_cut=False) is Verdict.CUT, (
        "also what was just begun, and is suspended"
    )


def test_policy_words_speaks_on_until_a_word_or_until_speech_has_lasted() -> None:
    machine = BargeIn(Rules(policy=Policy.WORDS, recogniser=True, lasts_s=1.0))
    assert verdicts(machine, (CallerEvent.SUSPECTED, 0.95), (CallerEvent.SPEECH, 1.0)) == [
        Verdict.NOTHING,
        Verdict.NOTHING,
    ]
    assert machine.deadline() == pytest.approx(1.9)
    assert verdicts(machine, (CallerEvent.WORDS, 1.5)) == [Verdict.CUT]
    assert machine.deadline() == pytest.approx(1.9), "who speaks on cuts what we say next, too"


def test_with_a_recogniser_silence_leaves_the_doubt_to_the_words() -> None:
    for word, verdict in ((CallerEvent.WORDS, Verdict.CUT), (CallerEvent.NO_WORDS, Verdict.RESUME)):
        machine = BargeIn(Rules(policy=Policy.DURATION, recogniser=True, lasts_s=0.4))
        verdicts(machine, (CallerEvent.SPEECH, 1.0), (CallerEvent.SILENCE, 1.2))
        assert machine.state is CallerState.AWAITING_WORDS
        assert verdicts(machine, (word, 1.6)) == [verdict]


def test_with_a_recogniser_a_doubtful_cut_stays_open_until_the_words_are_overdue() -> None:
    machine = BargeIn(Rules(policy=Policy.DURATION, recogniser=True, lasts_s=0.4, words_s=2.0))
    verdicts(machine, (CallerEvent.SPEECH, 1.0))
    assert machine.deadline() == pytest.approx(3.3)
    verdicts(machine, (CallerEvent.SILENCE, 1.2), (CallerEvent.SPEECH, 2.0))
    assert machine.deadline() == pytest.approx(3.3), "more sound does not prolong the doubt"
    assert machine.on(CallerEvent.DEADLINE, 3.3, may_cut=True) is Verdict.RESUME
    assert machine.caller_speaks and machine.deadline() is None
    assert verdicts(machine, (CallerEvent.WORDS, 3.5)) == [Verdict.CUT]


def test_policy_onset_with_a_recogniser_leaves_the_cut_to_words_or_to_speech_that_lasts() -> None:
    for event, verdict in (
        (CallerEvent.WORDS, Verdict.CUT),
        (CallerEvent.NO_WORDS, Verdict.NOTHING),
        (CallerEvent.DEADLINE, Verdict.CUT),
    ):
        machine = BargeIn(Rules(recogniser=True, words_s=2.0))
        assert verdicts(machine, (CallerEvent.SUSPECTED, 0.95), (CallerEvent.SPEECH, 1.0)) == [
            Verdict.SUSPEND,
            Verdict.NOTHING,
        ]
        assert machine.deadline() == pytest.approx(3.0)
        assert machine.on(event, 3.0, may_cut=True) is verdict
        assert machine.caller_speaks


def test_policy_words_suspends_when_speech_has_lasted() -> None:
    machine = BargeIn(Rules(policy=Policy.WORDS, recogniser=True, lasts_s=1.0, words_s=2.0))
    verdicts(machine, (CallerEvent.SPEECH, 1.0))
    assert machine.on(CallerEvent.DEADLINE, 1.9, may_cut=True) is Verdict.SUSPEND
    assert machine.deadline() == pytest.approx(3.9)
    assert verdicts(machine, (CallerEvent.SILENCE, 2.5), (CallerEvent.NO_WORDS, 3.0)) == [
        Verdict.NOTHING,
        Verdict.RESUME,
    ]


def test_a_cut_by_something_else_ends_the_doubt_and_its_deadline_says_nothing() -> None:
    machine = BargeIn(Rules(policy=Policy.DURATION, lasts_s=0.4))
    verdicts(machine, (CallerEvent.SPEECH, 1.0))
    machine.on(CallerEvent.RELEASED, 1.1, may_cut=False)
    assert machine.caller_speaks and not machine.suspended
    assert machine.on(CallerEvent.DEADLINE, 1.3, may_cut=True) is Verdict.NOTHING


def test_the_end_of_a_thought_ends_speech_before_the_silence_does() -> None:
    machine = BargeIn(Rules())
    machine.on(CallerEvent.SPEECH, 1.0, onset=0.9, may_cut=False)
    assert machine.caller_speaks
    machine.on(CallerEvent.THOUGHT_ENDED, 1.5, may_cut=False)
    assert not machine.caller_speaks
