"""The turns of one call: when a turn speaks, what cuts it and how it ends. Pure.

``Turns`` receives the time as an argument and acts through ``Effects``, which ``Speech`` or a test implements. It
shares the live turns and the open text with ``Instructions``, which applies the dialogue manager's messages. Every
other part of the call uses the methods of these two classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gateway.call.turn_taking import barge_in
from gateway.call.turn_taking.barge_in import DOUBTFUL, CallerState, Verdict
from gateway.call.turn_taking.departure import Departure
from gateway.call.turn_taking.floor import Floor
from gateway.call.turn_taking.heard import Heard, Position
from gateway.call.turn_taking.mutual_silence import MutualSilence
from gateway.call.turn_taking.turn import INTERRUPTIONS, Event, FirstPacket, Place, Reason, Turn, TurnDefaults
from gateway.call.turn_taking.turn_queue import TurnQueue
from gateway.call.turn_taking.untagged import UntaggedText
from gateway.call.turn_taking.wordless import WordlessCut
from gateway.media.playout import FirstFrame, Gap, PlayedOut, Playout
from gateway.seams.messages import BothSilent, Dtmf, End, Error, Info, Interrupt, MarkReached, Outbound, TurnEvent
from tts_engine.api import AudioChunk


class Effects:
    """Actions that ``Turns`` requests; here, those of a call that is over: none. No method may call back into ``Turns``
    before it returns."""

    def open(self, turn: Turn) -> None:
        """Start making the sound of the text that the turn has so far; ``feed`` adds more text."""

    def feed(self, turn: Turn, text: str) -> None:
        """Send the engine more text of the turn."""

    def end_text(self, turn: Turn) -> None:
        """Tell the engine that the turn's text is complete."""

    def stop(self, turn: Turn, heard: Position, now: float) -> None:
        """Stop the engine's or the clip's work for the turn."""

    def flush(self, now: float) -> None:
        """Clear the peer's buffer and fade out."""

    def fell_silent(self, since: float | None, now: float) -> None:
        """Count a ``flush``. ``since``: when the caller or the manager asked for it; None: neither did."""

    def wake(self, now: float) -> None:
        """Check the playout again: something may be due."""

    def hang_up(self, handoff_data: str | None) -> None:
        """End the call: all speech before the manager's ``end`` has been spoken."""

    def first_packet(self, turn: Turn, measured: FirstPacket, now: float) -> None:
        """Count the first packet of the turn."""

    def gap(self, turn: Turn, length_s: float) -> None:
        """Count a gap in the middle of the turn."""

    def ended(self, turn: Turn, reason: str, heard: Position, since: float | None, now: float) -> None:
        """Count a turn that has ended. ``reason`` is empty unless the turn was cut; ``since`` as in ``fell_silent``."""

    def dropped_tokens(self, count: int) -> None:
        """Count late tokens of an ended turn; they were dropped."""

    def refused_sound(self, seconds: float) -> None:
        """Count sound of the manager that was dropped because too much waits."""


