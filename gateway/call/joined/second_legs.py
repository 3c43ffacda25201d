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
        """Places the calls. None: this gateway places none."""
        self._inner = inner
        self._owners: dict[str, Owner] = {}
        """Owners of the attempts that have no session yet, by call id."""

    async def place(self, order: CallOrder, owner: Owner) -> Attempt:
        """Place a second leg.

        Raises:
            Rejected: no calls can be placed, or the policy or the path refuses; see ``Originator.place``.
        """
        if self.originator is None:
            raise Rejected("calls cannot be placed: section sip is not configured", status=503, code="not_supported")
        attempt = await self.originator.place(order)
        if attempt.state != "failed":
            self._owners[attempt.call_id] = owner
        return attempt

    def expect(self, call_id: str, owner: Owner) -> None:
        """Expect a leg that comes by itself, with this id and ``joined_to``."""
        self._owners[call_id] = owner

    def cancel(self, attempt: Attempt) -> None:
        """Give up an attempt that is not answered. No effect afterwards."""
        self.forget(attempt.call_id)
        if self.originator is not None:
            self.originator.cancel(attempt.call_id)

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


class _Nobody:
    """The owner of a leg that was given up."""

    def leg_began(self, leg: JoinableCall) -> None: ...

    def leg_told(self, leg: JoinableCall, message: Outbound) -> None: ...
