"""The decoded messages of a media stream: one vocabulary for all dialects. This module holds values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStarted:
    """The stream is up; audio may flow."""

    stream_id: str
    call_sid: str = ""
    account_sid: str = ""
    from_: str = ""
    to: str = ""
    inbound: AudioFormat = AudioFormat()
    """Format of the caller's audio."""
    outbound: AudioFormat = AudioFormat()
    """Format of the audio that we have to send."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MediaReceived:
    """Caller audio of any length, encoded as ``StreamStarted.inbound`` says."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class DtmfReceived:
    """One key, ``0-9A-D*#``."""

    digit: str


@dataclass(frozen=True, slots=True)
class MarkReached:
    """The peer has played (or thrown away) everything sent before the mark of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class PlayoutCleared:
    """The peer says that it has emptied its buffer."""


@dataclass(frozen=True, slots=True)
class PlaybackStarted:
    """The peer has begun to play, after silence."""


@dataclass(frozen=True, slots=True)
class PlaybackCompleted:
    """The peer has played all that it was sent."""


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The peer ended the stream; ``reason`` is the peer's own word, or empty."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A text message that has to go back at once: handshake answers, keep-alives."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FlowControl:
    """The peer's buffer is full (``stopped``), or has room again."""

    stopped: bool


@dataclass(frozen=True, slots=True)
class PeerError:
    """The peer complains about something we sent; the stream goes on."""

    description: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """An event that we know and need not act on (``connected``, keep-alives)."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event that we do not know. It is counted and not fatal, since vendors add events."""

    event: str


Message = (
    StreamStarted
    | MediaReceived
    | DtmfReceived
    | MarkReached
    | PlayoutCleared
    | PlaybackStarted
    | PlaybackCompleted
    | StreamStopped
    | Reply
    | FlowControl
    | PeerError
    | Ignored
    | UnknownEvent
)
