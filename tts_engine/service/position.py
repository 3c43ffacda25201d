"""Decides when to send the played position. Pure: time is an argument."""

from __future__ import annotations

DRIFT_S = 0.040
INTERVAL_S = 0.2


class PositionReporter:
    """Thins out readings of the playback position.

    The engine extrapolates from the last position that it got. So only the first reading is sent, and each reading that
    is more than 40 ms off that extrapolation (after a stall or a late frame). At most five readings are sent a second;
    a reading that comes too early is sent later.
    """

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._reading: tuple[int, float] = (0, 0.0)
        self._told: tuple[int, float] | None = None
        self._sent_at = 0.0

    def offer(self, samples: int, *, at: float) -> float | None:
        """Take a reading.

        Args:
            samples: how many samples the listener had heard at monotonic second ``at``.

        Returns:
            Seconds from ``at`` until ``take`` is to be called. 0: now. None: no message is needed.
        """
        self._reading = (samples, at)
        if self._told is None:
            return 0.0
        if abs(self._drift_s()) <= DRIFT_S:
            return None
        return max(0.0, self._sent_at + INTERVAL_S - at)

    def take(self, *, now: float) -> tuple[int, float]:
        """Return the position to send, in samples, and the age of that reading in seconds."""
        self._told, self._sent_at = self._reading, now
        samples, at = self._reading
        return samples, max(0.0, now - at)

    def _drift_s(self) -> float:
        assert self._told is not None
        told_samples, told_at = self._told
        samples, at = self._reading
        return (samples - told_samples) / self._sample_rate - (at - told_at)
