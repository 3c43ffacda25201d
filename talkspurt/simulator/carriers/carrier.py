"""Messages between a carrier and a media server: values, and one Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from voicecodecs.registry import AudioFormat

FROM, TO = "talkspurt.From", "talkspurt.To"
"""Parameters of a stream that say who calls whom, as the gateway's webhooks leave them there."""

Message = str | bytes
"""A WebSocket message: text, or binary."""


@dataclass(frozen=True, slots=True)
class MediaFrame:
    """Audio for the caller, in the stream's encoding."""

    payload: bytes
    skipped: int = 0
    """Samples missing before this audio, by the sender's timestamps: lost packets, or a pause."""


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """A request to report when everything before it has been played."""

    name: str


@dataclass(frozen=True, slots=True)
class Clear:
    """A request to drop the buffered audio."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A message that the real carrier would warn about or refuse. The text names keys and types, never contents."""

    description: str


@dataclass(frozen=True, slots=True)
class Tones:
    """A request to send digits to the caller as touch tones."""

    digits: str


@dataclass(frozen=True, slots=True)
class CarrierHangsUp:
    """A request to end the call. The carrier sends ``answers`` back, then closes the socket."""

    answers: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Noted:
    """A message without audio or effect, such as a part of a handshake."""


Command = MediaFrame | MarkRequest | Clear | Tones | CarrierHangsUp | Noted | Violation


class SimulatedCarrier(Protocol):
    """The carrier of one call. It makes outgoing messages and reads incoming ones. It holds a stream's counters and no
    clock."""

    dialect: ClassVar[str]
    format: ClassVar[AudioFormat]
    """Format of the audio in both directions. Its ``ptime_ms`` is the length of an uplink message."""
    subprotocol: ClassVar[str]
    """WebSocket subprotocol that the upgrade offers and the server has to select. Empty: none."""
    call_sid: str

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        """Begin a stream. The ids are made from ``call_number``; equal numbers give equal ids."""
        ...

    def opening(self) -> Sequence[Message]:
        """Return the messages that come before any audio."""
        ...

    def media(self, payload: bytes) -> Message:
        """Return the next uplink frame of one ptime."""
        ...

    def dtmf(self, digit: str) -> Message: ...

    def mark(self, name: str) -> Message:
        """Return the message that says that a mark has been played."""
        ...

    def cleared(self, marks: Sequence[str]) -> Sequence[Message]:
        """Return the messages that say that the buffer was emptied with these marks in it."""
        ...

    def stop(self) -> Message | None:
        """Return the message that says that the caller has hung up. None: the carrier only closes the socket."""
        ...

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        """Read one message of the media server."""
        ...

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """Return the request headers that prove the carrier's identity. ``url`` is the address as the carrier knows
        it."""
        ...


@runtime_checkable
class TellsPlayback(Protocol):
    """A carrier that reports the begin of playback after silence, and the end of playback."""

    def playback(self, *, started: bool) -> Message: ...
