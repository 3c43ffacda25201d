"""The due times of frames, on one absolute timetable per talkspurt. Pure; it knows frames only by number.

The timetable is anchored to the first frame of a talkspurt. A late tick delays one frame and does not shift the later
ones. If the peer buffers, frames run ``lead_s`` ahead of real time; otherwise the lead is 0.
"""

from __future__ import annotations


class Pacer:
    """The due times of one call's frames, and the number of frames that the peer must have played.

    Times are seconds on any monotonic clock. ``path_delay_s`` is the time from the socket to the caller's ear. It is
    learnt from carriers' marks (``learn_delay``); without marks it stays 0.
    """

    def __init__(self, *, ptime_s: float, lead_s: float = 0.0) -> None:
        self.ptime_s = ptime_s
        self.lead_s = lead_s
        self.path_delay_s = 0.0
        self.sent_frames = 0
        """Frames sent since the call began."""
        self.running = False
        """True during a talkspurt. The next three attributes describe the talkspurt; they are read for every frame of
        every call, so they are not methods."""
        self.due_s = 0.0
        """Due time of the next frame."""
        self.dry_s = 0.0
        """Time at which the peer's buffer runs empty if nothing more is sent, without the path delay."""
        self.sounds_s = 0.0
        """Time at which the caller begins to hear the last sent frame, with the path delay known at the talkspurt's
        start: the times of its frames stay ``ptime_s`` apart, whatever is learnt meanwhile."""
        self._anchor_s = 0.0
        self._anchor_frame = 0
        self._begun_delay_s = 0.0  # path_delay_s when the talkspurt began

    def begin(self, at: float) -> None:
        """Start a talkspurt: the next frame is due at ``at``."""
        self.running = True
        self._anchor_s = self.due_s = self.dry_s = at
        self._anchor_frame = self.sent_frames
        self._begun_delay_s = self.path_delay_s

    def end(self) -> None:
        """End the talkspurt. All sent frames count as played."""
        self.running = False

    def sent(self) -> None:
        """Count one sent frame."""
        self.sounds_s = self.dry_s + self._begun_delay_s
        self.sent_frames += 1
        sound_s = (self.sent_frames - self._anchor_frame) * self.ptime_s
        self.dry_s = self._anchor_s + sound_s
        ahead_s = sound_s - self.lead_s
        self.due_s = self._anchor_s + ahead_s if ahead_s > 0.0 else self._anchor_s

    def time_of(self, frame: int) -> float:
        """Return the time at which the caller begins to hear frame ``frame`` (call-wide number) of this talkspurt."""
        return self._anchor_s + (frame - self._anchor_frame) * self.ptime_s + self.path_delay_s

    def played_frames(self, now: float) -> float:
        """Return the number of frames of the call that the caller has heard, including part of the current one."""
        if not self.running:
            return float(self.sent_frames)
        heard = (now - self._anchor_s - self.path_delay_s) / self.ptime_s
        return min(float(self.sent_frames), self._anchor_frame + max(heard, 0.0))

    def playback_began(self, *, now: float) -> None:
        """Set the exact path delay: the peer reports that it has just begun to play this talkspurt."""
        if self.running:
            self.path_delay_s = max(0.0, now - self._anchor_s)

    def learn_delay(self, frame: int, *, now: float) -> float:
        """Update the path delay from a peer's mark: every frame before ``frame`` has been played. Return the mark's
        lateness, seconds.

        The delay is smoothed (gain 1/4, because one mark is noisy) and never negative.
        """
        if not self.running or frame < self._anchor_frame:
            return 0.0
        late_s = now - (self.time_of(frame) - self.path_delay_s)
        self.path_delay_s = max(0.0, self.path_delay_s + (late_s - self.path_delay_s) / 4)
        return late_s
