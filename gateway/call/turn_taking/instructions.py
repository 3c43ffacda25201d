"""Messages of the dialogue manager that create, change or end turns. Pure.

A bad request is answered with ``error`` and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.call.turn_taking.departure import Departure
from gateway.call.turn_taking.turn import Event, Kind, Place, Turn, TurnDefaults
from gateway.call.turn_taking.turn_queue import TurnQueue
from gateway.call.turn_taking.turns import Effects, Turns
from gateway.call.turn_taking.untagged import UntaggedText
from gateway.media.own_sound import SAMPLE_BYTES, OwnSound
from gateway.media.playout import Playout
from gateway.seams.messages import (
    Cancel,
    Commit,
    Discard,
    End,
    Inbound,
    Interruptible,
    Language,
    Mark,
    MarkReached,
    Outbound,
    Play,
    SendDigits,
    Sound,
    Text,
)

SOUND_S = 60.0
"""Most sound of a manager that waits for the playout, seconds; the playout holds further 20 s."""

SOUND_MARKS = 4096
"""Most marks that wait in one turn of a manager's sound. Some managers send one after each piece."""


def new_turns(
    defaults: TurnDefaults,
    playout: Playout,
    effects: Effects,
    tell: Callable[[Outbound], None],
    *,
    sample_rate: int,
    frame_samples: int,
) -> tuple[Turns, Instructions]:
    """Return the turns of a new call, and the instructions that change them. ``tell`` sends to the dialogue manager."""
    queue, untagged = TurnQueue(defaults, tell), UntaggedText(defaults.stale_s)
    departure = Departure(queue)
    turns = Turns(
        defaults,
        playout,
        effects,
        tell,
        queue,
        untagged,
        departure,
        sample_rate=sample_rate,
        frame_samples=frame_samples,
    )
    return turns, Instructions(turns, queue, untagged, departure, tell)


