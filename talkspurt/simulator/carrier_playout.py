"""The buffer between a media stream and the caller's ear, modelled sample by sample. Pure; time is an argument.

A carrier plays what it is sent, in order, at exactly the sample rate, and silence while it has nothing. So the
caller's timeline is a row of samples that begins with the stream, and everything follows from one number: the
sample at which the buffer runs dry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


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
    """Bytes a sample."""
    record: bool = False
    """Keep what the caller hears, in ``heard``."""

    end: int = 0
    """Position at which the buffer runs dry."""
    heard: bytearray = field(default_factory=bytearray)
    """All samples up to ``end``, silence where the buffer was dry; empty unless ``record``."""
    _marks: deque[tuple[int, str]] = field(default_factory=deque)

    def position(self, now: float) -> int:
        """The sample that the caller hears at ``now``, the nearest one."""
        return round((now - self.started_at) * self.sample_rate)

    def write(self, payload: bytes, *, now: float) -> int:
        """Append audio. Returns for how many samples the buffer had been dry before it."""
        dry = max(0, self.position(now) - self.end)
        if self.record:
            self.heard += bytes((self.silence,)) * (dry * self.sample_bytes) + payload
        self.end += dry + len(payload) // self.sample_bytes
        return dry

    def mark(self, name: str) -> None:
        """Remember a mark behind all audio so far; ``due_marks`` returns it."""
        self._marks.append((self.end, name))

    def due_marks(self, now: float) -> list[str]:
        """Marks whose audio has been played; at once where nothing is buffered."""
        position = self.position(now)
        due = []
        while self._marks and self._marks[0][0] <= position:
            due.append(self._marks.popleft()[1])
        return due

    def next_mark_at(self) -> float | None:
        """When ``due_marks`` has something to return, seconds; None without pending marks."""
        return self.started_at + self._marks[0][0] / self.sample_rate if self._marks else None

    def clear(self, *, now: float) -> list[str]:
        """Throw away what is not played yet. Returns all pending marks, which a carrier reports at once."""
        marks = [name for _, name in self._marks]
        self._marks.clear()
        if (position := self.position(now)) < self.end:
            self.end = position
            if self.record:
                del self.heard[position * self.sample_bytes :]
        return marks

    def runs_dry_at(self) -> float:
        """When the caller has heard everything, seconds."""
        return self.started_at + self.end / self.sample_rate

    def playing(self, now: float) -> bool:
        """Whether audio is being played."""
        return self.position(now) < self.end
