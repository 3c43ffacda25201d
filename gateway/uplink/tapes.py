"""Keeps both sides of a call for its recording, and for whoever listens in.

The loop orders what is to become of them (pause, a key to be hidden, sound that was cut unheard); the uplink's thread
does it in its place between the sounds, and ``recording_thread`` writes what is recorded.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable
from functools import cached_property

from gateway.seams.messages import RecordState
from gateway.uplink.hidden_keys import MARGIN_S, HiddenKeys
from gateway.uplink.pieces import Pcm, at_rate
from gateway.uplink.recorder import Recorder
from gateway.uplink.recording_thread import Act, RecordingQueue, RecordingThread
from gateway.uplink.timeline import BOT, CALLER, Samples, Timeline
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat, Decoder, decoder

log = logging.getLogger(__name__)

_MAX_ORDERS = 1_000  # cuts, keys and pauses that wait for the thread; of more, the recording would be wrong
_KEY_TOLD_S = (0.5, 0.3)  # silence before and behind a key that the leg tells of; legs tell it late rather than early
_LISTEN_DELAY_S = 0.16
"""Behind what is said, for whoever listens in: jitter of the caller's packets, and the time to notice a touch tone."""
_REASONS = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.ETIMEDOUT: "hung"}


def line_rate(inbound: AudioFormat, outbound: AudioFormat) -> int:
    """Return the sample rate that holds both sides, Hz."""
    return max(inbound.sample_rate, outbound.sample_rate)


class _Tape:
    """A timeline, and what brings both sides to its rate."""

    def __init__(self, timeline: Timeline, inbound: AudioFormat, outbound: AudioFormat) -> None:
        self.timeline = timeline
        self._theirs = at_rate(inbound.sample_rate, timeline.rate)
        self._ours = at_rate(outbound.sample_rate, timeline.rate)

    def caller(self, pcm: Pcm, at: float) -> None:
        self.timeline.caller(self._theirs(pcm), at=at)

    def bot(self, pcm: Pcm, at: float) -> None:
        self.timeline.bot(self._ours(pcm), at=at)


