"""The playout of one call: what remains to be said, what was sent, and how much the caller has heard. Pure.

Marks, ``interrupt``, heard text, recording and the engine's scheduling all use this module's played position. Each turn
has a track. Tracks play in the order in which they were added, without silence between them. A gap is a track that runs
out of frames before it is done, if the caller hears that. Gaps are counted with their length and never filled.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from gateway.media.pacer import Pacer

REWIND_S = 1.0
"""Longest sound that ``Playout.rewind`` plays again, seconds. Few words are longer."""

_LEAST_MARK_WAIT_S = 0.2  # shortest wait for a mark of a peer that has returned none

START_QUANTILE = 0.98
"""Share of utterances that should play without a gap, by which the first frame waits. Less starts sooner."""

START_DELAY_S = 0.4
"""Longest wait of the first frame, seconds. Callers notice a later answer more than a gap."""

LATE_S = 0.04
"""Largest lateness at which a sent frame is still heard at its place, seconds. A lead hides lateness up to its own
length. A phone has no lead but a jitter buffer of at least two packets (40 ms; 60 are usual)."""


class StartPolicy:
    """The wait before a first frame, learnt from the engine's deliveries. All calls of a process share it.

    For each utterance it takes the start delay that would have avoided every gap: the largest lateness of a later chunk
    relative to real-time playback from the first one. A new utterance waits for the ``quantile`` of the recent delays.
    They are forgotten after two minutes, so that one bad moment does not delay an hour of a quiet server's turns.
    """

    _WINDOW = 256
    _WINDOW_S = 120.0
    _MIN_UTTERANCES = 8  # with fewer utterances, speech starts at once

    def __init__(self, *, quantile: float, max_delay_s: float) -> None:
        self._quantile = quantile
        self._max_delay_s = max_delay_s
        self._recent: deque[tuple[float, float]] = deque()
        """(end of the utterance on a monotonic clock, the delay that it needed), in seconds."""
        self._sorted: list[float] = []

    def observe(self, needed_s: float, now: float) -> None:
        """Add a complete utterance for which a start delay of ``needed_s`` would have hidden every stall."""
        self._recent.append((now, needed_s))
        insort(self._sorted, needed_s)
        if len(self._recent) > self._WINDOW:
            self._forget()

    def delay_s(self, now: float) -> float:
        """Return the seconds for which a first frame shall wait."""
        while self._recent and now - self._recent[0][0] > self._WINDOW_S:
            self._forget()
        if len(self._sorted) < self._MIN_UTTERANCES:
            return 0.0
        at = min(len(self._sorted) - 1, int(self._quantile * len(self._sorted)))
        return min(max(self._sorted[at], 0.0), self._max_delay_s)

    def _forget(self) -> None:
        """Forget the oldest utterance."""
        self._sorted.pop(bisect_right(self._sorted, self._recent.popleft()[1]) - 1)


class Track:
    """The frames of one turn on their way to the caller. ``done``: no more frames will come."""

    __slots__ = (
        "announced",
        "done",
        "due_s",
        "first_arrival_s",
        "first_frame",
        "frames",
        "gap_s",
        "gaps",
        "is_clip",
        "needed_s",
        "owner",
        "sent",
        "stopped_at",
        "waits_since_s",
    )

    def __init__(self, owner: Callable[[], object] = lambda: None, *, is_clip: bool = False) -> None:
        """
        Args:
            owner: returns the turn of these frames, for the receiver of the events.
            is_clip: True if no engine makes these frames. Clips that come late say nothing about the engine, so they
                delay no other turn, and they start at once.
        """
        self.owner = owner
        self.is_clip = is_clip
        self.frames: deque[bytes] = deque()
        self.done = False
        self.sent = 0
        self.announced = False
        self.first_frame: int | None = None
        """Call-wide number of the first sent frame. None: none was sent."""
        self.stopped_at: float | None = None
        """Frames of this track that the caller hears in spite of the cut. None: the track is not cut."""
        self.gaps = 0
        self.gap_s = 0.0
        self.first_arrival_s: float | None = None
        self.due_s = 0.0
        """Time at which the next frame is due if the frames are played from their arrival on."""
        self.needed_s = 0.0
        """Start delay that would have hidden all lateness of the engine, seconds."""
        self.waits_since_s = 0.0
        """Time at which frames arrived in an empty queue. A frame that the engine delivered late is not due earlier."""

    def push(self, frames: Iterable[bytes], *, now: float, ptime_s: float, text_at: float = 0.0) -> None:
        """Append frames as the engine delivers them, and record how late they would have been.

        ``text_at`` is the time at which their text had come. If all earlier sound could have been played by then, the
        listener waits for the text, which no start delay of an engine hides.
        """
        if self.first_arrival_s is None:
            self.first_arrival_s = self.due_s = now
        elif text_at > self.due_s:
            self.due_s = now
        else:
            self.needed_s = max(self.needed_s, now - self.due_s)
        before = len(self.frames)
        if not before:
            self.waits_since_s = now
        self.frames.extend(frames)
        self.due_s += (len(self.frames) - before) * ptime_s


@dataclass(frozen=True, slots=True)
class FirstFrame:
    """The first frame of a track was sent."""

    track: Track
    at: float
    free_at: float
    """End of the sound before it, at most ``at``. Lateness that the peer hides counts as silence here."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first frame of a track was sent again, because the peer had dropped the whole track."""

    track: Track


