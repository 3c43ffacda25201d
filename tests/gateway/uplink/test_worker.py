"""The uplink thread: what reaches the session, what is bounded, and what one call cannot do to the others.

Whom the thread hears speaking is in ``test_barge_in``. A test that needs the thread to be busy makes it wait for the
time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.config import BargeInConfig, RouteConfig
from gateway.uplink.recorder import Recorder
from gateway.uplink.recording_thread import RecordingQueue
from gateway.uplink.stream import Stream
from gateway.uplink.worker import UplinkWorker
from tests.codecs.test_conceal import glide
from tests.gateway.answering.line_sounds import silence, tone
from tests.gateway.uplink.uplink_fakes import HANG_S, PCMU, Heard, settled
from tests.no_room import needs_seccomp, refused_by_the_kernel
from tests.waiting import until
from voicecodecs.conceal import ConcealingDecoder
from voicecodecs.dtmf import WaryDetector, tones
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_float32, to_int16
from voicecodecs.registry import AudioFormat, encoder
from voicecodecs.resample import resample

L16 = AudioFormat("L16", 16000)


@contextmanager
def running(
    recorders: dict[str, Recorder] | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[UplinkWorker]:
    worker = UplinkWorker(
        {"r": RouteConfig()},
        BargeInConfig(),
        recorder=lambda call_id, route, rate: (recorders or {}).get(call_id),
        clock=clock,
    )
    try:
        yield worker
    finally:
        worker.close()


def frame(level: int) -> bytes:
    """20 ms of L16 that tell by their level which they are."""
    return np.full(L16.frame_samples, level, "<i2").tobytes()


def levels(heard: Heard) -> list[int]:
    return [int(np.frombuffer(piece, "<i2")[0]) for piece in heard.pcm]


class BusyClock:
    """A clock for which the thread waits until it is let go. The thread asks it for each listener."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> float:
        self.entered.set()
        assert self.let_go.wait(HANG_S)
        return 0.0


class Broken(Recorder):
    """A recording that raises at every write."""

    def __init__(self, path: Path, error: Callable[[], Exception]) -> None:
        super().__init__(path, rate=8000, max_s=10.0, started=0.0)
        self._error = error

    def caller(self, pcm: NDArray[np.float32], *, at: float) -> None:
        raise self._error()

    def bot(self, pcm: NDArray[np.float32], *, at: float) -> None:
        raise self._error()


class OnAHangingDisk(Recorder):
    """A recording that opens its file when somebody reads a pipe. Until then the attempt blocks, as any does on a disk
    whose server is gone."""

    def __init__(self, path: Path, pipe: Path) -> None:
        super().__init__(path, rate=16000, max_s=60.0, started=0.0)
        self._pipe = pipe

    def open(self) -> None:
        if not self.begun:
            os.close(os.open(self._pipe, os.O_WRONLY))
            super().open()


async def test_each_call_gets_its_own_audio_in_order() -> None:
    with running() as worker:
        calls = [Heard() for _ in range(3)]
        streams = [worker.open(f"VX{n}", L16, L16, "r", heard) for n, heard in enumerate(calls)]
        for stream in streams:
            stream.want(vad=True, pcm_rate=16000)
        for index in range(60):
            for number, stream in enumerate(streams):
                stream.push(frame(1000 * (number + 1) + index), now=0.02 * (index + 1))
        await settled(worker)
    for number, heard in enumerate(calls):
        assert levels(heard) == [1000 * (number + 1) + index for index in range(60)]


async def test_a_recording_tone_is_reported_with_the_second_of_its_end() -> None:
    heard = Heard()
    sound = np.concatenate((silence(0.4), tone(1000, seconds=0.4), silence(0.4)))
    wide = resample(sound, 8000, 16000)
    with running() as worker:
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.want(vad=False, pcm_rate=0, tones=True)
        assert stream.needed
        for number in range(60):
            piece = to_int16(wide[number * L16.frame_samples : (number + 1) * L16.frame_samples])
            stream.push(piece.astype("<i2").tobytes(), now=number * 0.02)
        await settled(worker)
    ((found, ended_at),) = heard.tones
    assert (found.kind, found.length_s) == ("beep", pytest.approx(0.4, abs=0.02))
    assert ended_at == pytest.approx(0.8, abs=0.03)


