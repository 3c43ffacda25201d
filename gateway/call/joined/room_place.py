"""One call's place in a named room: it joins, leaves and mutes on request of its application or of REST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gateway.call.joined.bridge import Bridge
from gateway.call.joined.conferences import Conferences, JoinedRoom, RoomLeg
from gateway.call.joined.supervisors import Supervisors
from gateway.errors import Rejected
from gateway.mixing.seat import Seat
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Error, Join, Leave, Mute, Outbound, RecordState


class Company(Protocol):
    """The call's side."""

    def accompanied(self, accompanied: bool) -> None:
        """The caller is with others, or with the bot alone again."""
        ...

    def returned(self) -> None:
        """The caller is with the bot again."""
        ...

    @property
    def without_bot(self) -> bool:
        """True if the bot has left the call."""
        ...


class RoomPlace:
    """The place. Most calls never use it; then it costs nothing.

    Args:
        bridge: has the call's own room, which cannot be used meanwhile.
        conferences: the named rooms. None: there are none.
        tell: sends a message to the application.
        owner: the call.
    """

    def __init__(
        self,
        call: CallInfo,
        seat: Seat,
        bridge: Bridge,
        supervisors: Supervisors,
        conferences: Conferences | None,
        *,
        tell: Callable[[Outbound], None],
        owner: Company,
    ) -> None:
        self._call = call
        self._seat = seat
        self._bridge = bridge
        self._supervisors = supervisors
        self._conferences = conferences
        self._tell = tell
        self._owner: Company | None = owner
        """None: the call is over."""
        self._room: JoinedRoom | None = None
        self._joining = False
        self._unrecorded = self._stopped = False
        """True while the application lets no recording have the call, and once it has ended the recording."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def joined(self) -> bool:
        """True while the call is in a named room."""
        return self._room is not None

    def on_message(self, message: Join | Leave | Mute) -> None:
        """Take a message of the application."""
        match message:
            case Join():
                self._own(self._join_or_tell(message))
            case _ if self._room is not None:
                self._room.on_message(message)
            case _:
                kind = "leave" if isinstance(message, Leave) else "mute"
                problem = f"{kind}: the call is not in the room {message.room[:64]}"
                self._tell(Error(description=problem, code="unknown_room", field="leg"))

    async def join(self, name: str, *, muted: bool = False, gain_db: float = 0.0) -> RoomLeg:
        """Join a room.

        Raises:
            Rejected: 409 if the call is over, is a second leg, or is joined with other legs; see also
                ``Conferences.join``.
        """
        self._check()
        assert self._conferences is not None
        leg = RoomLeg(
            name=self._call.call_id, route=self._call.route, muted=muted, gain_db=gain_db, seat=self._seat,
            tell=self._tell, removed=self._removed, alone=self._alone,
        )  # fmt: skip
        self._joining, self._bridge.elsewhere, silent = True, name, self._unrecorded
        try:
            await self._conferences.join(name, leg, self._entered, silent=silent)
        finally:
            self._joining = False
            if self._room is None:
                self._bridge.elsewhere = ""
        if self._room is not None and self._unrecorded != silent:  # it has changed on the way to another process
            self._room.silence(self._unrecorded)
        return leg

    def _entered(self, room: JoinedRoom) -> None:
        self._room = room
        if self._owner is None:
            self.close()
        else:
            self._owner.accompanied(True)

    def on_digit(self) -> None:
        """The caller has pressed a key."""
        if self._room is not None:
            self._room.pressed()

    def record(self, state: RecordState) -> bool:
        """Pause, resume or end the call's part of the room's recording. False: the call is in no recorded room."""
        self._stopped = self._stopped or state == "stop"
        self._unrecorded = self._stopped or state == "pause"
        return self._room is not None and self._room.silence(self._unrecorded)

    def close(self) -> None:
        """Leave, because the call is over."""
        for task in self._tasks:
            task.cancel()
        self._owner = None
        if self._room is not None:
            self._room.close()

    def _check(self) -> None:
        if self._conferences is None or self._owner is None:
            raise Rejected("the call is over", status=409, code="call_over", param="call")
        if self._call.joined_to:
            raise Rejected("the call is a second leg", status=409, code="second_leg", param="call")
        if self._room is not None or self._joining:
            raise Rejected(
                f"the call is in the room {self._bridge.elsewhere}", status=409, code="in_room", param="call"
            )
        if self._bridge.used or self._supervisors.views():
            raise Rejected(
                "the call is joined with other legs, is on hold or has a background",
                status=409, code="leg_joined", param="call",
            )  # fmt: skip

    async def _join_or_tell(self, message: Join) -> None:
        try:
            await self.join(message.room, muted=message.muted)
        except Rejected as exc:
            self._tell(Error(description=f"join: {exc}", code=exc.code, field="room"))

    def _removed(self) -> None:
        """The call has been let out of the room."""
        self._room = None
        self._bridge.elsewhere = ""
        if self._owner is not None:
            self._owner.accompanied(False)
            self._owner.returned()

    def _alone(self) -> None:
        """No other leg is left: without a bot, the call has no one to talk with."""
        if self._owner is not None and self._owner.without_bot and self._room is not None:
            self._room.leave()

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