@dataclass(frozen=True, slots=True)
class PlayedOut:
    """The caller has heard a done track to its end."""

    track: Track
    at: float


@dataclass(frozen=True, slots=True)
class Gap:
    """The caller heard nothing for ``length_s`` in the middle of a track."""

    track: Track
    length_s: float


PlayoutEvent = FirstFrame | Resumed | PlayedOut | Gap


class Playout:
    """Queue of tracks that returns paced frames and events. Times are seconds on any monotonic clock.

    Args:
        ptime_s: audio per frame.
        lead_s: how far frames may be sent ahead of real time.
        start: decides when a track that begins a talkspurt may start.
        can_clear: the peer can drop what it has buffered. Otherwise it plays all that was sent.
        has_marks: the peer confirms what it played. A track is then played out when its mark comes back, or
            ``mark_timeout_s`` after it was due; less if marks before it did not come. Otherwise the timetable decides.
        send_mark: requests a mark of the given name. ``frame_sent`` calls it, after the frame before the mark.
    """

    def __init__(
        self,
        *,
        ptime_s: float,
        lead_s: float = 0.0,
        start: StartPolicy | None = None,
        can_clear: bool = True,
        has_marks: bool = False,
        mark_timeout_s: float = 5.0,
        send_mark: Callable[[str], None] | None = None,
    ) -> None:
        self.pacer = Pacer(ptime_s=ptime_s, lead_s=lead_s)
        self._late_s = max(0.0, LATE_S - lead_s)
        self._new_talkspurt_s = max(self._late_s, ptime_s)
        """Lateness above which a frame begins a new talkspurt, seconds."""
        self.events: deque[PlayoutEvent] = deque()
        """Events since the last read. The call's open tracks and gaps bound their number."""
        self._start = start or StartPolicy(quantile=1.0, max_delay_s=0.0)
        self._can_clear = can_clear
        self._send_mark = send_mark if has_marks else None
        self._mark_timeout_s = mark_timeout_s
        self._mark_wait_s = mark_timeout_s
        """Present wait for a mark: shorter after each mark that did not come, whole again after one that came."""
        self._tracks: deque[Track] = deque()
        self._sent_out: deque[tuple[int, Track, str]] = deque()  # (end frame, track, mark) sent, not yet played out
        # The last sent frames. Tuples of frame and track would be 30,000 young objects at 300 calls, and would add 2 to
        # 4 ms to every collection of the youngest generation.
        recent = int((lead_s + REWIND_S) / ptime_s) + 2
        self._history: deque[bytes] = deque(maxlen=recent)
        self._history_tracks: deque[tuple[int, Track]] = deque()
        """Owners of these frames: (call-wide number of a frame, track of all frames from there on)."""
        self.late_s = 0.0
        """Lateness of the last frame of ``pop_due``, seconds."""
        self._dry_since: float | None = None
        self._ended_s = 0.0
        self.suspended = False
        """True: nothing is sent, because the caller may be interrupting."""
        self.on_hold = False
        """True: nothing is sent, because the leg cannot carry sound now."""
        self._last_heard: tuple[Track, list[bytes]] | None = None
        """The track that the last ``flushed`` stopped, and its last frames that the caller had heard by then."""
        self._generation = 0
        self._marks = 0
        self.marks_due: deque[str] = deque()
        """Marks that ``frame_sent`` has to send."""
        self.last_mark_delay_s: float | None = None

    # --- filling ---------------------------------------------------------------------------------------------------

    def add(self, track: Track) -> None:
        """Append a track."""
        self._tracks.append(track)

    def deadline(self, now: float) -> float | None:
        """Return the time of the next ``pop_due``: a frame is due or sound runs out. None: only after a push."""
        if self._tracks and not self.suspended and not self.on_hold:
            track = self._tracks[0]
            if track.frames:
                return max(self.pacer.due_s, track.waits_since_s) if self.pacer.running else self._start_at(track, now)
            if track.done:
                return now
        if self.pacer.running:
            return self.pacer.dry_s if now < self.pacer.dry_s else self._talkspurt_ends_s()
        if self._sent_out:
            return self._ended_s + (self._mark_wait_s if self._sent_out[0][2] else 0.0)
        return None

    def _start_at(self, track: Track, now: float) -> float:
        if track.done or track.sent or track.is_clip or track.first_arrival_s is None:
            return now
        return max(now, track.first_arrival_s + self._start.delay_s(now))

    # --- the ticker's side -----------------------------------------------------------------------------------------

    def pop_due(self, now: float) -> bytes | None:
        """Return the next frame. None: too early, or no frame. Also settles what has been heard by now."""
        pacer, tracks = self.pacer, self._tracks
        track: Track | None = None
        if tracks and not self.suspended and not self.on_hold:
            while tracks and tracks[0].done and not tracks[0].frames:
                self._track_sent(tracks.popleft(), now)
            if tracks and tracks[0].frames:
                track = tracks[0]
        if self.marks_due:
            self.frame_sent()  # for tracks found done only now, whose frames were sent long ago
        if track is None:
            self._settle(now)
            return None
        if not pacer.running:
            due = begins = self._start_at(track, now)
        else:
            begins = pacer.due_s
            due = begins if begins > track.waits_since_s else track.waits_since_s
            # Frames that are late because of their tick or the engine keep the timetable, and all due ones are sent at
            # once. A new talkspurt begins only if the listener must have heard the lateness. A tick may always be late
            # by less than a frame.
            if now - pacer.dry_s > self._new_talkspurt_s:
                self._run_dry(track)
                begins = self._start_at(track, now)
        if now < begins:
            self._settle(now)
            return None
        self.late_s = now - due
        free_at = min(now, pacer.dry_s)
        if not pacer.running:
            if self._dry_since is not None and track.sent:
                track.gaps += 1
                track.gap_s += now - self._dry_since
                self.events.append(Gap(track, now - self._dry_since))
            self._dry_since = None
            free_at = self._ended_s
            pacer.begin(now)
        frame = track.frames.popleft()
        if not track.sent:
            track.first_frame = pacer.sent_frames
            self.events.append(Resumed(track) if track.announced else FirstFrame(track, now, free_at))
            track.announced = True
        if not self._history_tracks or self._history_tracks[-1][1] is not track:
            self._note_owner(track)
        track.sent += 1
        pacer.sent()
        self._history.append(frame)
        if track.done and not track.frames:
            self._track_sent(tracks.popleft(), now)
        if self._sent_out or not track.frames:
            self._settle(now)
        return frame

    def _note_owner(self, track: Track) -> None:
        """Record that the next frame starts a run of this track's frames."""
        owners, oldest = self._history_tracks, self.pacer.sent_frames - len(self._history)
        while len(owners) > 1 and owners[1][0] <= oldest:
            owners.popleft()
        owners.append((self.pacer.sent_frames, track))

    def frame_sent(self) -> None:
        """Send the marks after the frame that ``pop_due`` returned, which is on the wire now."""
        while self.marks_due:
            mark = self.marks_due.popleft()
            if self._send_mark is not None:
                self._send_mark(mark)

    def _run_dry(self, front: Track | None) -> None:
        self._ended_s = self.pacer.dry_s
        self.pacer.end()
        if front is not None and front.sent:
            self._dry_since = self._ended_s

    def _talkspurt_ends_s(self) -> float:
        """Return the end of the talkspurt if nothing more comes; later if the rest of a started track is awaited."""
        awaited = self._tracks and self._tracks[0].sent
        return self.pacer.dry_s + (self._late_s if awaited else 0.0)

    def _track_sent(self, track: Track, now: float) -> None:
        """Record that all frames of a done track have been sent."""
        if track.first_arrival_s is not None and not track.is_clip:
            self._start.observe(track.needed_s, now)
        mark = ""
        if self._send_mark is not None and track.sent:
            self._marks += 1
            mark = f"{self._generation}.{self._marks}"
            self.marks_due.append(mark)
        self._sent_out.append((self.pacer.sent_frames, track, mark))

    def _settle(self, now: float) -> None:
        pacer = self.pacer
        if not (self._tracks and self._tracks[0].frames) and pacer.running and now >= self._talkspurt_ends_s():
            self._run_dry(self._tracks[0] if self._tracks else None)
        while self._sent_out:
            end_frame, track, mark = self._sent_out[0]
            heard_at = pacer.time_of(end_frame) if pacer.running else self._ended_s
            if now < heard_at + (self._mark_wait_s if mark else 0.0):
                break
            if mark:  # some peers never return any
                self._mark_wait_s = max(min(self._mark_timeout_s, _LEAST_MARK_WAIT_S), self._mark_wait_s / 4)
            self._sent_out.popleft()
            self.events.append(PlayedOut(track, now))

    # --- position --------------------------------------------------------------------------------------------------

    def mark_reached(self, name: str, now: float) -> None:
        """Take a mark that the peer returned. Marks from before a clear are ignored."""
        generation, _, _ = name.partition(".")
        if generation == str(self._generation):
            self._mark_wait_s = self._mark_timeout_s
        if generation != str(self._generation) or not any(mark == name for _, _, mark in self._sent_out):
            return
        while self._sent_out:
            end_frame, track, mark = self._sent_out.popleft()
            self.events.append(PlayedOut(track, now))
            if mark == name:
                self.last_mark_delay_s = self.pacer.learn_delay(end_frame, now=now)
                return

    def playback_started(self, now: float) -> None:
        """The peer has begun to play after silence."""
        self.pacer.playback_began(now=now)

    def playback_completed(self, now: float) -> None:
        """The peer has played all that it received.

        A report that cannot be true for everything sent is about earlier sound and is ignored.
        """
        pacer = self.pacer
        if (pacer.running and now < pacer.dry_s) or any(track.frames for track in self._tracks):
            return
        while self._sent_out:
            _, track, _ = self._sent_out.popleft()
            self.events.append(PlayedOut(track, now))

    def heard_frames(self, track: Track, now: float) -> float:
        """Return the frames of ``track`` that the caller has heard by ``now``, including part of the current one."""
        return self._played(track, now) if track.stopped_at is None else track.stopped_at

    def _played(self, track: Track, now: float) -> float:
        if track.first_frame is None:
            return 0.0
        return min(float(track.sent), max(0.0, self.pacer.played_frames(now) - track.first_frame))

    def unheard_s(self, now: float) -> float:
        """Return the seconds of sent sound that the caller will not hear if ``flushed`` is called now."""
        if not self._can_clear or not self.pacer.running:
            return 0.0
        return (self.pacer.sent_frames - self.pacer.played_frames(now)) * self.pacer.ptime_s

    def buffered_s(self) -> float:
        """Return the seconds of sound that wait here."""
        return sum(len(track.frames) for track in self._tracks) * self.pacer.ptime_s

    @property
    def idle(self) -> bool:
        """True if nothing waits to be sent and nothing is being heard."""
        return not self._tracks and not self._sent_out and not self.pacer.running

    # --- cutting ---------------------------------------------------------------------------------------------------

    def stop(self, track: Track, now: float) -> None:
        """Fix the heard part of a track that is cut now: the sound so far, and sound that the peer cannot drop."""
        if track.stopped_at is None:
            track.stopped_at = self._played(track, now) if self._can_clear else float(track.sent)

    def remove(self, track: Track, now: float) -> bool:
        """Drop a track. Return True if part of it may still sound at the peer, whose buffer must then be cleared."""
        sounding = self._played(track, now) < track.sent
        self.stop(track, now)
        if track in self._tracks:
            self._tracks.remove(track)
        self._sent_out = deque(entry for entry in self._sent_out if entry[1] is not track)
        track.frames.clear()
        return sounding

    def sent_last(self, frames: int) -> list[bytes]:
        """Return up to ``frames`` of the last frames of the talkspurt, if the peer plays all of them after a cut."""
        if self._can_clear or not self.pacer.running:
            return []
        return list(islice(self._history, max(0, len(self._history) - frames), None))

    def flushed(self, now: float) -> bytes | None:
        """End the talkspurt; the peer clears its buffer if it can. Return the last frame that is heard, for a fade.

        Frames of tracks that were not removed are queued again if the peer has dropped them.
        """
        sounding: bytes | None = None
        self._last_heard = self._heard_of_front(now) if self.pacer.running else None
        if self.pacer.running and not self._can_clear:
            sounding = self._history[-1] if self._history else None
            self._ended_s = max(now, self.pacer.dry_s)
            self.pacer.end()
        elif self.pacer.running:
            heard = self.pacer.played_frames(now)
            lost = self.pacer.sent_frames - int(heard)  # including the current frame
            owners, first = reversed(self._history_tracks), self.pacer.sent_frames
            for back, frame in enumerate(islice(reversed(self._history), lost), 1):
                sounding = frame
                if self.pacer.sent_frames - back < first:
                    first, track = next(owners)
                if track in self._tracks or any(entry[1] is track for entry in self._sent_out):
                    self._requeue(track, frame)
            self.pacer.end()
            self._ended_s = now
        self._history.clear()
        self._history_tracks.clear()
        self._generation += 1
        self._dry_since = None
        self._sent_out = deque((end, track, "") for end, track, _ in self._sent_out)
        return sounding

    def _heard_of_front(self, now: float) -> tuple[Track, list[bytes]] | None:
        """Return the track of the last heard frame and its frames in the history that have been heard whole."""
        sent = self.pacer.sent_frames
        heard = int(self.pacer.played_frames(now)) if self._can_clear else sent
        oldest = sent - len(self._history)
        begun = [owner for owner in self._history_tracks if owner[0] < heard]
        if not begun or heard <= oldest:
            return None
        first, track = begun[-1]
        return track, list(islice(self._history, max(0, first - oldest), heard - oldest))

    def rewind(self, track: Track, frames: int) -> None:
        """Queue again up to ``frames`` of the last frames of ``track`` that were heard before the last ``flushed``."""
        if self._last_heard is not None and self._last_heard[0] is track and frames > 0 and not self.pacer.running:
            for frame in reversed(self._last_heard[1][-frames:]):
                self._requeue(track, frame)
            self._last_heard = None

    def _requeue(self, track: Track, frame: bytes) -> None:
        if track not in self._tracks:
            self._tracks.appendleft(track)
            self._sent_out = deque(entry for entry in self._sent_out if entry[1] is not track)
        track.frames.appendleft(frame)
        track.sent -= 1
        # The dropped frames were counted but not heard; the track's remaining sent frames end where it resumes.
        track.first_frame = self.pacer.sent_frames - track.sent