async def test_a_stream_is_needed_by_whoever_wants_something_and_a_recording_wants_all(tmp_path: Path) -> None:
    recording = Recorder(tmp_path / "VX1.wav", rate=8000, max_s=10.0, started=0.0)
    with running({"recorded": recording}) as worker:
        stream = worker.open("VX", PCMU, PCMU, "r", Heard())
        assert not stream.needed
        for vad, pcm_rate, dtmf in ((True, 0, False), (False, 8000, False), (False, 0, True)):
            stream.want(vad=vad, pcm_rate=pcm_rate, dtmf=dtmf)
            assert stream.needed
        stream.want(vad=False, pcm_rate=0)
        assert not stream.needed
        recorded = worker.open("recorded", PCMU, PCMU, "r", Heard())
        assert recorded.needed
        recorded.close()


async def test_a_subscription_may_change_its_rate_and_end_during_the_call() -> None:
    with running() as worker:
        heard = Heard()
        stream = worker.open("VX", L16, L16, "r", heard)
        for pcm_rate in (16000, 8000, 0):
            stream.want(vad=False, pcm_rate=pcm_rate)
            for _ in range(5):
                stream.push(frame(100), now=0.0)
            await settled(worker)
    assert [len(piece) for piece in heard.pcm[:5]] == [640] * 5
    # The last piece waits for the resampler's look ahead.
    assert [len(piece) for piece in heard.pcm[5:]] == [320] * 4


async def test_a_thread_that_falls_behind_loses_the_oldest_of_that_call_and_counts() -> None:
    busy = BusyClock()
    with running(clock=busy) as worker:
        worker.open("busy", PCMU, PCMU, "r", Heard()).listen(True)
        assert await asyncio.to_thread(busy.entered.wait, HANG_S)
        many, few = Heard(), Heard()
        flooded, other = (worker.open("VX", L16, L16, "r", heard) for heard in (many, few))
        for stream, count in ((flooded, 107), (other, 3)):
            stream.want(vad=False, pcm_rate=16000)
            for index in range(count):
                stream.push(frame(index), now=0.0)
        busy.let_go.set()
        await settled(worker)
    assert worker.dropped == {"thread_late": 7}
    assert levels(many) == list(range(7, 107))
    assert levels(few) == [0, 1, 2]


async def test_a_thread_that_falls_behind_misses_nothing_of_what_it_records(tmp_path: Path) -> None:
    """A recording lacked the first words of a greeting that was spoken while the thread waited for a processor."""
    busy, path = BusyClock(), tmp_path / "VX1.wav"
    recording = Recorder(path, rate=16000, max_s=60.0, started=0.0)
    with running({"VX1": recording}, clock=busy) as worker:
        worker.open("busy", PCMU, PCMU, "r", Heard()).listen(True)
        assert await asyncio.to_thread(busy.entered.wait, HANG_S)
        stream = worker.open("VX1", L16, L16, "r", Heard())
        for index in range(400):
            stream.push(frame(index + 1), now=0.02 * (index + 1))
            stream.spoke(frame(index + 1), 0.02 * index, 0.02 * index)
        stream.close()
        busy.let_go.set()
        await settled(worker)
    assert not worker.dropped
    with wave.open(str(path)) as file:
        sides = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, L16.frame_samples, 2)
    assert sides[:, 0].tolist() == [[index + 1] * 2 for index in range(400)]


async def test_a_payload_that_is_no_audio_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    with running() as worker:
        heard = Heard()
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.want(vad=False, pcm_rate=16000)
        for payload in (frame(1), b"\1\2\3", frame(2), frame(3)):
            stream.push(payload, now=0.0)
        await settled(worker)
    assert levels(heard) == [1, 2, 3]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_bug_met_on_one_call_does_not_deafen_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as worker:
        heard = Heard()
        broken, stream = worker.open("broken", L16, L16, "r", Heard()), worker.open("VX", L16, L16, "r", heard)
        monkeypatch.setattr(broken, "drain", lambda post: 1 / 0)
        stream.want(vad=False, pcm_rate=16000)
        broken.push(frame(0), now=0.0)
        stream.push(frame(1), now=0.0)  # in one batch with the broken one, and after it
        await until(lambda: heard.pcm)
        stream.push(frame(2), now=0.02)
        await settled(worker)
    assert levels(heard) == [1, 2]
    assert "uplink worker failed" in caplog.messages


