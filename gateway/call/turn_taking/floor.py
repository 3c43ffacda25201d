"""The floor: whether the bot's voice is suspended for the caller, and whether a turn waits until the caller has
finished. Pure."""

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

    def on(self, event: CallerEvent, now: float, *, onset: float | None = None, may_cut: bool) -> Verdict:
        """Take one event of the interruption machine; see ``BargeIn.on``."""
        if event is CallerEvent.DEADLINE and self._patience_ends is not None:
            self._turns_may_wait = now < self._patience_ends - EARLY_S
        verdict = self.barge_in.on(event, now, onset=onset, may_cut=may_cut)
        self._playout.suspended = self.barge_in.suspended
        if not self.barge_in.caller_speaks:
            self._patience_ends, self._turns_may_wait = None, True
        return verdict

    def deadline(self) -> float | None:
        """Return the time of the next ``DEADLINE`` event. None: only another event can change something."""
        due = self.barge_in.deadline()
        if self._patience_ends is None or not self._turns_may_wait:
            return due
        return self._patience_ends if due is None else min(due, self._patience_ends)

    def keeps_waiting(self, turn: Turn, now: float) -> bool:
        """Return True if a turn lets the caller finish first. The longest wait counts once for all turns together."""
        if not (self.barge_in.caller_speaks and turn.waits_for_caller and turn.interruptible in ("any", "speech")):
            return False
        if self._patience_ends is None:
            self._patience_ends = now + self._max_wait_s
        return self._turns_may_wait
