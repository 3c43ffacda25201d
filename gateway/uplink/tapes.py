"""Audio of both sides of a call for its recording and its listeners.

The loop queues orders (pause, a key to hide, sound that was cut before it was heard). The uplink's thread carries out
each order at its position between the payloads, and ``recording_thread`` writes the recording.
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

_MAX_ORDERS = 1_000  # waiting cuts, keys and pauses; with more, the recording would be wrong and is given up
KEY_HIDDEN_S = (0.5, 0.3)  # silence before and after a key that the leg reports; legs report late rather than early
_LISTEN_DELAY_S = 0.16
"""Delay of the audio for listeners, seconds: jitter of the caller's packets, and the time to detect a touch tone."""
_REASONS = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.ETIMEDOUT: "hung"}


def reason_of(trouble: OSError) -> str:
    """Return the reason for which a recording is given up, as metrics and errors name it."""
    return _REASONS.get(trouble.errno or 0, "unwritable")


def line_rate(inbound: AudioFormat, outbound: AudioFormat) -> int:
    """Return the sample rate that both sides fit into, Hz."""
    return max(inbound.sample_rate, outbound.sample_rate)


class _Tape:
    """A timeline with the resamplers of both sides."""

    def __init__(self, timeline: Timeline, inbound: AudioFormat, outbound: AudioFormat) -> None:
        self.timeline = timeline
        self._caller_to_rate = at_rate(inbound.sample_rate, timeline.rate)
        self._bot_to_rate = at_rate(outbound.sample_rate, timeline.rate)

    def caller(self, pcm: Pcm, at: float) -> None:
        self.timeline.caller(self._caller_to_rate(pcm), at=at)

    def bot(self, pcm: Pcm, at: float) -> None:
        self.timeline.bot(self._bot_to_rate(pcm), at=at)


