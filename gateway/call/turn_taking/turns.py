"""The turns of one call: when a turn speaks, what cuts it and how it ends. Pure.

``Turns`` receives the time as an argument and acts through ``Effects``, which ``Speech`` or a test implements. Its
parts: ``queue`` (the live turns), ``heard`` (what the caller heard of them), ``untagged`` (the turn of a token without
an id), ``floor`` (waiting for the caller). The separate ``instructions`` applies the dialogue manager's messages.
"""

from __future__ import annotations

from typing import Literal, Protocol

from gateway.call.turn_taking import barge_in
from gateway.call.turn_taking.barge_in import Verdict
from gateway.call.turn_taking.floor import Floor
from gateway.call.turn_taking.heard import Heard
from gateway.call.turn_taking.turn import Event, FirstPacket, Place, Reason, Turn, TurnDefaults
from gateway.call.turn_taking.turn_queue import TurnQueue
from gateway.call.turn_taking.untagged import UntaggedText
from gateway.media.playout import FirstFrame, Gap, PlayedOut, Playout
from gateway.seams.messages import Dtmf, Error, Info, Interrupt, MarkPlayed, Outbound, TurnEvent
from tts_engine.api import AudioChunk


class Effects(Protocol):
    """Actions that ``Turns`` requests. No method may call back into ``Turns`` before it returns."""

    def tell(self, message: Outbound) -> None:
        """Send to the dialogue manager."""
        ...

    def open(self, turn: Turn) -> None:
        """Start making the sound of the text that the turn has so far; ``feed`` adds more text."""
        ...

    def feed(self, turn: Turn, text: str) -> None: ...

    def end_text(self, turn: Turn) -> None: ...

    def stop(self, turn: Turn, now: float) -> None:
        """Stop the engine's or the clip's work for the turn."""
        ...

    def flush(self, since: float | None, now: float) -> None:
        """Clear the peer's buffer and fade out. ``since``: when the caller or the manager asked; None: neither did."""
        ...

    def wake(self, now: float) -> None:
        """Check the playout again: something may be due."""
        ...

    def hang_up(self, handoff_data: str | None) -> None: ...

    def first_packet(self, turn: Turn, measured: FirstPacket, now: float) -> None: ...

    def gap(self, turn: Turn, length_s: float) -> None: ...

    def ended(self, turn: Turn, reason: str, since: float | None, now: float) -> None:
        """Count a turn that has ended. ``reason`` is empty unless the turn was cut; ``since`` is that of ``flush``."""
        ...

    def dropped_tokens(self, count: int) -> None:
        """Count late tokens of an ended turn; they were dropped."""
        ...


