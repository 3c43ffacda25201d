"""A leg that joins a call beside its two sides: called by SIP, or a browser's. ``Guest`` follows it from the order to
its end and decides nothing about what it hears."""

from __future__ import annotations

from typing import Literal, Protocol

from gateway.call.joined.second_legs import JoinableCall, SecondLegs
from gateway.seams.calling import Allowance
from gateway.seams.end_cause import EndCause
from gateway.seams.messages import Ended, Outbound
from gateway.seams.originate import Attempt, CallOrder, SecondLeg

GuestState = Literal["calling", "present", "gone"]


class GuestHost(Protocol):
    """The part that asked for the leg."""

    def guest_came(self, guest: Guest, leg: JoinableCall) -> None:
        """The leg is answered, and has a session."""
        ...

    def guest_told(self, guest: Guest, message: Outbound) -> None:
        """The leg's words or keys."""
        ...

    def guest_gone(self, guest: Guest, cause: EndCause) -> None:
        """The leg has ended, or was not reached. Told once, never after ``dismiss``."""
        ...


class Guest:
    """One such leg.

    Args:
        legs: places the leg, or expects the browser's.
        host: receives what becomes of it.
        route: route of the leg.
        joined_to: correlation id of the conversation.
    """

    def __init__(self, legs: SecondLegs, host: GuestHost, *, route: str, joined_to: str) -> None:
        self.name = ""
        """Session id of the leg."""
        self.state: GuestState = "calling"
        self.leg: JoinableCall | None = None
        self.joined_to = joined_to
        self._legs = legs
        self._host = host
        self._route = route
        self._attempt: Attempt | None = None
        self._answered = False

    async def call(self, target: str, *, allowance: Allowance | None = None) -> None:
        """Call the leg by SIP.

        Raises:
            Rejected: see ``SecondLegs.place``.
        """
        order = CallOrder(
            target=target,
            route=self._route,
            allowance=allowance,
            second_leg=SecondLeg(joined_to=self.joined_to, on_progress=self._progress),
        )
        attempt = await self._legs.place(order, self)
        self.name = attempt.call_id
        if self.state == "gone":  # dismissed meanwhile
            self._legs.cancel(attempt)
            return
        self._progress(attempt)

    def expect(self, name: str) -> None:
        """Expect the leg of a browser, whose session has this id."""
        self.name = name
        self._answered = True
        self._legs.expect(name, self)

    def dismiss(self, reason: str) -> None:
        """End the leg, in any state."""
        if self.state == "gone":
            return
        self.state = "gone"
        self._legs.forget(self.name)
        if self.leg is not None:
            self.leg.end(reason, hang_up=True)
        if self._attempt is not None and not self._answered:
            self._legs.cancel(self._attempt)

    def _progress(self, attempt: Attempt) -> None:
        self._attempt = attempt
        if self.state != "calling":
            return
        if attempt.state == "answered":
            self._answered = True
            self._meet()
        elif attempt.state == "failed":
            self._legs.forget(attempt.call_id)
            self._over(attempt.cause)

    def _meet(self) -> None:
        if self._answered and self.leg is not None and self.state == "calling":
            self.state = "present"
            self._host.guest_came(self, self.leg)

    def _over(self, cause: EndCause) -> None:
        if self.state != "gone":
            self.state = "gone"
            self._host.guest_gone(self, cause)

    # --- Owner -------------------------------------------------------------------------------------------------------

    def leg_began(self, leg: JoinableCall) -> None:
        """The leg's session exists: with early media, or after the answer."""
        if self.state == "gone":
            leg.end("cancelled", hang_up=True)
            return
        self.leg = leg
        self._meet()

    def leg_told(self, leg: JoinableCall, message: Outbound) -> None:
        """Pass on the leg's words and keys, and note its end."""
        if not isinstance(message, Ended):
            if self.state == "present":
                self._host.guest_told(self, message)
        elif self.state == "present":
            self._over(message.cause)
        else:
            self.leg = None  # early media has ended; the attempt's own end follows
