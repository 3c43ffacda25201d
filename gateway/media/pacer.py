"""When a frame is due: one absolute timetable per talkspurt. Pure; knows nothing of frames but their number.

The timetable is anchored to the first frame of a talkspurt. A late tick delays one frame and does not shift the ones
after it. Where the peer buffers, frames run ``lead_s`` ahead of real time; where it does not, the lead is 0.
"""

from __future__ import annotations


class Pacer:
    """Due times of the frames of one call, and how many of them the peer must have played.

    Times are seconds on any monotonic clock. ``path_delay_s`` is how much later than handed to the socket a frame is
    heard; carriers' marks teach it (``learn_delay``), elsewhere it stays 0.
    """

    def __init__(self, *, ptime_s: float, lead_s: float = 0.0) -> None:
        self.ptime_s = ptime_s
        self.lead_s = lead_s
        self.path_delay_s = 0.0
        self.sent_frames = 0
        """Frames handed out since the call began."""
        self._anchor_s: float | None = None
        self._anchor_frame = 0

    @property
    def running(self) -> bool:
        """Whether a talkspurt is under way."""
        return self._anchor_s is not None

    def begin(self, at: float) -> None:
        """Start a talkspurt: the next frame is due at ``at``."""
        self._anchor_s = at
        self._anchor_frame = self.sent_frames

    def end(self) -> None:
        """End the talkspurt; what was sent counts as played."""
        self._anchor_s = None

    def deadline(self) -> float:
        """When the next frame is due.

        Raises:
            RuntimeError: no talkspurt is running.
        """
        if self._anchor_s is None:
            raise RuntimeError("deadline() outside a talkspurt")
        ahead_s = (self.sent_frames - self._anchor_frame) * self.ptime_s - self.lead_s
        return self._anchor_s + ahead_s if ahead_s > 0.0 else self._anchor_s

    def sent(self) -> None:
        """One frame was handed out."""
        self.sent_frames += 1

    def dry_at(self) -> float:
        """When the peer's buffer runs empty if nothing more is sent, on our clock (the path delays both ends alike).

        Raises:
            RuntimeError: no talkspurt is running.
        """
        return self.time_of(self.sent_frames) - self.path_delay_s

    def time_of(self, frame: int) -> float:
        """When the caller begins to hear frame number ``frame`` (call-wide count) of this talkspurt."""
        if self._anchor_s is None:
            raise RuntimeError("time_of() outside a talkspurt")
        return self._anchor_s + (frame - self._anchor_frame) * self.ptime_s + self.path_delay_s

    def played_frames(self, now: float) -> float:
        """Frames (call-wide, with the part of the one under way) that the caller has heard."""
        if self._anchor_s is None:
            return float(self.sent_frames)
        heard = (now - self._anchor_s - self.path_delay_s) / self.ptime_s
        return min(float(self.sent_frames), self._anchor_frame + max(heard, 0.0))

    def playback_began(self, *, now: float) -> None:
        """The peer says that it has begun to play this talkspurt: its delay is known, and not an average."""
        if self._anchor_s is not None:
            self.path_delay_s = max(0.0, now - self._anchor_s)

    def learn_delay(self, frame: int, *, now: float) -> float:
        """A peer's mark says that every frame before ``frame`` has been played; returns how late that came, seconds.

        The delay is smoothed (gain 1/4, one mark is noisy), and never negative.
        """
        if self._anchor_s is None or frame < self._anchor_frame:
            return 0.0
        late_s = now - (self.time_of(frame) - self.path_delay_s)
        self.path_delay_s = max(0.0, self.path_delay_s + (late_s - self.path_delay_s) / 4)
        return late_s
