"""RTP packets (RFC 3550): numbers and timestamps of sent packets across silence, and a receiver's counts. Pure;
encryption and sockets are elsewhere."""

from __future__ import annotations

import struct
from typing import NamedTuple

from gateway.errors import ProtocolError

_HEADER = struct.Struct("!BBHII")
_VERSION_2 = 0x80
_MARKER = 0x80


class RtpPacket(NamedTuple):  # made ten thousand times a second; a frozen dataclass takes three times as long
    """One received packet, without its extensions and padding."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes


def parse(data: bytes) -> RtpPacket:
    """Parse a packet (RFC 3550 section 5.1).

    Raises:
        ProtocolError: the packet is too short, has another version, or has lengths that point beyond its end.
    """
    if len(data) < _HEADER.size or data[0] >> 6 != 2:
        raise ProtocolError(f"RTP packet of {len(data)} bytes, expected version 2 and at least {_HEADER.size} bytes")
    first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
    start = _HEADER.size + 4 * (first & 0x0F)
    end = len(data)
    if first & 0x10:
        if end < start + 4:
            raise ProtocolError(f"RTP packet of {end} bytes ends in its header extension")
        start += 4 + 4 * int.from_bytes(data[start + 2 : start + 4], "big")
    if first & 0x20:
        end -= data[-1]
    if end < start:
        raise ProtocolError(f"RTP packet of {len(data)} bytes: header and padding need {start + len(data) - end}")
    return RtpPacket(second & 0x7F, sequence, timestamp, ssrc, data[start:end])


def is_rtp(data: bytes) -> bool:
    """Return True if a datagram may be RTP or RTCP, encrypted or not: it has the version and a whole header."""
    return len(data) >= _HEADER.size and data[0] >> 6 == 2


MAX_DROPOUT = 3000
"""A jump forward by this many sequence numbers or more is a new numbering, not a loss (RFC 3550 appendix A.1)."""

MAX_MISORDER = 100
"""A packet behind by this many sequence numbers or more is not late: the sender may number anew (appendix A.1)."""


class OutgoingStream:
    """Numbering of sent packets. Nothing is sent in silence. After silence the timestamp has advanced by the time that
    passed, and the first packet of a talkspurt has the marker bit (RFC 3551 section 4.1).

    A frame comes with its time on the timetable, even if it leaves late, because the timestamp is the sampling instant
    (RFC 3550 section 5.1). A talkspurt therefore begins here when the playout begins one.

    Args:
        payload_type: payload type of the negotiated codec.
        clock_hz: RTP clock of the codec.
        frame_s: audio per frame, seconds.
        sequence, timestamp: the first numbers, random (RFC 3550 section 5.1). The sequence is in the lower half, so
            that it does not wrap before the receiver has seen one packet.
    """

    __slots__ = (
        "_clock_hz",
        "_due",
        "_event_timestamp",
        "_frame_s",
        "_frame_ticks",
        "_payload_type",
        "_sequence",
        "_timestamp",
        "octets",
        "packets",
        "ssrc",
    )

    def __init__(
        self, *, ssrc: int, payload_type: int, clock_hz: int, frame_s: float, sequence: int, timestamp: int
    ) -> None:
        self.ssrc = ssrc
        self.packets = 0
        self.octets = 0
        """Payload bytes sent, as the sender report counts them (RFC 3550 section 6.4.1)."""
        self._payload_type = payload_type
        self._clock_hz = clock_hz
        self._frame_s = frame_s
        self._frame_ticks = round(frame_s * clock_hz)
        self._sequence = sequence & 0x7FFF
        self._timestamp = timestamp & 0xFFFFFFFF
        self._due: float | None = None
        self._event_timestamp = 0

    def change(self, payload_type: int, frame_s: float) -> None:
        """Continue with another payload type of the same clock, and with frames of another length."""
        self._payload_type = payload_type
        self._frame_s = frame_s
        self._frame_ticks = round(frame_s * self._clock_hz)

    def packet(self, payload: bytes, *, now: float) -> bytes:
        """Return the next packet, header and payload.

        Args:
            now: the frame's time on the timetable; earlier if the frame is sent ahead.
        """
        second = self._payload_type
        due = self._due
        silent_ticks = 0 if due is None else round((now - due) * self._clock_hz)
        if due is None or silent_ticks > 0:
            second |= _MARKER
            self._timestamp = (self._timestamp + silent_ticks) & 0xFFFFFFFF
            due = now
        data = self._number(second, self._timestamp, payload)
        self._due = due + self._frame_s
        self._timestamp = (self._timestamp + self._frame_ticks) & 0xFFFFFFFF
        return data

    def skip(self, *, now: float) -> None:
        """Leave out the number and the time of one frame, which was lost before it came here. The receiver then
        conceals it, instead of taking it for silence between two talkspurts."""
        if self._due is not None and round((now - self._due) * self._clock_hz) <= 0:
            self._due += self._frame_s
            self._timestamp = (self._timestamp + self._frame_ticks) & 0xFFFFFFFF
            self._sequence = (self._sequence + 1) & 0xFFFF

    def comfort_noise(self, payload_type: int, payload: bytes, *, now: float) -> bytes:
        """Return a packet that stands for silence from now on (RFC 3389). The audio after it begins a talkspurt."""
        timestamp = self.timestamp_at(now)
        if self._due is None:
            self._due = now
        return self._number(payload_type, timestamp, payload)

    def event(self, payload_type: int, payload: bytes, *, begins: bool, now: float) -> bytes:
        """Return a packet of a touch tone (RFC 4733 section 2.5.1), which replaces audio.

        All packets of one tone carry the time of its start, and the first has the marker bit. The clock keeps running,
        so the audio after the tone begins a talkspurt.

        Args:
            payload_type: payload type of telephone-event.
            begins: True for the first packet of the tone.
        """
        if self._due is None:
            self._due = now
        if begins:
            self._event_timestamp = self.timestamp_at(now)
        return self._number(payload_type | (_MARKER if begins else 0), self._event_timestamp, payload)

    def _number(self, second: int, timestamp: int, payload: bytes) -> bytes:
        header = _HEADER.pack(_VERSION_2, second, self._sequence, timestamp, self.ssrc)
        self._sequence = (self._sequence + 1) & 0xFFFF
        self.packets += 1
        self.octets += len(payload)
        return header + payload

    def timestamp_at(self, now: float) -> int:
        """Return the RTP time of a time on the sender's clock, for its report. It advances during silence."""
        if self._due is None:
            return self._timestamp
        return (self._timestamp + round((now - self._due) * self._clock_hz)) & 0xFFFFFFFF


