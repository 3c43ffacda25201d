"""Touch tones as RTP events (RFC 4733). Pure."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.media.rtp import MAX_MISORDER

DIGITS = "0123456789*#ABCD"
"""Digits by event code (RFC 4733 section 3.2)."""


_EVENT = struct.Struct("!BBH")
_END = 0x80
_END_PACKETS = 3
"""Number of end packets of an event; repeated because one may be lost (section 2.5.1.4)."""

_PAUSE_MS = 500
"""Pause for a ``w`` among the digits, milliseconds."""


@dataclass(frozen=True, slots=True)
class EventPacket:
    """One packet of a digit string."""

    at_s: float
    """Due time, seconds from the start of the string."""
    payload: bytes
    begins: bool
    """True for the first packet of a digit, which has the marker bit and a new timestamp."""


def event_packets(
    digits: str, clock_hz: int, *, tone_ms: int = 160, gap_ms: int = 80, step_ms: int = 20, level_dbm0: int = -10
) -> Iterator[EventPacket]:
    """Yield a digit string as RTP events: one packet each step with the duration so far, then the end three times.

    Args:
        digits: characters of ``0-9 A-D * #``; ``w`` is a pause of 500 ms.
        clock_hz: negotiated clock of telephone-event.
        tone_ms, gap_ms: tones of 100 to 250 ms and gaps of at least 50 ms are understood everywhere.

    Raises:
        ValueError: a character has no tone, or a tone's duration does not fit into 16 bits. The message does not
            contain the character: digits may be a card number.
    """
    if not step_ms <= tone_ms <= 65_535_000 // clock_hz:
        raise ValueError(f"tone_ms is {tone_ms}, expected {step_ms} to {65_535_000 // clock_hz} at {clock_hz} Hz")
    at_ms = 0
    for position, digit in enumerate(digits.upper()):
        if digit == "W":
            at_ms += _PAUSE_MS
            continue
        code = DIGITS.find(digit)
        if code < 0:
            raise ValueError(f"character {position} of {len(digits)} is not a key, expected 0-9 A-D * # or w")
        steps = tone_ms // step_ms
        for step in range(steps + _END_PACKETS):
            last = step >= steps
            duration = min(step + 1, steps) * step_ms * clock_hz // 1000
            payload = _EVENT.pack(code, (_END if last else 0) | -level_dbm0, duration)
            yield EventPacket((at_ms + step * step_ms) / 1000, payload, step == 0)
        at_ms += (steps + _END_PACKETS - 1) * step_ms + gap_ms


def is_key(payload: bytes) -> bool:
    """Return True if a payload is one event packet of a key, with the reserved bit unset."""
    return len(payload) == 4 and payload[0] < len(DIGITS) and not payload[1] & 0x40


class TelephoneEvents:
    """Decoder of event packets to digits. Each stream needs its own object.

    A digit is returned once, at the first packet of its event, so that it can interrupt at once. The packets of one
    event should share one timestamp (RFC 4733 section 2.5.1). Senders and relays break that rule in both directions, so
    the decoder takes packets in the order of their sequence numbers and compares each one with the last:

    * Another key is another event, whatever the timestamp: some senders repeat the timestamp of the last key.
    * The same key with the same timestamp is the same event, unless its duration starts again or it pauses for 1 s.
    * The same key with a later timestamp is the same event if the timestamp lies within the event: some senders advance
      it with every packet, some relays only for the repeated end packets, and an event longer than 16 bits of duration
      continues in segments with new timestamps (section 2.5.1.3).
    * The same key with a later timestamp is the same event if it repeats the end at once, whatever the timestamp.
    * A packet behind in sequence is late, unless its timestamp is newer: some senders number each event anew.
    * Everything else is a new event. The marker bit is not used: some senders never set it, some set it always.

    Sources of the numberings: issues 7 and 29 of ymartineau/peers, 1812 and 1929 of sipwise/rtpengine, pull requests
    669 of sipsorcery and 796 of livekit/sip.
    """

    _SLACK_S = 0.06
    """Timestamps of an event's packets lie at most this far beyond its duration: three end packets, 20 ms apart."""
    _STEP_SLACK_S = 0.03
    """Tolerance for an event that has not ended; smaller than the pause between two keys."""
    _REPEAT_S = 0.07
    """An end packet that comes so soon after another one repeats it."""
    _PAUSE_S = 1.0
    """Packets of one event do not pause for so long."""

    def __init__(self) -> None:
        self._last: _Event | None = None

    def add(self, timestamp: int, payload: bytes, *, sequence: int, now: float, clock_hz: int = 8000) -> str | None:
        """Return the digit that a packet begins. None: a repetition, another kind of event, or no event.

        Args:
            sequence: RTP sequence number.
            now: time of arrival, seconds.
            clock_hz: clock of the timestamp and the duration.
        """
        if len(payload) < 4 or payload[0] >= len(DIGITS):
            return None
        code, flags, duration = _EVENT.unpack_from(payload)
        packet = _Event(code, bool(flags & _END), duration, timestamp, timestamp, sequence, now)
        last = self._last
        if last is not None:
            behind = (last.sequence - sequence) & 0xFFFF
            newer = 0 < (timestamp - last.timestamp) & 0xFFFFFFFF < 1 << 31
            if behind < MAX_MISORDER and now - last.at < self._PAUSE_S and not newer:
                return None  # late or twice
            if self._continues(last, packet, clock_hz):
                packet.begins = last.begins
                packet.ended |= last.ended
                self._last = packet
                return None
        self._last = packet
        return DIGITS[code]

    def _continues(self, last: _Event, packet: _Event, clock_hz: int) -> bool:
        """Return True if a packet belongs to the event of the last one."""
        if packet.code != last.code:
            return False
        pauses = packet.at - last.at > self._PAUSE_S
        grows = packet.duration >= last.duration
        if packet.timestamp == last.timestamp:
            wraps = last.duration > _LONG and not last.ended
            restarts = not grows and not wraps
            return not restarts and not (last.ended and (pauses or not packet.ended))
        since_begin = (packet.timestamp - last.begins) & 0xFFFFFFFF
        step = (packet.timestamp - last.timestamp) & 0xFFFFFFFF
        at_once = packet.at - last.at <= self._REPEAT_S and (packet.sequence - last.sequence) & 0xFFFF <= 2
        if packet.ended:
            slack = self._SLACK_S * clock_hz
            within = max(0, since_begin - packet.duration) <= slack
            if last.ended:
                within = step <= slack or (within and packet.at - last.at <= 2 * self._REPEAT_S)
            return grows and (at_once or (within and not (pauses and last.ended)))
        if last.ended:
            return False
        slack = round(self._STEP_SLACK_S * clock_hz)
        return step <= (packet.duration - last.duration if grows else 0) + slack or self._next_segment(
            last, step, slack
        )

    def _next_segment(self, last: _Event, step: int, slack: int) -> bool:
        """Return True if a timestamp continues where the duration of the last packet ends."""
        longest = 0x10000 + slack if last.duration > _LONG else last.duration + slack
        return last.duration - slack <= step <= longest