class Tapes:
    """Both sides of one call.

    Args:
        inbound: format of the caller's audio.
        outbound: format of the bot's audio.
        recorder: records the call. None: the call is not recorded.
        thread: writes the recording.
        on_lost: called on the loop with the reason if the recording is given up.
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
        """True while a client listens in."""
        self._orders: deque[tuple[int, Act]] = deque()
        """Orders, each with the number of the payload before which it is carried out."""
        self._orders_lost = False
        self._ended = recorder is None
        # Only the thread uses the following attributes.
        self._recording = None if recorder is None else _Tape(recorder, inbound, outbound)
        """The recording; only the recordings' thread uses it, in the order of ``_written``. None: it is over."""
        self._written: list[Act] = []
        """Work for that thread since the last flush."""
        self._queue = None if recorder is None else RecordingQueue(thread)
        self._tap: _Tape | None = None  # while a client listens in
        self._tapped: list[Samples] = []

    # Only the thread uses these two, created on first use: most calls are neither recorded nor listened to.

    @cached_property
    def _decoder(self) -> Decoder:
        return decoder(self._outbound)

    @cached_property
    def _keys(self) -> tuple[HiddenKeys, HiddenKeys]:
        return HiddenKeys(self._inbound.sample_rate), HiddenKeys(self._outbound.sample_rate)

    # --- on the loop -----------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """True while both sides are recorded or listened to."""
        return self.listened or not self._ended

    @property
    def recorded(self) -> bool:
        """True if there is a recording, running or over, that was not given up."""
        return self._recorder is not None

    @property
    def kept(self) -> bool:
        """True while changes to both sides matter: a recording that is over may still be being written."""
        return self.recorded or self.listened

    @property
    def rate(self) -> int:
        """Sample rate of the audio for listeners, Hz: the line's."""
        return line_rate(self._inbound, self._outbound)

    def unheard(self, seconds: float, *, before: int) -> None:
        """Order: the last ``seconds`` sent before payload ``before`` were cut."""
        self._put_order(before, lambda: self._on_each_tape(lambda tape: tape.timeline.unheard(seconds)))

    def pressed(self, *, now: float, before: int) -> None:
        """Order: hide a key that the caller pressed."""
        before_s, after_s = KEY_HIDDEN_S
        self._put_order(
            before,
            lambda: self._on_each_tape(
                lambda tape: tape.timeline.mute(CALLER, before_s=before_s, after_s=after_s, at=now)
            ),
        )

    def record(self, state: RecordState, *, now: float, before: int) -> bool:
        """See ``gateway.seams.uplink.UplinkStream.record``."""
        recorder = self._recorder
        if recorder is None or self._ended or state == "start":
            return False
        self._ended = state == "stop"
        if state == "stop":
            self._put_order(before, lambda: self._end(recorder, at=now))
        else:
            act = recorder.pause if state == "pause" else recorder.resume
            self._put_order(before, lambda: self._record(lambda: act(now)))
        return True

    def _put_order(self, before: int, act: Act) -> None:
        if len(self._orders) >= _MAX_ORDERS:
            self._orders.clear()
            self._orders_lost = True
        self._orders.append((before, act))

    # --- in the thread ---------------------------------------------------------------------------------------------

    def begin(self, post: Callable[[Act], None]) -> None:
        """Prepare for the next payloads."""
        if not self.listened:
            self._tap = None
        if self._orders_lost:
            self._give_up("overloaded", post)

    def carry_out(self, number: int) -> None:
        """Carry out the orders before the payload of that number."""
        while self._orders and self._orders[0][0] <= number:
            self._orders.popleft()[1]()

    def caller(self, pcm: Pcm, at: float) -> None:
        """Take the caller's audio that arrived at monotonic second ``at``."""
        if self._running:
            self._on_each_tape(lambda tape: tape.caller(pcm, at))
            self._hide_keys(CALLER, pcm)

    def bot(self, frame: bytes, heard_at: float) -> None:
        """Take a frame of the bot. Raises ValueError if it is not valid audio of the codec."""
        if self._running:
            pcm = to_float32(self._decoder.decode(frame))
            self._on_each_tape(lambda tape: tape.bot(pcm, heard_at))
            self._hide_keys(BOT, pcm)

    def flush(self, *, closed: bool) -> None:
        """Pass on the work so far; ``closed``: no more payloads follow."""
        if closed and self._recorder is not None:
            self._end(self._recorder)
        if self._written and self._queue is not None:
            self._queue.put(self._written)
            self._written = []

    def tap(self, now: float) -> list[bytes]:
        """Return the final audio for listeners: s16le, caller left, bot right."""
        if self._tap is None:
            timeline = Timeline(rate=self.rate, started=now, out=self._tapped.append)
            self._tap = _Tape(timeline, self._inbound, self._outbound)
        self._tap.timeline.release(now - _LISTEN_DELAY_S)
        final = [pcm.tobytes() for pcm in self._tapped]
        self._tapped.clear()
        return final

    def watch(self, post: Callable[[Act], None]) -> bool:
        """Give the recording up if it cannot be written. Return True if it must still be watched."""
        idle = self._queue is None or self._queue.idle  # before the look for trouble, which empties the queue
        if self._queue is not None and (trouble := self._queue.trouble) is not None:
            log.error("a recording was given up", extra={"call": self._call_id, "why": str(trouble)})
            self._give_up(reason_of(trouble), post)
        return self._queue is not None and not (self._recording is None and idle)

    @property
    def _running(self) -> bool:
        return self._tap is not None or self._recording is not None

    def _on_each_tape(self, act: Callable[[_Tape], None]) -> None:
        """Do something with the recording and with the audio for listeners."""
        if self._tap is not None:
            act(self._tap)
        if (recording := self._recording) is not None:
            self._record(lambda: act(recording))

    def _hide_keys(self, side: int, pcm: Pcm) -> None:
        seconds = self._keys[side].found(pcm, at_once=self._tap is not None)
        if seconds:
            self._on_each_tape(lambda tape: tape.timeline.mute(side, before_s=seconds, after_s=MARGIN_S))

    def _record(self, act: Act) -> None:
        if self._recording is not None:
            self._written.append(act)

    def _end(self, recorder: Recorder, *, at: float | None = None) -> None:
        self._record(lambda: recorder.close(at=at))
        self._recording = None

    def _give_up(self, reason: str, post: Callable[[Act], None]) -> None:
        """Give the recording up. The call continues, and the written part stays."""
        if self._recorder is not None and self._queue is not None:
            self._queue.give_up(self._recorder)
            post(lambda: self._on_lost(reason))
        self._recorder = self._queue = self._recording = None
        self._ended = True
        self._written.clear()
