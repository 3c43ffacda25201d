"""The supervisors of one call: people who listen, whisper to the person of a transfer, join, or take over from the bot.

==========  =========================  ==================
mode        is heard by                the bot
==========  =========================  ==================
listen      no one                     speaks
whisper     the person alone           speaks
join        the caller and the person  speaks
takeover    the caller and the person  is silent, and told
==========  =========================  ==================

A supervisor hears the caller, the bot, the person, and supervisors who are heard by all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from gateway.call.joined.bridge import Bridge
from gateway.call.joined.guests import Guest
from gateway.call.joined.second_legs import JoinableCall, SecondLegs
from gateway.errors import Rejected
from gateway.mixing.mixer import Mixer
from gateway.mixing.seat import voice_of
from gateway.seams.call_record import SupervisorEvent
from gateway.seams.calling import Allowance
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Dtmf, Info, OfLeg, Outbound, Prompt

log = logging.getLogger(__name__)

SuperviseMode = Literal["listen", "whisper", "join", "takeover"]

MOST_SUPERVISORS = 4
"""Most supervisors of one call."""

_BROWSER_WAIT_S = 20.0
"""Longest wait for a browser's connection after its offer was answered."""

_HEARD_BY_ALL = ("join", "takeover")


class SupervisedCall(Protocol):
    """The call's side."""

    def taken_over(self, taken_over: bool) -> None:
        """The bot is to be silent, or may speak again."""
        ...

    def accompanied(self, accompanied: bool) -> None:
        """A supervisor talks with the caller, or does so no more."""
        ...

    def note_supervisor(self, by: str, leg: str, event: SupervisorEvent) -> None:
        """Enter it in the call's record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorLeg:
    """One supervisor.

    Args:
        by: tenant of the key that asked for it.
    """

    guest: Guest
    mode: SuperviseMode
    by: str

    @property
    def leg(self) -> str:
        """Session id of the supervisor's leg."""
        return self.guest.name

    @property
    def present(self) -> bool:
        """True once the supervisor's leg is in the room."""
        return self.guest.state == "present"


