"""Named rooms: conferences of calls and of legs that the gateway calls. Everyone hears everyone but the muted, and the
bot of each call too. A room is made for its first leg, and closed with its last one. It belongs to a tenant."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gateway.call.joined.guests import Guest
from gateway.call.joined.second_legs import JoinableCall, SecondLegs
from gateway.errors import Rejected
from gateway.media.ticker import Ticker
from gateway.mixing.active_speaker import ActiveSpeaker
from gateway.mixing.mixer import Mixer
from gateway.mixing.room import Room
from gateway.mixing.seat import Seat, leg_of, voice_of
from gateway.mixing.sources import Pcm
from gateway.seams.calling import Allowance
from gateway.seams.end_cause import EndCause
from gateway.seams.messages import Dtmf, Error, Leave, Mute, OfLeg, Outbound, Prompt, RoomEvent, RoomEventName

log = logging.getLogger(__name__)

MOST_ROOMS = 1000
"""Most rooms of a process."""

MOST_LEGS = 32
"""Most legs of a room, those that are still called included."""

GAIN_DB = (-40.0, 20.0)
"""Range of a leg's gain, decibels."""

_BROWSER_WAIT_S = 20.0
"""Longest wait for a browser's connection after its offer was answered."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_room_name(name: str) -> bool:
    """Return True if a room may have this name: letters, digits, ``_``, ``.`` and ``-``, at most 64."""
    return _NAME.fullmatch(name) is not None


class RoomTape(Protocol):
    """The recording of a room, as ``gateway.uplink.room_recorder.RoomRecorder``."""

    def hear(self, leg: str, pcm: Pcm, *, bot: bool = False) -> None:
        """Take 20 ms of a leg, or of its bot."""
        ...

    def tick(self, now: float, rate: int) -> None:
        """All legs of these 20 ms have been heard, at ``rate`` Hz."""
        ...

    def pressed(self, leg: str) -> None:
        """Hide a key that a leg reports."""
        ...

    def silence(self, leg: str, silent: bool) -> None:
        """Record silence for a leg, or record it again."""
        ...

    def left(self, leg: str) -> None:
        """A leg has left."""
        ...

    def close(self) -> None:
        """Complete the recording."""
        ...


@dataclass(slots=True, kw_only=True)
class RoomLeg:
    """One leg of a room, or one that is called."""

    name: str = ""
    """Session id of the leg."""
    route: str = ""
    muted: bool = False
    gain_db: float = 0.0
    seat: Seat | None = None
    """None: the leg is still called."""
    guest: Guest | None = None
    """A leg that was called for the room. None: a call that joined."""
    tell: Callable[[Outbound], None] | None = None
    """Sends a message to the application of a call that joined."""
    removed: Callable[[], None] | None = None
    """Called when a call that joined has been let out."""
    alone: Callable[[], None] | None = None
    """Called when a call that joined is the only leg left."""


class JoinedRoom(Protocol):
    """The room in which a call is, as the call uses it. The room may be in another process."""

    @property
    def name(self) -> str: ...

    def on_message(self, message: Leave | Mute) -> None:
        """Carry out a message of the call's application, which gets an error if that is impossible."""
        ...

    def leave(self) -> None:
        """Leave the room. ``removed`` of the leg follows."""
        ...

    def close(self) -> None:
        """Leave the room at once, because the call is over."""
        ...

    def pressed(self) -> None:
        """The caller has pressed a key, which the recording hides."""
        ...

    def silence(self, silent: bool) -> bool:
        """Let the recording leave the call out, or take it in again. False: the room is not recorded."""
        ...


class FarRooms(Protocol):
    """The named rooms of the other processes of this server."""

    def has(self, name: str) -> bool:
        """Return True if rooms of this name are in another process."""
        ...

    async def join(self, name: str, leg: RoomLeg, entered: Callable[[JoinedRoom], None], *, silent: bool) -> None:
        """Let a call join; see ``Conferences.join``.

        Raises:
            Rejected: the other process refuses, or is gone (503).
        """
        ...


class _RoomWatch:
    """Hears a room for its active speaker and its recording."""

    def __init__(self, speakers: ActiveSpeaker, mixer: Mixer, find: Callable[[str], RoomLeg | None]) -> None:
        self.tape: RoomTape | None = None
        """None: the room is not recorded."""
        self._speakers = speakers
        self._mixer = mixer
        self._find = find

    @property
    def hears_bots(self) -> bool:
        """True if the bots' voices are recorded."""
        return self.tape is not None

    def hear(self, name: str, pcm: Pcm) -> None:
        """Take 20 ms of a leg or of a bot."""
        if leg := leg_of(name):
            if self.tape is not None:
                self.tape.hear(leg, pcm, bot=True)
            return
        self._speakers.hear(name, pcm)
        if self.tape is not None and (known := self._find(name)) is not None and not known.muted:
            self.tape.hear(name, pcm)

    def tick(self, now: float) -> None:
        """All have been heard."""
        self._speakers.tick(now)
        if self.tape is not None:
            self.tape.tick(now, self._mixer.rate)