class IncomingStream:
    """Counts for a receiver report on one sender (RFC 3550 appendix A)."""

    __slots__ = (
        "_base", "_clock_hz", "_expected_odd", "_max_jitter", "_moved", "_prior", "_transit", "highest", "jitter",
        "moves", "received", "ssrc",
    )  # fmt: skip

    def __init__(self, *, ssrc: int, clock_hz: int) -> None:
        self.ssrc = ssrc
        self.received = 0
        self.highest = 0
        """Highest sequence number, extended by the count of its wraps."""
        self.jitter = 0.0
        """Interarrival jitter, in units of the clock."""
        self.moves = 0
        """Number of differences of transit time in the jitter."""
        self._moved = 0.0
        self._max_jitter = 0.0
        self._clock_hz = clock_hz
        self._base: int | None = None
        self._expected_odd = -1
        """The number that follows the last one outside the numbering. -1: none."""
        self._prior = (0, 0)
        self._transit: float | None = None

    def add(self, sequence: int, timestamp: int, *, now: float) -> None:
        """Count a packet."""
        self.received += 1
        if self._base is None:
            self._base = self.highest = sequence
        else:
            step = (sequence - self.highest) & 0xFFFF
            if step < MAX_DROPOUT:
                self.highest += step
            elif sequence == self._expected_odd:
                # Two packets in sequence: the sender numbers anew (RFC 3550 appendix A.1). The first was expected too.
                expected = self.expected + 2
                self.highest = sequence
                self._base = sequence + 1 - expected
                self._expected_odd = -1
            elif step <= 0x10000 - MAX_MISORDER:
                self._expected_odd = (sequence + 1) & 0xFFFF
        transit = now * self._clock_hz - timestamp
        if self._transit is not None:
            # A wrap of the 32-bit timestamp looks like one huge step, which is not jitter.
            moved = abs(transit - self._transit)
            if moved < self._clock_hz * 10:
                self.jitter += (moved - self.jitter) / 16
                self.moves += 1
                self._moved += moved
                if self.jitter > self._max_jitter:
                    self._max_jitter = self.jitter
        self._transit = transit

    @property
    def jitter_s(self) -> float:
        """Interarrival jitter, seconds."""
        return self.jitter / self._clock_hz

    @property
    def max_jitter_s(self) -> float:
        """Highest interarrival jitter so far, seconds."""
        return self._max_jitter / self._clock_hz

    @property
    def moved_s(self) -> float:
        """Sum of all differences of transit time, seconds. Divided by ``moves`` it is the mean that the jitter
        smooths."""
        return self._moved / self._clock_hz

    @property
    def expected(self) -> int:
        """Number of packets that the sender must have sent."""
        return 0 if self._base is None else self.highest - self._base + 1

    @property
    def lost(self) -> int:
        """Packets lost since the beginning. Duplicates reduce it, as in the RFC."""
        return self.expected - self.received

    def fraction_lost(self) -> int:
        """Return the share of packets lost since the last call, in 256ths (RFC 3550 appendix A.3)."""
        expected, received = self.expected - self._prior[0], self.received - self._prior[1]
        self._prior = (self.expected, self.received)
        lost = expected - received
        return 0 if expected <= 0 or lost <= 0 else min(255, (lost << 8) // expected)
