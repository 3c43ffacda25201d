"""Puts received packets into order again. Pure.

What is behind it (voice activity, recogniser, recording) plays nothing and so needs no delay: packets in order pass at
once. Only a hole is waited for, as long as ``depth`` packets; then it is a loss and skipped.
"""

from __future__ import annotations

from collections.abc import Iterator


class JitterBuffer:
    """Reorders by sequence number.

    Args:
        depth: packets that may wait behind a hole; 4 are 80 ms.
    """

    _RESTART = 3000  # a jump this far is a new stream, not a loss (MAX_DROPOUT of RFC 3550 appendix A.1)

    def __init__(self, depth: int = 4) -> None:
        self._depth = depth
        self._next: int | None = None
        self._waiting: dict[int, bytes] = {}
        self.lost = 0
        self.late = 0
        """Packets that came after they had been given up, or twice."""

    def add(self, sequence: int, payload: bytes) -> Iterator[bytes]:
        """Take a packet; yields the payloads that are in order now. Empty ones only hold their place."""
        if self._next is None:
            self._next = sequence
        ahead = (sequence - self._next) & 0xFFFF
        if ahead >= 0x8000:
            if 0x10000 - ahead < self._RESTART:
                self.late += 1
                return
            ahead = self._RESTART
        if ahead >= self._RESTART:
            self._waiting.clear()
            self._next = sequence
        self._waiting[sequence] = payload
        while self._waiting:
            ready = self._waiting.pop(self._next, None)
            if ready is not None:
                self._next = (self._next + 1) & 0xFFFF
                if ready:
                    yield ready
            elif len(self._waiting) > self._depth:
                first = min(self._waiting, key=lambda waiting: (waiting - self._next) & 0xFFFF)  # type: ignore[operator]
                self.lost += (first - self._next) & 0xFFFF
                self._next = first
            else:
                return