class Tapes:
    """Both sides of one call.

    Args:
        inbound: the caller's audio.
        outbound: ours.
        recorder: what it is recorded with. None: it is not recorded.
        thread: writes the recording.
        on_lost: to be told why the recording was given up, on the loop.
        call_id: for the log.
    """

    def __init__(
        self,
        inbound: AudioFormat,
        outbound: AudioFormat,
        recorder: Recorder | None,
        thread: RecordingThread,
        *,
        on_lost: Callable[[str], None],
        call_id: str,
    ) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self._recorder = recorder
        self._on_lost = on_lost
        self._call_id = call_id
        self.listened = False
        """Whether anybody listens in."""
        self._orders: deque[tuple[int, Act]] = deque()
        """What is done before the payload of that number."""
        self._confused = False
        self._ended = recorder is None
        # Only the thread uses what follows.
        self._recording = None if recorder is None else _Tape(recorder, inbound, outbound)
        """What is recorded; only the recordings' thread uses it, in the order of ``_written``. None: it is over."""
        self._written: list[Act] = []
        """What that thread has to do since the last time."""
        self._queue = None if recorder is None else RecordingQueue(thread)
        self._tap: _Tape | None = None  # while somebody listens in
        self._tapped: list[Samples] = []

    # Only the thread uses these two. Most calls are neither recorded nor listened to.

    @cached_property
    def _decoder(self) -> Decoder:
        return decoder(self._outbound)

    @cached_property
    def _keys(self) -> tuple[HiddenKeys, HiddenKeys]:
        return HiddenKeys(self._inbound.sample_rate), HiddenKeys(self._outbound.sample_rate)

    # --- on the loop -----------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether both sides are recorded or listened to."""
        return self.listened or not self._ended

    @property
    def recorded(self) -> bool:
        """Whether there is a recording, which may be over, and was not given up."""
        return self._recorder is not None

    @property
    def kept(self) -> bool:
        """Whether what becomes of both sides matters to anybody: a recording that is over may still be written."""
        return self.recorded or self.listened

    @property
    def rate(self) -> int:
        """Sample rate of what whoever listens in hears, Hz: the line's."""
        return line_rate(self._inbound, self._outbound)

    def unheard(self, seconds: float, *, before: int) -> None:
        """The last seconds that we sent before payload ``before`` were cut."""
        self._order(before, lambda: self._both(lambda tape: tape.timeline.unheard(seconds)))

    def pressed(self, *, now: float, before: int) -> None:
        """The caller pressed a key."""
        before_s, after_s = _KEY_TOLD_S
        self._order(
            before,
            lambda: self._both(lambda tape: tape.timeline.mute(CALLER, before_s=before_s, after_s=after_s, at=now)),
        )

    def record(self, state: RecordState, *, now: float, before: int) -> bool:
        """See ``gateway.seams.uplink.UplinkStream.record``."""
        recorder = self._recorder
        if recorder is None or self._ended:
            return False
        self._ended = state == "stop"
        if state == "stop":
            self._order(before, lambda: self._end(recorder, at=now))
        else:
            act = recorder.pause if state == "pause" else recorder.resume
            self._order(before, lambda: self._record(lambda: act(now)))
        return True

    def _order(self, before: int, act: Act) -> None:
        if len(self._orders) >= _MAX_ORDERS:
            self._orders.clear()
            self._confused = True
        self._orders.append((before, act))

    # --- in the thread ---------------------------------------------------------------------------------------------

    def begin(self, post: Callable[[Act], None]) -> None:
        """Payloads follow."""
        if not self.listened:
            self._tap = None
        if self._confused:
            self._lose("overloaded", post)

    def obey(self, number: int) -> None:
        """Do what was ordered before the payload of that number."""
        while self._orders and self._orders[0][0] <= number:
            self._orders.popleft()[1]()

    def caller(self, pcm: Pcm, at: float) -> None:
        """Take the caller's audio that came at monotonic second ``at``."""
        if self._running:
            self._both(lambda tape: tape.caller(pcm, at))
            self._hide_keys(CALLER, pcm)

    def bot(self, frame: bytes, heard_at: float) -> None:
        """Take a frame of ours. Raises ValueError if it is no audio of our codec."""
        if self._running:
            pcm = to_float32(self._decoder.decode(frame))
            self._both(lambda tape: tape.bot(pcm, heard_at))
            self._hide_keys(BOT, pcm)

    def flush(self, *, closed: bool) -> None:
        """The payloads so far were taken; with ``closed`` there are no more."""
        if closed and self._recorder is not None:
            self._end(self._recorder)
        if self._written and self._queue is not None:
            self._queue.put(self._written)
            self._written = []

    def tap(self, now: float) -> list[bytes]:
        """Return what is final of what whoever listens in hears: s16le, the caller left, we right."""
        if self._tap is None:
            timeline = Timeline(rate=self.rate, started=now, out=self._tapped.append)
            self._tap = _Tape(timeline, self._inbound, self._outbound)
        self._tap.timeline.release(now - _LISTEN_DELAY_S)
        final = [pcm.tobytes() for pcm in self._tapped]
        self._tapped.clear()
        return final

    def watch(self, post: Callable[[Act], None]) -> bool:
        """Give the recording up if it cannot be written. Return whether it has to be watched further."""
        if self._queue is not None and (trouble := self._queue.trouble) is not None:
            log.error("a recording was given up", extra={"call": self._call_id, "why": str(trouble)})
            self._lose(_REASONS.get(trouble.errno or 0, "unwritable"), post)
        return self._queue is not None and not (self._recording is None and self._queue.idle)

    @property
    def _running(self) -> bool:
        return self._tap is not None or self._recording is not None

    def _both(self, act: Callable[[_Tape], None]) -> None:
        """Do something with what is recorded, and with what is listened to."""
        if self._tap is not None:
            act(self._tap)
        if (recording := self._recording) is not None:
            self._record(lambda: act(recording))

    def _hide_keys(self, side: int, pcm: Pcm) -> None:
        seconds = self._keys[side].found(pcm, at_once=self._tap is not None)
        if seconds:
            self._both(lambda tape: tape.timeline.mute(side, before_s=seconds, after_s=MARGIN_S))

    def _record(self, act: Act) -> None:
        if self._recording is not None:
            self._written.append(act)

    def _end(self, recorder: Recorder, *, at: float | None = None) -> None:
        self._record(lambda: recorder.close(at=at))
        self._recording = None

    def _lose(self, reason: str, post: Callable[[Act], None]) -> None:
        """Give the recording up; it costs the call nothing else, and what was written stays."""
        if self._recorder is not None and self._queue is not None:
            self._queue.give_up(self._recorder)
            post(lambda: self._on_lost(reason))
        self._recorder = self._queue = self._recording = None
        self._ended = True
        self._written.clear()
