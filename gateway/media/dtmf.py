"""Touch tones as RTP events (RFC 4733). Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

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

    A digit is returned once, at the first packet of its event, so that it can interrupt at once. The packets that
    repeat and end the event have the same timestamp.
    """

    _MAX_AGE_TICKS = 480_000
    """A packet older by up to this many clock units (10 s or more) belongs to an earlier digit."""

    def __init__(self) -> None:
        self._last: int | None = None

    def add(self, timestamp: int, payload: bytes) -> str | None:
        """Return the digit that a packet begins. None: a repetition, another kind of event, or no event."""
        if len(payload) < 4 or payload[0] >= len(DIGITS):
            return None
        if self._last is not None and (self._last - timestamp) & 0xFFFFFFFF < self._MAX_AGE_TICKS:
            return None
        self._last = timestamp
        return DIGITS[payload[0]]
