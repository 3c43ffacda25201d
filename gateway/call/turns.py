"""Who is speaking: the turns of one call, as a transition table and the rules that feed it. Pure.

Every accepted turn ends in exactly one of FINISHED, INTERRUPTED, FAILED. The table says what may happen to a turn. The
class ``Turns`` decides when: which turn is next, which turns an interruption cuts, which late tokens are dropped, what
the caller has heard. ``Turns`` is told the time, and acts through ``Effects``, which ``Speech`` or a test carries out.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gateway.call import barge_in
from gateway.call.barge_in import BargeIn, Verdict
from gateway.media.playout import FirstFrame, Gap, PlayedOut, Playout, Track
from gateway.seams.messages import (
    Cancel,
    Caption,
    Commit,
    Discard,
    Dtmf,
    End,
    Error,
    Inbound,
    Info,
    Interrupt,
    Interruptible,
    Language,
    Mark,
    MarkReached,
    Outbound,
    Play,
    SendDigits,
    Text,
    TurnEvent,
)
from tts_engine.api import AudioChunk, TextSpan


class State(enum.Enum):
    """Where a turn is. The last three are terminal."""

    HELD = "held"  # synthesised ahead, unheard, until commit or discard
    QUEUED = "queued"  # waits for the turns before it
    SPEAKING = "speaking"  # its sound is going out; its track says whether the engine will send more
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Event(enum.Enum):
    """What can happen to a turn."""

    COMMIT = "commit"
    FRONT = "front"  # the turns before it are done
    PLAYED_OUT = "played out"
    CUT = "cut"  # speech, dtmf, cancel, preempt, discard, hang-up
    FAIL = "fail"  # the engine, the clip or the text was bad


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.HELD, Event.COMMIT): State.QUEUED,
    (State.QUEUED, Event.FRONT): State.SPEAKING,
    (State.SPEAKING, Event.PLAYED_OUT): State.FINISHED,
    **{(state, Event.CUT): State.INTERRUPTED for state in (State.HELD, State.QUEUED, State.SPEAKING)},
    **{(state, Event.FAIL): State.FAILED for state in (State.HELD, State.QUEUED, State.SPEAKING)},
}

TERMINAL = frozenset({State.FINISHED, State.INTERRUPTED, State.FAILED})

Kind = Literal["text", "play", "digits"]
Reason = Literal["speech", "dtmf", "cancel", "preempted", "discarded", "hangup", "ended"]


class Turn:
    """One turn: its text, its sound, and how it ended."""

    def __init__(self, turn_id: str, kind: Kind, *, now: float, format_rate: int, held: bool = False) -> None:
        self.id = turn_id
        self.kind: Kind = kind
        self.state = State.HELD if held else State.QUEUED
        self.accepted_at = now
        self.text = ""
        """All tokens so far, verbatim."""
        self.closed = False
        """No more tokens will come."""
        self.arrivals: list[tuple[int, float]] = []
        """(characters so far, when they arrived): the delay of the first packet is measured from these times."""
        self.interruptible: Interruptible = "any"
        self.preemptible = False
        self.language = ""
        self.voice = ""
        self.speed = 1.0
        self.instruct = ""
        self.source = ""
        self.loop = 1
        self.waits_for_caller = False
        """Whether the turn does not begin while the caller speaks. True for a turn without an id of the manager's,
        since it may answer something that the caller no longer means."""
        self.silent = False
        """True: the manager is told no events of this turn (fallback text, digits)."""
        self.opened = False
        self.track = Track(self)
        self.spans: list[TextSpan] = []
        self.segments: deque[tuple[int, int]] = deque()
        """(sample, character) at which the words of each chunk end, until ``tokensPlayed`` has told them."""
        self.reported_chars = 0
        self.captioned_spans = 0
        self.captioned_chars = 0
        self.marks: list[tuple[int, str]] = []
        """Marks of the turn: (characters before the mark, name)."""
        self.front_at: float | None = None
        self.first_stages_ms: Mapping[str, float] = {}
        self.first_chunk_at: float | None = None
        self.first_chunk_chars = 0
        self.rate = format_rate

    @property
    def live(self) -> bool:
        """Whether the turn has not ended yet."""
        return self.state not in TERMINAL

    def apply(self, event: Event) -> None:
        """Follow the table.

        Raises:
            RuntimeError: the table has no such transition (a bug of ours).
        """
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise RuntimeError(f"{event.name} is not possible while {self.state.name} (turn {self.id})") from None

    def speakable_at(self) -> float:
        """When the message arrived that completed the text of the first chunk."""
        for chars, at in self.arrivals:
            if chars >= self.first_chunk_chars:
                return at
        return self.arrivals[-1][1] if self.arrivals else self.accepted_at


@dataclass(frozen=True, slots=True)
class TurnDefaults:
    """The route's values for turns that bring none of their own."""

    interruptible: Interruptible = "any"
    preemptible: bool = False
    dtmf_detection: bool = True
    report_input: Interruptible = "none"
    language: str = ""
    voice: str = ""
    speaker_events: bool = False
    tokens_played: bool = False
    stale_s: float = 0.3
    end_drain: bool = True
    turn_chars: int = 20_000
    turns_queued: int = 64
    ahead_turns: int = 1
    held_turns: int = 4
    barge_in: barge_in.Rules = barge_in.Rules()


