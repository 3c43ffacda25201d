"""The seam to the policy for who may be called (``gateway/calling/``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.seams.leg import CallInfo


class TransferPolicy(Protocol):
    """Tells whether a call may be transferred."""

    def transfer(self, call: CallInfo, target: str, *, now: float) -> str:
        """Count a transfer, and return its target as it is dialled.

        Raises:
            Rejected: the target may not be called, or not now. The text names no digit of the target.
        """
        ...

    def fallback(self, call: CallInfo, target: str) -> str:
        """Return the target of a route's ``fallback.transfer`` as it is dialled. The operator named it, so no list has
        to, and a route that loses its manager loses it in all its calls, so none is counted.

        Raises:
            Rejected: 422, the target names nobody; 403, it is denied.
        """
        ...


class Allowance(Protocol):
    """How many calls somebody may place, in a minute and at once. The checks raise ``Rejected`` (429)."""

    def check_rate(self, now: float) -> None: ...

    def count(self, now: float) -> None: ...

    def check_room(self) -> None: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Allowed:
    """A call that may be placed, and is counted."""

    target: str
    """The target as it is dialled."""
    from_: str
    """The caller id in its one form. Empty: the order names none."""
    over: Callable[[], None]
    """To be called once when the call is over."""
