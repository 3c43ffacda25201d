"""Waiting for turns to end before something else, such as a transfer, starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.call.turn_taking.turn import Turn


class AfterTurns:
    """One wait at a time: until some turns have ended in any way, or until the longest wait is over."""

    def __init__(self) -> None:
        self._then: Callable[[], None] | None = None
        """Called once at the end of the wait."""
        self._turns: Sequence[Turn] = ()
        self._timer: asyncio.TimerHandle | None = None
        """Ends the wait. None: no wait is under way."""

    @property
    def waits(self) -> bool:
        """True while a wait is under way and ``then`` has not been called."""
        return self._timer is not None

    def wait(self, turns: Sequence[Turn], wait_s: float, then: Callable[[], None]) -> None:
        """Wait for ``turns``, at most ``wait_s`` seconds, and call ``then``. Without turns, call it at once."""
        if not turns:
            then()
            return
        self._turns, self._then = turns, then
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._finish)

    def turn_ended(self) -> None:
        """Note that any turn of the call has ended."""
        if self.waits and not any(turn.live for turn in self._turns):
            self._finish()

    def cancel(self) -> None:
        """Stop the wait without calling ``then``."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._turns, self._then = None, (), None

    def _finish(self) -> None:
        then = self._then
        self.cancel()
        if then is not None:
            then()
