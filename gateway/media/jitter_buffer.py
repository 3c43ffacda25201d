"""Puts received packets into order again, and says what of them is missing. Pure.

What is behind it (voice activity, recogniser, recording) plays nothing and so needs no delay: packets in order pass at
once. Only a hole is waited for, as long as the network's measured jitter says that its packet may still come; then it
is a loss, and whoever decodes conceals it (``LOST``). A sender that stops in silence leaves no hole but a pause, which
``pause`` measures, for voice activity ends only where silence is heard.
"""

from __future__ import annotations

import math

LOST = b""
"""In the place of a payload: one packet was lost."""


class JitterBuffer:
    """Orders by sequence number, waits by time. One object for each stream (SSRC).

    A packet is due at its timestamp, counted from the packets that came fastest. How much later than that others came
    is the jitter; its peak, forgotten slowly, is the wait. A late packet is too late for its own place but still says
    how long the next hole should be waited for.

    Args:
        clock_hz: RTP clock.
        min_wait_s, max_wait_s: bounds of the wait, from the time a packet is due. Two packets of time bring most
            reordered ones back; beyond the upper bound a recogniser would rather have a gap than a delay.
    """

    _RESTART = 3000  # a jump this far is a new stream, not a loss (MAX_DROPOUT of RFC 3550 appendix A.1)
    _MOST_WAITING = 50
    _MOST_CONCEALED = 50  # packets of one hole; concealment has long faded to silence
    _FORGET_S = 5.0  # after so long a peak of jitter counts 1/e
    _DRIFT = 0.001  # fastest clock that is followed: the base may rise by this share of time
    _NEW_CLOCK_S = 0.5  # an offset that jumps so far says that the sender's clock began anew

    def __init__(self, clock_hz: int, *, min_wait_s: float = 0.04, max_wait_s: float = 0.16) -> None:
        self.lost = 0
        self.late = 0
        """Packets that came after they had been given up, or twice."""
        self.deadline: float | None = None
        """When to call ``expire``; None: nothing waits."""
        self.frame_s = 0.02
        """Audio in a packet, as the timestamps have it."""
        self._clock_hz = clock_hz
        self._bounds_s = (min_wait_s, max_wait_s)
        self._next: int | None = None
        self._waiting: dict[int, tuple[bytes | None, float | None, float]] = {}
        """Payload, media time, arrival."""
        self._newest: tuple[int, int] = (0, 0)
        self._media_s = 0.0
        self._base_s: float | None = None
        """The clock's time at media time 0, by the packets that came fastest."""
        self._peak_s = 0.0
        self._timed_at = 0.0
        self._covered_s: float | None = None
        """Media time up to which audio was handed out."""
        self._handed_at = 0.0

    @property
    def wait_s(self) -> float:
        """How long after the time it is due a packet is waited for now."""
        low, high = self._bounds_s
        return min(high, max(low, self._peak_s + self.frame_s))

    def add(self, sequence: int, timestamp: int, payload: bytes | None, *, now: float) -> list[bytes]:
        """Take a packet; returns the payloads that are in order now, ``LOST`` for each that has been given up.

        Args:
            payload: None for a packet of no audio (a touch tone), which only holds its place.
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
        """Give up what is overdue; as ``add`` returns it."""
        return self._release(now)

    def pause(self, *, now: float) -> int:
        """How many frames of silence stand for a sender that is silent since the last packet or call; mostly 0."""
        if self._covered_s is None or self._base_s is None or self._waiting:
            return 0
        # A sender whose timestamps stand still in silence is always overdue: that is no pause.
        silent_s = min(now - self._base_s - self._covered_s, now - self._handed_at)
        frames = min(50, int((silent_s - self.wait_s) / self.frame_s))
        if frames < 3:  # jitter, so far
            return 0
        self._covered_s += frames * self.frame_s
        self._handed_at += frames * self.frame_s
        return frames

    def _media(self, sequence: int, timestamp: int, now: float) -> float:
        """This packet's media time, seconds; takes it into the measurement."""
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
                # The packet before the first one here is the last of the hole, and due one frame earlier.
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
        """A hole of so many packets, before one of that media time: how many frames are to be concealed."""
        self.lost += packets
        missing = packets
        if self._covered_s is not None and media_s is not None:
            missing = round((media_s - self._covered_s) / self.frame_s)
        return max(0, min(packets, missing, self._MOST_CONCEALED))
