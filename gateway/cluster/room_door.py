"""Lets calls of other workers into the named rooms of this one. To the room, such a call is a leg like any other: its
``Seat`` sends frames over a ``RoomLink`` in place of a peer's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.call.joined.conferences import Conferences, Member, RoomLeg
from gateway.cluster.room_link import (
    Alone,
    BotFrame,
    BotMark,
    Bye,
    Depart,
    DropBot,
    Drops,
    Enter,
    Entered,
    KeyPressed,
    LeaveOut,
    LegFrame,
    LetOut,
    Refused,
    RoomLink,
    Told,
)
from gateway.errors import Rejected
from gateway.mixing.seat import Seat
from gateway.seams.leg import Reception, UnbufferedLeg
from gateway.seams.messages import Leave, Mute, Outbound
from voicecodecs.registry import AudioFormat


class RoomDoor:
    """The door of one worker.

    Args:
        conferences: the worker's rooms.
        now: the time of frames, monotonic seconds.
        drops: counts sound that is dropped on the way.
    """

    def __init__(self, conferences: Conferences, *, now: Callable[[], float], drops: Drops) -> None:
        self.conferences = conferences
        self.now = now
        self.drops = drops
        self.visits: set[_Visit] = set()
        self._listener: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self, socket: Path) -> None:
        """Listen on a socket that only the workers of this server reach."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(lambda: _Visit(self).link, str(socket))

    def came(self, visit: _Visit) -> None:
        """A call is in a room."""
        self.visits.add(visit)
        self._empty.clear()

    def went(self, visit: _Visit) -> None:
        """A call is in no room any more. No effect if it was in none."""
        self.visits.discard(visit)
        if not self.visits:
            self._empty.set()

    async def wait_empty(self, timeout_s: float) -> None:
        """Wait until no call of another worker is in a room, but not longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()

    async def aclose(self) -> None:
        """Close the links. The calls learn that their rooms are lost."""
        if self._listener is not None:
            self._listener.close()
        for visit in list(self.visits):
            visit.link.close()


class _FarLeg(UnbufferedLeg):
    """The sending half of a call in another worker."""

    def __init__(self, link: RoomLink, enter: Enter) -> None:
        self.in_real_time = enter.in_real_time
        self.outbound: AudioFormat = enter.outbound
        self._link = link

    def reception(self) -> Reception | None:
        """Return None: the call's worker knows."""
        return None

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Send a frame of the mix."""
        self._link.post(LegFrame(payload, now))
        return True

    def send_mark(self, name: str) -> None:
        """Let the call's worker send the mark to the peer."""
        self._link.post(BotMark(name))

    def send_clear(self) -> None:
        """Let the call's worker clear the peer's buffer."""
        self._link.post(DropBot())

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """Do nothing: the call's worker hangs up."""


class _Visit:
    """One call of another worker."""

    def __init__(self, door: RoomDoor) -> None:
        self.link = RoomLink(self._take, self._closed, door.drops)
        self._door = door
        self._seat: Seat | None = None
        self._member: Member | None = None
        """None: the call is not in the room."""

    def _take(self, message: Any) -> None:
        seat, member = self._seat, self._member
        if seat is None:
            if isinstance(message, Enter):
                self._enter(message)
            return
        match message:
            case LegFrame():
                now = self._door.now()
                if not self.link.is_stale(message, now):
                    seat.on_audio(message.payload, now)
            case BotFrame():
                if not seat.send_frame(message.payload, self._door.now() if seat.joined else message.now):
                    self._door.drops.sounds += 1
            case BotMark():
                seat.send_mark(message.name)
            case DropBot():
                seat.send_clear()
            case Bye():
                self.link.close()
            case _ if member is None:
                pass  # it crossed the end of the visit
            case Leave() | Mute():
                member.on_message(message)
            case KeyPressed():
                member.pressed()
            case LeaveOut():
                member.silence(message.silent)
            case Depart():
                member.leave()

    def _enter(self, enter: Enter) -> None:
        self._seat = seat = Seat(_FarLeg(self.link, enter), enter.inbound)
        leg = RoomLeg(
            name=enter.call_id, route=enter.route, muted=enter.muted, gain_db=enter.gain_db, seat=seat,
            tell=self._tell, removed=self._removed, alone=lambda: self.link.post(Alone()),
        )  # fmt: skip
        try:
            self._door.conferences.let_in(enter.room, leg, self._entered, silent=enter.silent)
        except Rejected as exc:
            self.link.post(
                Refused(
                    text=str(exc), status=exc.status, code=exc.code, param=exc.param, retry_after_s=exc.retry_after_s
                )
            )
            self.link.close()

    def _entered(self, member: Member) -> None:
        self._member = member
        self._door.came(self)
        self.link.post(Entered())

    def _tell(self, message: Outbound) -> None:
        if self._member is not None:
            self.link.post(Told(message, self._member.room.recorded))

    def _removed(self) -> None:
        self._member = None
        self._door.went(self)
        self.link.post(LetOut())

    def _closed(self) -> None:
        if self._member is not None:
            self._member.close()