class Conference:
    """One named room. ``Conferences`` makes it.

    Args:
        tape: begins a recording of the room for a leg of this route. None: such legs are not recorded.
        changed: called when legs have come or gone.
    """

    def __init__(
        self,
        tenant: str,
        name: str,
        legs: SecondLegs,
        timer: Ticker,
        *,
        tape: Callable[[Conference, str], RoomTape | None],
        changed: Callable[[Conference], None],
    ) -> None:
        self.tenant = tenant
        self.name = name
        self.correlation_id = f"RM{uuid.uuid4().hex}"
        """The id that the legs called for the room share, and the name of its recording."""
        self._second_legs = legs
        self._changed = changed
        self._room = Room(timer)
        self._speakers = ActiveSpeaker(self._speaks)
        self._begin_tape = tape
        self._watch = self._room.mixer.watch = _RoomWatch(self._speakers, self._room.mixer, self.find)
        self._legs: list[RoomLeg] = []

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def legs(self) -> list[RoomLeg]:
        """All legs, those that are still called included."""
        return list(self._legs)

    @property
    def speaking(self) -> str:
        """Session id of the leg that speaks. Empty: none."""
        return self._speakers.speaking

    def find(self, leg: str) -> RoomLeg | None:
        """Return a leg by its session id. None: it is not in this room."""
        return next((each for each in self._legs if each.name == leg), None)

    def enter(self, leg: RoomLeg) -> None:
        """Let a call in.

        Raises:
            Rejected: 429, the room is full.
        """
        self.check_place()
        self._legs.append(leg)
        self._seat(leg)

    async def call(
        self, target: str, *, route: str, muted: bool = False, gain_db: float = 0.0, allowance: Allowance | None = None
    ) -> RoomLeg:
        """Call a leg by SIP.

        Raises:
            Rejected: 429, the room is full; see also ``SecondLegs.place``.
        """
        leg, guest = self._new_guest(route, muted=muted, gain_db=gain_db)
        try:
            await guest.call(target, allowance=allowance)
        except BaseException:
            self._drop(leg)
            raise
        leg.name = guest.name
        return leg

    def expect(self, name: str, *, route: str, muted: bool = False, gain_db: float = 0.0) -> RoomLeg:
        """Expect the leg of a browser, whose session has this id.

        Raises:
            Rejected: 429, the room is full.
        """
        leg, guest = self._new_guest(route, muted=muted, gain_db=gain_db)
        leg.name = name
        guest.expect(name)
        asyncio.get_running_loop().call_later(_BROWSER_WAIT_S, self._expire, leg)
        return leg

    def change(self, leg: RoomLeg, *, muted: bool | None = None, gain_db: float | None = None) -> None:
        """Mute a leg or let it be heard, and set its gain."""
        was_muted = leg.muted
        if gain_db is not None:
            leg.gain_db = gain_db
        if muted is not None:
            leg.muted = muted
        if leg.seat is None:
            return
        if leg.muted:
            self._speakers.forget(leg.name)
        self._arrange(leg)
        if leg.muted != was_muted:
            self._tell_all(leg, "muted")

    def remove(self, leg: RoomLeg) -> None:
        """Let a leg out. One that was called for the room ends; a call that joined is with its bot again."""
        guest, removed = leg.guest, leg.removed
        self._leave(leg)
        if guest is not None:
            guest.dismiss("removed")
        elif removed is not None:
            removed()

    def check_place(self) -> None:
        """Check that one more leg has a place.

        Raises:
            Rejected: 429, the room is full.
        """
        if len(self._legs) >= MOST_LEGS:
            raise Rejected(f"the room has {MOST_LEGS} legs already", status=429, code="room_full", param="name")

    def _new_guest(self, route: str, *, muted: bool, gain_db: float) -> tuple[RoomLeg, Guest]:
        self.check_place()
        guest = Guest(self._second_legs, self, route=route, joined_to=self.correlation_id)
        leg = RoomLeg(route=route, muted=muted, gain_db=gain_db, guest=guest)
        self._legs.append(leg)
        self._changed(self)
        return leg, guest

    def _expire(self, leg: RoomLeg) -> None:
        if leg.guest is not None and leg.guest.state == "calling":
            leg.guest.dismiss("no_media")
            self._drop(leg)

    # --- the room ----------------------------------------------------------------------------------------------------

    def _seat(self, leg: RoomLeg) -> None:
        """Let a leg hear the others, and the others hear it."""
        assert leg.seat is not None
        if self._watch.tape is None:
            self._watch.tape = self._begin_tape(self, leg.route)
        self._room.enter(leg.name, leg.seat)
        for other in self._others(leg):
            self._arrange(other)
        self._arrange(leg)
        log.info("joined a room", extra={"leg": leg.name, "room": self.name, "tenant": self.tenant})
        self._changed(self)
        self._tell_all(leg, "joined")

    def _others(self, leg: RoomLeg) -> list[RoomLeg]:
        return [each for each in self._legs if each is not leg and each.seat is not None]

    def _arrange(self, leg: RoomLeg) -> None:
        """Let all others hear a leg as its mute and gain say."""
        mixer = self._room.mixer
        for other in self._others(leg):
            if leg.muted:
                mixer.unhear(other.name, leg.name)
            else:
                mixer.hear(other.name, leg.name, leg.gain_db)
            mixer.set_heard(other.name, voice_of(leg.name), True)

    def _leave(self, leg: RoomLeg) -> None:
        if leg.seat is None or leg not in self._legs:
            self._drop(leg)
            return
        self._tell_all(leg, "left")
        self._legs.remove(leg)
        leg.seat = None
        self._speakers.forget(leg.name)
        if self._watch.tape is not None:
            self._watch.tape.left(leg.name)
        self._room.leave(leg.name)
        log.info("left a room", extra={"leg": leg.name, "room": self.name, "tenant": self.tenant})
        self._changed(self)
        if len(self._legs) == 1 and self._legs[0].alone is not None:
            self._legs[0].alone()

    def _drop(self, leg: RoomLeg) -> None:
        """Forget a leg that never came."""
        if leg in self._legs:
            self._legs.remove(leg)
            self._changed(self)

    def close(self) -> None:
        """Release the mixer; the last leg has left."""
        self._room.mixer.watch = None
        self._room.close()
        if self._watch.tape is not None:
            self._watch.tape.close()

    # --- the recording -----------------------------------------------------------------------------------------------

    @property
    def recorded(self) -> bool:
        """True if the room is recorded."""
        return self._watch.tape is not None

    def pressed(self, leg: str) -> None:
        """A leg has reported a key, which the recording hides."""
        if self._watch.tape is not None:
            self._watch.tape.pressed(leg)

    def silence(self, leg: str, silent: bool) -> bool:
        """Let the recording leave a leg out, or take it in again. False: the room is not recorded."""
        if self._watch.tape is not None:
            self._watch.tape.silence(leg, silent)
        return self.recorded

    def _tell_all(self, leg: RoomLeg, event: RoomEventName) -> None:
        for each in list(self._legs):
            if each.tell is not None:
                each.tell(RoomEvent(room=self.name, leg=leg.name, event=event, muted=leg.muted))

    def _speaks(self, name: str) -> None:
        leg = self.find(name)
        if leg is not None:
            self._tell_all(leg, "speaking")

    # --- the legs that were called (GuestHost) -----------------------------------------------------------------------

    def guest_came(self, guest: Guest, leg: JoinableCall) -> None:
        """A leg is here."""
        known = self._of(guest)
        if known is None:
            guest.dismiss("removed")
            return
        known.name, known.seat = leg.call_id, leg.seat
        self._seat(known)

    def guest_told(self, guest: Guest, message: Outbound) -> None:
        """Tell the applications what a leg says that has none of its own."""
        if isinstance(message, Dtmf):
            self.pressed(guest.name)
        if isinstance(message, Prompt | Dtmf):
            for each in list(self._legs):
                if each.tell is not None:
                    each.tell(OfLeg(leg=guest.name, message=message))

    def guest_gone(self, guest: Guest, cause: EndCause) -> None:
        """A leg has hung up, or was not reached."""
        known = self._of(guest)
        if known is not None:
            self._leave(known)

    def _of(self, guest: Guest) -> RoomLeg | None:
        return next((each for each in self._legs if each.guest is guest), None)


