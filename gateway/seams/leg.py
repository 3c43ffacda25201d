"""The media leg of one call: the same interface for every transport (WebSocket, WebRTC, SIP)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.seams.end_cause import UNKNOWN, EndCause
from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """Description of a call: its parties, route and transport. ``setup`` passes it to the dialogue manager."""

    call_id: str
    """``VX`` and 32 hexadecimal digits; also ``sessionId``, and ``{id}`` in REST."""
    route: str
    transport: str
    """``twilio`` ... ``webrtc``, ``sip``, ``audiosocket``; also the label ``transport`` of the metrics."""
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
    """Host at which numbers are users, for a SIP call; with its port if it has one."""
    greets: bool = True
    """False: the call continues another one, in which the route's greeting was spoken."""
    joined_to: str = ""
    """Id of the call for whose caller this one was placed. Empty: this is no second leg."""

    @property
    def correlation_id(self) -> str:
        """The id that all legs of a conversation share: the first leg's call id."""
        return self.joined_to or self.call_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """Reception statistics of a call so far."""

    received: int
    """Packets or messages from the caller."""
    lost: int | None
    """The caller's packets that did not arrive. None: the transport cannot lose packets."""
    jitter_s: float
    """Interarrival jitter of RFC 3550 section 6.4.1: the smoothed mean difference of transit time."""
    max_jitter_s: float
    """The highest value of that jitter so far."""
    remote_lost: int | None
    """Lost packets of the sent audio, from the peer's last report. None: no report yet."""
    remote_jitter_s: float | None
    """Interarrival jitter of the sent audio, from the peer's last report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RtpReport:
    """Figures of received RTP since the previous report of the same session."""

    lost: int = 0
    """The peer's packets that did not arrive."""
    jitter_s: float | None = None
    """Interarrival jitter now (RFC 3550 section 6.4.1). None: no packet of the call has arrived."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Dropped packets, by reason. ``unreadable``: not RTP or RTCP of this call. ``rejected``: not authentic SRTP.
    ``stranger``: from another source. ``late``: given up before, or a repetition."""


class TransferStart(enum.Enum):
    """Result of a leg's attempt to start a transfer."""

    REFUSED = "refused"  # this leg cannot transfer, or not now
    UNDER_WAY = "under way"  # ``on_transferred`` will report the outcome
    HANDED_OVER = "handed over"  # the call continues at the target when it ends here


class MediaLeg(Protocol):
    """The sending half of a call's media. All methods are synchronous and never block."""

    @property
    def max_lead_ms(self) -> int:
        """Most audio that may be sent ahead of real time, milliseconds."""
        ...

    @property
    def has_marks(self) -> bool:
        """True if the peer confirms what it played."""
        ...

    @property
    def can_clear(self) -> bool:
        """True if ``send_clear`` removes audio that the peer has not played. False: all sent audio will be heard."""
        ...

    @property
    def in_real_time(self) -> bool:
        """True if audio comes and goes in datagrams, each at its time (RTP). False: a TCP connection may deliver much
        at once, and the peer plays what it gets in order."""
        ...

    @property
    def refuses_transfers(self) -> bool:
        """True if the peer has said that it carries out no transfers."""
        ...

    @property
    def asks_webhook(self) -> bool:
        """True if the carrier asks our webhook what to do with the call after the stream."""
        ...

    @property
    def outbound(self) -> AudioFormat:
        """Format of the sent audio; it does not change during the call."""
        ...

    def reception(self) -> Reception | None:
        """Return the reception statistics. None: nothing has arrived."""
        ...

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Pass one frame to the socket. False: its buffer is full and the frame was dropped (a counted stall).

        Args:
            payload: one frame. Empty, only for a leg with ``in_real_time``: a frame that was lost on its way here.
            now: time of the sending tick, monotonic seconds; for a late frame, the time at which it would have been
                punctual. The clock is not read again for each frame.
        """
        ...

    def send_mark(self, name: str) -> None:
        """Ask the peer to report when everything before the mark has been played. Only if ``has_marks``."""
        ...

    def send_clear(self) -> None:
        """Clear the peer's buffer. Does nothing if the peer does not buffer."""
        ...

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if ``send_dtmf`` can send these digits now. False: their tones must be in the audio."""
        ...

    def send_dtmf(self, digits: str) -> bool:
        """Let the peer or RTP carry the tones. False: that turned out to be impossible."""
        ...

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the call. ``handoff_data`` is sent if the leg can carry it (REFER, BYE header, action URL)."""
        ...

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """Start a transfer and return the result of the start. ``reason`` is sent if the leg can carry it.

        Raises:
            Rejected: the calling policy refuses the address of the target.
        """
        ...