@dataclass(slots=True)
class FirstPacket:
    """Where the time to the first packet of a turn went."""

    turn: Turn
    total_s: float
    stages_ms: dict[str, float] = field(default_factory=dict)
    follows: bool = False
    """Whether the turn's sound was there before the previous turn had ended, so that nobody waited for it."""


class Effects(Protocol):
    """What ``Turns`` wants done. No method here may call back into ``Turns`` before it returns."""

    def tell(self, message: Outbound) -> None:
        """Send to the dialogue manager."""
        ...

    def open(self, turn: Turn) -> None:
        """Start making the sound of the text that the turn has so far; ``feed`` brings more text."""
        ...

    def feed(self, turn: Turn, text: str) -> None: ...

    def end_text(self, turn: Turn) -> None: ...

    def stop(self, turn: Turn) -> None:
        """Abort the engine's or the clip's work for the turn."""
        ...

    def flush(self, since: float | None) -> None:
        """Empty the peer's buffer and fade out. ``since``: when the caller or the manager asked; None: nobody did."""
        ...

    def wake(self) -> None:
        """Something may be due: look at the playout again."""
        ...

    def hang_up(self, handoff_data: str | None) -> None: ...

    def first_packet(self, measured: FirstPacket) -> None: ...

    def gap(self, turn: Turn, length_s: float) -> None: ...

    def ended(self, turn: Turn, reason: str, since: float | None) -> None:
        """Count a turn that is over. ``reason`` is empty unless the turn was cut; ``since`` is that of ``flush``."""
        ...

    def dropped_tokens(self, count: int) -> None:
        """Count late tokens of a turn that is over; they were dropped."""
        ...


