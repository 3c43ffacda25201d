"""Decodes uploaded sound files in a process of their own, with limits of memory and time.

A faulty or hostile file can end this process, never the calls. The module is also the process's main program: it reads
the file from standard input and writes mono s16le at the rate of its argument to standard output.
"""

from __future__ import annotations

import asyncio
import io
import os
import resource
import sys

import av
from av.audio.resampler import AudioResampler

from gateway.errors import Rejected
from gateway.seams.recogniser import SAMPLE_RATE

LONGEST_S = 600
"""Longest sound, seconds."""

_MEMORY_BYTES = 1 << 30
_CPU_S = 30
_WALL_S = 60.0
_TOO_LONG, _NO_SOUND = 3, 4  # exit codes
_HEAD_BYTES = 12
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
        Rejected: 422, the file has no sound that can be read; 413, the sound is longer than ``LONGEST_S``.
    """
    if not container_of(data[:_HEAD_BYTES]):
        raise _unreadable(field, f"{field} of {len(data)} bytes is none of wav, mp3, ogg, flac, m4a, webm")
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(rate),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(_WALL_S):
            pcm, _ = await process.communicate(data)
    except TimeoutError:
        raise _unreadable(field, f"{field} takes more than {_WALL_S:g} s to decode") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == _TOO_LONG:
        raise Rejected(f"the sound is longer than {LONGEST_S} s", status=413, code="too_large", param=field)
    if process.returncode != 0:
        raise _unreadable(field, f"{field} has no sound that can be decoded")
    return pcm


def _unreadable(field: str, why: str) -> Rejected:
    return Rejected(why, status=422, code="invalid_body", param=field)


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    os.nice(5)


def main() -> int:
    """Run the process. Return the exit code."""
    _limit()
    rate = int(sys.argv[1])
    data = sys.stdin.buffer.read()
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
    except (av.FFmpegError, IndexError, ValueError, MemoryError):
        if not pcm:  # of a file with a damaged end, the beginning is kept
            return _NO_SOUND
    sys.stdout.buffer.write(pcm)
    return 0 if pcm else _NO_SOUND


if __name__ == "__main__":
    sys.exit(main())
