"""A model of the buffer between a media stream and the caller's ear, sample by sample. Pure; time is an argument.

A carrier plays received audio in order, at exactly the sample rate, and plays silence while it has none. So the
caller's timeline is a row of samples that begins with the stream. Everything follows from one number: the sample at
which the buffer runs dry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

PHONE_BUFFER_S = 0.04
"""Delay of a phone's jitter buffer, seconds: two packets, the minimum that phone makers recommend."""


@dataclass(slots=True)
class CarrierPlayout:
    """One call's playout buffer.

    Times are seconds on any monotonic clock and never go back; positions are samples since ``started_at``.
    """

    started_at: float
    sample_rate: int = 8000
    silence: int = 0xFF
    """The byte that is silence: mu-law 0xFF, A-law 0xD5, L16 0x00."""
    sample_bytes: int = 1
    """Bytes per sample."""
    record: bool = False
    """True: keep the audio that the caller hears in ``heard``."""
    delay_s: float = 0.0
    """Delay of audio that comes when the buffer is dry, seconds. A stream in real time is played with a delay, so that
    frames with uneven arrival are heard without a break. A stream that is sent ahead needs none."""

    end: int = 0
    """Position at which the buffer runs dry."""
    heard: bytearray = field(default_factory=bytearray)
    """All samples up to ``end``, with silence where the buffer was dry. Empty unless ``record``."""
    _marks: deque[tuple[int, str]] = field(default_factory=deque)

    def position(self, now: float) -> int:
        """Return the sample that the caller hears at ``now``, rounded to the nearest."""
        return round((now - self.started_at) * self.sample_rate)

    def write(self, payload: bytes, *, now: float, skipped: int = 0) -> int:
        """Append audio. Return how many samples of silence the caller hears before it.

        Args:
            skipped: samples that are missing before it. If the buffer has run dry, its new delay takes their place.
        """
        dry = max(0, self.position(now) - self.end)
        begins = dry or not self.end
        silent = dry + round(self.delay_s * self.sample_rate) if begins else skipped
        if self.record:
            self.heard += bytes((self.silence,)) * (silent * self.sample_bytes) + payload
        self.end += silent + len(payload) // self.sample_bytes
        return silent

    def mark(self, name: str) -> None:
        """Remember a mark after all audio so far. ``due_marks`` returns it later."""
        self._marks.append((self.end, name))

    def due_marks(self, now: float) -> list[str]:
        """Return the marks whose audio has been played. If nothing is buffered, a mark is due at once."""
        position = self.position(now)
        due = []
        while self._marks and self._marks[0][0] <= position:
            due.append(self._marks.popleft()[1])
        return due

    def next_mark_at(self) -> float | None:
        """Return the time at which ``due_marks`` will return a mark, seconds. None: no mark is pending."""
        return self.started_at + self._marks[0][0] / self.sample_rate if self._marks else None

    def clear(self, *, now: float) -> list[str]:
        """Drop what has not been played. Return all pending marks, which a carrier reports at once."""
        marks = [name for _, name in self._marks]
        self._marks.clear()
        if (position := self.position(now)) < self.end:
            self.end = position
            if self.record:
                del self.heard[position * self.sample_bytes :]
        return marks

    def runs_dry_at(self) -> float:
        """Return the time at which the caller has heard everything, seconds."""
        return self.started_at + self.end / self.sample_rate

    def playing(self, now: float) -> bool:
        """Return True while audio is being played."""
        return self.position(now) < self.end
