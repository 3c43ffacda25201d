"""What a media stream says, once decoded: one vocabulary for all dialects. Values only."""

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
    """What the caller's audio comes in."""
    outbound: AudioFormat = AudioFormat()
    """What we have to send."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MediaReceived:
    """Caller audio, encoded as ``StreamStarted.inbound`` says; any length."""

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
    """Known and of no consequence to us (``connected``, keep-alives)."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event we have no reader for: counted, not fatal, since vendors add events."""

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
