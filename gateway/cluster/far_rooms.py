"""Lets calls of this worker join named rooms of another one, over a ``RoomLink``. The other end is ``RoomDoor``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from gateway.call.joined.conferences import JoinedRoom, RoomLeg
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
from gateway.cluster.siblings import Siblings
from gateway.errors import Rejected
from gateway.seams.messages import Error, Leave, Mute, RoomEvent

log = logging.getLogger(__name__)

_ENTER_S = 2.0
"""Longest wait for the other worker's answer."""


class LinkedRooms:
    """The rooms of the other workers.

    Args:
        now: the time of frames, monotonic seconds.
        drops: counts sound that is dropped on the way.
    """

    def __init__(self, siblings: Siblings, *, now: Callable[[], float], drops: Drops) -> None:
        self._siblings = siblings
        self._now = now
        self._drops = drops

    def has(self, name: str) -> bool:
        """Return True if rooms of this name are in another worker."""
        return self._siblings.home_of_room(name) != self._siblings.index

    async def join(self, name: str, leg: RoomLeg, entered: Callable[[JoinedRoom], None], *, silent: bool) -> None:
        """Let a call join.

        Raises:
            Rejected: the other worker refuses, or is gone (503).
        """
        worker = self._siblings.home_of_room(name)
        room = _FarRoom(name, leg, entered, self._now, self._drops)
        try:
            async with asyncio.timeout(_ENTER_S):
                path = self._siblings.room_socket(worker)
                await asyncio.get_running_loop().create_unix_connection(lambda: room.link, str(path))
                room.enter(silent=silent)
                await room.answered
        except (OSError, TimeoutError) as exc:
            room.close()
            raise Rejected(
                f"worker {worker} of this server, which has the room {name}, is restarting",
                status=503, code="worker_gone", param="name", retry_after_s=1.0,
            ) from exc  # fmt: skip
        except BaseException:
            room.close()
            raise


class _FarRoom:
    """The room in which a call is: its ``JoinedRoom``, and the ``FarMix`` of its seat."""

    def __init__(
        self,
        name: str,
        leg: RoomLeg,
        entered: Callable[[JoinedRoom], None],
        now: Callable[[], float],
        drops: Drops,
    ) -> None:
        assert leg.seat is not None
        self.name = name
        self.link = RoomLink(self._take, self._closed, drops)
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the call is in the room, or fails with the refusal."""
        self._leg, self._seat = leg, leg.seat
        self._entered = entered
        self._now = now
        self._recorded = False
        self._state: Literal["outside", "inside", "leaving", "over"] = "outside"

    def enter(self, *, silent: bool) -> None:
        """Ask to be let in."""
        leg, seat = self._leg, self._seat
        self.link.post(
            Enter(
                room=self.name,
                call_id=leg.name,
                route=leg.route,
                muted=leg.muted,
                gain_db=leg.gain_db,
                silent=silent,
                inbound=seat.inbound,
                outbound=seat.outbound,
                in_real_time=seat.in_real_time,
            )  # fmt: skip
        )

    def _take(self, message: Any) -> None:
        seat, state = self._seat, self._state
        match message:
            case LegFrame() if state in ("inside", "leaving"):
                if not self.link.is_stale(message, self._now()):
                    seat.deliver(message.payload, message.now)
            case BotMark() if state in ("inside", "leaving"):
                seat.leg.send_mark(message.name)
            case DropBot() if state == "leaving":
                seat.leg.send_clear()
            case Entered() if state == "outside":
                seat.enter_far(self)
                self._state = "inside"
                self._answer(None)
                self._entered(self)
            case Refused() if state == "outside":
                self._answer(
                    Rejected(
                        message.text,
                        status=message.status,
                        code=message.code,
                        param=message.param,
                        retry_after_s=message.retry_after_s,
                    )  # fmt: skip
                )
            case Told() if state == "inside":
                self._recorded = message.recorded
                if self._leg.tell is not None:
                    self._leg.tell(message.message)
            case Alone() if state == "inside" and self._leg.alone is not None:
                self._leg.alone()
            case LetOut() if state == "inside":
                self.link.post(Bye())
                self._go("leaving")

    def _answer(self, refusal: Rejected | None) -> None:
        if self.answered.done():
            return
        if refusal is None:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(refusal)

    def _go(self, state: Literal["leaving", "over"]) -> None:
        """The call is in the room no more."""
        was_inside, self._state = self._state == "inside", state
        if was_inside:
            self._seat.leave_far()
            if self._leg.removed is not None:
                self._leg.removed()

    def _closed(self) -> None:
        if not self.answered.done():
            self.answered.set_exception(OSError("the other worker has closed the link"))
        if self._state == "inside":
            log.warning("a room is lost with its worker", extra={"call": self._leg.name, "room": self.name})
            if self._leg.tell is not None:
                self._leg.tell(RoomEvent(room=self.name, leg=self._leg.name, event="left", muted=self._leg.muted))
                problem = f"join: the room {self.name} is lost, because the worker of this server that had it has ended"
                self._leg.tell(Error(description=problem, code="room_lost", field="room"))
        self._go("over")

    # --- JoinedRoom --------------------------------------------------------------------------------------------------

    def on_message(self, message: Leave | Mute) -> None:
        """Let the other worker carry out a message."""
        self.link.post(message)

    def leave(self) -> None:
        """Ask to be let out."""
        self.link.post(Depart())

    def close(self) -> None:
        """Leave at once."""
        self.answered.cancel()
        self._go("over")
        self.link.close()

    def pressed(self) -> None:
        """The caller has pressed a key."""
        self.link.post(KeyPressed())

    def silence(self, silent: bool) -> bool:
        """Let the recording leave the call out, or take it in again."""
        self.link.post(LeaveOut(silent))
        return self._recorded

    # --- FarMix ------------------------------------------------------------------------------------------------------

    def hear(self, payload: bytes, now: float) -> None:
        """Pass on the caller's payload."""
        self.link.post(LegFrame(payload, now))

    def speak(self, frame: bytes, now: float) -> bool:
        """Pass on a frame of the bot."""
        self.link.post(BotFrame(frame, now))
        return True

    def mark(self, name: str) -> None:
        """Pass on a mark."""
        self.link.post(BotMark(name))

    def clear(self) -> None:
        """Let frames and marks that were not mixed be dropped."""
        self.link.post(DropBot())