class Instructions:
    """Applies the manager's messages to the turns of one call; also speaks the route's greeting and fallback text."""

    def __init__(
        self,
        turns: Turns,
        queue: TurnQueue,
        untagged: UntaggedText,
        departure: Departure,
        tell: Callable[[Outbound], None],
    ) -> None:
        self.departure = departure
        self._turns = turns
        self._queue = queue
        self._untagged = untagged
        self._tell = tell
        self._sound_refused = False
        """True since sound was refused, until half of the room is free; only the first refusal is told."""

    @property
    def declared_languages(self) -> int:
        """Number of languages for which the manager has declared a voice."""
        return len(self._queue.voices)

    def on_message(self, message: Inbound, now: float) -> None:
        """Apply a message of the dialogue manager. The session handles ``Subscribe`` and ``Transfer`` itself."""
        if self._turns.closed:
            return
        match message:
            case Text():
                self._text(message, now)
            case Play():
                self._play(message, now)
            case Sound():
                self._sound(message, now)
            case SendDigits():
                self._send_digits(message, now)
            case Language():
                self._queue.voices.update({each.code: each.voice for each in message.languages if each.voice})
                self._queue.language = message.tts_language or self._queue.language
            case Cancel():
                self._cancel(message, now)
            case Commit():
                self._commit(message, now)
            case Discard():
                turn = self._queue.find(message.turn, "discard")
                if turn is not None:
                    self._turns.interrupt([turn], "discarded", now, now)
            case Mark():
                self._mark(message, now)
            case End():
                self._end(message, now)
            case _:
                raise RuntimeError(f"{type(message).__name__} is not a message for turns")
        self._turns.advance(now)

    def greet(self, text: str, interruptible: Interruptible, now: float) -> None:
        """Speak the route's greeting before anything that the manager sends."""
        turn = self._queue.admit("greeting", "text", now)
        if turn is not None:
            turn.interruptible = interruptible
            turn.told_whole = True
            self._accept_whole(turn, text, now)
            self._turns.advance(now)

    def withhold(self, withheld: bool, now: float) -> None:
        """Let no turn begin but keys and what ``say_first`` says, or let all begin again. Their sound is made
        meanwhile."""
        released = self._turns.withheld and not withheld
        self._turns.withheld = withheld
        if released:
            self._turns.advance(now)

    def say_first(self, turn_id: str, text: str, now: float) -> None:
        """Speak a text of the gateway before all turns that have not begun. No input cuts it."""
        turn = self._queue.admit(turn_id, "text", now)
        if turn is not None:
            turn.interruptible = "none"
            turn.goes_first = True
            self._accept_whole(turn, text, now)
            self._turns.advance(now)

    def take_over(self, now: float) -> None:
        """Cancel all turns, and drop the manager's ``end`` and ``transfer`` that wait for them."""
        self.departure.drop(committed=True)
        self._cancel(Cancel(), now)

    def drop_withheld(self, since: float, until: float, now: float) -> None:
        """Cancel the turns that were accepted in a time and have not begun."""
        stale = [turn for turn in self._queue.live if turn.front_at is None and since <= turn.accepted_at < until]
        self._turns.interrupt(stale, "cancel", now, now)

    def complete_line(self, now: float) -> list[Turn]:
        """Complete the text of all turns in line, and return the turns that have not ended."""
        for turn in self._queue.in_line:
            self._turns.complete_text(turn)
        self._turns.advance(now)
        return self._queue.in_line

    def on_dialogue_lost(self, fallback: str, now: float) -> None:
        """The manager's connection broke: complete the turns it had begun, discard its held turns, and speak the
        fallback text. The manager receives no events of the fallback text."""
        if self._turns.closed:
            return
        for turn in self._queue.live:
            if turn.state.place is Place.HELD:
                self._turns.interrupt([turn], "discarded", now)
            else:
                self._turns.complete_text(turn)
        self._untagged.expect_answer()
        if fallback and self._queue.ending is None:
            said = self._queue.admit("", "text", now)
            if said is not None:
                said.silent = True
                self._accept_whole(said, fallback, now)
                self._turns.advance(
                    now
                )  # once for each: an empty turn makes way for the next one only in the second pass
        self._turns.advance(now)

    def _text(self, message: Text, now: float) -> None:
        if message.turn:
            turn = self._queue.get(message.turn)
            late = turn is None and self._queue.remembers(message.turn)
        else:
            turn = self._open_turn("text")
            late = self._untagged.is_tail(now, last=message.last)
        if late:
            self._turns.drop()
            return
        if turn is not None and turn.complete:
            self._queue.refuse(f"turn {turn.id!r} is complete, expected a new id", "repeated_turn", turn.id, "turn")
            return
        fresh = turn is None
        if turn is None:
            turn = self._queue.admit(message.turn, "text", now, held=message.hold)
            if turn is None:
                return
            turn.waits_for_caller = not message.turn
        chars, limit = len(turn.text) + len(message.token), self._turns.defaults.turn_chars
        if chars > limit:
            self._queue.refuse(
                f"turn has {chars} characters, limits.turn_chars is {limit}", "turn_too_long", turn.id, "token"
            )
            if fresh:
                self._queue.withdraw(turn)
            return
        self._set_options(turn, message)
        spoken = turn.write(message.token, now)
        if not message.turn:
            self._untagged.turn = turn
        if fresh:
            self._turns.accept(turn, now)
        else:
            self._turns.add_text(turn, spoken)
        if message.last:
            self._turns.complete_text(turn)

    def _play(self, message: Play, now: float) -> None:
        turn = self._queue.admit(message.turn, "play", now)
        if turn is not None:
            self._set_options(turn, message)
            turn.waits_for_caller = not message.turn
            turn.source = message.source
            turn.loop = message.loop
            self._accept_whole(turn, "", now)

    def _sound(self, message: Sound, now: float) -> None:
        if self._untagged.is_tail(now, last=False):
            self._turns.drop()
            return
        seconds = len(message.pcm) / (SAMPLE_BYTES * message.sample_rate)
        waiting_s = sum(turn.sound.waiting_s for turn in self._queue.live if turn.sound is not None)
        if waiting_s + seconds > SOUND_S:
            self._turns.drop(too_much_s=seconds)
            if not self._sound_refused:
                self._sound_refused = True
                full = f"{waiting_s:.0f} s of sound wait to be sent, expected at most {SOUND_S:g} s; this is dropped"
                self._queue.refuse(full, "too_much_sound", "", "")
            return
        self._sound_refused &= waiting_s > SOUND_S / 2
        turn = self._open_turn("audio")
        if turn is None:
            turn = self._queue.admit("", "audio", now)
            if turn is None:
                self._turns.drop(too_much_s=seconds)
                return
            turn.sound = OwnSound(message.sample_rate)
            self._untagged.turn = turn
            self._turns.accept(turn, now)
        assert turn.sound is not None
        turn.sound.push(message.pcm)

    def _open_turn(self, kind: Kind) -> Turn | None:
        """Return the turn that takes the next token or piece of sound. One of another kind is complete now."""
        turn = self._untagged.turn
        if turn is not None and turn.kind != kind:
            self._turns.complete_text(turn)
            return None
        return turn

    def _send_digits(self, message: SendDigits, now: float) -> None:
        turn = self._queue.admit("", "digits", now)
        if turn is not None:
            turn.silent = True
            turn.interruptible = "none"
            self._accept_whole(turn, message.digits, now)

    def _set_options(self, turn: Turn, message: Text | Play) -> None:
        if message.interruptible is not None:
            turn.interruptible = message.interruptible
        if message.preemptible is not None:
            turn.preemptible = message.preemptible
        turn.expect = message.expect or turn.expect
        if isinstance(message, Text):
            if message.lang:
                turn.language = message.lang
                turn.voice = self._queue.voices.get(message.lang, self._turns.defaults.voice)
            turn.voice = message.voice or turn.voice
            turn.speed = message.speed if message.speed is not None else turn.speed
            turn.instruct = message.instruct or turn.instruct

    def _accept_whole(self, turn: Turn, text: str, now: float) -> None:
        """Accept a turn with its complete text."""
        turn.write(text, now)
        self._turns.complete_text(turn)
        self._turns.accept(turn, now)

    def _commit(self, message: Commit, now: float) -> None:
        turn = self._queue.find(message.turn, "commit")
        if turn is None:
            return
        if turn.state.place is not Place.HELD:
            self._queue.refuse(
                f"turn {turn.id!r} is {turn.state.place.value}, expected a held one", "not_held", turn.id, "turn"
            )
            return
        turn.apply(Event.COMMIT)
        turn.accepted_at = now
        self._queue.move_to_end(turn)
        self._turns.preempt(turn, now)

    def _cancel(self, message: Cancel, now: float) -> None:
        self._untagged.expect_answer()
        if message.turn:
            turn = self._queue.find(message.turn, "cancel")
            if turn is not None:
                self._turns.interrupt([turn], "cancel", now, now)
        else:
            self._turns.interrupt(self._queue.live, "cancel", now, now)

    def _mark(self, message: Mark, now: float) -> None:
        before = self._queue.in_line
        if not before:
            self._tell(MarkReached(name=message.name, cleared=self._untagged.follows_lost_sound(now)))
            return
        turn = before[-1]
        most = self._turns.defaults.turns_queued if turn.sound is None else SOUND_MARKS
        if len(turn.marks) >= most:
            bound = "limits.turns_queued" if turn.sound is None else f"at most {SOUND_MARKS}"
            self._queue.refuse(f"{len(turn.marks)} marks wait already ({bound})", "too_many_marks", "", "name")
        elif turn.sound is None:
            turn.marks.append((len(turn.text), message.name))
        else:
            turn.marks.append((round(turn.sound.total_s * 1000), message.name))
            turn.sound.mark()

    def _end(self, message: End, now: float) -> None:
        if self._queue.ending is not None:
            if message.commit:
                self._queue.ending = replace(self._queue.ending, commit=True)
            return
        self._queue.ending = message
        self._turns.interrupt(self._queue.held, "ended", now, now)
        for turn in self._queue.live:
            self._turns.complete_text(turn)
        if not self._turns.defaults.end_drain:
            self._turns.interrupt(self._queue.live, "ended", now, now)