async def test_a_full_disk_ends_the_recording_and_not_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "VX.part").symlink_to("/dev/full")  # the kernel answers ENOSPC to each write
    with running({"VX": Recorder(tmp_path / "VX.wav", rate=16000, max_s=10.0, started=0.0)}) as worker:
        heard, counted = Heard(), []
        worker.on_recording_lost = counted.append
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.want(vad=False, pcm_rate=16000)
        stream.spoke(frame(0), now=0.0, heard_at=0.0)
        for index in range(3):
            stream.push(frame(index), now=0.02 * index)
        stream.close()
        await until(lambda: heard.lost)
        await settled(worker)
    assert levels(heard) == [0, 1, 2]
    assert caplog.messages == ["a recording was given up"]
    assert heard.lost == counted == ["disk_full"]
    assert list(tmp_path.iterdir()) == []


@needs_seccomp
async def test_a_recording_that_does_not_reach_the_disk_at_its_end_is_told_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a write that the system has put off comes with the sync."""
    with running({"VX": Recorder(tmp_path / "VX.wav", rate=16000, max_s=10.0, started=0.0)}) as worker:
        started = RecordingQueue(worker.recordings)
        refused_by_the_kernel("sync", errno.EIO, lambda: worker.recordings.work_on(started))
        heard, counted = Heard(), list[str]()
        worker.on_recording_lost = counted.append
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.push(frame(1), now=0.0)
        stream.close()
        await until(lambda: heard.lost, "the loss")
    assert heard.lost == counted == ["unwritable"]
    assert caplog.messages == ["a recording was given up"]
    assert [each.name for each in tmp_path.iterdir()] == ["VX.part"]


async def test_a_bug_in_a_recording_costs_that_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = Heard(), Recorder(tmp_path / "whole.wav", rate=16000, max_s=10.0, started=0.0)
    recorders = {"VX": Broken(tmp_path / "VX.wav", lambda: ZeroDivisionError()), "whole": whole}
    with running(recorders) as worker:
        for call_id, heard in (("VX", broken), ("whole", Heard())):
            stream = worker.open(call_id, L16, L16, "r", heard)
            stream.push(frame(1), now=0.0)
            stream.close()
        await until(lambda: broken.lost)
    assert broken.lost == ["unwritable"]
    assert caplog.messages == ["recording failed", "a recording was given up"]
    assert len(sides(tmp_path / "whole.wav")) == L16.frame_samples


async def test_a_disk_that_never_answers_costs_the_recordings_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    recorders: dict[str, Recorder] = {f"VX{n}": OnAHangingDisk(tmp_path / f"VX{n}.wav", pipe) for n in range(3)}
    with running(recorders, clock=lambda: now) as worker:
        heard = [Heard(), Heard()]
        streams = [worker.open(f"VX{n}", L16, L16, "r", heard[n]) for n in range(2)]
        for stream in streams:
            stream.want(vad=False, pcm_rate=16000)
            stream.push(frame(1), now=0.0)
            await settled(worker)  # in this order the second waits for the first one's disk
        now = 9.0
        streams[1].close()  # the end of a call ends no waiting
        streams[0].push(frame(2), now=now)
        await settled(worker)
        assert [one.lost for one in heard] == [[], []], "not yet"
        now = 10.1
        streams[0].push(frame(3), now=now)
        await until(lambda: heard[0].lost and heard[1].lost)
        streams[0].push(frame(4), now=now)
        await settled(worker)
        assert not streams[0].record("pause", now=now)
        assert [one.lost for one in heard] == [["hung"], ["hung"]]
        assert levels(heard[0]) == [1, 2, 3, 4]
        streams[0].close()
        answers = os.open(pipe, os.O_RDWR)  # the disk is back
        later = worker.open("VX2", L16, L16, "r", Heard())
        later.push(frame(5), now=now)
        later.close()
    os.close(answers)
    assert len(sides(tmp_path / "VX2.wav"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["VX2.wav", "pipe"], "a part without sound is removed"
    assert caplog.messages == ["a recording was given up"] * 2


async def test_a_folder_that_is_gone_costs_the_recording_at_its_first_sound_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recording = Recorder(tmp_path / "file" / "VX.wav", rate=16000, max_s=10.0, started=0.0)
    with running({"VX": recording}) as worker:
        heard = Heard()
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.want(vad=False, pcm_rate=16000)
        stream.push(frame(1), now=0.0)
        await until(lambda: heard.lost)
        stream.push(frame(2), now=0.02)
        await settled(worker)
        assert not stream.record("pause", now=0.02), "there is none"
    assert heard.lost == ["unwritable"]
    assert levels(heard) == [1, 2]


def sides(path: Path) -> NDArray[np.float32]:
    with wave.open(str(path)) as file:
        return to_float32(np.frombuffer(file.readframes(file.getnframes()), "<i2")).reshape(-1, 2)


async def recorded(
    path: Path,
    fmt: AudioFormat,
    theirs: NDArray[np.float32],
    ours: NDArray[np.float32],
    during: Callable[[Stream, float], None] = lambda stream, now: None,
) -> NDArray[np.float32]:
    """Return the recording of a call, both sides of one length. ``during`` is called before each frame."""
    with running({"VX": Recorder(path, rate=fmt.sample_rate, max_s=60.0, started=0.0)}) as worker:
        stream = worker.open("VX", fmt, fmt, "r", Heard())
        encoders = encoder(fmt), encoder(fmt)
        for index in range(len(theirs) // fmt.frame_samples):
            part, at = slice(index * fmt.frame_samples, (index + 1) * fmt.frame_samples), 0.02 * index
            during(stream, at)
            stream.spoke(encoders[1].encode(to_int16(ours[part])), now=at, heard_at=at)
            stream.push(encoders[0].encode(to_int16(theirs[part])), now=at + 0.02)
            if index % 20 == 19:
                await settled(worker)
        stream.close()
        await settled(worker)
    return sides(path)


CARD = "492917"


@pytest.mark.parametrize(
    ("fmt", "tone_ms", "pause_ms", "dbm0", "noise"),
    [
        (PCMU, 100, 100, -9, 0.0),
        (PCMU, 40, 40, -9, 0.0),
        (PCMU, 80, 60, -33, 0.0),
        (PCMU, 100, 60, -12, 0.02),
        (AudioFormat("G722", 16000), 80, 60, -25, 0.0),
        (AudioFormat("OPUS", 48000), 80, 60, -9, 0.0),
    ],
    ids=["usual", "fastest", "weak", "noisy", "G722", "OPUS"],
)
async def test_no_touch_tone_of_either_side_is_left_in_a_recording(
    fmt: AudioFormat, tone_ms: float, pause_ms: float, dbm0: float, noise: float, tmp_path: Path
) -> None:
    rate = fmt.sample_rate
    speech = 0.1 * np.sin(2 * np.pi * 250 * np.arange(rate // 2) / rate).astype(np.float32)
    keys = tones(CARD, rate, tone_ms=tone_ms, pause_ms=pause_ms, level_dbm0=dbm0)
    keys = np.concatenate((speech, np.zeros(rate // 4, np.float32), keys, np.zeros(rate // 4, np.float32), speech))
    keys += np.random.default_rng(1).normal(0, noise, len(keys)).astype(np.float32)
    other = 0.1 * np.sin(2 * np.pi * 300 * np.arange(len(keys)) / rate).astype(np.float32)
    for side, (theirs, ours) in enumerate(((keys, other), (other, keys))):
        made = await recorded(tmp_path / f"{side}.wav", fmt, theirs, ours)
        wary = WaryDetector(rate)
        digits = wary.process(np.ascontiguousarray(made[:, side]))
        assert digits == "", "a card's number could be read from the file"
        if not noise:
            assert np.abs(made[rate * 11 // 20 : -rate * 11 // 20, side]).max() < 0.004, "nor with a better ear"
        level = np.abs(made[: rate // 4, side]).mean()
        assert level > 0.03 and np.abs(made[-rate // 4 :, side]).mean() > 0.03, "speech before and behind is there"
        assert np.abs(made[rate:, 1 - side]).mean() > 0.03, "and the other side"


async def test_a_key_that_the_leg_tells_of_mutes_what_its_phone_lets_through(tmp_path: Path) -> None:
    """Phones let the first 20 ms of a tone into the audio before they send the event; too short for any detector."""
    rate = PCMU.sample_rate
    said = np.zeros(4 * rate, np.float32)
    said[2 * rate : 2 * rate + 160] = tones("5", rate)[:160]

    def during(stream: Stream, now: float) -> None:
        if round(now, 2) == 2.06:
            stream.pressed(now=now)

    made = await recorded(tmp_path / "VX.wav", PCMU, said, np.zeros_like(said), during)
    assert not made.any()


async def test_pause_resume_and_stop_of_the_manager(tmp_path: Path) -> None:
    told: list[bool] = []

    def during(stream: Stream, now: float) -> None:
        state = {1.0: "pause", 2.0: "resume", 3.0: "stop", 3.5: "resume"}.get(round(now, 2))
        if state is not None:
            told.append(stream.record(state, now=now))  # type: ignore[arg-type]
        if round(now, 2) == 3.6:
            assert not stream.needed

    tone = 0.5 * np.sin(2 * np.pi * 400 * np.arange(4 * 16000) / 16000).astype(np.float32)
    made = await recorded(tmp_path / "VX.wav", L16, tone, tone, during)
    assert told == [True, True, True, False]
    assert len(made) == pytest.approx(3 * 16000, abs=320)
    assert not made[16000 : 2 * 16000].any()
    for side in (0, 1):
        assert np.abs(made[:15900, side]).mean() > 0.2 and np.abs(made[2 * 16000 :, side]).mean() > 0.2


async def test_a_recording_takes_back_what_was_cut(tmp_path: Path) -> None:
    tone = np.full(2 * 16000, 0.5, np.float32)
    path = tmp_path / "VX.wav"
    with running({"VX": Recorder(path, rate=16000, max_s=60.0, started=0.0)}) as worker:
        stream = worker.open("VX", L16, L16, "r", Heard())
        for index in range(20):
            stream.spoke(to_int16(tone[:320]).tobytes(), now=0.0, heard_at=0.02 * index)
        stream.unheard(0.3)
        stream.close()
        await settled(worker)
    assert len(sides(path)) == 0.1 * 16000


def recorded_hz(path: Path) -> tuple[float, list[float]]:
    """Seconds of a recording, and the loudest frequency of caller and bot."""
    with wave.open(str(path)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
    spectrum = np.abs(np.fft.rfft(pcm, axis=0))
    return len(pcm) / 8000, (np.argmax(spectrum, axis=0) * 8000 / len(pcm)).tolist()


@pytest.mark.parametrize(
    "fmt", [PCMU, L16, AudioFormat("G722", 16000), AudioFormat("OPUS", 48000)], ids=lambda fmt: fmt.encoding
)
async def test_a_recording_sounds_as_the_call_did_whatever_the_line_carries(fmt: AudioFormat, tmp_path: Path) -> None:
    path = tmp_path / "VX.wav"
    with running({"VX": Recorder(path, rate=8000, max_s=60.0, started=0.0)}) as worker:
        stream = worker.open("VX", fmt, fmt, "r", Heard())
        at = np.arange(fmt.sample_rate) / fmt.sample_rate
        sines = [np.round(8000 * np.sin(2 * np.pi * hz * at)).astype(np.int16) for hz in (440, 1000)]
        theirs, ours = encoder(fmt), encoder(fmt)
        for index in range(50):
            part = slice(index * fmt.frame_samples, (index + 1) * fmt.frame_samples)
            stream.push(theirs.encode(sines[0][part]), now=0.02 * (index + 1))
            stream.spoke(ours.encode(sines[1][part]), now=0.02 * index, heard_at=0.02 * index)
        stream.close()
        await settled(worker)
    seconds, hz = recorded_hz(path)
    assert seconds == pytest.approx(1.0, abs=0.01)
    assert hz == pytest.approx([440, 1000], abs=2)


@pytest.mark.parametrize("last", [frame(5), b"\1\2\3"], ids=["audio", "garbage"])
async def test_a_call_that_ends_with_the_process_leaves_its_whole_recording(last: bytes, tmp_path: Path) -> None:
    path = tmp_path / "VX.wav"
    worker = UplinkWorker(
        {"r": RouteConfig()},
        BargeInConfig(),
        recorder=lambda call_id, route, rate: Recorder(path, rate=16000, max_s=60.0, started=0.0),
    )
    stream = worker.open("VX", L16, L16, "r", Heard())
    for index in range(10):
        stream.push(frame(5), now=0.02 * (index + 1))
    stream.push(last, now=0.22)
    stream.close()
    worker.close()
    with wave.open(str(path)) as file:
        assert file.getnframes() >= 10 * L16.frame_samples


async def test_audio_that_comes_faster_than_it_is_spoken_is_dropped_and_counted() -> None:
    """One socket at a megabyte a second deafened every other call: the thread decoded hours of sound."""
    with running() as worker:
        heard = Heard()
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.want(vad=False, pcm_rate=16000)
        for index in range(60):
            stream.push(frame(0) * 50, now=0.01 * index)  # a second of sound every 10 ms
            await settled(worker)
        stream.push(frame(0) * 50 * 60, now=10.0)  # a minute in one payload
        await settled(worker)
        assert worker.dropped == {"too_fast": 55 + 1}
        assert len(heard.pcm) == 5 * 50
        for index in range(50):
            stream.push(frame(7), now=10.0 + 0.02 * index)  # and the call is heard again
        await settled(worker)
    assert levels(heard)[5 * 50 :] == [7] * 50


async def test_what_a_network_held_back_is_heard_when_it_comes_at_once() -> None:
    with running() as worker:
        heard = Heard()
        stream = worker.open("VX", L16, L16, "r", heard)
        stream.want(vad=False, pcm_rate=16000)
        stream.push(frame(0), now=0.0)
        for index in range(150):  # three seconds of it, when they are over
            stream.push(frame(index), now=3.0)
            if index % 50 == 0:
                await settled(worker)
        await settled(worker)
    assert not worker.dropped
    assert len(heard.pcm) == 151


async def test_who_listens_in_hears_both_sides_soon_without_what_was_cut_and_without_keys() -> None:
    rate, heard, now = 8000, Heard(), 100.0
    whistle = 0.2 * np.sin(2 * np.pi * 500 * np.arange(2 * rate) / rate).astype(np.float32)
    theirs = whistle.copy()
    theirs[rate // 2 : rate // 2 + 3 * 960] = tones("492", rate, tone_ms=60, pause_ms=60)
    with running(clock=lambda: now) as worker:
        stream = worker.open("VX", PCMU, PCMU, "r", heard)
        for index in range(100):
            now = 100.0 + 0.02 * (index + 1)
            if index == 5:
                stream.listen(True)
                await settled(worker)
                assert stream.needed
            part = slice(160 * index, 160 * (index + 1))
            stream.push(encode_ulaw(to_int16(theirs[part])), now=now)
            if index < 80:  # sent a tenth of a second ahead
                stream.spoke(encode_ulaw(to_int16(whistle[part])), now=now, heard_at=now + 0.1)
            if index == 80:
                stream.unheard(0.1)
            if index % 3 == 2:
                await settled(worker)
        stream.listen(False)
        await settled(worker)
        assert not stream.needed
    pcm = to_float32(np.frombuffer(b"".join(heard.both), "<i2")).reshape(-1, 2)
    assert len(pcm) / rate == pytest.approx(1.88 - 0.16, abs=0.03), (
        "all that began after the first, but the last 160 ms"
    )
    assert WaryDetector(rate).process(np.ascontiguousarray(pcm[:, 0])) == ""
    began_s = 0.12  # after the beginning of the call
    told = [(0.3, 0), (1.2, 0), (0.5, 1), (1.5, 1)]
    for at, side in told:
        assert np.abs(pcm[round((at - began_s) * rate) :, side][:400]).mean() > 0.05, (at, side)
    assert not pcm[round((1.62 + 0.02 - began_s) * rate) :, 1].any(), "cut"


async def test_a_lost_opus_packet_is_heard_from_its_copy_in_the_next_one() -> None:
    fmt, heard, now, lost = AudioFormat("OPUS", 48_000), Heard(), 1.0, {10, 20, 21, 30}
    encode, expected = encoder(fmt).encode, ConcealingDecoder(fmt)
    payloads = [encode(frame) for frame in glide().reshape(-1, 960)]
    with running(clock=lambda: now) as worker:
        stream = worker.open("VX", fmt, PCMU, "r", heard)
        stream.want(vad=False, pcm_rate=48_000)
        for index, payload in enumerate(payloads):
            now += 0.02
            if index not in lost:  # the jitter buffer gives up the packets before it, and passes on all of them
                for _ in range(sum(before in lost for before in (index - 2, index - 1) if index - 1 in lost)):
                    stream.push(b"", now=now)
                stream.push(payload, now=now)
                await settled(worker)
    arrived = [b"" if index in lost else payload for index, payload in enumerate(payloads)]
    wanted = [
        expected.decode(each, b"" if each else following)
        for each, following in zip(arrived, [*arrived[1:], b""], strict=True)
    ]
    pcm = np.frombuffer(b"".join(heard.pcm), np.int16)
    np.testing.assert_allclose(pcm, np.concatenate(wanted)[: len(pcm)], atol=1)
    assert len(pcm) >= 48_000 - 960
