"""The floor: whether the bot's voice is suspended for the caller, and whether a turn waits until the caller has
finished. Pure.

Two kinds of turns wait. A turn without the manager's id waits while the caller speaks. If it was accepted after the
caller began, it answers something that the caller has not finished saying, so with a recogniser it waits for the words
of that utterance too.
"""

from __future__ import annotations

from gateway.call.turn_taking.barge_in import EARLY_S, BargeIn, CallerEvent, Rules, Verdict
from gateway.call.turn_taking.turn import Turn
from gateway.media.playout import Playout


class Floor:
    """The interruption machine of one call, its effect on the playout, and the longest wait of turns for the caller."""

    def __init__(self, rules: Rules, playout: Playout) -> None:
        self.barge_in = BargeIn(rules)
        self._playout = playout
        self._max_wait_s = rules.max_wait_s
        self._patience_ends: float | None = None
        """Time at which turns stop waiting for a caller who speaks. None: no turn is waiting."""
        self._turns_may_wait = True
        self._utters_from: float | None = None
        """Onset of the caller's utterance whose final words have not come. None: there is none."""
        self._words_by: float | None = None
        """Time until which the final words of a finished utterance are awaited."""

    def on(self, event: CallerEvent, now: float, *, onset: float | None = None, may_cut: bool) -> Verdict:
        """Take one event of the interruption machine; see ``BargeIn.on``."""
        if event is CallerEvent.DEADLINE and self._patience_ends is not None:
            self._turns_may_wait = now < self._patience_ends - EARLY_S
        verdict = self.barge_in.on(event, now, onset=onset, may_cut=may_cut)
        self._playout.suspended = self.barge_in.suspended
        self._follow_utterance(event, now, onset)
        if not self.barge_in.caller_speaks and self._utters_from is None:
            self._patience_ends, self._turns_may_wait = None, True
        return verdict

    def _follow_utterance(self, event: CallerEvent, now: float, onset: float | None) -> None:
        rules = self.barge_in.rules
        if event is CallerEvent.SPEECH and rules.recogniser:
            self._utters_from = onset if self._utters_from is None else self._utters_from
            self._words_by = None
        elif event is CallerEvent.THOUGHT_ENDED and self._utters_from is not None:
            self._words_by = now + rules.words_s
            if self._patience_ends is not None:
                self._patience_ends = min(self._patience_ends, self._words_by)
        elif self._words_by is not None:
            late = event is CallerEvent.DEADLINE and now >= self._words_by - EARLY_S
            if late or event in (CallerEvent.WORDS, CallerEvent.NO_WORDS):
                self._utters_from = self._words_by = None

    def deadline(self) -> float | None:
        """Return the time of the next ``DEADLINE`` event. None: only another event can change something."""
        due = self.barge_in.deadline()
        if self._patience_ends is None or not self._turns_may_wait:
            return due
        return self._patience_ends if due is None else min(due, self._patience_ends)

    def keeps_waiting(self, turn: Turn, now: float) -> bool:
        """Return True if a turn lets the caller finish first. The longest wait counts once for all turns together."""
        if not (turn.waits_for_caller and turn.interruptible in ("any", "speech")):
            return False
        answers_early = self._utters_from is not None and turn.accepted_at >= self._utters_from
        if not (self.barge_in.caller_speaks or answers_early):
            return False
        if self._patience_ends is None:
            ends = now + self._max_wait_s
            self._patience_ends = ends if self._words_by is None else min(ends, self._words_by)
        return self._turns_may_wait
