"""Decodes uploaded sound files in a process of their own, with limits of memory and time.

A faulty or hostile file can end this process, never the calls. The module is also the process's main program: it reads
the file from standard input and writes mono s16le at the rate of its argument to standard output. With the argument
``sample`` it measures the recording of a voice: it writes a line of JSON with the fields of ``Measured``, and then the
sound at the rate that the line tells.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from typing import cast

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from gateway.errors import Rejected
from gateway.http.speech_api.audio_file import wav_header
from gateway.http.speech_api.voice_sample import Measured, measure
from gateway.seams.recogniser import SAMPLE_RATE
from tts_engine.api import REFERENCE_HZ, REFERENCE_S
from tts_engine.supervision import SUPERVISOR

log = logging.getLogger(__name__)

LONGEST_S = 600
"""Longest sound, seconds."""

_MEMORY_BYTES = 1 << 30
_CPU_S, _CPU_KILLED_S = 30, 35  # at the first, the signal tells the reason
_WALL_S = 60.0
_TOO_LONG, _NO_SOUND = 3, 4  # exit codes
_STARTS_AFTER_S = (0.0, 0.2, 0.6)
"""Pauses before the tries to start the process, seconds: memory or the table of processes may be full for a moment."""
_RETRY_AFTER_S = 5.0
_BROKEN = (av.FFmpegError, AttributeError, IndexError, ValueError, MemoryError)
_HEAD_BYTES = 12
_SAMPLE = "sample"
_OTHER_HZ = 24_000  # of recordings of a voice whose rate no model takes
_ANNOUNCED = ("flac", "mov")  # containers whose head tells the exact length
_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # the system, for lack of memory, or people
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")  # no secrets


def container_of(head: bytes | bytearray) -> str:
    """Return FFmpeg's name for the container that starts with ``head``. Empty: none of wav, mp3, ogg, flac, m4a, webm.

    FFmpeg must not choose by itself: some of its formats are lists, which open other files.
    """
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"OggS":
        return "ogg"
    if head[:4] == b"fLaC":
        return "flac"
    if head[4:8] == b"ftyp":
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:3] == b"ID3" or (head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE6 == 0xE2):
        return "mp3"
    return ""


async def decoded(data: bytes | bytearray, *, rate: int = SAMPLE_RATE, field: str = "file") -> bytes:
    """Return the sound of a file: mono s16le at ``rate``.

    Args:
        field: the field of the request that errors name.

    Raises:
        Rejected: 422, the file has no sound that can be read; 413, the sound is longer than ``LONGEST_S``; 503, no
            process can be started now, or calls leave it no time.
    """
    status, pcm = await _run(data, str(rate), field)
    if status == _TOO_LONG:
        raise Rejected(f"the sound is longer than {LONGEST_S} s", status=413, code="too_large", param=field)
    return pcm


async def sampled(data: bytes | bytearray) -> tuple[Measured, bytes]:
    """Measure the recording of a voice, and return it as a WAV file: mono, 16 bit, at a rate of ``REFERENCE_HZ``.

    Raises:
        Rejected: 422, the file has no sound that can be read, or its length is not within ``REFERENCE_S``; 503, no
            process can be started now, or calls leave it no time.
    """
    expected = f"expected {REFERENCE_S[0]:g} to {REFERENCE_S[1]:g} s"
    status, answer = await _run(data, _SAMPLE, "audio")
    if status == _TOO_LONG:
        raise _unreadable("audio", f"the audio is longer than {LONGEST_S} s, {expected}")
    head, _, pcm = answer.partition(b"\n")
    fields = json.loads(head)
    rate = fields.pop("rate")
    measured = Measured(**fields)
    if not REFERENCE_S[0] <= measured.seconds <= REFERENCE_S[1]:
        raise _unreadable("audio", f"the audio is {measured.seconds:.2f} s, {expected}")
    return measured, wav_header(rate, len(pcm)) + pcm


async def _run(data: bytes | bytearray, what: str, field: str) -> tuple[int, bytes]:
    """Return the exit code and the output of the process.

    Raises:
        Rejected: 422, the file has no sound that can be read; 503, no process can be started now, or calls leave it no
            time.
    """
    if not container_of(data[:_HEAD_BYTES]):
        raise _unreadable(field, f"{field} of {len(data)} bytes is none of wav, mp3, ogg, flac, m4a, webm")
    for pause_s in _STARTS_AFTER_S:
        await asyncio.sleep(pause_s)
        try:
            status, answer = await _decoded_by_process(data, what)
        except TimeoutError:  # no fault of the file, which is refused after _CPU_S: calls need the processors
            raise _no_process() from None
        except (OSError, RuntimeError) as exc:  # no process, or no thread to talk to it
            _not_started(str(exc))
        else:
            break
    else:
        raise _no_process()
    if status in (0, _TOO_LONG):
        return status, answer
    if status == _NO_SOUND or (status < 0 and -status not in _BY_OTHERS):
        raise _unreadable(field, f"{field} has no sound that can be decoded")
    _not_started(f"it ended with code {status}")  # the system has killed it, or it could not load its libraries
    raise _no_process()


def _not_started(why: str) -> None:
    SUPERVISOR.not_started("sound decoder")
    log.error("the sound decoder did not start", extra={"why": why})


def _no_process() -> Rejected:
    message = "the server is too busy to decode sound now"
    return Rejected(message, status=503, code="unavailable", retry_after_s=_RETRY_AFTER_S)


_PROGRAM = f"import os; os.nice(10); from {__name__} import main; raise SystemExit(main())"
"""Gives way to the calls before it loads its libraries, which takes most of its time."""


async def _decoded_by_process(data: bytes | bytearray, what: str) -> tuple[int, bytes]:
    """Return the exit code and the output of the process. It ends when the caller of this function is cancelled.

    Raises:
        OSError: no process can be started.
        RuntimeError: no thread can be started.
        TimeoutError: it takes more than ``_WALL_S``.
    """
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    is_unwanted = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def run() -> tuple[int, bytes]:
        # Not by uvloop, which forks: that copies the page tables of the gateway, and then every page that a call uses
        # faults once. ``Popen`` uses ``vfork``.
        with subprocess.Popen(
            (sys.executable, "-c", _PROGRAM, what),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},
        ) as process:  # fmt: skip
            running.append(process)
            try:
                if not is_unwanted.is_set():
                    answer, _ = process.communicate(cast(bytes, data), timeout=_WALL_S)
                    return process.returncode, answer
            except subprocess.TimeoutExpired:
                pass
            finally:
                process.kill()
        raise TimeoutError

    try:
        return await asyncio.to_thread(run)
    finally:
        is_unwanted.set()
        for process in running:
            process.kill()


def _unreadable(field: str, why: str) -> Rejected:
    return Rejected(why, status=422, code="invalid_body", param=field)


def _limit() -> None:
    for what, soft, hard in (
        (resource.RLIMIT_AS, _MEMORY_BYTES, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S, _CPU_KILLED_S),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(what, (soft, hard))


def main() -> int:
    """Run the process. Return the exit code. Any other code means that the process could not start."""
    _limit()
    try:
        return _decode()
    except Exception:  # whatever a file does to a decoder, it is the file
        return _NO_SOUND


def _decode() -> int:
    data = sys.stdin.buffer.read()
    if sys.argv[1] == _SAMPLE:
        return _sample(data)
    rate = int(sys.argv[1])
    pcm = bytearray()
    try:
        with av.open(io.BytesIO(data), "r", format=container_of(data[:_HEAD_BYTES])) as file:
            stream = file.streams.audio[0]
            stream.codec_context.thread_count = 1
            resampler = AudioResampler(format="s16", layout="mono", rate=rate)
            for frame in file.decode(stream):
                for part in resampler.resample(frame):
                    pcm += part.to_ndarray().tobytes()
                if len(pcm) > LONGEST_S * rate * 2:
                    return _TOO_LONG
            for part in resampler.resample(None):
                pcm += part.to_ndarray().tobytes()
    except _BROKEN:
        if not pcm:  # of a file with a damaged end, the beginning is kept
            return _NO_SOUND
    sys.stdout.buffer.write(pcm)
    return 0 if pcm else _NO_SOUND


def _sample(data: bytes) -> int:
    """Write the measures of a recording and its sound. Of a recording that is too long, only the beginning is kept."""
    container = container_of(data[:_HEAD_BYTES])
    kept: list[NDArray[np.int16]] = []
    samples, own_rate, channels, announced_s = 0, 0, 0, 0.0
    rate, most = _OTHER_HZ, 0.0
    products = np.zeros(3)  # of the first two channels: left with left, right with right, left with right
    try:
        with av.open(io.BytesIO(data), "r", format=container, metadata_errors="replace") as file:
            stream = file.streams.audio[0]
            stream.codec_context.thread_count = 1
            own_rate, channels = stream.rate, stream.channels
            rate = own_rate if own_rate in REFERENCE_HZ else _OTHER_HZ
            most = REFERENCE_S[1] * rate
            if container in _ANNOUNCED and file.duration:
                announced_s = file.duration / av.time_base
            # Packed, because with more than eight planar channels PyAV reads beyond the end of its table of planes.
            resampler = AudioResampler(format="s16", layout=stream.layout, rate=rate)
            for frame in itertools.chain(file.decode(stream), (None,)):
                for part in resampler.resample(frame):
                    frames = part.to_ndarray().reshape(-1, part.layout.nb_channels)
                    samples += len(frames)
                    if samples > LONGEST_S * rate:
                        return _TOO_LONG
                    if channels > 1:
                        left, right = frames[:, 0].astype(np.float64), frames[:, 1].astype(np.float64)
                        products += left @ left, right @ right, left @ right
                    if samples <= most:
                        kept.append(np.round(frames.mean(axis=1)).astype("<i2"))
    except _BROKEN:
        if not samples:
            return _NO_SOUND
    if not samples:
        return _NO_SOUND
    pcm = np.concatenate(kept) if kept else np.zeros(0, "<i2")
    seconds = samples / rate
    missing_s = announced_s - seconds
    sound = measure(pcm, rate)
    measured = Measured(
        seconds=round(seconds, 2),
        sample_rate=own_rate,
        channels=channels,
        alike=round(float(products[2] / max(1.0, np.sqrt(products[0] * products[1]))), 3) if channels > 1 else 1.0,
        missing_s=round(missing_s, 1) if 0.5 < missing_s < LONGEST_S else 0.0,
        **asdict(replace(sound, bandwidth_hz=min(sound.bandwidth_hz, own_rate // 2))),
    )
    sys.stdout.buffer.write(json.dumps({**asdict(measured), "rate": rate}).encode() + b"\n" + pcm.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