class Turns:
    """All turns of one call. Not reentrant; every method takes the time."""

    _REMEMBERED_IDS = 1024  # repeated ids and late tokens are recognised over this many turns

    def __init__(
        self, defaults: TurnDefaults, playout: Playout, effects: Effects, *, sample_rate: int, frame_samples: int
    ) -> None:
        self.defaults = defaults
        self.playout = playout
        self._effects = effects
        self._rate = sample_rate
        self._frame_samples = frame_samples
        self._turns: OrderedDict[str, Turn] = OrderedDict()  # live ones, in the order of speaking; held ones last
        self._ids: OrderedDict[str, None] = OrderedDict()  # recent ids, live and dead
        self._count = 0
        self._open_untagged: Turn | None = None
        self._stale_until = 0.0
        self._stale_slides = False
        self._patience_ends: float | None = None
        """When turns stop waiting for a caller who speaks. None: no turn is waiting."""
        self._patient = True
        self.barge_in = BargeIn(defaults.barge_in)
        self._language = defaults.language
        self._ending: End | None = None
        self._closed = False
        self._agent_speaking = False

    # --- views -----------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[Turn]:
        """Turns that have not ended, in the order of speaking."""
        return list(self._turns.values())

    def speaking(self) -> Turn | None:
        """The turn whose sound the caller hears, if any."""
        for turn in self._turns.values():
            if turn.track.sent and turn.state is State.SPEAKING:
                return turn
        return None

    def interruptible_by(self, source: Literal["speech", "dtmf"]) -> bool:
        """Whether such input would cut something now. The VAD runs only if this is true or somebody listens."""
        turn = self.speaking()
        return turn is not None and turn.interruptible in ("any", source)

    def heard_samples(self, turn: Turn, now: float) -> int:
        """Samples of the turn that the caller has heard."""
        return int(self.playout.heard_frames(turn.track, now) * self._frame_samples)

    def heard_chars(self, turn: Turn, now: float) -> int:
        """Characters of the turn that the caller has heard, including the word that is sounding; never less than the
        manager has been told already."""
        heard = self.heard_samples(turn, now)
        chars = turn.reported_chars
        for span in turn.spans:
            if span.first_sample >= heard:
                break
            chars = max(chars, span.end_char)
        return chars

    def _heard_ms(self, turn: Turn, now: float) -> int:
        return round(self.heard_samples(turn, now) * 1000 / self._rate)

    # --- messages of the dialogue manager --------------------------------------------------------------------------

    def on_message(self, message: Inbound, now: float) -> None:
        """Do what the dialogue manager says. A bad request is answered with ``error`` and changes nothing else.

        The session takes ``Subscribe`` and ``Transfer`` itself.
        """
        if self._closed:
            return
        match message:
            case Text():
                self._text(message, now)
            case Play():
                self._play(message, now)
            case SendDigits():
                turn = self._new(self._next_id(), "digits", now)
                if turn is not None:
                    turn.silent = True
                    turn.text = message.digits
                    turn.closed = True
                    turn.interruptible = "none"
                    self._queued(turn, now)
            case Language():
                self._language = message.tts_language or self._language
            case Cancel():
                self._cancel(message, now)
            case Commit():
                self._commit(message, now)
            case Discard():
                turn = self._find(message.turn, "discard")
                if turn is not None:
                    self._cut([turn], "discarded", now, now)
            case Mark():
                self._mark(message, now)
            case End():
                self._end(message, now)
            case _:
                raise RuntimeError(f"{type(message).__name__} is not a message for turns")
        self._advance(now)

    def greet(self, text: str, interruptible: Interruptible, now: float) -> None:
        """Speak the route's greeting before anything that the manager sends."""
        turn = self._new("greeting", "text", now)
        if turn is not None:
            turn.interruptible = interruptible
            self._say_all(turn, text, now)

    def say_fallback(self, text: str, now: float) -> None:
        """Speak the route's fallback text; the manager is told nothing of it."""
        turn = self._new(self._next_id(), "text", now)
        if turn is not None:
            turn.silent = True
            self._say_all(turn, text, now)

    def _say_all(self, turn: Turn, text: str, now: float) -> None:
        turn.text = text
        turn.closed = True
        turn.arrivals.append((len(text), now))
        self._queued(turn, now)
        self._advance(now)

    def _next_id(self) -> str:
        while True:
            self._count += 1
            if f"t{self._count}" not in self._ids:
                return f"t{self._count}"

    def _new(self, turn_id: str, kind: Kind, now: float, *, held: bool = False) -> Turn | None:
        if turn_id in self._ids:
            self._error(f"turn {turn_id!r} was used before, expected a new id", "repeated_turn", turn_id, "turn")
            return None
        if self._ending is not None:
            self._error("the session is ending, no new turn is taken", "ending", turn_id, "type")
            return None
        if len(self._turns) >= self.defaults.turns_queued:
            self._error(
                f"{len(self._turns)} turns are waiting, limits.turns_queued is {self.defaults.turns_queued}",
                "too_many_turns", turn_id, "turn",
            )  # fmt: skip
            return None
        if held and sum(turn.state is State.HELD for turn in self._turns.values()) >= self.defaults.held_turns:
            self._error(
                f"{self.defaults.held_turns} turns are held already (playout.held_turns)",
                "too_many_held",
                turn_id,
                "hold",
            )
            return None
        turn = Turn(turn_id, kind, now=now, format_rate=self._rate, held=held)
        turn.interruptible = self.defaults.interruptible
        turn.preemptible = self.defaults.preemptible
        turn.language = self._language
        turn.voice = self.defaults.voice
        self._remember(turn_id)
        self._turns[turn_id] = turn
        return turn

    def _remember(self, turn_id: str) -> None:
        self._ids[turn_id] = None
        while len(self._ids) > self._REMEMBERED_IDS:
            oldest = next(iter(self._ids))
            if oldest in self._turns:
                self._ids.move_to_end(oldest)
            else:
                del self._ids[oldest]

    def _text(self, message: Text, now: float) -> None:
        turn: Turn | None
        if message.turn:
            turn = self._turns.get(message.turn)
            if turn is None and message.turn in self._ids:
                self._effects.dropped_tokens(1)
                return
            if turn is not None and (turn.closed or turn.kind != "text"):
                self._error(f"turn {turn.id!r} is complete, expected a new id", "repeated_turn", message.turn, "turn")
                return
        else:
            if now < self._stale_until:
                # These tokens are the tail of a stream that was cut: the manager wrote them before it knew of the cut.
                self._effects.dropped_tokens(1)
                if message.last:
                    self._stale_until = 0.0
                elif self._stale_slides:
                    self._stale_until = now + self.defaults.stale_s
                return
            turn = self._open_untagged
        fresh = turn is None
        if turn is None:
            turn = self._new(message.turn or self._next_id(), "text", now, held=message.hold)
            if turn is None:
                return
            turn.waits_for_caller = not message.turn
        if len(turn.text) + len(message.token) > self.defaults.turn_chars:
            self._error(
                f"turn has {len(turn.text) + len(message.token)} characters, "
                f"limits.turn_chars is {self.defaults.turn_chars}",
                "turn_too_long", turn.id, "token",
            )  # fmt: skip
            if fresh:
                del self._turns[turn.id], self._ids[turn.id]
            return
        self._options(turn, message)
        turn.text += message.token
        turn.closed = message.last
        turn.arrivals.append((len(turn.text), now))
        if not message.turn:
            self._open_untagged = turn
        if message.last and turn is self._open_untagged:
            self._open_untagged = None
        if fresh:
            self._queued(turn, now)
        elif turn.opened:
            if message.token:
                self._effects.feed(turn, message.token)
            if message.last:
                self._effects.end_text(turn)

    def _options(self, turn: Turn, message: Text | Play) -> None:
        if message.interruptible is not None:
            turn.interruptible = message.interruptible
        if message.preemptible is not None:
            turn.preemptible = message.preemptible
        if isinstance(message, Text):
            turn.language = message.lang or turn.language
            turn.voice = message.voice or turn.voice
            turn.speed = message.speed if message.speed is not None else turn.speed
            turn.instruct = message.instruct or turn.instruct

    def _play(self, message: Play, now: float) -> None:
        turn = self._new(message.turn or self._next_id(), "play", now)
        if turn is None:
            return
        self._options(turn, message)
        turn.waits_for_caller = not message.turn
        turn.source = message.source
        turn.loop = message.loop
        turn.closed = True
        turn.arrivals.append((0, now))
        self._queued(turn, now)

    def _queued(self, turn: Turn, now: float) -> None:
        """A turn was accepted (or committed): cut the turns before it that may be preempted."""
        self._say(turn, "accepted")
        if turn.state is not State.HELD:
            self._preempt(turn, now)

    def _preempt(self, newcomer: Turn, now: float) -> None:
        before = [t for t in self._turns.values() if t is not newcomer and t.state is not State.HELD and t.preemptible]
        self._cut(before, "preempted", now, now)

    def _commit(self, message: Commit, now: float) -> None:
        turn = self._find(message.turn, "commit")
        if turn is None:
            return
        if turn.state is not State.HELD:
            self._error(f"turn {turn.id!r} is {turn.state.value}, expected a held one", "not_held", turn.id, "turn")
            return
        turn.apply(Event.COMMIT)
        turn.accepted_at = now
        self._turns.move_to_end(turn.id)
        self._preempt(turn, now)

    def _find(self, turn_id: str, verb: str) -> Turn | None:
        turn = self._turns.get(turn_id)
        if turn is None and turn_id not in self._ids:  # a turn that has just ended by itself is no mistake
            self._error(f"{verb}: turn {turn_id!r} is unknown", "unknown_turn", turn_id, "turn")
        return turn

    def _cancel(self, message: Cancel, now: float) -> None:
        self._stale_until = 0.0  # the manager knows of the cut: what it writes from now on is new
        if message.turn:
            turn = self._find(message.turn, "cancel")
            if turn is not None:
                self._interrupt([turn], "cancel", now, now)
        else:
            self._interrupt(self.live, "cancel", now, now)

    def _mark(self, message: Mark, now: float) -> None:
        before = [turn for turn in self._turns.values() if turn.state is not State.HELD]
        if not before:
            self._effects.tell(MarkReached(name=message.name, cleared=False))
        elif len(before[-1].marks) >= self.defaults.turns_queued:
            self._error(
                f"{len(before[-1].marks)} marks wait already (limits.turns_queued)", "too_many_marks", "", "name"
            )
        else:
            before[-1].marks.append((len(before[-1].text), message.name))

    def _end(self, message: End, now: float) -> None:
        if self._ending is not None:
            return
        self._ending = message
        self._cut([turn for turn in self.live if turn.state is State.HELD], "ended", now, now)
        for turn in self.live:
            self._close_text(turn)
        if not self.defaults.end_drain:
            self._cut(self.live, "ended", now, now)

    def _close_text(self, turn: Turn) -> None:
        if not turn.closed:
            turn.closed = True
            if turn is self._open_untagged:
                self._open_untagged = None
            if turn.opened:
                self._effects.end_text(turn)

    def _error(self, description: str, code: str, turn: str, name: str) -> None:
        self._effects.tell(Error(description=description, code=code, turn=turn, field=name))

    def _say(self, turn: Turn, event: str, **data: object) -> None:
        if not turn.silent:
            self._effects.tell(TurnEvent(turn=turn.id, event=event, data=data))

    # --- the caller ------------------------------------------------------------------------------------------------

    def on_digit(self, digit: str, now: float) -> None:
        """The caller pressed a key: tell the manager first, then cut what a key may cut."""
        if self._closed or not self.defaults.dtmf_detection:
            return
        speaking = self.speaking()
        cuts = self.interruptible_by("dtmf")
        if speaking is None or cuts or self.defaults.report_input in ("any", "dtmf"):
            self._effects.tell(Dtmf(digit=digit))
            self._stale_until = 0.0
        if cuts:
            self._caller_cut("dtmf", now, now)

    def on_caller(self, event: barge_in.Event, now: float, *, onset: float | None = None) -> None:
        """Take what the VAD, the recogniser or the clock say about the caller; see ``gateway.call.barge_in``."""
        if self._closed:
            return
        if event is barge_in.Event.DEADLINE and self._patience_ends is not None:
            self._patient = now < self._patience_ends - barge_in.EARLY_S
        verdict = self._decide(event, now, onset=onset, may_cut=self.interruptible_by("speech"))
        if verdict is Verdict.SUSPEND:
            self._effects.flush(self.barge_in.onset)
        elif verdict is Verdict.CUT:
            self._caller_cut("speech", self.barge_in.onset, now)
        if not self.barge_in.caller_speaks:
            self._patience_ends, self._patient = None, True
        self._advance(now)

    def deadline(self) -> float | None:
        """When to call ``on_caller`` with ``DEADLINE``. None: there is nothing to wait for until the next event."""
        due = (self.barge_in.deadline(), self._patience_ends if self._patient else None)
        return None if self._closed else min((at for at in due if at is not None), default=None)

    def _waits(self, turn: Turn, now: float) -> bool:
        """Whether a turn lets the caller finish first. The longest wait is counted once for all turns together."""
        speaks = self.barge_in.caller_speaks and turn.interruptible in ("any", "speech")
        if speaks and turn.waits_for_caller and self._patience_ends is None:
            self._patience_ends = now + self.defaults.barge_in.max_wait_s
        return speaks and turn.waits_for_caller and self._patient

    def _decide(self, event: barge_in.Event, now: float, *, onset: float | None = None, may_cut: bool) -> Verdict:
        verdict = self.barge_in.on(event, now, onset=onset, may_cut=may_cut)
        self.playout.suspended = self.barge_in.suspended
        return verdict

    def on_prompt_sent(self) -> None:
        """The manager was told a prompt or digit. Whatever it says from now on counts as the answer, however soon."""
        self._stale_until = 0.0

    def _caller_cut(self, reason: Literal["speech", "dtmf"], onset: float, now: float) -> None:
        front = self.speaking()
        doomed = [
            turn
            for turn in self._turns.values()
            if turn.state is not State.HELD
            and turn.interruptible in ("any", reason)
            and (turn is front or turn.accepted_at < onset)
        ]
        self._interrupt(doomed, reason, now, onset)
        self._advance(now)

    def _interrupt(self, doomed: list[Turn], reason: Reason, now: float, since: float) -> None:
        """Cut turns and report what was heard of the one that was being spoken."""
        shown = next((turn for turn in doomed if turn.track.sent), doomed[0] if doomed else None)
        if shown is None:
            return
        self.playout.stop(shown.track, now)
        heard = self.heard_chars(shown, now)
        heard_ms = self._heard_ms(shown, now)
        if reason != "cancel" and any(not turn.closed and turn is self._open_untagged for turn in doomed):
            # A manager that streams on hears of speech only with the prompt behind it; of a digit it hears at once.
            self._stale_until = now + self.defaults.stale_s
            self._stale_slides = reason == "speech"
        self._cut(doomed, reason, now, since)
        if not shown.silent:
            self._effects.tell(
                Interrupt(
                    utterance_until_interrupt=shown.text[:heard],
                    duration_until_interrupt_ms=heard_ms,
                    turn=shown.id,
                    reason=reason,
                    utterance_remaining=shown.text[heard:],
                )
            )
        self._update_speaking(now)

    def _cut(self, doomed: list[Turn], reason: Reason, now: float, since: float | None = None) -> None:
        sounding = False
        spoken = any(turn.state is State.SPEAKING for turn in doomed)
        for turn in doomed:
            self.playout.stop(turn.track, now)
            heard_ms = self._heard_ms(turn, now)
            self._report_heard(turn, self.heard_chars(turn, now))
            sounding |= self._terminate(turn, Event.CUT, now)
            self._say(turn, "interrupted", reason=reason, heardMs=heard_ms)
            self._effects.ended(turn, reason, since)
        if spoken:  # otherwise nobody had heard a doomed turn, and our voice may still be suspended for the caller
            self._decide(barge_in.Event.RELEASED, now, may_cut=False)
        if sounding:
            self._effects.flush(since)

    def _terminate(self, turn: Turn, event: Event, now: float) -> bool:
        """Apply a terminal event. True: the peer may still be playing sound of this turn."""
        turn.apply(event)
        turn.closed = True
        del self._turns[turn.id]
        if turn is self._open_untagged:
            self._open_untagged = None
        if turn.opened and not turn.track.done and event is not Event.FAIL:
            self._effects.stop(turn)
        sounding = self.playout.remove(turn.track, now) if event is not Event.PLAYED_OUT else False
        for _, name in turn.marks:
            self._effects.tell(MarkReached(name=name, cleared=event is not Event.PLAYED_OUT))
        turn.marks.clear()
        return sounding

    def close(self, reason: Reason, now: float) -> None:
        """The call is over: end every turn and take nothing more."""
        if self._closed:
            return
        self._cut(self.live, reason, now)
        self._update_speaking(now)
        self._closed = True

    def on_dialogue_lost(self, fallback: str, now: float) -> None:
        """The manager's line broke: close the turns it had begun, discard those it held, say the fallback text."""
        if self._closed:
            return
        for turn in self.live:
            if turn.state is State.HELD:
                self._cut([turn], "discarded", now)
            else:
                self._close_text(turn)
        self._stale_until = 0.0
        if fallback and self._ending is None:
            self.say_fallback(fallback, now)
        self._advance(now)

    # --- the engine ------------------------------------------------------------------------------------------------

    def on_chunk(self, turn: Turn, chunk: AudioChunk, now: float) -> None:
        """Sound of a turn arrived."""
        if not turn.live:
            return
        turn.spans.extend(chunk.spans)
        if turn.first_chunk_at is None:
            turn.first_chunk_at = now
            turn.first_stages_ms = chunk.stages_ms
            turn.first_chunk_chars = chunk.spans[-1].end_char if chunk.spans else 0
        if chunk.spans:  # the words of a whole clause may come with the first sound of the clause
            turn.segments.append((chunk.spans[-1].end_sample, chunk.spans[-1].end_char))
        turn.track.push(chunk.frames, now=now, ptime_s=self.playout.pacer.ptime_s)
        self._effects.wake()

    def on_engine_done(self, turn: Turn, now: float) -> None:
        """All sound of a turn has come."""
        if not turn.live or turn.track.done:
            return
        turn.track.done = True
        self._advance(now)

    def on_failed(self, turn: Turn, *, code: str, description: str, now: float) -> None:
        """A turn's sound cannot be completed: the turn fails, and its unplayed sound is dropped."""
        if not turn.live:
            return
        self.playout.stop(turn.track, now)
        self._report_heard(turn, self.heard_chars(turn, now))
        sounding = self._terminate(turn, Event.FAIL, now)
        if not turn.silent:
            self._error(description, code, turn.id, "")
        self._say(turn, "failed", code=code, description=description)
        self._effects.ended(turn, "", None)
        if sounding:
            self._effects.flush(None)
        self._advance(now)

    # --- time ------------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Act on what the playout did since the last visit, and on the position that the caller has reached."""
        events = self.playout.events
        while events:
            event = events.popleft()
            turn = event.track.owner
            assert isinstance(turn, Turn)
            match event:
                case FirstFrame():
                    self._started(turn, event)
                case PlayedOut() if turn.state is State.SPEAKING:
                    self._report_heard(turn, len(turn.text))
                    self._terminate(turn, Event.PLAYED_OUT, now)
                    self._say(
                        turn, "finished", audioMs=round(turn.track.sent * self.playout.pacer.ptime_s * 1000),
                        gaps=turn.track.gaps,
                    )  # fmt: skip
                    self._effects.ended(turn, "", None)
                case Gap():
                    self._effects.gap(turn, event.length_s)
        speaking = self.speaking()
        if speaking is not None and speaking.marks:
            self._pass_marks(speaking, now)
        self._advance(now)

    def _started(self, turn: Turn, event: FirstFrame) -> None:
        if not turn.live or turn.first_chunk_at is None:
            return
        # A turn has to wait while the turn before it is heard; that wait does not count as latency.
        free_at = max(turn.front_at or 0.0, event.free_at)
        stages = dict(turn.first_stages_ms)
        stages["send"] = max(0.0, event.at - max(turn.first_chunk_at, free_at)) * 1000
        total_s = max(0.0, event.at - max(turn.speakable_at(), turn.accepted_at, free_at))
        follows = event.free_at > turn.first_chunk_at
        self._say(
            turn, "started", firstPacketMs=round(total_s * 1000, 1), stages={k: round(v, 1) for k, v in stages.items()}
        )
        self._effects.first_packet(FirstPacket(turn, total_s, stages, follows))

    def _advance(self, now: float) -> None:
        """Let the front turn speak, have the next turns synthesised, and end the session when it is time."""
        ahead = 0
        front_free = True
        for turn in list(self._turns.values()):
            held = turn.state is State.HELD
            if turn.state is State.QUEUED and front_free:
                turn.front_at = now
                if not self._waits(turn, now):
                    turn.apply(Event.FRONT)
                    self.playout.add(turn.track)
            # The next turn follows without silence once all sound of the one before is here.
            front_free = front_free and (held or (turn.state is State.SPEAKING and turn.track.done))
            waiting = turn.state is State.QUEUED and turn.front_at is None
            ahead += waiting
            if not turn.opened and (turn.text or turn.closed) and (not waiting or ahead <= self.defaults.ahead_turns):
                turn.opened = True
                if turn.kind == "text" and not turn.text.strip():
                    self._silent_text(turn)
                else:
                    self._effects.open(turn)
        self._update_speaking(now)
        if self._ending is not None and not self._turns and not self._closed:
            self._closed = True
            self._effects.hang_up(self._ending.handoff_data)
        self._effects.wake()

    def _silent_text(self, turn: Turn) -> None:
        """Take care of a turn without a word, closed or with blanks only so far: there is nothing to make yet."""
        if not turn.closed:
            turn.opened = False
            return
        turn.track.done = True

    def _update_speaking(self, now: float) -> None:
        speaking = self.speaking() is not None
        if speaking != self._agent_speaking:
            self._agent_speaking = speaking
            if self.defaults.speaker_events:
                self._effects.tell(Info(name="agentSpeaking", value="on" if speaking else "off"))

    def _pass_marks(self, turn: Turn, now: float) -> None:
        heard = self.heard_samples(turn, now)
        while turn.marks:
            chars, name = turn.marks[0]
            behind = next((span for span in turn.spans if span.end_char > chars), None)
            before = [span for span in turn.spans if span.end_char <= chars]
            # A mark has been heard only when the word after it has begun, or when the word before it is over and is
            # the last of its text. A mark at the very end is passed when the turn has finished.
            if behind is None or not before or heard < before[-1].end_sample:
                return
            turn.marks.pop(0)
            self._effects.tell(MarkReached(name=name, cleared=False))

    def follow(self, now: float) -> float:
        """Tell the words that have begun to sound since the last time, and the segments that have been heard.

        Returns:
            When to look again; ``now`` where that is not known.
        """
        turn = self.speaking()
        if turn is None:
            return now
        heard = self.heard_samples(turn, now)
        following = [self._follow_words(turn, heard), self._follow_segments(turn, heard)]
        return min((now + (sample - heard) / self._rate for sample in following if sample is not None), default=now)

    def _follow_words(self, turn: Turn, heard: int) -> int | None:
        """Tell captions; returns the sample at which the next word begins."""
        while turn.captioned_spans < len(turn.spans):
            span = turn.spans[turn.captioned_spans]
            if span.first_sample >= heard:
                return span.first_sample
            turn.captioned_spans += 1
            self._caption(turn, span.end_char)
        return None

    def _follow_segments(self, turn: Turn, heard: int) -> int | None:
        """Tell ``tokensPlayed``; returns the sample at which the next segment ends.

        The last segment of a turn is told when the turn has been heard to its end, together with the text after its
        last word.
        """
        while len(turn.segments) > turn.track.done:
            end_sample, end_char = turn.segments[0]
            if end_sample > heard:
                return end_sample
            turn.segments.popleft()
            self._report_played(turn, end_char)
        return None

    def _caption(self, turn: Turn, end_char: int) -> None:
        if end_char > turn.captioned_chars and not turn.silent:
            self._effects.tell(Caption(turn=turn.id, text=turn.text[turn.captioned_chars : end_char]))
            turn.captioned_chars = end_char

    def _report_heard(self, turn: Turn, end_char: int) -> None:
        """Tell what has been heard of a turn that ends."""
        self._caption(turn, end_char)
        self._report_played(turn, end_char)

    def _report_played(self, turn: Turn, end_char: int) -> None:
        """Tell ``tokensPlayed`` up to ``end_char``: a message for each segment heard to its end, and one for the rest
        when the turn ends or is cut."""
        if not self.defaults.tokens_played or (turn.silent and turn.kind == "text"):
            return
        if end_char > turn.reported_chars:
            self._effects.tell(Info(name="tokensPlayed", value=turn.text[turn.reported_chars : end_char]))
            turn.reported_chars = end_char
