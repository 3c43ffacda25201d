"""Turns of a manager's own sound, on the virtual clock: what is cut, what is dropped, what its marks say."""

from __future__ import annotations

import pytest

from gateway.call.turn_taking.barge_in import CallerEvent as Caller
from gateway.call.turn_taking.instructions import SOUND_MARKS, SOUND_S
from gateway.call.turn_taking.turn import TurnDefaults
from gateway.media.own_sound import OwnSound
from gateway.seams.messages import Cancel, Error, Interrupt, Mark, MarkReached, Sound, Text
from tests.gateway.call.turn_taking.virtual_call import FRAME, VirtualCall
from tts_engine.api import AudioChunk


def sound(seconds: float) -> Sound:
    return Sound(pcm=bytes(2 * round(8000 * seconds)), sample_rate=8000)


def frame(call: VirtualCall) -> None:
    """Cut all sound that has arrived into frames."""
    for turn in call.turns.live:
        if turn.sound is None:
            continue
        first = (turn.track.sent + len(turn.track.frames)) * FRAME
        frames = len(turn.sound.take(1000.0)) // (2 * FRAME)
        chunk = AudioChunk(frames=[b"own"] * frames, first_sample=first, samples=frames * FRAME, engine="own")
        call.turns.on_chunk(turn, chunk, call.now)


def speaking(seconds: float = 1.0, defaults: TurnDefaults | None = None) -> VirtualCall:
    call = VirtualCall(defaults=defaults or TurnDefaults())
    call.say(sound(seconds))
    frame(call)
    call.run(0.1)
    return call


def marks(call: VirtualCall) -> list[tuple[str, bool]]:
    return [(each.name, each.cleared) for each in call.told if isinstance(each, MarkReached)]


def test_pieces_are_one_turn_and_marks_come_back_where_they_were_set() -> None:
    call = VirtualCall()
    for name in ("a", "b", "c"):
        call.say(sound(0.2), Mark(name=name))
    frame(call)
    call.run(0.15)
    assert marks(call) == []
    call.run(0.1)
    assert marks(call) == [("a", False)]
    call.say(Cancel())
    assert marks(call) == [("a", False), ("b", True), ("c", True)]
    (cut,) = [each for each in call.told if isinstance(each, Interrupt)]
    assert cut.reason == "cancel" and 200 <= cut.duration_until_interrupt_ms <= 260
    assert call.events("t1") == ["accepted", "started", "interrupted"] and call.events("t2") == []


def test_sound_after_a_clear_is_new_at_once() -> None:
    call = speaking()
    call.say(Cancel(), sound(0.2), Mark(name="new"))
    frame(call)
    call.run(0.3)
    assert call.dropped == 0 and marks(call) == [("new", False)]


@pytest.mark.parametrize("end", ["clear", "prompt", "pause"])
def test_after_a_cut_by_speech_the_tail_is_dropped_until_the_manager_knows(end: str) -> None:
    call = speaking()
    call.turns.on_caller(Caller.SPEECH, call.now, onset=call.now - 0.05)
    for number in range(20):
        call.say(sound(0.02), Mark(name=str(number)))
        call.run(0.02)
    assert call.dropped == 20 and marks(call) == [(str(number), True) for number in range(20)]
    if end == "clear":
        call.say(Cancel())
    elif end == "prompt":
        call.turns.expect_answer()
    else:
        call.run(0.31)
    call.say(sound(0.2))
    assert call.dropped == 20 and call.events("t2") == ["accepted"]


def test_text_follows_sound_and_sound_follows_text() -> None:
    call = VirtualCall()
    call.say(sound(0.2), Text(token="one two "), sound(0.2))
    assert [turn.kind for turn in call.turns.live] == ["audio", "text", "audio"]
    assert [turn.complete for turn in call.turns.live] == [True, True, False]


def test_too_much_sound_is_told_once_until_half_of_it_has_gone() -> None:
    call = VirtualCall()
    call.say(*[sound(10.0)] * 9)
    assert sum(turn.sound.waiting_s for turn in call.turns.live if turn.sound is not None) == SOUND_S
    assert [each.code for each in call.told if isinstance(each, Error)] == ["too_much_sound"]
    (turn,) = call.turns.live
    assert turn.sound is not None
    turn.sound.take(10.0)
    call.say(sound(10.0), sound(10.0))
    assert len([each for each in call.told if isinstance(each, Error)]) == 1
    turn.sound.take(1000.0)
    call.say(*[sound(10.0)] * 7)
    assert len([each for each in call.told if isinstance(each, Error)]) == 2


def test_marks_of_a_turn_have_a_bound() -> None:
    call = VirtualCall()
    call.say(sound(1.0), *[Mark(name="m")] * (SOUND_MARKS + 1))
    assert [each.code for each in call.told if isinstance(each, Error)] == ["too_many_marks"]


def test_pieces_are_taken_whole_and_in_order() -> None:
    own = OwnSound(16000)
    changes = []
    own.arrived = lambda: changes.append(own.waiting_s)
    own.push(b"\1\0" * 1600)
    own.push(b"\2\0" * 1600)
    own.mark()
    own.push(b"\3\0" * 16000)
    assert changes == pytest.approx([0.1, 0.2, 0.2, 1.2]) and not own.may_end
    assert own.take(0.25) == b"\1\0" * 1600 + b"\2\0" * 1600
    assert own.take(0.1) == b"\3\0" * 16000 and own.take(1.0) == b""
    assert own.total_s == pytest.approx(1.2) and own.waiting_s == 0.0
