"""The uplink stream of one call: audio from the event loop to the uplink's thread, results back to the loop.

The loop only appends payloads to a deque, and the thread takes them. The needed results change during a call: speech
for the recogniser, touch tones, raw audio for a subscriber, both sides for a recording or for listeners.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import Protocol

from gateway.answering.tones import LineTones
from gateway.seams.messages import RecordState
from gateway.seams.uplink import UplinkEvents
from gateway.uplink.echo_canceller import EchoCanceller
from gateway.uplink.echo_guard import EchoGuard
from gateway.uplink.pieces import Pcm, Pieces
from gateway.uplink.recogniser_feed import RecogniserFeed
from gateway.uplink.recorder import Recorder
from gateway.uplink.recording_thread import RecordingThread
from gateway.uplink.suppressor import HushNetwork, Suppressor
from gateway.uplink.tapes import Tapes
from gateway.uplink.vad import LULL_S, SENSITIVITIES, SpeechDetector
from gateway.uplink.windows import Heard, Windows
from voicecodecs.conceal import ConcealingDecoder
from voicecodecs.dtmf import Detector
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

_MAX_WAITING = 100  # payloads of one caller: two seconds
_LATE = 25  # payloads of one caller that show that the thread is late
_MAX_WAITING_TAPED = 1_000  # payloads of both sides, while they are recorded or listened to: ten seconds
_JOINS_S = 0.6
"""Longest silence between a short sound and speech of which the recogniser is given that silence too, seconds: a caller
says "Please" and then the rest of the sentence."""
_CREDIT_S = 5.0  # audio accepted ahead of real time, because a network may deliver delayed audio at once

Posted = Callable[[], None]
Post = Callable[[Posted], None]
"""Schedules a call on the loop; only for the thread."""


class StreamWorker(Protocol):
    """The part of the thread that streams use. ``gateway.uplink.worker.UplinkWorker`` implements this Protocol."""

    recordings: RecordingThread
    on_recording_lost: Callable[[str], None]
    dropped: Counter[str]
    """Number of payloads that were not processed, by reason."""

    def notify(self, stream: Stream) -> None: ...

    def listen(self, stream: Stream, wanted: bool) -> None: ...


class Stream:
    """Implements ``gateway.seams.uplink.UplinkStream``.

    Args:
        worker: processes the stream.
        inbound: format of the caller's audio.
        outbound: format of the bot's audio.
        detector: decides whether the caller speaks.
        echo_guard: detects the bot's echo.
        events: receives the results.
        recorder: records the call. None: the call is not recorded.
        call_id: for the log.
        max_hum_s: longest sound that may still be a hum, seconds.
        suppressing: takes other voices and noise from what the detector hears, if that is wanted. None: it cannot be.
    """

    def __init__(
        self,
        worker: StreamWorker,
        inbound: AudioFormat,
        outbound: AudioFormat,
        detector: SpeechDetector,
        echo_guard: EchoGuard,
        events: UplinkEvents,
        recorder: Recorder | None,
        *,
        call_id: str,
        max_hum_s: float,
        suppressing: HushNetwork | None = None,
    ) -> None:
        self._worker = worker
        self._inbound = inbound
        self._echo_guard = echo_guard
        self._events = events
        self._call_id = call_id
        self._waiting: deque[tuple[int, bool, bytes, float, float]] = deque()
        """Payloads: number, True for the caller's, bytes, time of arrival or sending, time at which it is heard."""
        self._number = 0
        self.heard_s = 0.0
        self._credit_s = _CREDIT_S
        """Seconds of audio that may be queued now; grows with time."""
        self._pushed_at: float | None = None
        self._vad_wanted = False
        self._speech_wanted = False
        self._joins_until_s = 0.0
        """Time in the caller's audio until which speech joins the last short sound, seconds."""
        self._dtmf_wanted = False
        self._lulls_wanted = False
        self._tones_wanted = False
        self._suppressing = suppressing
        self._noise_reduced = False
        self._speech_is_over = False
        self._pcm_rate = 0
        self._closed = False

        def lost(reason: str) -> None:
            worker.on_recording_lost(reason)
            events.on_recording_lost(reason)

        self.tapes = Tapes(inbound, outbound, recorder, worker.recordings, on_lost=lost, call_id=call_id)
        # Only the thread uses the following attributes.
        self.windows = Windows(inbound.sample_rate, detector, echo_guard)
        self._canceller = EchoCanceller(inbound, outbound, echo_guard)
        self._feed = RecogniserFeed(inbound.sample_rate, max_hum_s=max_hum_s)
        self._subscriber: tuple[int, Pieces] | None = None

    # Only the thread uses these three, created on first use: many calls need none.

    @cached_property
    def _decoder(self) -> ConcealingDecoder:
        return ConcealingDecoder(self._inbound)

    @cached_property
    def _dtmf(self) -> Detector:
        return Detector(self._inbound.sample_rate)

    @cached_property
    def _tones(self) -> LineTones:
        return LineTones(self._inbound.sample_rate)

    # --- on the loop -----------------------------------------------------------------------------------------------

    def push(self, payload: bytes, *, now: float) -> None:
        """Queue caller audio. Audio more than ``_CREDIT_S`` ahead of real time is dropped."""
        if self._pushed_at is not None:
            self._credit_s = min(self._credit_s + now - self._pushed_at, _CREDIT_S)
        self._pushed_at = now
        seconds = self._seconds(payload)
        if seconds > self._credit_s:
            self._worker.dropped["too_fast"] += 1
            return
        self._credit_s -= seconds
        self._put(True, payload, now, now)

    def _seconds(self, payload: bytes) -> float:
        """Return the length of a payload in seconds. An Opus packet counts as one frame, since its bytes do not give
        its length."""
        frames = 1.0 if (size := self._inbound.frame_bytes) is None else len(payload) / size
        return frames * self._inbound.ptime_ms / 1000

    def spoke(self, frame: bytes, now: float, heard_at: float) -> None:
        """Pass a sent frame to the echo guard, and queue it if it is recorded or listened to. The echo guard alone does
        not wake the thread; that would happen for every frame of every call."""
        self._echo_guard.sent(frame, now)
        if self.tapes.wanted:
            self._put(False, frame, now, heard_at)

    def _put(self, from_caller: bool, payload: bytes, now: float, heard_at: float) -> None:
        if len(self._waiting) >= (_MAX_WAITING_TAPED if self.tapes.wanted else _MAX_WAITING):
            self._waiting.popleft()
            self._worker.dropped["thread_late"] += 1
        self._number += 1
        self._waiting.append((self._number, from_caller, payload, now, heard_at))
        self._worker.notify(self)

    def unheard(self, seconds: float) -> None:
        """Queue that the last ``seconds`` of sent audio were cut."""
        if self.tapes.kept:
            self.tapes.unheard(seconds, before=self._number + 1)
            self._worker.notify(self)

    def pressed(self, *, now: float) -> None:
        """Queue that the caller pressed a key."""
        if self.tapes.kept:
            self.tapes.pressed(now=now, before=self._number + 1)
            self._worker.notify(self)

    def record(self, state: RecordState, *, now: float) -> bool:
        """Queue a change of the recording. False: the call is not recorded."""
        recorded = self.tapes.record(state, now=now, before=self._number + 1)
        self._worker.notify(self)
        return recorded

    def listen(self, wanted: bool) -> None:
        """Start or stop passing both sides to ``on_both``."""
        self.tapes.listened = wanted
        self._worker.listen(self, wanted)

    def want(
        self, *, vad: bool, pcm_rate: int, dtmf: bool = False, speech: bool = False, lulls: bool = False,
        tones: bool = False,
    ) -> None:  # fmt: skip
        """Set what is needed from now on."""
        self._vad_wanted = vad
        self._speech_wanted = speech
        self._dtmf_wanted = dtmf
        self._lulls_wanted = lulls
        self._tones_wanted = tones
        self._pcm_rate = pcm_rate

    @property
    def rate(self) -> int:
        """Sample rate of the audio for listeners, Hz: the line's."""
        return self.tapes.rate

    def be_sensitive(self, sensitivity: str) -> None:
        """Use one of ``SENSITIVITIES`` from now on."""
        self.windows.detector.sensitivity = SENSITIVITIES[sensitivity]

    def reduce_noise(self, wanted: bool) -> bool:
        """Take other voices and noise from what the detector hears, from now on. False: there is no suppressor."""
        self._noise_reduced = wanted
        return self._suppressing is not None

    def end_speech(self) -> None:
        """End the current speech as if the VAD had heard enough silence."""
        self._speech_is_over = True
        self._worker.notify(self)

    @property
    def needed(self) -> bool:
        """True if pushed audio is used for anything now."""
        return self._vad_wanted or self._dtmf_wanted or self._tones_wanted or self._pcm_rate > 0 or self.tapes.wanted

    def close(self) -> None:
        """End the stream; no more audio follows."""
        self.listen(False)
        self._closed = True
        self._worker.notify(self)

    # --- in the thread ---------------------------------------------------------------------------------------------

    def drain(self, post: Post) -> None:
        """Decode the waiting payloads and pass them on. Complete windows are then taken from ``windows``."""
        bad: ValueError | None = None
        if self._speech_is_over:
            self._speech_is_over = False
            self.report(self.windows.end_speech(), post)
        self.tapes.begin(post)
        while self._waiting:
            number, from_caller, payload, now, heard_at = self._waiting.popleft()
            self.tapes.carry_out(number)
            try:
                if from_caller:
                    following = b"" if payload else next((each[2] for each in self._waiting if each[1]), b"")
                    self._take(payload, following, now, post)
                else:
                    self.tapes.bot(payload, heard_at)
            except ValueError as exc:  # not valid audio of this codec
                bad = exc
        if bad is not None:
            log.warning("caller audio cannot be decoded", extra={"call": self._call_id, "why": str(bad)})
        self.tapes.carry_out(self._number + 1)
        self.tapes.flush(closed=self._closed)

    def _take(self, payload: bytes, following: bytes, now: float, post: Post) -> None:
        pcm = to_float32(self._decoder.decode(payload, following))
        self.tapes.caller(pcm, now)
        if self._vad_wanted and len(pcm):
            near = self._canceller.process(pcm, now)
            self._set_suppressor(post)
            self.report(self.windows.hear(near, now), post)
        else:
            near = pcm
        if self._speech_wanted:
            for piece in self._feed.take(near, now):
                post(partial(self._events.on_speech, piece))
        if self._dtmf_wanted:
            for digit in self._dtmf.process(pcm):
                post(partial(self._events.on_dtmf_heard, digit))
        if self._tones_wanted:
            for tone in self._tones.process(pcm):
                post(partial(self._events.on_tone, tone, ended_at=now - tone.ago_s))
        if self._pcm_rate:
            for piece in self._subscribed(pcm):
                post(partial(self._events.on_pcm, piece))

    def _count_not_suppressed(self) -> None:
        self._worker.dropped["not_suppressed"] += 1

    def _set_suppressor(self, post: Post) -> None:
        """Give the windows their suppressor, or take it away. A thread that is late saves its time for all calls."""
        network, wanted = self._suppressing, self._noise_reduced
        late = wanted and network is not None and len(self._waiting) >= _LATE
        if late:
            post(self._count_not_suppressed)
        if network is None or not wanted or late:
            if self.windows.suppressor is not None:
                self.windows.use(None)
        elif self.windows.suppressor is None:
            self.windows.use(Suppressor(network))

    def _subscribed(self, pcm: Pcm) -> list[bytes]:
        if self._subscriber is None or self._subscriber[0] != self._pcm_rate:
            self._subscriber = (self._pcm_rate, Pieces(self._inbound.sample_rate, self._pcm_rate))
        return list(self._subscriber[1].cut(pcm))

    def tap(self, now: float, post: Post) -> None:
        """Post the audio for listeners that is final."""
        for both in self.tapes.tap(now):
            post(partial(self._events.on_both, both))

    def report(self, heard: Heard | None, post: Post) -> None:
        """Post a result of the detector."""
        if heard is None:
            return
        kind, at = heard
        events = self._events
        if kind in ("lulled", "resumed") and not self._lulls_wanted:
            return
        self.tell_heard(post)
        begins_at = self.windows.short_sound_from
        joins = self.windows.judged_s < self._joins_until_s  # all audio after the short sound is then part of it
        if begins_at is not None and self._speech_wanted and kind in ("dismissed", "hummed"):
            sound = list(self._feed.begin(-math.inf if joins else begins_at))
            self._feed.end()
            self._joins_until_s = self.windows.judged_s + _JOINS_S
            post(partial(events.on_short_sound, onset=begins_at, sound=sound))
        post(
            {
                "suspected": lambda: events.on_speech_suspected(onset=at),
                "dismissed": events.on_speech_dismissed,
                "started": lambda: events.on_speech_started(onset=at),
                "lulled": lambda: events.on_lull(since=at, silence_s=LULL_S),
                "resumed": events.on_speech_resumed,
                "ended": events.on_speech_ended,
                "hummed": lambda: None,
            }[kind]
        )
        if kind == "started" and self._speech_wanted:
            for piece in self._feed.begin(-math.inf if joins else at):
                post(partial(events.on_speech, piece))
        elif kind == "ended":
            self._feed.end()

    def tell_heard(self, post: Post) -> None:
        """Post how much audio has been judged."""
        if self._speech_wanted:
            post(partial(self._set_heard, self.windows.judged_s))

    def _set_heard(self, seconds: float) -> None:
        self.heard_s = seconds
