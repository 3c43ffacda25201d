"""A reported cut that no words follow: laughter, a cough, a voice elsewhere. Pure.

What was cut stays cut, so only the dialogue manager can speak again, and it waits for a prompt. It is told as soon as
the recogniser has found no words, or when none have come within ``WITHIN_S`` of the cut and of the caller's sound.
"""

from __future__ import annotations

from gateway.call.turn_taking.barge_in import EARLY_S, CallerEvent

WITHIN_S = 1.0
"""Longest wait for words, seconds."""


class WordlessCut:
    """The last cut by speech, until words have followed it or the manager has been told that none did."""

    def __init__(self) -> None:
        self._turn = ""
        self._due: float | None = None

    def cut(self, turn_id: str) -> None:
        """Speech has cut this turn, and the manager was told."""
        self._turn, self._due = turn_id, None

    def deadline(self) -> float | None:
        """Return the time of the next ``DEADLINE``. None: only another event can change something."""
        return self._due

    def on(self, event: CallerEvent, now: float, *, speaks: bool) -> str:
        """Take an event that has been applied to the interruption machine.

        Args:
            speaks: True if the caller speaks now.

        Returns:
            The id of the cut turn if no words follow it. Empty: nothing is to be told.
        """
        if not self._turn:
            return ""
        over = event is CallerEvent.DEADLINE and self._due is not None and now >= self._due - EARLY_S
        if speaks:
            self._due = None
        elif self._due is None:
            self._due = now + WITHIN_S
        told = self._turn if not speaks and (over or event is CallerEvent.NO_WORDS) else ""
        if told or event is CallerEvent.WORDS:
            self._turn, self._due = "", None
        return told
