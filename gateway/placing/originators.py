"""All ways to place a call, as one."""

from __future__ import annotations

from gateway.errors import Rejected
from gateway.seams.originate import Attempt, CallOrder, Originator


class Originators:
    """Places each call by SIP, or at the carrier that its order names; implements
    ``gateway.seams.originate.Originator``.

    Args:
        sip: places calls by SIP. None: SIP is not configured.
        carriers: places calls at carriers.
    """

    def __init__(self, sip: Originator | None, carriers: Originator) -> None:
        self._sip = sip
        self._carriers = carriers
        self._all = [each for each in (sip, carriers) if each is not None]

    async def place(self, order: CallOrder) -> Attempt:
        """Place a call; see ``Originator``."""
        if order.carrier:
            return await self._carriers.place(order)
        if self._sip is None:
            raise Rejected(
                "calls cannot be placed: section sip is not configured, and the order names no carrier",
                status=503, code="not_configured",
            )  # fmt: skip
        return await self._sip.place(order)

    def attempt(self, call_id: str) -> Attempt | None:
        """Return an attempt; see ``Originator``."""
        return next((found for each in self._all if (found := each.attempt(call_id)) is not None), None)

    def under_way(self) -> list[Attempt]:
        """Return the attempts that are not answered yet; see ``Originator``."""
        return [attempt for each in self._all for attempt in each.under_way()]

    def cancel(self, call_id: str) -> bool:
        """Cancel an attempt; see ``Originator``."""
        return any(each.cancel(call_id) for each in self._all)
