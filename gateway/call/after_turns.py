"""Waits for turns on behalf of what comes behind them, such as a transfer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.call.turn_taking.turn import Turn


class AfterTurns:
    """Calls ``then`` once for each wait: when its turns are over in any way, or when it has lasted too long."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._turns: Sequence[Turn] = ()
        self._timer: asyncio.TimerHandle | None = None
        """Ends the wait. None: nothing waits."""

    @property
    def waits(self) -> bool:
        """Whether ``then`` is still to be called."""
        return self._timer is not None

    def wait(self, turns: Sequence[Turn], wait_s: float) -> None:
        """Wait for ``turns``, at most ``wait_s`` seconds; without turns not at all."""
        if not turns:
            self._then()
            return
        self._turns = turns
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._go)

    def turn_ended(self) -> None:
        """A turn of the call is over, one of these or another."""
        if self.waits and not any(turn.live for turn in self._turns):
            self._go()

    def cancel(self) -> None:
        """Wait no more; ``then`` is not called."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._turns = None, ()

    def _go(self) -> None:
        self.cancel()
        self._then()
