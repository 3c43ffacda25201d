"""Touch tones as RTP events (RFC 4733). Pure."""

from __future__ import annotations

DIGITS = "0123456789*#ABCD"
"""By event code (RFC 4733 section 3.2)."""


class TelephoneEvents:
    """Event packets to digits. A digit is told once, by the first packet of its event that arrives, so that it can
    interrupt at once; the packets that repeat and end the event share its timestamp."""

    def __init__(self) -> None:
        self._last: int | None = None

    def add(self, timestamp: int, payload: bytes) -> str | None:
        """The digit that a packet begins, or None: a repetition, another kind of event, or no event at all."""
        if len(payload) < 4 or payload[0] >= len(DIGITS) or timestamp == self._last:
            return None
        self._last = timestamp
        return DIGITS[payload[0]]