class Turns:
    """All turns of one call. Not reentrant."""

    def __init__(
        self, defaults: TurnDefaults, playout: Playout, effects: Effects, *, sample_rate: int, frame_samples: int
    ) -> None:
        self.defaults = defaults
        self.effects = effects
        self.closed = False
        """True after the end of the call; nothing is accepted any more."""
        self.queue = TurnQueue(defaults, effects.tell)
        self.untagged = UntaggedText(defaults.stale_s)
        self.floor = Floor(defaults.barge_in, playout)
        self.heard = Heard(
            playout,
            effects.tell,
            sample_rate=sample_rate,
            frame_samples=frame_samples,
            tokens_played=defaults.tokens_played,
        )
        self._playout = playout
        self._agent_speaking = False
        self._taking_over = False
        """True if a new turn has cut the one being spoken and no sound of it has been sent. Meanwhile the agent counts
        as speaking, as with Twilio."""

    def configure(self, defaults: TurnDefaults) -> None:
        """Take new defaults. Accepted turns keep theirs; reporting and interruption change now."""
        self.defaults = self.queue.defaults = defaults
        self.floor.barge_in.rules = defaults.barge_in

    # --- how a turn begins -----------------------------------------------------------------------------------------

    def accept(self, turn: Turn, now: float) -> None:
        """Announce an admitted turn, and cut the turns before it that may be preempted."""
        self._say(turn, "accepted")
        if turn.state.place is not Place.HELD:
            self.preempt(turn, now)

    def preempt(self, newcomer: Turn, now: float) -> None:
        """Cut the turns before a new one that may be preempted."""
        before = [turn for turn in self.queue.in_line if turn is not newcomer and turn.preemptible]
        if before:
            self._taking_over |= self.queue.speaking() in before
            self.cut(before, "preempted", now, now)

    def complete_text(self, turn: Turn) -> None:
        """Mark the text of a turn as complete."""
        if not turn.complete:
            turn.apply(Event.COMPLETE)
            self.untagged.leave(turn)
            rest = turn.speakable.close()
            if turn.asked:
                if rest:
                    self.effects.feed(turn, rest)
                self.effects.end_text(turn)

    def advance(self, now: float) -> None:
        """Let the front turn speak, synthesise the next turns, and end the session when it is time."""
        ahead = 0
        front_free = True
        for turn in self.queue.live:
            held = turn.state.place is Place.HELD
            if turn.state.place is Place.QUEUED and front_free:
                turn.front_at = now
                if not self.floor.keeps_waiting(turn, now):
                    turn.apply(Event.FRONT)
                    self._playout.add(turn.track)
            # The next turn may follow without silence once all sound of the previous one has arrived.
            front_free = front_free and (held or (turn.state.place is Place.SPEAKING and turn.track.done))
            waiting = turn.state.place is Place.QUEUED and turn.front_at is None
            ahead += waiting
            if not turn.asked and (not waiting or ahead <= self.defaults.ahead_turns):
                self._open(turn)
        self._report_speaking()
        if self.queue.ending is not None and not self.queue.live and not self.closed:
            self.closed = True
            self.effects.hang_up(self.queue.ending.handoff_data)
        self.effects.wake(now)

    def _open(self, turn: Turn) -> None:
        if turn.kind != "text" or turn.speakable.text.strip():
            turn.apply(Event.MAKE)
            self.effects.open(turn)
        elif turn.complete:  # no words: there is nothing to make
            turn.apply(Event.MAKE)
            turn.track.done = True

    # --- how a turn ends -------------------------------------------------------------------------------------------

    def interrupt(self, doomed: list[Turn], reason: Reason, now: float, since: float) -> None:
        """Cut turns and report what was heard of the one that was being spoken."""
        shown = next((turn for turn in doomed if turn.track.sent), doomed[0] if doomed else None)
        if shown is None:
            return
        self._playout.stop(shown.track, now)
        heard = self.heard.chars(shown, now)
        heard_ms = self.heard.ms(shown, now)
        if reason != "cancel" and self.untagged.turn in doomed:
            self.untagged.cut(now, known_by_prompt=reason == "speech")  # the manager learns of a digit at once
        self.cut(doomed, reason, now, since)
        if not shown.silent:
            self.effects.tell(
                Interrupt(
                    utterance_until_interrupt=shown.text[:heard],
                    duration_until_interrupt_ms=heard_ms,
                    turn=shown.id,
                    reason=reason,
                    utterance_remaining=shown.text[heard:],
                )
            )
        self._report_speaking()

    def cut(self, doomed: list[Turn], reason: Reason, now: float, since: float | None = None) -> None:
        """End turns early. ``since``: when the caller or the manager asked for that; None: neither did."""
        sounding = False
        spoken = any(turn.state.place is Place.SPEAKING for turn in doomed)
        for turn in doomed:
            self._playout.stop(turn.track, now)
            heard_ms = self.heard.ms(turn, now)
            self.heard.report(turn, self.heard.chars(turn, now))
            sounding |= self._terminate(turn, Event.CUT, now)
            self._say(turn, "interrupted", reason=reason, heardMs=heard_ms)
            self.effects.ended(turn, reason, since, now)
        if spoken:  # else no doomed turn had been heard, and the voice may still be suspended for the caller
            self.floor.on(barge_in.Event.RELEASED, now, may_cut=False)
        if sounding:
            self.effects.flush(since, now)

    def _terminate(self, turn: Turn, event: Event, now: float) -> bool:
        """Apply a terminal event. True: the peer may still be playing sound of this turn."""
        turn.apply(event)
        self.queue.remove(turn)
        self.untagged.leave(turn)
        if turn.asked and not turn.track.done and event is not Event.FAIL:
            self.effects.stop(turn, now)
        sounding = self._playout.remove(turn.track, now) if event is not Event.PLAYED_OUT else False
        for _, name in turn.marks:
            self.effects.tell(MarkPlayed(name=name, cleared=event is not Event.PLAYED_OUT))
        turn.marks.clear()
        return sounding

    def close(self, reason: Reason, now: float) -> None:
        """The call is over: end every turn and accept nothing more."""
        if self.closed:
            return
        self.cut(self.queue.live, reason, now)
        self._report_speaking()
        self.closed = True

    # --- the caller ------------------------------------------------------------------------------------------------

    def on_digit(self, digit: str, now: float) -> None:
        """The caller pressed a key: tell the manager first, then cut what a key may cut."""
        if self.closed or not self.defaults.dtmf_detection:
            return
        cuts = self.queue.interruptible_by("dtmf")
        if cuts or self.queue.speaking() is None or self.defaults.report_input in ("any", "dtmf"):
            self.effects.tell(Dtmf(digit=digit))
            self.untagged.expect_answer()
        if cuts:
            self._cut_by_caller("dtmf", now, now)

    def on_caller(self, event: barge_in.Event, now: float, *, onset: float | None = None) -> None:
        """Take an event of the VAD, the recogniser or the clock about the caller; see ``barge_in``."""
        if self.closed:
            return
        verdict = self.floor.on(event, now, onset=onset, may_cut=self.queue.interruptible_by("speech"))
        if verdict is Verdict.SUSPEND:
            self.effects.flush(self.floor.barge_in.onset, now)
        elif verdict is Verdict.CUT:
            self._cut_by_caller("speech", self.floor.barge_in.onset, now)
        self.advance(now)

    def deadline(self) -> float | None:
        """Return the time at which to call ``on_caller`` with ``DEADLINE``. None: only another event can change
        something."""
        return None if self.closed else self.floor.deadline()

    def _cut_by_caller(self, reason: Literal["speech", "dtmf"], onset: float, now: float) -> None:
        front = self.queue.speaking()
        doomed = [
            turn
            for turn in self.queue.in_line
            if turn.interruptible in ("any", reason) and (turn is front or turn.accepted_at < onset)
        ]
        self.interrupt(doomed, reason, now, onset)
        self.advance(now)

    # --- the engine ------------------------------------------------------------------------------------------------

    def on_chunk(self, turn: Turn, chunk: AudioChunk, now: float) -> None:
        """Take sound of a turn."""
        if turn.live:
            turn.add_sound(chunk, now, ptime_s=self._playout.pacer.ptime_s)
            self.effects.wake(now)

    def on_engine_done(self, turn: Turn, now: float) -> None:
        """All sound of a turn has arrived."""
        if turn.live and not turn.track.done:
            turn.track.done = True
            self.advance(now)

    def on_failed(self, turn: Turn, *, code: str, description: str, now: float) -> None:
        """The sound of a turn cannot be completed: the turn fails, and its unplayed sound is dropped."""
        if not turn.live:
            return
        self._playout.stop(turn.track, now)
        self.heard.report(turn, self.heard.chars(turn, now))
        sounding = self._terminate(turn, Event.FAIL, now)
        if not turn.silent:
            self.effects.tell(Error(description=description, code=code, turn=turn.id, field=""))
        self._say(turn, "failed", code=code, description=description)
        self.effects.ended(turn, "", None, now)
        if sounding:
            self.effects.flush(None, now)
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
                    self.effects.gap(turn, event.length_s)
        speaking = self.queue.speaking()
        if speaking is not None:
            self.heard.pass_marks(speaking, now)
        self.advance(now)

    def _started(self, turn: Turn, first: FirstFrame, now: float) -> None:
        measured = turn.first_packet(first)
        if measured is not None:
            stages = {stage: round(ms, 1) for stage, ms in measured.stages_ms.items()}
            self._say(turn, "started", firstPacketMs=round(measured.total_s * 1000, 1), stages=stages)
            self.effects.first_packet(turn, measured, now)

    def _finished(self, turn: Turn, now: float) -> None:
        self.heard.report(turn, len(turn.text))
        self._terminate(turn, Event.PLAYED_OUT, now)
        audio_ms = round(turn.track.sent * self._playout.pacer.ptime_s * 1000)
        self._say(turn, "finished", audioMs=audio_ms, gaps=turn.track.gaps)
        self.effects.ended(turn, "", None, now)

    # --- the manager -----------------------------------------------------------------------------------------------

    def _say(self, turn: Turn, event: str, **data: object) -> None:
        if not turn.silent:
            self.effects.tell(TurnEvent(turn=turn.id, event=event, data=data))

    def _report_speaking(self) -> None:
        """Report whether the agent is speaking, if that has changed. Touch tones are no speech."""
        turn = self.queue.speaking()
        if turn is None and self._taking_over:
            turn = next((each for each in self.queue.in_line if each.state.place is Place.SPEAKING), None)
        self._taking_over = turn is not None and not turn.track.sent
        speaking = turn is not None and turn.kind != "digits"
        if speaking != self._agent_speaking:
            self._agent_speaking = speaking
            if self.defaults.speaker_events:
                self.effects.tell(Info(name="agentSpeaking", value="on" if speaking else "off"))