class UnbufferedLeg:
    """Base class of a leg whose peer buffers nothing that could be marked or cleared, and that cannot send tones or
    transfer. A leg that can overrides the method."""

    max_lead_ms = 0
    has_marks = False
    can_clear = False
    in_real_time = True
    refuses_transfers = False
    asks_webhook = False

    def send_mark(self, name: str) -> None:
        """Do nothing: there are no marks, and the timetable gives the played position."""

    def send_clear(self) -> None:
        """Do nothing: the few frames at the peer cannot be recalled."""

    def carries_dtmf(self, digits: str) -> bool:
        """Return False: tones go into the audio."""
        return False

    def send_dtmf(self, digits: str) -> bool:
        """Return False: tones go into the audio."""
        return False

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """Refuse a transfer."""
        return TransferStart.REFUSED


class Moment(Protocol):
    """An event that happens once; an ``asyncio.Future`` is one."""

    def add_done_callback(self, act: Callable[[Any], object], /) -> None:
        """Call ``act`` when the event happens, or soon if it has happened already."""
        ...


class CallEvents(Protocol):
    """Events and queries of a media leg. The session implements this for every transport; a leg reports what its
    transport supports."""

    @property
    def call_id(self) -> str:
        """The call's id, as in ``CallInfo``."""
        ...

    @property
    def metered(self) -> Moment:
        """Happens when the start of the call's record is stored, or the wait for that has timed out. Before, a leg
        neither answers nor sends sound itself; the playout's frames are on hold."""
        ...

    @property
    def ready(self) -> Moment:
        """Happens when the call is ``metered`` and the dialogue manager has received ``setup``; a leg that rings until
        then may answer the call."""
        ...

    @property
    def greeted(self) -> Moment:
        """Happens when the first turn has ended in any way; a leg that speaks before it answers may then answer."""
        ...

    @property
    def listening(self) -> bool:
        """True if any part needs the caller's audio now (VAD, recogniser, recording, subscription)."""
        ...

    @property
    def wants_round_trip(self) -> bool:
        """True if the manager receives round-trip times. A leg that measures them only for that may check it first."""
        ...

    def on_digit(self, digit: str) -> None: ...

    def on_audio(self, payload: bytes) -> None:
        """Take caller audio in the leg's inbound format, empty for a lost frame; called only while ``listening`` is
        true."""
        ...

    def on_mark(self, name: str) -> None:
        """The peer has played up to a mark of the playout."""
        ...

    def on_playback(self, *, started: bool) -> None:
        """The peer has begun to play after silence (``started``), or has played all that it received."""
        ...

    def on_round_trip(self, seconds: float) -> None:
        """Report a new round-trip time of the media path."""
        ...

    def on_described(self, *, call_sid: str, from_: str, to: str, parameters: Mapping[str, str]) -> None:
        """The peer has sent the call's description after the call began. Empty fields are unknown."""
        ...

    def on_caller_changed(self, from_: str, caller_name: str) -> None:
        """The peer is another party now, for example after a transfer in the PBX."""
        ...

    def on_leg_replaced(self, leg: MediaLeg, call_sid: str) -> None:
        """Another leg with the same formats carries the call from now on.

        Args:
            call_sid: the peer's id of the call on that leg.
        """
        ...

    def on_hold(self, on_hold: bool) -> None:
        """The leg cannot carry sound now (on hold, or not answered yet), or can again."""
        ...

    def on_transferred(self, problem: str, status: int = 0) -> None:
        """A transfer that was under way has ended. A ``problem`` that is not empty means that it failed and the call
        continues.

        Args:
            status: SIP status with which the peer refused to transfer. 408: it did not answer, or told no outcome in
                time; an empty ``problem`` then means that it may have succeeded. 0: neither.
        """
        ...

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        """The caller hung up, or the media path is gone. ``cause``: what the leg knows of it. Called once."""
        ...
