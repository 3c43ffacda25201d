"""Waiting for turns to end before something else, such as a transfer, starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.call.turn_taking.turn import Turn


class AfterTurns:
    """Calls ``then`` once for each wait: when the turns have ended in any way, or after the longest wait."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._turns: Sequence[Turn] = ()
        self._timer: asyncio.TimerHandle | None = None
        """Ends the wait. None: no wait is under way."""

    @property
    def waits(self) -> bool:
        """True while a wait is under way and ``then`` has not been called."""
        return self._timer is not None

    def wait(self, turns: Sequence[Turn], wait_s: float) -> None:
        """Wait for ``turns``, at most ``wait_s`` seconds. Without turns, call ``then`` at once."""
        if not turns:
            self._then()
            return
        self._turns = turns
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._finish)

    def turn_ended(self) -> None:
        """Note that any turn of the call has ended."""
        if self.waits and not any(turn.live for turn in self._turns):
            self._finish()

    def cancel(self) -> None:
        """Stop the wait without calling ``then``."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._turns = None, ()

    def _finish(self) -> None:
        self.cancel()
        self._then()
