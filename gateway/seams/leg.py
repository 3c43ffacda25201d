"""What carries a session: the media leg of one call, whatever brought it in (WebSocket, WebRTC, SIP)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """Who calls whom, and how. What ``setup`` tells the dialogue manager."""

    call_id: str
    """``VX`` + 32 hex; also ``sessionId`` and ``{id}`` in REST."""
    route: str
    transport: str
    """``twilio`` ... ``webrtc``, ``sip``, ``audiosocket``; the metric label too."""
    call_sid: str = ""
    account_sid: str = ""
    parent_call_sid: str = ""
    from_: str = ""
    to: str = ""
    forwarded_from: str = ""
    caller_name: str = ""
    direction: str = "inbound"
    call_type: str = "PSTN"
    call_status: str = "RINGING"
    custom_parameters: Mapping[str, str] = field(default_factory=dict)


class TransferStart(enum.Enum):
    """What a leg made of the wish to transfer its call."""

    REFUSED = "refused"  # this leg cannot, or not now
    UNDER_WAY = "under way"  # ``on_transferred`` tells the outcome
    HANDED_OVER = "handed over"  # the call goes on at the target when it ends here


class MediaLeg(Protocol):
    """The sending half of a call's media. All methods are synchronous and never block."""

    max_lead_ms: int
    has_marks: bool
    recalls: bool
    """Whether ``send_clear`` takes back what the peer has not played yet; else all that was sent will be heard."""

    @property
    def outbound(self) -> AudioFormat:
        """What we send; stays for the whole call."""
        ...

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Hand one frame to the socket. False: its buffer is full and the frame was dropped (a counted stall).

        Args:
            now: the time of the tick that sends, monotonic seconds; the clock is not read again for each frame.
        """
        ...

    def send_mark(self, name: str) -> None:
        """Ask the peer to report when everything before was played; only where ``has_marks``."""
        ...

    def send_clear(self) -> None:
        """Throw away what the peer has buffered; nothing where the peer buffers nothing."""
        ...

    def carries_dtmf(self, digits: str) -> bool:
        """Whether ``send_dtmf`` can carry these now; else tones go in the audio."""
        ...

    def send_dtmf(self, digits: str) -> bool:
        """Let the peer or RTP carry the tones. False: it cannot after all."""
        ...

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call; ``handoff_data`` goes where the leg can carry it (REFER, BYE header, action URL)."""
        ...

    def transfer(self, target: str, handoff_data: str | None = None) -> TransferStart:
        """Start a transfer; says what became of that."""
        ...


class CallEvents(Protocol):
    """What a media leg reports. Implemented by the session."""

    def on_digit(self, digit: str) -> None: ...

    def on_audio(self, payload: bytes) -> None:
        """Caller audio in the leg's inbound format, empty for a lost frame; called only while ``listening`` is true."""
        ...

    def on_mark(self, name: str) -> None: ...

    def on_round_trip(self, seconds: float) -> None:
        """The way to the peer and back takes so long now."""
        ...

    def on_leg_closed(self, reason: str) -> None:
        """The caller hung up, or the media path is gone. Called once."""
        ...

    @property
    def listening(self) -> bool:
        """Whether anybody wants the caller's audio now (VAD, recogniser, recording, subscription)."""
        ...
