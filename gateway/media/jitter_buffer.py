"""Puts received packets back into order, and says which are missing. Pure.

The audio goes to voice detection, recogniser and recording, which play nothing and so need no delay: packets in order
pass at once. The buffer waits only for a missing packet, as long as the measured jitter says that it may still come.
Then the packet is lost, and the decoder conceals it (``LOST``). A sender that stops in silence leaves a pause and no
missing packet. ``pause`` measures it, because voice detection ends speech only when it hears silence.
"""

from __future__ import annotations

import math

LOST = b""
"""Stands in the place of a payload: one packet was lost."""


class JitterBuffer:
    """Orders packets by sequence number, and waits for missing ones. Each stream (SSRC) needs its own object.

    A packet is due at its timestamp, counted from the fastest packets. The jitter is how much later other packets came.
    The wait is the peak of the jitter, which is forgotten slowly. A late packet has lost its place, but it still says
    how long to wait for the next missing one.

    Args:
        clock_hz: RTP clock.
        min_wait_s, max_wait_s: bounds of the wait, from the time at which a packet is due. The length of two packets
            brings back most reordered ones. Beyond the upper bound, a gap is better for a recogniser than a delay.
    """

    _RESTART = 3000  # a jump this large is a new stream, not a loss (MAX_DROPOUT of RFC 3550 appendix A.1)
    _MOST_WAITING = 50
    _MOST_CONCEALED = 50  # packets of one gap; concealment has faded to silence long before
    _FORGET_S = 5.0  # after so many seconds a peak of jitter counts 1/e
    _DRIFT = 0.001  # fastest clock that is followed: the base may rise by this share of time
    _NEW_CLOCK_S = 0.5  # after a jump of the offset by this much, the sender's clock has started again

    def __init__(self, clock_hz: int, *, min_wait_s: float = 0.04, max_wait_s: float = 0.16) -> None:
        self.lost = 0
        self.late = 0
        """Number of packets that came twice, or after they had been given up."""
        self.deadline: float | None = None
        """When to call ``expire``. None: nothing waits."""
        self.frame_s = 0.02
        """Length of a packet's audio by the timestamps, seconds."""
        self._clock_hz = clock_hz
        self._bounds_s = (min_wait_s, max_wait_s)
        self._next: int | None = None
        self._waiting: dict[int, tuple[bytes | None, float | None, float]] = {}
        """Waiting packets by sequence number: payload, media time, arrival."""
        self._newest: tuple[int, int] = (0, 0)
        self._media_s = 0.0
        self._base_s: float | None = None
        """The clock's time at media time 0, by the fastest packets."""
        self._peak_s = 0.0
        self._timed_at = 0.0
        self._covered_s: float | None = None
        """Media time up to which audio has been returned."""
        self._handed_at = 0.0

    @property
    def wait_s(self) -> float:
        """How many seconds beyond its due time a packet is waited for now."""
        low, high = self._bounds_s
        return min(high, max(low, self._peak_s + self.frame_s))

    def add(self, sequence: int, timestamp: int, payload: bytes | None, *, now: float) -> list[bytes]:
        """Take a packet. Return the payloads that are in order now, with ``LOST`` for each one that has been given up.

        Args:
            payload: the audio. None: the packet has no audio (a touch tone) and only takes its place.
        """
        media_s = None if payload is None else self._media(sequence, timestamp, now)
        if self._next is None:
            self._next = sequence
        ahead = (sequence - self._next) & 0xFFFF
        if ahead >= 0x8000:
            if 0x10000 - ahead < self._RESTART:
                self.late += 1
                return []
            ahead = self._RESTART
        if ahead >= self._RESTART:
            self._waiting.clear()
            self._next, self._covered_s = sequence, None
        self._waiting[sequence] = (payload, media_s, now)
        return self._release(now)

    def expire(self, *, now: float) -> list[bytes]:
        """Give up what is overdue. Return payloads as ``add`` does."""
        return self._release(now)

    def pause(self, *, now: float) -> int:
        """Return how many frames of silence the sender has left out since the last packet or call; most often 0."""
        if self._covered_s is None or self._base_s is None or self._waiting:
            return 0
        # A sender whose timestamps stand still in silence is always overdue, which is no pause.
        silent_s = min(now - self._base_s - self._covered_s, now - self._handed_at)
        frames = min(50, int((silent_s - self.wait_s) / self.frame_s))
        if frames < 3:  # so little may be jitter
            return 0
        self._covered_s += frames * self.frame_s
        self._handed_at += frames * self.frame_s
        return frames

    def _media(self, sequence: int, timestamp: int, now: float) -> float:
        """Return this packet's media time in seconds, and measure its jitter."""
        before, stamp = self._newest
        step = (timestamp - stamp) & 0xFFFFFFFF
        moved_s = (step - (1 << 32) if step >= 1 << 31 else step) / self._clock_hz
        if self._base_s is not None and (sequence - before) & 0xFFFF == 1 and 0.005 <= moved_s <= 0.12:
            self.frame_s = moved_s
        media_s = self._media_s + moved_s if self._base_s is not None else 0.0
        offset_s = now - media_s
        if self._base_s is None or abs(offset_s - self._base_s) > self._NEW_CLOCK_S:
            self._base_s, self._peak_s, media_s = now, 0.0, 0.0
            self._covered_s = None
        else:
            passed_s = now - self._timed_at
            self._base_s = min(offset_s, self._base_s + passed_s * self._DRIFT)
            self._peak_s = max(offset_s - self._base_s, self._peak_s * math.exp(-passed_s / self._FORGET_S))
        self._timed_at = now
        if media_s >= self._media_s or media_s == 0.0:
            self._newest, self._media_s = (sequence, timestamp), media_s
        return media_s

    def _release(self, now: float) -> list[bytes]:
        ready: list[bytes] = []
        self.deadline = None
        while self._waiting and self._next is not None:
            found = self._waiting.pop(self._next, None)
            if found is None:
                first = min(self._waiting, key=lambda waiting: (waiting - self._next) & 0xFFFF)  # type: ignore[operator]
                _, media_s, arrived = self._waiting[first]
                due = arrived if media_s is None or self._base_s is None else self._base_s + media_s
                # The packet before the first waiting one is the last missing one, and due one frame earlier.
                given_up_at = due - self.frame_s + self.wait_s
                if now < given_up_at and len(self._waiting) <= self._MOST_WAITING:
                    self.deadline = given_up_at
                    break
                ready += [LOST] * self._skip((first - self._next) & 0xFFFF, media_s)
                self._next = first
                continue
            self._next = (self._next + 1) & 0xFFFF
            payload, media_s, _ = found
            if payload is not None and media_s is not None:
                ready.append(payload)
                self._covered_s, self._handed_at = media_s + self.frame_s, now
        return ready

    def _skip(self, packets: int, media_s: float | None) -> int:
        """Return how many frames to conceal for ``packets`` missing packets before one of media time ``media_s``."""
        self.lost += packets
        missing = packets
        if self._covered_s is not None and media_s is not None:
            missing = round((media_s - self._covered_s) / self.frame_s)
        return max(0, min(packets, missing, self._MOST_CONCEALED))
