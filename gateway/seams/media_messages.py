"""The decoded messages of a media stream, common to all dialects. This module holds values only."""

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
    """Format of the audio to send."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    direction: str = ""
    """``inbound`` or ``outbound``; empty: the start does not say."""
    call_status: str = ""
    """State of the call in the carrier's spelling; empty: the start does not say."""


@dataclass(frozen=True, slots=True)
class MetadataReceived:
    """Numbers and parameters of the call that came after the stream had begun without them."""

    started: StreamStarted


@dataclass(frozen=True, slots=True)
class MediaReceived:
    """Caller audio of any length, encoded as in ``StreamStarted.inbound``."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class DtmfReceived:
    """One key, ``0-9A-D*#``."""

    digit: str


@dataclass(frozen=True, slots=True)
class MarkReached:
    """The peer has played (or discarded) everything sent before the mark of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class PlayoutCleared:
    """The peer reports that it has emptied its buffer."""


@dataclass(frozen=True, slots=True)
class PlaybackStarted:
    """The peer has begun to play after silence."""


@dataclass(frozen=True, slots=True)
class PlaybackCompleted:
    """The peer has played all that it received."""


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The peer ended the stream; ``reason`` is the peer's own word, or empty."""

    reason: str = ""
    peer_closes: bool = False
    """True if the peer closes the socket itself after our answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A text message to send back at once: handshake answers, keep-alives."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FlowControl:
    """The peer's buffer is full (``stopped``), or has room again."""

    stopped: bool
    resume_after_s: float | None = None
    """Time after which the peer has room again, seconds. None: the peer says when."""


@dataclass(frozen=True, slots=True)
class PeerError:
    """The peer reports an error in a sent message; the stream continues."""

    description: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """A known event that needs no action (``connected``, keep-alives)."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An unknown event. It is counted and not fatal, since vendors add events."""

    event: str


Message = (
    StreamStarted
    | MetadataReceived
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