class KeysByTwoWays:
    """Recognises a key that comes twice because the peer sends each key as an RTP event and in a message.

    A key counts unless the same key came by the other way in the last two seconds and was not matched yet. So the peer
    may change the way at any time.
    """

    _WINDOW_S = 2.0
    """Longest time between the two arrivals: the message may come at the end of a long press."""

    def __init__(self) -> None:
        self._unmatched: deque[tuple[str, str, float]] = deque(maxlen=32)
        """Keys that counted: digit, way, arrival in seconds."""

    def is_new(self, digit: str, by: str, *, now: float) -> bool:
        """Return True if a key counts.

        Args:
            by: the way on which it came.
        """
        while self._unmatched and now - self._unmatched[0][2] > self._WINDOW_S:
            self._unmatched.popleft()
        for key in self._unmatched:
            if key[0] == digit and key[1] != by:
                self._unmatched.remove(key)
                return False
        self._unmatched.append((digit, by, now))
        return True

    def clear(self) -> None:
        """Forget the past: after a new agreement, keys may come by another way."""
        self._unmatched.clear()


_LONG = 0xFFFF - 4000
"""A duration near the 16-bit limit, clock units. The next packets may have wrapped it, or begin a new segment."""


@dataclass(slots=True)
class _Event:
    """The last packet of an event."""

    code: int
    ended: bool
    duration: int
    """Clock units."""
    timestamp: int
    begins: int
    """Timestamp of the event's first packet."""
    sequence: int
    at: float
    """Time of arrival, seconds."""
