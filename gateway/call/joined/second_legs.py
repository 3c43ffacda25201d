"""The second legs of all calls of a process: places them, and is the dialogue manager of each.

A second leg is a whole call: it has a record, may be recorded, counts against limits, and ends with the drain. It has
no application of its own. Its words, keys and end go to the call that it was placed for.
"""

from __future__ import annotations

from typing import Protocol, cast

from gateway.errors import Rejected
from gateway.mixing.seat import Seat
from gateway.seams.dialogue import DialogueLink, Dialogues, DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound
from gateway.seams.originate import Attempt, CallOrder, Originator


class JoinableCall(DialogueSink, Protocol):
    """A second leg's session."""

    seat: Seat

    @property
    def call_id(self) -> str: ...

    def end(self, reason: str, *, hang_up: bool) -> None:
        """End the call; ``hang_up`` also closes its leg."""
        ...

    def move(self, conference: str) -> None:
        """End the call here; it continues in a conference of its carrier."""
        ...


class CarrierLegs(Originator, Protocol):
    """Places calls at carriers."""

    def missing(self, transport: str) -> str:
        """Return what is not configured for second legs of a carrier's calls. Empty: they can be placed."""
        ...


class Owner(Protocol):
    """The call that a second leg is placed for."""

    def leg_began(self, leg: JoinableCall) -> None:
        """The leg's session exists: it may hear early media, and soon the answer."""
        ...

    def leg_told(self, leg: JoinableCall, message: Outbound) -> None:
        """The leg has words, keys, an error or its end."""
        ...


class _Link:
    """A second leg's connection to its owner."""

    def __init__(self, owner: Owner, leg: JoinableCall) -> None:
        self._owner = owner
        self._leg = leg

    def send(self, message: Outbound) -> None:
        self._owner.leg_told(self._leg, message)

    def send_audio(self, pcm: bytes) -> None: ...

    async def aclose(self) -> None: ...


class SecondLegs:
    """``Dialogues`` that lead second legs, and leave every other call to another ``Dialogues``."""

    def __init__(self, inner: Dialogues) -> None:
        self.originator: Originator | None = None
        """Places the calls by SIP. None: there is no SIP."""
        self.carriers: CarrierLegs | None = None
        """Places the calls at carriers. None: there are no carriers."""
        self._inner = inner
        self._owners: dict[str, Owner] = {}
        """Owners of the attempts that have no session yet, by call id."""

    def missing(self, transport: str) -> str:
        """Return why a call of this transport can have no second leg. Empty: it can."""
        if self.originator is not None:
            return ""
        why = "section sip is not configured"
        if self.carriers is None:
            return why
        at_carrier = self.carriers.missing(transport)
        return f"{why}; {at_carrier}" if at_carrier else ""

    def carrier_of(self, transport: str, target: str) -> str:
        """Return the carrier that calls a target for a call of this transport. Empty: the gateway calls it by SIP.

        The carrier of a call calls numbers if its REST interface is configured, and SIP addresses if there is no SIP.
        """
        if self.carriers is None or self.carriers.missing(transport):
            return ""
        by_sip = self.originator is not None and target.startswith(("sip:", "sips:"))
        return "" if by_sip else transport

    async def place(self, order: CallOrder, owner: Owner) -> Attempt:
        """Place a second leg.

        Raises:
            Rejected: no calls can be placed, or the policy or the path refuses; see ``Originator.place``.
        """
        originator = self.carriers if order.carrier else self.originator
        if originator is None:
            raise Rejected("calls cannot be placed: section sip is not configured", status=503, code="not_supported")
        attempt = await originator.place(order)
        if attempt.state != "failed":
            self._owners[attempt.call_id] = owner
        return attempt

    def expect(self, call_id: str, owner: Owner) -> None:
        """Expect a leg that comes by itself, with this id and ``joined_to``."""
        self._owners[call_id] = owner

    def cancel(self, attempt: Attempt) -> None:
        """Give up an attempt that is not answered. No effect afterwards."""
        self.forget(attempt.call_id)
        for originator in (self.originator, self.carriers):
            if originator is not None:
                originator.cancel(attempt.call_id)

    def forget(self, call_id: str) -> None:
        """Forget a leg that will have no session."""
        self._owners.pop(call_id, None)

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        """Connect a second leg to its owner, and any other call to its manager."""
        if not call.joined_to:
            return await self._inner.attach(call, sink, codec=codec)
        owner = self._owners.pop(call.call_id, None)
        leg = cast(JoinableCall, sink)
        sink.on_dialogue_ready()
        if owner is None:  # given up in the moment of its answer
            leg.end("cancelled", hang_up=True)
            return _Link(_Nobody(), leg)
        owner.leg_began(leg)
        return _Link(owner, leg)


class Reach:
    """The ways in which a person can be called for one call."""

    def __init__(self, legs: SecondLegs, call: CallInfo, seat: Seat) -> None:
        self._legs = legs
        self._transport = call.transport
        self._seat = seat

    @property
    def missing(self) -> str:
        """The reason for which this gateway can call no one. Empty: it can."""
        return self._legs.missing(self._transport)

    def by_sip(self, target: str) -> bool:
        """Return True if a target is called by SIP, and not by the caller's carrier."""
        return not self._legs.carrier_of(self._transport, target)

    def may_hand_over(self, target: str) -> bool:
        """Return True if the caller's peer or carrier may be asked to join the caller with a target."""
        return self._transport == "sip" if self.by_sip(target) else self._seat.asks_webhook


class _Nobody:
    """The owner of a leg that was given up."""

    def leg_began(self, leg: JoinableCall) -> None: ...

    def leg_told(self, leg: JoinableCall, message: Outbound) -> None: ...