class Member:
    """A call in a room of this process: its ``JoinedRoom``. The call itself may be in another process."""

    def __init__(self, room: Conference, leg: RoomLeg) -> None:
        self.room = room
        self._leg = leg

    @property
    def name(self) -> str:
        """Name of the room."""
        return self.room.name

    def on_message(self, message: Leave | Mute) -> None:
        """Let a leg out, mute it or let it be heard; see ``JoinedRoom``."""
        kind = "leave" if isinstance(message, Leave) else "mute"
        room, leg = self.room, self.room.find(message.leg or self._leg.name)
        if message.room not in ("", room.name):
            self._tell(kind, f"the call is not in the room {message.room[:64]}", "unknown_room")
        elif leg is None:
            self._tell(kind, f"no leg {message.leg[:40]!r} in the room", "unknown_leg")
        elif isinstance(message, Leave):
            room.remove(leg)
        else:
            room.change(leg, muted=message.muted)

    def _tell(self, kind: str, problem: str, code: str) -> None:
        if self._leg.tell is not None:
            self._leg.tell(Error(description=f"{kind}: {problem}", code=code, field="leg"))

    def leave(self) -> None:
        """Leave the room."""
        self.room.remove(self._leg)

    def close(self) -> None:
        """Leave the room, because the call is over."""
        self.room.remove(self._leg)

    def pressed(self) -> None:
        """The caller has pressed a key."""
        self.room.pressed(self._leg.name)

    def silence(self, silent: bool) -> bool:
        """Let the recording leave the call out, or take it in again."""
        return self.room.silence(self._leg.name, silent)


