"""The manager's ``end`` and ``transfer`` while they wait for speech, and their withdrawal by the caller. Pure.

A caller who interrupts the goodbye still wants something, so neither may follow by itself. A manager that cannot learn
of the withdrawal, or could not answer it, keeps what it asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.call.turn_taking.turn_queue import TurnQueue
from gateway.seams.messages import Withdrawn


class Departure:
    """The ``end`` and the ``transfer`` of one call that have not begun. ``queue`` holds the ``end``."""

    def __init__(self, queue: TurnQueue) -> None:
        self.has_manager = True
        """False: the manager has closed its socket, or its connection is broken. Nothing is withdrawn then."""
        self._queue = queue
        self._drop_transfer: Callable[[], None] | None = None

    def transfer_waits(self, drop: Callable[[], None]) -> None:
        """A transfer that may be withdrawn waits for speech; ``drop`` gives it up without a report."""
        self._drop_transfer = drop

    def transfer_begins(self) -> None:
        """The transfer waits no longer."""
        self._drop_transfer = None

    def withdraw(self) -> list[Withdrawn]:
        """The caller interrupts by speech: withdraw what may be withdrawn, and return the reports to the manager."""
        return self.drop(committed=False) if self.has_manager and self._queue.defaults.withdraws else []

    def drop(self, *, committed: bool) -> list[Withdrawn]:
        """Give up the ``end`` and the ``transfer`` that wait for speech; a committed ``end`` only if ``committed``.
        Return what was given up."""
        withdrawn = []
        if self._drop_transfer is not None:
            self._drop_transfer()
            self._drop_transfer = None
            withdrawn.append(Withdrawn(what="transfer"))
        if self._queue.ending is not None and (committed or not self._queue.ending.commit):
            self._queue.ending = None
            withdrawn.append(Withdrawn(what="end"))
        return withdrawn
