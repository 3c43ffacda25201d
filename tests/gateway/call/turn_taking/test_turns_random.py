"""Everything that can happen to a call, in random order: every accepted turn ends exactly once, whatever happens."""

import random
from collections import Counter
from typing import Any

import pytest

from gateway.call.turn_taking.barge_in import CallerEvent as Caller
from gateway.call.turn_taking.barge_in import Policy, Rules
from gateway.call.turn_taking.turn import Place, TurnDefaults
from gateway.seams.messages import (
    Cancel,
    Commit,
    Discard,
    End,
    Inbound,
    Interrupt,
    Mark,
    MarkReached,
    Play,
    SendDigits,
    Text,
    TurnEvent,
)
from tests.gateway.call.turn_taking.virtual_call import VirtualCall

RUNS = 4000


def some_text(rng: random.Random) -> str:
    return rng.choice(["", " ", "word ", "two words ", "end.", "a b c d ", "long " * 8])


def act(call: VirtualCall, rng: random.Random) -> None:
    ids = [turn.id for turn in call.turns.live] + ["nobody", f"x{rng.randrange(6)}"]
    interruptible: Any = rng.choice([None, "any", "speech", "dtmf", "none"])
    preemptible = rng.choice([None, True, False])
    match rng.randrange(17):
        case 0 | 1 | 2:
            call.say(
                Text(
                    token=some_text(rng), last=rng.random() < 0.6, interruptible=interruptible, preemptible=preemptible
                )
            )
        case 3:
            call.say(Text(token=some_text(rng), last=rng.random() < 0.5, turn=rng.choice(ids), preemptible=preemptible))
        case 4:
            call.say(Text(token=some_text(rng), last=rng.random() < 0.7, turn=f"x{rng.randrange(6)}", hold=True))
        case 5:
            decisions: list[Inbound] = [Commit(turn=rng.choice(ids)), Discard(turn=rng.choice(ids))]
            call.say(rng.choice(decisions))
        case 6:
            call.say(Cancel(turn=rng.choice(["", *ids])))
        case 7:
            call.turns.on_digit(rng.choice("0123456789*#"), call.now)
        case 8:
            onset = call.now - rng.random() * 0.2
            call.turns.on_caller(rng.choice([Caller.SUSPECTED, Caller.SPEECH]), call.now, onset=onset)
            if rng.random() < 0.7:
                call.turns.on_caller(rng.choice([Caller.SILENCE, Caller.DISMISSED, Caller.DEADLINE]), call.now)
        case 9:
            call.say(Mark(name=f"m{rng.randrange(1000)}"))
        case 10:
            others: list[Inbound] = [Play(source="clip", preemptible=preemptible), SendDigits(digits="1w2")]
            call.say(rng.choice(others))
        case 11 if call.jobs:
            job = call.jobs[rng.choice(list(call.jobs))]  # the engine crashes under one turn
            if not job.stopped:
                call.turns.on_failed(job.turn, code="INTERNAL", description="gone", now=call.now)
        case 12 if rng.random() < 0.2:
            call.instructions.on_dialogue_lost(rng.choice(["", "one moment please"]), call.now)
        case 13 if rng.random() < 0.05:
            call.say(End())
        case _:
            for turn_id in list(call.jobs):
                job = call.jobs[turn_id]
                if job.turn.kind != "text" and not job.text:
                    job.text = "clip clip"
                call.work(turn_id, rng.randrange(4))
            call.run(rng.choice([0.004, 0.02, 0.1, 0.4]), step_s=rng.choice([0.002, 0.02, 0.07]))


@pytest.mark.parametrize("slice_", range(8))
def test_every_accepted_turn_ends_exactly_once(slice_: int) -> None:
    for seed in range(slice_ * RUNS // 8, (slice_ + 1) * RUNS // 8):
        rng = random.Random(seed)
        defaults = TurnDefaults(
            end_drain=rng.random() < 0.7,
            tokens_played=rng.random() < 0.3,
            speaker_events=rng.random() < 0.3,
            held_turns=rng.randrange(3),
            ahead_turns=rng.randrange(3),
            barge_in=rng.choice([Rules(), Rules(policy=Policy.DURATION, lasts_s=0.3)]),
        )
        call = VirtualCall(defaults, lead_s=rng.choice([0.0, 0.1, 1.0]), has_marks=rng.random() < 0.5)
        try:
            for _ in range(rng.randrange(5, 40)):
                act(call, rng)
            call.turns.close("hangup", call.now)
            check(call)
        except Exception as exc:
            raise AssertionError(f"seed {seed}") from exc


def check(call: VirtualCall) -> None:
    events: dict[str, list[str]] = {}
    for message in call.told:
        if isinstance(message, TurnEvent):
            events.setdefault(message.turn, []).append(message.event)
    for turn, seen in events.items():
        counts = Counter(seen)
        assert counts["accepted"] == 1, (turn, seen)
        assert seen[0] == "accepted", (turn, seen)
        assert counts["finished"] + counts["interrupted"] + counts["failed"] == 1, (turn, seen)
        assert seen[-1] in ("finished", "interrupted", "failed"), (turn, seen)
        assert counts["started"] <= 1, (turn, seen)
    ended = Counter(turn for turn, _, _ in call.ended_turns)
    assert set(ended.values()) <= {1}
    assert call.turns.live == []
    for job in call.jobs.values():
        assert job.stopped or job.turn.track.done or job.turn.state.place is Place.FAILED, (
            f"work continues for {job.turn.id}"
        )
    marks = Counter(message.name for message in call.told if isinstance(message, MarkReached))
    assert not marks or max(marks.values()) < 30
    for message in call.told:
        if isinstance(message, Interrupt):
            turn_text = message.utterance_until_interrupt + message.utterance_remaining
            known = call.jobs.get(message.turn)
            if known is not None and known.turn.kind == "text":
                assert known.turn.text == turn_text, "heard and remaining text are the turn's own, verbatim"
    assert call.playout.buffered_s() == 0
