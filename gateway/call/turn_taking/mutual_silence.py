"""The time for which neither side has spoken. Pure."""

from __future__ import annotations

from gateway.call.turn_taking.barge_in import EARLY_S


class MutualSilence:
    """The silence of both sides. It is over once for each silence, ``after_s`` from its beginning; 0: never."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self._silent = False
        self._due: float | None = None
        self._accompanied = False

    def update(self, now: float, *, silent: bool) -> None:
        """Note whether both sides are silent now."""
        if silent != self._silent:
            self._silent = silent
            self._due = now + self.after_s if silent and self.after_s else None

    def restart(self, now: float) -> None:
        """Count from now: the caller has pressed a key, or the caller's words have come."""
        self._silent = False
        self.update(now, silent=True)

    def accompany(self, accompanied: bool, now: float) -> None:
        """Note whether the caller is with a person or hears a phone ring. Meanwhile no silence is over; its time begins
        anew at the end of that."""
        self._accompanied = accompanied
        if self._silent:
            self.restart(now)

    def deadline(self) -> float | None:
        """Return the time at which ``is_over`` becomes true. None: it does not by itself."""
        return self._due

    def is_over(self, now: float) -> bool:
        """Return True once when the silence has lasted long enough."""
        if self._due is None or now < self._due - EARLY_S:
            return False
        if self._accompanied:
            self.restart(now)
            return False
        self._due = None
        return True