class Conferences:
    """The named rooms of a process.

    Args:
        tenants: tenant of each route.
        tape: begins the recording of a room; see ``Conference``.
        counted: gets the numbers of rooms and of their legs.
    """

    def __init__(
        self,
        legs: SecondLegs,
        timer: Ticker,
        tenants: Mapping[str, str],
        *,
        tape: Callable[[Conference, str], RoomTape | None] = lambda room, route: None,
        counted: Callable[[int, int], None] = lambda rooms, legs: None,
    ) -> None:
        self.far: FarRooms | None = None
        """The rooms of the other processes. None: there is no other one."""
        self._second_legs = legs
        self._timer = timer
        self._tenants = tenants
        self._tape = tape
        self._counted = counted
        self._rooms: dict[tuple[str, str], Conference] = {}
        self._wanted: dict[tuple[str, str], int] = {}
        """Number of requests that hold a room open which has no leg yet."""

    def __iter__(self) -> Iterator[Conference]:
        return iter(list(self._rooms.values()))

    def tenant_of(self, route: str) -> str:
        """Return the tenant whose rooms the calls of a route may join."""
        return self._tenants.get(route, "")

    async def join(self, name: str, leg: RoomLeg, entered: Callable[[JoinedRoom], None], *, silent: bool) -> None:
        """Let a call join a room, of this process or of another one.

        Args:
            entered: called when the call is let in, before it hears anything.
            silent: True if a recording leaves the call out.

        Raises:
            Rejected: 429, the room is full; see also ``opened`` and ``FarRooms.join``.
        """
        if self.far is not None and self.far.has(name):
            await self.far.join(name, leg, entered, silent=silent)
        else:
            self.let_in(name, leg, entered, silent=silent)

    def let_in(self, name: str, leg: RoomLeg, entered: Callable[[Member], None], *, silent: bool) -> None:
        """Let a call, which may be in another process, join a room of this one. See ``join``."""
        with self.opened(leg.route, name) as room:
            room.check_place()
            member = Member(room, leg)
            entered(member)
            room.enter(leg)
            if silent:
                member.silence(True)

    @contextmanager
    def opened(self, route: str, name: str) -> Iterator[Conference]:
        """Return the room of this name, made if necessary, for a leg of this route. It closes if no leg enters.

        Raises:
            Rejected: 422, the name is none; 503, there are too many rooms.
        """
        if not is_room_name(name):
            raise Rejected(
                "a room's name has letters, digits, _, . and -, at most 64",
                status=422, code="invalid_room", param="name",
            )  # fmt: skip
        tenant = self.tenant_of(route)
        key = (tenant, name)
        room = self._rooms.get(key)
        if room is None:
            if len(self._rooms) >= MOST_ROOMS:
                raise Rejected(f"{MOST_ROOMS} rooms are open", status=503, code="too_many_rooms", param="name")
            room = Conference(tenant, name, self._second_legs, self._timer, tape=self._tape, changed=self._changed)
            self._rooms[key] = room
        self._wanted[key] = self._wanted.get(key, 0) + 1
        try:
            yield room
        finally:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
            self._changed(room)

    def _changed(self, room: Conference) -> None:
        key = (room.tenant, room.name)
        if not room.legs and key not in self._wanted and self._rooms.get(key) is room:
            del self._rooms[key]
            room.close()
        self._counted(len(self._rooms), sum(len(each.legs) for each in self._rooms.values()))
