"""What a carrier says to a media server and what it is told: values and one Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from voicecodecs.registry import AudioFormat

Message = str | bytes
"""A WebSocket message: text, or binary."""


@dataclass(frozen=True, slots=True)
class Media:
    """Audio for the caller, in the stream's encoding."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """Say so when everything before this has been played."""

    name: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Throw away what is buffered."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something the real carrier would warn about or refuse. Names keys and types, never contents."""

    description: str


@dataclass(frozen=True, slots=True)
class Tones:
    """Keys to be sent to the caller."""

    digits: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call: ``answers`` go back first, then the carrier closes the socket."""

    answers: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Noted:
    """Part of a handshake; nothing to be heard."""


Command = Media | Mark | Clear | Tones | HangUp | Noted | Violation


class Carrier(Protocol):
    """One call's carrier. Makes what is sent, reads what comes; holds the counters of one stream, no clock."""

    dialect: ClassVar[str]
    format: ClassVar[AudioFormat]
    """Of the audio both ways; its ``ptime_ms`` is that of an uplink message."""
    subprotocol: ClassVar[str]
    """Offered in the upgrade, where not empty; the server has to select it."""
    call_sid: str

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        """Begin a stream. ``call_number`` makes the ids; equal numbers give equal ids."""
        ...

    def opening(self) -> Sequence[Message]:
        """The messages that come before any audio."""
        ...

    def media(self, payload: bytes) -> Message:
        """The next uplink frame of one ptime."""
        ...

    def dtmf(self, digit: str) -> Message: ...

    def mark(self, name: str) -> Message:
        """A mark has been played."""
        ...

    def cleared(self, marks: Sequence[str]) -> Sequence[Message]:
        """The buffer was emptied, with these marks in it."""
        ...

    def stop(self) -> Message | None:
        """The caller has hung up. None: only the socket says so."""
        ...

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        """One message of the media server."""
        ...

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """Request headers that prove who connects; ``url`` as the carrier was told it."""
        ...


@runtime_checkable
class TellsPlayback(Protocol):
    """A carrier that says when it begins to play after silence, and when it has played all."""

    def playback(self, *, started: bool) -> Message: ...
