"""Sound that a dialogue manager makes itself: what has arrived of one turn and is not yet cut into frames. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SAMPLE_BYTES = 2
"""Bytes of one sample: int16, little-endian, mono."""


def _ignore() -> None:
    return None


class OwnSound:
    """The sound of one turn.

    Args:
        sample_rate: rate of the sound, hertz.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.total_s = 0.0
        """Length of all sound so far, seconds."""
        self.may_end = False
        """True if a mark is the last thing that arrived: more sound may not follow soon."""
        self.over = False
        """True if no more sound will arrive."""
        self.arrived: Callable[[], None] = _ignore
        """Called after each change."""
        self._pieces: deque[bytes] = deque()
        self._bytes = 0

    @property
    def waiting_s(self) -> float:
        """Length of the sound that waits to be cut into frames, seconds."""
        return self._bytes / (SAMPLE_BYTES * self.sample_rate)

    def push(self, pcm: bytes) -> None:
        """Add sound, whole samples."""
        self._pieces.append(pcm)
        self._bytes += len(pcm)
        self.total_s += len(pcm) / (SAMPLE_BYTES * self.sample_rate)
        self.may_end = False
        self.arrived()

    def mark(self) -> None:
        """Note that a mark follows the sound so far."""
        self.may_end = True
        self.arrived()

    def end(self) -> None:
        """Note that no more sound will arrive."""
        self.over = True
        self.arrived()

    def take(self, most_s: float) -> bytes:
        """Remove and return the oldest sound: whole pieces of at least one and at most about ``most_s`` seconds."""
        taken: list[bytes] = []
        size, most = 0, most_s * SAMPLE_BYTES * self.sample_rate
        while self._pieces and (not taken or size + len(self._pieces[0]) <= most):
            taken.append(self._pieces.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)
