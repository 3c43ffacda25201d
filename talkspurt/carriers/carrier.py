"""What a carrier says to a media server and what it is told: values and one Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol


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


Command = Media | Mark | Clear | Violation


class Carrier(Protocol):
    """One call's carrier. Makes what is sent, reads what comes; holds the counters of one stream, no clock."""

    dialect: ClassVar[str]
    sample_rate: ClassVar[int]
    """Hz of the audio both ways."""
    ptime_ms: ClassVar[int]
    """Audio per uplink message, milliseconds."""
    call_sid: str

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        """Begin a stream. ``call_number`` makes the ids; equal numbers give equal ids."""
        ...

    def opening(self) -> Sequence[str]:
        """The messages that come before any audio."""
        ...

    def media(self, payload: bytes) -> str:
        """The next uplink frame of one ``ptime_ms``."""
        ...

    def dtmf(self, digit: str) -> str: ...

    def mark(self, name: str) -> str:
        """A mark comes back."""
        ...

    def stop(self) -> str:
        """The caller has hung up."""
        ...

    def read(self, message: bytes) -> Command:
        """One text message of the media server."""
        ...

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """Request headers that prove who connects; ``url`` as the carrier was told it."""
        ...
