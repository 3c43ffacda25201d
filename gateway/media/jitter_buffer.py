"""Reordering of received packets and detection of lost ones. Pure.

The audio goes to voice detection, recogniser and recording, which do not play it, so packets in order pass without
delay. The buffer waits only for a missing packet, as long as the measured jitter makes its arrival likely. Then the
packet is lost and the decoder conceals it (``LOST``). A sender that stops in silence leaves a pause but no missing
packet. ``pause`` measures it, because voice detection ends speech only when it hears silence.
"""

from __future__ import annotations

import math

from gateway.media.rtp import MAX_DROPOUT, MAX_MISORDER

LOST = b""
"""Placeholder for the payload of one lost packet."""


class JitterBuffer:
    """Orders packets by sequence number and waits for missing ones. Each stream (SSRC) needs its own object.

    A packet is due at its timestamp, relative to the fastest packets. Jitter is the lateness of other packets. The wait
    is the slowly decaying peak of the jitter. A late packet is dropped, but its lateness still counts for the next
    wait.

    Args:
        clock_hz: RTP clock.
        min_wait_s, max_wait_s: bounds of the wait after a packet's due time. Two packet lengths recover most reordered
            packets. Beyond the upper bound, a gap is better for a recogniser than a delay.
    """

    _MAX_WAITING = 50
    _MAX_CONCEALED = 50  # packets of one gap; concealment has faded to silence long before
    _MAX_STEP = 4  # in the first two packets of a new numbering, some of which may be lost or reordered
    _PEAK_DECAY_S = 5.0  # time constant of the decay of the jitter's peak
    _DRIFT = 0.001  # fastest clock that is followed: the base may rise by this share of time
    _CLOCK_RESTART_S = 0.5  # a jump of the offset by this much means that the sender's clock has restarted

    def __init__(self, clock_hz: int, *, min_wait_s: float = 0.04, max_wait_s: float = 0.16) -> None:
        self.late = 0
        """Packets that came twice, or after they had been given up."""
        self.deadline: float | None = None
        """Time of the next ``expire``. None: no packet waits."""
        self.frame_s = 0.02
        """Length of a packet's audio by its timestamps, seconds."""
        self._clock_hz = clock_hz
        self._bounds_s = (min_wait_s, max_wait_s)
        self._next: int | None = None
        self._waiting: dict[int, tuple[bytes | None, float | None, float]] = {}
        """Waiting packets by sequence number: payload, media time, arrival."""
        self._odd: tuple[int, int, bytes | None, float | None, float] | None = None
        """The last packet behind the numbering: sequence number, timestamp, payload, media time, arrival."""
        self._newest: tuple[int, int] = (0, 0)
        self._media_s = 0.0
        self._base_s: float | None = None
        """Clock time at media time 0, from the fastest packets."""
        self._peak_s = 0.0
        self._updated_at = 0.0
        self._covered_s: float | None = None
        """Media time up to which audio has been returned."""
        self._returned_at = 0.0

    @property
    def wait_s(self) -> float:
        """Current wait for a packet after its due time, seconds."""
        low, high = self._bounds_s
        return min(high, max(low, self._peak_s + self.frame_s))

    def add(self, sequence: int, timestamp: int, payload: bytes | None, *, now: float) -> list[bytes]:
        """Take a packet. Return the payloads that are now in order, with ``LOST`` for each one given up.

        Args:
            payload: the audio. None: the packet has no audio (a touch tone) and only takes its place.
        """
        newest = self._newest[1]
        media_s = None if payload is None else self._media(sequence, timestamp, now)
        if self._next is None:
            self._next = sequence
        # The usual case.
        if payload is not None and media_s is not None and sequence == self._next and not self._waiting:
            self._next = (sequence + 1) & 0xFFFF
            self._covered_s, self._returned_at = media_s + self.frame_s, now
            return [payload]
        ahead = (sequence - self._next) & 0xFFFF
        if ahead >= 0x8000:
            odd, self._odd = self._odd, (sequence, timestamp, payload, media_s, now)
            behind = 0x10000 - ahead
            if behind < MAX_DROPOUT and not (odd and self._numbers_anew(odd, sequence, timestamp, behind, newest)):
                self.late += 1
                return []
            if odd and behind < MAX_DROPOUT:
                # Both packets of the new numbering are used, although the first was counted as late.
                self._waiting = {odd[0]: odd[2:], sequence: (payload, media_s, now)}
                self._next, self._covered_s, self._odd = odd[0], None, None
                return self._release(now)
            ahead = MAX_DROPOUT
        if ahead >= MAX_DROPOUT:
            self._waiting.clear()
            self._next, self._covered_s = sequence, None
        self._waiting[sequence] = (payload, media_s, now)
        return self._release(now)

    @staticmethod
    def _numbers_anew(
        odd: tuple[int, int, bytes | None, float | None, float],
        sequence: int,
        timestamp: int,
        behind: int,
        newest: int,
    ) -> bool:
        """Return True if two packets in sequence cannot both be late (RFC 3550 appendix A.1): they are far behind, or
        their timestamps are newer than every other. A few packets between them may be missing."""
        if not 0 < (sequence - odd[0]) & 0xFFFF <= JitterBuffer._MAX_STEP:
            return False
        later = (0 < (timestamp - each) & 0xFFFFFFFF < 1 << 31 for each in (odd[1], newest))
        return behind + 1 >= MAX_MISORDER or all(later)

    def is_near(self, sequence: int) -> bool:
        """Return True if a packet with this number is neither far ahead nor far behind."""
        return self._next is None or (sequence - self._next + MAX_MISORDER) & 0xFFFF < 2 * MAX_MISORDER

    def expire(self, *, now: float) -> list[bytes]:
        """Give up overdue packets. Return payloads like ``add``."""
        return self._release(now)

    def pause(self, *, now: float) -> int:
        """Return the frames of silence that the sender has omitted since the last packet or call; usually 0."""
        if self._covered_s is None or self._base_s is None or self._waiting:
            return 0
        # The timestamps of some senders stand still in silence; such packets are always overdue, which is no pause.
        silent_s = min(now - self._base_s - self._covered_s, now - self._returned_at)
        frames = min(50, int((silent_s - self.wait_s) / self.frame_s))
        if frames < 3:  # up to this may be jitter
            return 0
        self._covered_s += frames * self.frame_s
        self._returned_at += frames * self.frame_s
        return frames

    def _media(self, sequence: int, timestamp: int, now: float) -> float:
        """Return the packet's media time in seconds, and update the jitter."""
        before, stamp = self._newest
        step = (timestamp - stamp) & 0xFFFFFFFF
        moved_s = (step - (1 << 32) if step >= 1 << 31 else step) / self._clock_hz
        if self._base_s is not None and (sequence - before) & 0xFFFF == 1 and 0.005 <= moved_s <= 0.12:
            self.frame_s = moved_s
        media_s = self._media_s + moved_s if self._base_s is not None else 0.0
        offset_s = now - media_s
        if self._base_s is None or abs(offset_s - self._base_s) > self._CLOCK_RESTART_S:
            self._base_s, self._peak_s, media_s = now, 0.0, 0.0
            self._covered_s = None
        else:
            passed_s = now - self._updated_at
            self._base_s = min(offset_s, self._base_s + passed_s * self._DRIFT)
            self._peak_s = max(offset_s - self._base_s, self._peak_s * math.exp(-passed_s / self._PEAK_DECAY_S))
        self._updated_at = now
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
                # The last missing packet directly precedes the first waiting one and is due one frame earlier.
                given_up_at = due - self.frame_s + self.wait_s
                if now < given_up_at and len(self._waiting) <= self._MAX_WAITING:
                    self.deadline = given_up_at
                    break
                ready += [LOST] * self._skip((first - self._next) & 0xFFFF, media_s)
                self._next = first
                continue
            self._next = (self._next + 1) & 0xFFFF
            payload, media_s, _ = found
            if payload is not None and media_s is not None:
                ready.append(payload)
                self._covered_s, self._returned_at = media_s + self.frame_s, now
        return ready

    def _skip(self, packets: int, media_s: float | None) -> int:
        """Return the number of frames to conceal for ``packets`` missing packets before media time ``media_s``."""
        missing = packets
        if self._covered_s is not None and media_s is not None:
            missing = round((media_s - self._covered_s) / self.frame_s)
        return max(0, min(packets, missing, self._MAX_CONCEALED))
