"""What carries a session: the media leg of one call, the same for every transport (WebSocket, WebRTC, SIP)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """Who calls whom, and how. ``setup`` tells the dialogue manager this."""

    call_id: str
    """``VX`` and 32 hexadecimal digits; also ``sessionId``, and ``{id}`` in REST."""
    route: str
    transport: str
    """``twilio`` ... ``webrtc``, ``sip``, ``audiosocket``. The label ``transport`` of the metrics has the same
    values."""
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
    domain: str = ""
    """Host of a SIP call, with its port where there is one, at which numbers are users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """How sound has arrived so far in a call."""

    received: int
    """Packets or messages of the caller."""
    lost: int | None
    """Packets of the caller that never came. None: the transport loses none, and says of none."""
    jitter_s: float
    """Mean difference of transit time between two packets, which RFC 3550 section 6.4.1 smooths."""
    max_jitter_s: float
    """The highest that the interarrival jitter of RFC 3550 has been."""
    remote_lost: int | None
    """Our packets that the peer did not get, by its last report. None: it has reported nothing."""
    remote_jitter_s: float | None
    """Interarrival jitter of our packets, by the peer's last report."""


class TransferStart(enum.Enum):
    """What a leg made of the wish to transfer its call."""

    REFUSED = "refused"  # this leg cannot, or not now
    UNDER_WAY = "under way"  # ``on_transferred`` tells the outcome
    HANDED_OVER = "handed over"  # the call goes on at the target when it ends here


class MediaLeg(Protocol):
    """The sending half of a call's media. All methods are synchronous and never block."""

    max_lead_ms: int
    has_marks: bool
    can_clear: bool
    """Whether ``send_clear`` takes back what the peer has not played yet. False: all that was sent will be heard."""

    @property
    def outbound(self) -> AudioFormat:
        """Format of the audio that we send; it stays the same for the whole call."""
        ...

    def reception(self) -> Reception | None:
        """Return how the caller's sound arrived. None: nothing came."""
        ...

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Hand one frame to the socket. False: its buffer is full and the frame was dropped (a counted stall).

        Args:
            now: the time of the tick that sends, monotonic seconds, or if the frame is late, when it would have been in
                time. The clock is not read again for each frame.
        """
        ...

    def send_mark(self, name: str) -> None:
        """Ask the peer to report when everything before the mark was played. Call it only if ``has_marks``."""
        ...

    def send_clear(self) -> None:
        """Throw away what the peer has buffered. Does nothing if the peer does not buffer."""
        ...

    def carries_dtmf(self, digits: str) -> bool:
        """Whether ``send_dtmf`` can send these digits now. False: their tones have to go in the audio."""
        ...

    def send_dtmf(self, digits: str) -> bool:
        """Let the peer or RTP carry the tones. False: that turned out to be impossible."""
        ...

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call. ``handoff_data`` goes wherever the leg can carry it (REFER, BYE header, action URL)."""
        ...

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """Start a transfer, and return what became of the start. ``reason`` goes wherever the leg can carry it.

        Raises:
            Rejected: the calling policy refuses the address that the target turns out to have.
        """
        ...


class Moment(Protocol):
    """Something that happens once; an ``asyncio.Future`` is one."""

    def add_done_callback(self, act: Callable[[Any], object], /) -> None:
        """Call ``act`` when it happens, or soon if it has happened."""
        ...


class CallEvents(Protocol):
    """What a media leg reports, and may ask. The session implements this for every transport; a leg reports what its
    transport tells it."""

    @property
    def call_id(self) -> str:
        """The call's id, as in ``CallInfo``."""
        ...

    @property
    def metered(self) -> Moment:
        """When the file of records has the call's beginning, or was waited for in vain: before, a leg neither answers
        nor sends sound of its own. Frames come later anyway."""
        ...

    @property
    def ready(self) -> Moment:
        """When the call is ``metered`` and the dialogue manager has its ``setup``: a leg that rings until then may
        answer the call."""
        ...

    @property
    def greeted(self) -> Moment:
        """When the first turn has ended in any way: a leg that speaks before it answers may then answer."""
        ...

    @property
    def listening(self) -> bool:
        """Whether anybody wants the caller's audio now (VAD, recogniser, recording, subscription)."""
        ...

    @property
    def wants_round_trip(self) -> bool:
        """Whether anybody is told of round trips. A leg that would measure them only for this may ask first."""
        ...

    def on_digit(self, digit: str) -> None: ...

    def on_audio(self, payload: bytes) -> None:
        """Caller audio in the leg's inbound format, empty for a lost frame; called only while ``listening`` is true."""
        ...

    def on_mark(self, name: str) -> None:
        """The peer has played up to a mark of ours."""
        ...

    def on_playback(self, *, started: bool) -> None:
        """The peer has begun to play after silence (``started``), or has played all that it got."""
        ...

    def on_round_trip(self, seconds: float) -> None:
        """The way to the peer and back takes this long now."""
        ...

    def on_hold(self, on_hold: bool) -> None:
        """The leg cannot carry sound now (it is on hold, or not answered yet), or it can again."""
        ...

    def on_transferred(self, problem: str) -> None:
        """A transfer that was under way has ended. If ``problem`` is not empty, it failed and the call goes on."""
        ...

    def on_leg_closed(self, reason: str) -> None:
        """The caller hung up, or the media path is gone. Called once."""
        ...
