"""The link of one leg: a call of one worker in a named room of another one.

Both ends are workers of this server, on one machine, so their monotonic clocks agree. The call's worker has the peer,
the dialogue and the call's recording; the room's worker has the mix and the room's recording.

============  =========================================================================================
to the room   ``Enter`` first; ``LegFrame`` of the caller; ``BotFrame``, ``BotMark`` and ``DropBot`` of the bot;
              ``KeyPressed``, ``LeaveOut``, ``Leave``, ``Mute``; ``Depart`` asks to be let out, ``Bye``
              answers ``LetOut``
to the call   ``Entered`` or ``Refused``; ``LegFrame`` and ``BotMark`` of the mix; ``Told``, ``Alone``;
              ``LetOut`` last
============  =========================================================================================
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gateway.seams.messages import Outbound
from tts_engine.service.framing.message_connection import MessageConnection
from voicecodecs.registry import AudioFormat

MOST_LATE_S = 0.6
"""Age at which sound is stale and is dropped, seconds. As much may wait in a joined leg's own buffer."""

MOST_WAITING = 100
"""Most messages that wait in the process while the socket takes none, a second of sound of both sides."""

_FULL_BYTES = 16 * 1024
"""Unsent bytes in the process from which on messages wait."""


def room_socket_of(folder: Path, worker: int) -> Path:
    """Return the socket at which a worker lets the calls of the others into its rooms."""
    return folder / f"rooms-{worker}.sock"


@dataclass(slots=True)
class Drops:
    """The number of payloads and frames that the links of a process have dropped."""

    sounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """A call wants to join."""

    room: str
    call_id: str
    route: str
    muted: bool
    gain_db: float
    silent: bool
    """True: a recording leaves the call out."""
    inbound: AudioFormat
    outbound: AudioFormat
    in_real_time: bool


@dataclass(frozen=True, slots=True)
class Entered:
    """The call is in the room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The call may not join, as ``gateway.errors.Rejected`` says."""

    text: str
    status: int
    code: str
    param: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class LegFrame:
    """A payload of the caller, or of the mix for them; empty for a lost one. ``now``: its time, monotonic seconds."""

    payload: bytes
    now: float


@dataclass(frozen=True, slots=True)
class BotFrame:
    """A frame of the call's bot."""

    payload: bytes
    now: float


@dataclass(frozen=True, slots=True)
class BotMark:
    """A mark between frames of the bot. It comes back when the frames before it have been mixed."""

    name: str


@dataclass(frozen=True, slots=True)
class DropBot:
    """Frames and marks of the bot that were not mixed are dropped."""


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """The caller has pressed a key."""


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """The room's recording leaves the call out, or takes it in again."""

    silent: bool


@dataclass(frozen=True, slots=True)
class Depart:
    """The call wants to leave."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message for the call's application. ``recorded``: True if the room is recorded now."""

    message: Outbound
    recorded: bool


@dataclass(frozen=True, slots=True)
class Alone:
    """The call is the only leg left."""


@dataclass(frozen=True, slots=True)
class LetOut:
    """The call has been let out. What the bot said last comes back until the connection ends."""


@dataclass(frozen=True, slots=True)
class Bye:
    """No more frames of the bot come."""


class RoomLink(MessageConnection):
    """One end of the link. While the other process reads nothing, messages wait here, and of the sound the oldest is
    dropped.

    Args:
        take: called with each message. on_closed: called when nothing more comes.
    """

    def __init__(self, take: Callable[[Any], None], on_closed: Callable[[], None], drops: Drops) -> None:
        super().__init__(take, on_closed)
        self._drops = drops
        self._is_full = False
        self._waiting: deque[object] = deque()

    def post(self, message: object) -> None:
        """Send a message as soon as the socket takes it. After the end it is dropped."""
        if not self._is_full:
            self.send(message)
            return
        self._waiting.append(message)
        if len(self._waiting) <= MOST_WAITING:
            return
        sound = next((at for at, each in enumerate(self._waiting) if isinstance(each, LegFrame | BotFrame)), None)
        if sound is None:
            self.abort()
            return
        del self._waiting[sound]
        self._drops.sounds += 1

    def is_stale(self, sound: LegFrame, now: float) -> bool:
        """Return True if sound comes so late that it is dropped, and count it."""
        if now - sound.now <= MOST_LATE_S:
            return False
        self._drops.sounds += 1
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=_FULL_BYTES)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        while self._waiting and not self._is_full:
            self.send(self._waiting.popleft())

    def lost(self) -> None:
        self._waiting.clear()
        self._is_full = False
        super().lost()
