"""The seam to the calling policy (``gateway/calling/``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.seams.leg import CallInfo


class TransferPolicy(Protocol):
    """The policy for transfers."""

    def transfer(self, call: CallInfo, target: str, *, now: float, by_sip: bool = False) -> str:
        """Count a transfer and return its target as it is dialled.

        Args:
            by_sip: the gateway calls the target by SIP, whatever the call's transport.

        Raises:
            Rejected: the target is not allowed, or not now. The text contains no digit of the target.
        """
        ...

    def fallback(self, call: CallInfo, target: str) -> str:
        """Return the target of a route's ``fallback.transfer`` as it is dialled. The operator configured it, so it
        needs no list. It is not counted, because a route that loses its manager loses it in all its calls.

        Raises:
            Rejected: 422 if the target cannot be read; 403 if it is denied.
        """
        ...


class Allowance(Protocol):
    """Limit on calls in a minute and at a time. The checks raise ``Rejected`` (429)."""

    def check_rate(self, now: float) -> None: ...

    def count(self, now: float) -> None: ...

    def check_room(self) -> None: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Allowed:
    """A call that may be placed and has been counted."""

    target: str
    """The target as it is dialled."""
    from_: str
    """The normalised caller id. Empty: the order has none."""
    over: Callable[[], None]
    """Must be called once when the call is over."""