class Turns:
    """All turns of one call. Not reentrant; ``gateway.call.turn_taking.instructions.new_turns`` makes it."""

    def __init__(
        self,
        defaults: TurnDefaults,
        playout: Playout,
        effects: Effects,
        tell: Callable[[Outbound], None],
        queue: TurnQueue,
        untagged: UntaggedText,
        departure: Departure,
        *,
        sample_rate: int,
        frame_samples: int,
    ) -> None:
        self.defaults = defaults
        self._effects = effects
        self._tell = tell
        self.closed = False
        """True after the end of the call; nothing is accepted any more."""
        self._queue = queue
        self._untagged = untagged
        self._departure = departure
        self._floor = Floor(defaults.barge_in, playout)
        self._wordless = WordlessCut()
        self.silence = MutualSilence(defaults.no_input_s)
        """The silence of both sides."""
        self._frame_samples = frame_samples
        self.withheld = False
        """True while no turn may begin but touch tones and those that go first: it is not known who has answered."""
        self._heard = Heard(
            playout,
            tell,
            sample_rate=sample_rate,
            frame_samples=frame_samples,
            tokens_played=defaults.tokens_played,
        )
        self._playout = playout
        self.asked: Turn | None = None
        """The last turn that the caller has begun to hear, live or ended; an answer answers it."""
        self._agent_speaking = False
        self._taking_over = False
        """True if a new turn has cut the one being spoken and no sound of it has been sent. Meanwhile the agent counts
        as speaking, as with Twilio."""

    def configure(self, defaults: TurnDefaults) -> None:
        """Take new defaults. Accepted turns keep theirs; reporting and interruption change now."""
        self.defaults = self._queue.defaults = defaults
        self._floor.barge_in.rules = defaults.barge_in

    # --- questions -------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[Turn]:
        """Turns that have not ended, in the order of speaking; held turns stand anywhere among them."""
        return self._queue.live

    @property
    def in_line(self) -> list[Turn]:
        """Turns that speak or will speak, in that order."""
        return self._queue.in_line

    @property
    def ending(self) -> End | None:
        """The manager's ``end``, once it has come."""
        return self._queue.ending

    def speaking(self) -> Turn | None:
        """Return the turn that the caller hears now, if any."""
        return self._queue.speaking()

    def interruptible_by(self, source: Literal["speech", "dtmf"]) -> bool:
        """Return True if such input would cut something now."""
        return self._queue.interruptible_by(source)

    def heard(self, turn: Turn, now: float) -> Position:
        """Return the part of a turn that the caller has heard."""
        return self._heard.position(turn, now)

    @property
    def said(self) -> str:
        """The last words of the bot that the caller has heard."""
        return " ".join(self._heard.said)

    @property
    def caller_speaks(self) -> bool:
        """True if the VAD is sure that the caller is speaking."""
        return self._floor.barge_in.caller_speaks

    @property
    def needs_vad(self) -> bool:
        """True if the VAD must report now: speech may cut something, its end has not been reported, or the silence of
        both sides is counted."""
        counts = self._queue.interruptible_by("speech") or self.silence.after_s > 0
        return counts or self._floor.barge_in.state is not CallerState.SILENT

    # --- how a turn begins -----------------------------------------------------------------------------------------

    def accept(self, turn: Turn, now: float) -> None:
        """Announce an admitted turn, and cut the turns before it that may be preempted."""
        self._say(turn, "accepted")
        if turn.state.place is not Place.HELD:
            self.preempt(turn, now)

    def preempt(self, newcomer: Turn, now: float) -> None:
        """Cut the turns before a new one that may be preempted."""
        before = [turn for turn in self._queue.in_line if turn is not newcomer and turn.preemptible]
        if before:
            self._taking_over |= self._queue.speaking() in before
            self.interrupt(before, "preempted", now, now)

    def add_text(self, turn: Turn, spoken: str) -> None:
        """Pass on text that came after the turn's sound was asked for."""
        if turn.asked and spoken:
            self._effects.feed(turn, spoken)

    def drop(self, *, too_much_s: float = 0.0) -> None:
        """Count a token or a piece of sound that came after the end of its turn, or seconds of sound without room."""
        if too_much_s:
            self._effects.refused_sound(too_much_s)
        else:
            self._effects.dropped_tokens(1)

    def complete_text(self, turn: Turn) -> None:
        """Mark the text of a turn as complete."""
        if not turn.complete:
            turn.apply(Event.COMPLETE)
            self._untagged.leave(turn)
            rest = turn.speakable.close()
            if turn.asked:
                if rest:
                    self._effects.feed(turn, rest)
                self._effects.end_text(turn)

    def advance(self, now: float) -> None:
        """Let the front turn speak, synthesise the next turns, and end the session when it is time."""
        ahead = 0
        front_free = True
        for turn in self._queue.live:
            queued = turn.state.place is Place.QUEUED
            withheld = queued and self.withheld and not (turn.goes_first or turn.kind == "digits")
            held = turn.state.place is Place.HELD or withheld
            if queued and front_free and not withheld:
                turn.front_at = now
                if not self._floor.keeps_waiting(turn, now):
                    turn.apply(Event.FRONT)
                    self._playout.add(turn.track)
            # The next turn may follow without silence once all sound of the previous one has arrived.
            front_free = front_free and (held or (turn.state.place is Place.SPEAKING and turn.track.done))
            waiting = turn.state.place is Place.QUEUED and turn.front_at is None
            ahead += waiting
            if not turn.asked and (not waiting or ahead <= self.defaults.ahead_turns):
                self._open(turn)
        self._report_speaking()
        if self._queue.ending is not None and not self._queue.live and not self.closed:
            self.closed = True
            self._effects.hang_up(self._queue.ending.handoff_data)
        self.silence.update(now, silent=not self._queue.in_line and self._floor.barge_in.state is CallerState.SILENT)
        self._effects.wake(now)

    def _open(self, turn: Turn) -> None:
        if turn.kind != "text" or turn.speakable.has_words:
            turn.apply(Event.MAKE)
            self._effects.open(turn)
        elif turn.complete:  # no words: there is nothing to make
            turn.apply(Event.MAKE)
            turn.track.done = True

    # --- how a turn ends -------------------------------------------------------------------------------------------

    def interrupt(
        self, doomed: list[Turn], reason: Reason, now: float, since: float | None = None, *, cause: Dtmf | None = None
    ) -> None:
        """End turns early: first silence the phone, then tell the manager and count.

        Args:
            since: when the caller or the manager asked for that; None: neither did.
            cause: is told to the manager before everything that follows from it.
        """
        spoken = any(turn.state.place is Place.SPEAKING for turn in doomed)
        sounding = self._silence(doomed, now)
        if cause is not None:
            self._tell(cause)
        if reason in ("speech", "dtmf") and self._untagged.turn in doomed:
            self._untagged.cut(now, known_by_prompt=reason == "speech")  # the manager learns of a digit at once
        for turn in doomed:
            heard = self._heard.position(turn, now)
            self._heard.report(turn, heard.chars)
            self._terminate(turn, Event.CUT, now)
            self._say(turn, "interrupted", reason=reason, heardMs=heard.ms)
            self._effects.ended(turn, reason, heard, since, now)
        if spoken:  # else no doomed turn had been heard, and the voice may still be suspended for the caller
            self._floor.on(barge_in.CallerEvent.RELEASED, now, may_cut=False)
        if sounding:
            self._effects.fell_silent(since, now)
        if reason in INTERRUPTIONS and doomed:
            self._report_interrupt(next((turn for turn in doomed if turn.track.sent), doomed[0]), reason, now)

    def _silence(self, doomed: list[Turn], now: float) -> bool:
        """Drop the sound of turns. Return True if the phone was playing some of it."""
        sounding = [self._playout.remove(turn.track, now) for turn in doomed]
        if any(sounding):
            self._effects.flush(now)
        return any(sounding)

    def _report_interrupt(self, turn: Turn, reason: Reason, now: float) -> None:
        if not turn.silent:
            heard = self._heard.position(turn, now)
            self._tell(
                Interrupt(
                    utterance_until_interrupt=turn.text[: heard.chars],
                    duration_until_interrupt_ms=heard.ms,
                    turn=turn.id,
                    reason=reason,
                    utterance_remaining=turn.text[heard.chars :],
                )
            )
        self._report_speaking()

    def _terminate(self, turn: Turn, event: Event, now: float) -> None:
        """Apply a terminal event to a turn whose sound was dropped or heard."""
        turn.apply(event)
        self._queue.remove(turn)
        self._untagged.leave(turn)
        if turn.asked and not turn.track.done and event is not Event.FAIL:
            self._effects.stop(turn, self._heard.position(turn, now), now)
        for _, name in turn.marks:
            self._tell(MarkReached(name=name, cleared=event is not Event.PLAYED_OUT))
        turn.marks.clear()

    def close(self, reason: Reason, now: float) -> None:
        """The call is over: end every turn and accept nothing more."""
        if self.closed:
            return
        self.interrupt(self._queue.live, reason, now)
        self._report_speaking()
        self.closed = True

    def release(self) -> None:
        """Drop the effects of a closed call: they refer to the turns."""
        self._effects = Effects()

    # --- the caller ------------------------------------------------------------------------------------------------

    def on_digit(self, digit: str, now: float) -> None:
        """The caller pressed a key: cut what a key may cut, and tell the manager of the key and then of the cut."""
        if self.closed or not self.defaults.dtmf_detection:
            return
        cuts = self._queue.interruptible_by("dtmf")
        if not (cuts or self._queue.speaking() is None or self.defaults.report_input in ("any", "dtmf")):
            return
        self._untagged.expect_answer()
        self.silence.restart(now)
        if cuts:
            self._cut_by_caller("dtmf", now, now, cause=Dtmf(digit=digit))
        else:
            self._tell(Dtmf(digit=digit))
            self.advance(now)

    def on_caller(self, event: barge_in.CallerEvent, now: float, *, onset: float | None = None) -> None:
        """Take an event of the VAD, the recogniser or the clock about the caller; see ``barge_in``."""
        if self.closed:
            return
        before = self._floor.barge_in.state
        verdict = self._floor.on(event, now, onset=onset, may_cut=self._queue.interruptible_by("speech"))
        if verdict is Verdict.SUSPEND:
            self._effects.flush(now)
            self._effects.fell_silent(self._floor.barge_in.onset, now)
        elif verdict is Verdict.RESUME and before in DOUBTFUL and self.defaults.barge_in.recogniser:
            self._repeat_last_word(now)
        elif verdict is Verdict.CUT:
            self._cut_by_caller("speech", self._floor.barge_in.onset, now)
        cut = self._wordless.on(event, now, speaks=self.caller_speaks)
        if cut:
            self._tell(Info(name="noWords", value=cut))
        if event is barge_in.CallerEvent.WORDS:
            self.silence.restart(now)
        self.advance(now)
        if event is barge_in.CallerEvent.DEADLINE and self.silence.is_over(now):
            if self._playout.on_hold:
                self.silence.restart(now)
            else:
                self._tell(BothSilent(seconds=self.silence.after_s))

    def _repeat_last_word(self, now: float) -> None:
        """Let the suspended turn continue from the last word that was heard, since the pause has been long."""
        turn = self._queue.speaking()
        if turn is not None:
            begins = self._heard.last_word_at(turn, now) // self._frame_samples
            self._playout.rewind(turn.track, turn.track.sent - begins)

    def deadline(self) -> float | None:
        """Return the time at which to call ``on_caller`` with ``DEADLINE``. None: only another event can change
        something."""
        if self.closed:
            return None
        due = (self._floor.deadline(), self._wordless.deadline(), self.silence.deadline())
        return min((each for each in due if each is not None), default=None)

    def expect_answer(self) -> None:
        """The manager was told what the caller said: every later token without a turn id answers that."""
        self._untagged.expect_answer()

    def _cut_by_caller(
        self, reason: Literal["speech", "dtmf"], onset: float, now: float, *, cause: Dtmf | None = None
    ) -> None:
        front = self._queue.speaking()
        # First, because a waiting transfer starts once the turns before it have ended.
        withdrawn = self._departure.withdraw() if reason == "speech" else []
        doomed = [
            turn
            for turn in self._queue.in_line
            if turn.interruptible in ("any", reason)
            and (withdrawn or turn.accepted_at < onset or (turn is front and reason == "dtmf"))
        ]
        if reason == "speech" and doomed and self.defaults.barge_in.recogniser:
            self._wordless.cut(next((turn for turn in doomed if turn.track.sent), doomed[0]).id)
        self.interrupt(doomed, reason, now, onset, cause=cause)
        for message in withdrawn:
            self._tell(message)
        self.advance(now)

    # --- the engine ------------------------------------------------------------------------------------------------

    def on_chunk(self, turn: Turn, chunk: AudioChunk, now: float) -> None:
        """Take sound of a turn."""
        if turn.live:
            turn.add_sound(chunk, now, ptime_s=self._playout.pacer.ptime_s)
            self._effects.wake(now)

    def on_engine_done(self, turn: Turn, now: float) -> None:
        """All sound of a turn has arrived."""
        if turn.live and not turn.track.done:
            turn.track.done = True
            self.advance(now)

    def on_failed(self, turn: Turn, *, code: str, description: str, now: float) -> None:
        """The sound of a turn cannot be completed: the turn fails, and its unplayed sound is dropped."""
        if not turn.live:
            return
        self._silence([turn], now)
        heard = self._heard.position(turn, now)
        self._heard.report(turn, heard.chars)
        self._terminate(turn, Event.FAIL, now)
        if not turn.silent:
            self._tell(Error(description=description, code=code, turn=turn.id, field=""))
        self._say(turn, "failed", code=code, description=description)
        self._effects.ended(turn, "", heard, None, now)
        self.advance(now)

    # --- time ------------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Handle the playout's events since the last call, and the position that the caller has reached."""
        events = self._playout.events
        while events:
            event = events.popleft()
            turn = event.track.owner()
            if not isinstance(turn, Turn):
                continue  # the turn has ended
            match event:
                case FirstFrame():
                    self._started(turn, event, now)
                case PlayedOut() if turn.state.place is Place.SPEAKING:
                    self._finished(turn, now)
                case Gap():
                    self._effects.gap(turn, event.length_s)
        self.report_marks(now)
        self.advance(now)

    def report_marks(self, now: float) -> None:
        """Report the marks inside the speaking turn that have been heard."""
        speaking = self._queue.speaking()
        if speaking is not None:
            self._heard.pass_marks(speaking, now)

    def report_words(self, now: float) -> float:
        """Report the words of the speaking turn that have been heard or have begun.

        Returns:
            The time of the next report; infinity: not before more sound arrives. ``now``: no turn is heard.
        """
        speaking = self._queue.speaking()
        return now if speaking is None else self._heard.follow(speaking, now)

    def _started(self, turn: Turn, first: FirstFrame, now: float) -> None:
        if turn.kind != "digits" and not turn.silent:
            self.asked = turn
        measured = turn.first_packet(first)
        if measured is not None:
            stages = {stage: round(ms, 1) for stage, ms in measured.stages_ms.items()}
            self._say(turn, "started", firstPacketMs=round(measured.total_s * 1000, 1), stages=stages)
            self._effects.first_packet(turn, measured, now)

    def _finished(self, turn: Turn, now: float) -> None:
        self._heard.report(turn, len(turn.text))
        self._terminate(turn, Event.PLAYED_OUT, now)
        audio_ms = round(turn.track.sent * self._playout.pacer.ptime_s * 1000)
        self._say(turn, "finished", audioMs=audio_ms, gaps=turn.track.gaps)
        self._effects.ended(turn, "", self._heard.position(turn, now), None, now)

    # --- the manager -----------------------------------------------------------------------------------------------

    def _say(self, turn: Turn, event: str, **data: object) -> None:
        if not turn.silent:
            self._tell(TurnEvent(turn=turn.id, event=event, data=data))

    def _report_speaking(self) -> None:
        """Report whether the agent is speaking, if that has changed. Touch tones are no speech."""
        turn = self._queue.speaking()
        if turn is None and self._taking_over:
            turn = next((each for each in self._queue.in_line if each.state.place is Place.SPEAKING), None)
        self._taking_over = turn is not None and not turn.track.sent
        speaking = turn is not None and turn.kind != "digits"
        if speaking != self._agent_speaking:
            self._agent_speaking = speaking
            if self.defaults.speaker_events:
                self._tell(Info(name="agentSpeaking", value="on" if speaking else "off"))