class Supervisors:
    """``RoomGuests`` of one call. Most calls have none; then it costs nothing.

    Args:
        call: description of the call.
        bridge: has the call's room.
        tell: sends a message to the application.
        owner: the call.
    """

    def __init__(
        self,
        call: CallInfo,
        bridge: Bridge,
        legs: SecondLegs,
        *,
        tell: Callable[[Outbound], None],
        owner: SupervisedCall,
    ) -> None:
        self._call = call
        self._bridge = bridge
        self._legs = legs
        self._tell = tell
        self._owner: SupervisedCall | None = owner
        """None: the call is over."""
        self._all: dict[Guest, SupervisorLeg] = {}
        self._told = ""
        """Mode that the application knows: ``join``, ``takeover``, or nothing."""

    # --- requests ----------------------------------------------------------------------------------------------------

    async def call(self, target: str, mode: SuperviseMode, *, by: str, allowance: Allowance | None) -> SupervisorLeg:
        """Call a supervisor by SIP.

        Raises:
            Rejected: see ``check`` and ``SecondLegs.place``.
        """
        guest = self._new(mode, by)
        try:
            await guest.call(target, allowance=allowance)
        except BaseException:
            self._forget(guest)
            raise
        return self._all.get(guest) or SupervisorLeg(guest=guest, mode=mode, by=by)

    def expect(self, name: str, mode: SuperviseMode, *, by: str) -> SupervisorLeg:
        """Expect a supervisor's browser, whose leg has this id.

        Raises:
            Rejected: see ``check``.
        """
        guest = self._new(mode, by)
        guest.expect(name)
        asyncio.get_running_loop().call_later(_BROWSER_WAIT_S, self._expire, guest)
        return self._all[guest]

    def check(self, mode: SuperviseMode) -> None:
        """Check that a supervisor may have this mode now.

        Raises:
            Rejected: 409 if the call is over, is itself a second leg, or is in a named room, or if a whisper would
                reach no person.
        """
        if self._owner is None:
            raise Rejected("the call is over", status=409, code="call_over", param="id")
        if self._call.joined_to:
            raise Rejected(
                f"this call is a second leg; supervise call {self._call.joined_to}",
                status=409, code="second_leg", param="id",
            )  # fmt: skip
        if self._bridge.elsewhere:
            raise Rejected(
                f"the call is in the room {self._bridge.elsewhere}; add a leg to that room",
                status=409, code="in_room", param="id",
            )  # fmt: skip
        if mode == "whisper" and not self._bridge.has_person:
            raise Rejected(
                "whisper is heard by the person of a transfer only, and the call has none; use join or takeover",
                status=409, code="no_person", param="mode",
            )  # fmt: skip

    def find(self, leg: str) -> SupervisorLeg:
        """Return a supervisor by the id of their leg.

        Raises:
            Rejected: 404, there is no such supervisor.
        """
        for each in self._all.values():
            if each.leg == leg:
                return each
        raise Rejected(f"no supervisor {leg[:40]!r}", status=404, code="unknown_leg", param="leg")

    def change(self, leg: str, mode: SuperviseMode) -> SupervisorLeg:
        """Give a supervisor another mode.

        Raises:
            Rejected: see ``find`` and ``check``.
        """
        known = self.find(leg)
        self.check(mode)
        self._all[known.guest] = changed = replace(known, mode=mode)
        if changed.present:
            self._note(changed, mode)
            self._apply()
        return changed

    def remove(self, leg: str) -> None:
        """End a supervisor's leg.

        Raises:
            Rejected: 404, there is no such supervisor.
        """
        guest = self.find(leg).guest
        guest.dismiss("hangup_by_api")
        self._left(guest, "left")

    def views(self) -> list[SupervisorLeg]:
        """Return all supervisors, those who are still called included."""
        return list(self._all.values())

    def close(self) -> None:
        """End all legs, because the call is over."""
        owner, self._owner = self._owner, None
        everyone, self._all = list(self._all.values()), {}
        for each in everyone:
            each.guest.dismiss("ended")
            if owner is not None and each.present:
                owner.note_supervisor(each.by, each.leg, "left")

    def _new(self, mode: SuperviseMode, by: str) -> Guest:
        self.check(mode)
        if len(self._all) >= MOST_SUPERVISORS:
            raise Rejected(
                f"the call has {MOST_SUPERVISORS} supervisors already", status=429, code="too_many_supervisors"
            )
        guest = Guest(self._legs, self, route=self._call.route, joined_to=self._call.correlation_id)
        self._all[guest] = SupervisorLeg(guest=guest, mode=mode, by=by)
        return guest

    def _expire(self, guest: Guest) -> None:
        if guest.state == "calling":
            guest.dismiss("no_media")
            self._left(guest, "failed")

    # --- the legs (GuestHost) ----------------------------------------------------------------------------------------

    def guest_came(self, guest: Guest, leg: JoinableCall) -> None:
        """The supervisor is here."""
        known = self._all.get(guest)
        if known is None or self._owner is None or self._bridge.elsewhere:
            guest.dismiss("ended")
            self._left(guest, "failed")
            return
        self._note(known, known.mode)
        self._bridge.let_in(leg)
        self._apply()

    def guest_told(self, guest: Guest, message: Outbound) -> None:
        """Tell the application what a supervisor says whom the caller hears."""
        known = self._all.get(guest)
        if known is not None and known.mode in _HEARD_BY_ALL and isinstance(message, Prompt | Dtmf):
            self._tell(OfLeg(leg=guest.name, message=message))

    def guest_gone(self, guest: Guest, cause: EndCause) -> None:
        """The supervisor has hung up, or was not reached."""
        self._left(guest, "left" if guest.leg is not None else "failed")

    def _left(self, guest: Guest, event: SupervisorEvent) -> None:
        known = self._forget(guest)
        if known is not None:
            self._note(known, event)
            self._bridge.let_out(known.leg)
            self._apply()

    def _forget(self, guest: Guest) -> SupervisorLeg | None:
        return self._all.pop(guest, None)

    def _note(self, supervisor: SupervisorLeg, event: SupervisorEvent) -> None:
        log.info(
            "supervisor",
            extra={"call": self._call.call_id, "leg": supervisor.leg, "tenant": supervisor.by, "event": event},
        )
        if self._owner is not None:
            self._owner.note_supervisor(supervisor.by, supervisor.leg, event)

    # --- what is heard (RoomGuests) ----------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Let the room, the bot and the application follow the present modes."""
        if self._owner is None:
            return
        modes = {each.mode for each in self._in_room()}
        told = next((mode for mode in ("takeover", "join") if mode in modes), "")
        if told == self._told:
            self._bridge.arrange()
            return
        before, self._told = self._told, told
        self._owner.accompanied(bool(told))
        if "takeover" in (before, told):
            self._owner.taken_over(told == "takeover")
        self._bridge.arrange()
        self._tell(Info(name="supervisor", value=told or "none"))

    def _in_room(self) -> list[SupervisorLeg]:
        return [each for each in self._all.values() if each.present]

    @property
    def present(self) -> bool:
        """True if a supervisor is in the room."""
        return bool(self._in_room())

    @property
    def taken_over(self) -> bool:
        """True if a supervisor speaks in place of the bot."""
        return self._told == "takeover"

    def arrange(self, mixer: Mixer, person: str, *, caller_free: bool, person_free: bool) -> None:
        """Let each supervisor hear the others, and be heard as their mode says."""
        everyone, caller = self._in_room(), self._call.call_id
        for each in everyone:
            name, by_all = each.leg, each.mode in _HEARD_BY_ALL
            mixer.set_heard(name, caller, caller_free)
            mixer.set_heard(name, voice_of(caller), caller_free and not self.taken_over)
            mixer.set_heard(caller, name, by_all and caller_free)
            if person:
                mixer.set_heard(name, person, person_free)
                mixer.set_heard(person, name, person_free and each.mode != "listen")
            for other in everyone:
                if other is not each:
                    mixer.set_heard(other.leg, name, by_all)
