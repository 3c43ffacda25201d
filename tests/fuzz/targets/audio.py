"""Clips and reference recordings: audio files that strangers choose."""

from __future__ import annotations

import contextlib
import math
import struct

import av
import numpy as np

from gateway.clips.clips import CLIP_S, decode
from gateway.errors import ClipError
from gateway.http.speech_api.audio_file import engine_format, wav_header, writer
from tests.fuzz.target import Target
from tts_engine.cosyvoice.frontend.features import MAX_REFERENCE_S, load_wav
from tts_engine.errors import InvalidRequest

av.logging.set_level(av.logging.PANIC)
_TONE = (np.sin(np.arange(2400) / 9) * 9000).astype("<i2").tobytes()


def _file(name: str, rate: int) -> bytes:
    made = writer(name, rate, whole=True)
    frame = engine_format(name, rate).frame_samples * 2
    return made.write([_TONE[at : at + frame] for at in range(0, len(_TONE) - frame, frame)]) + made.close()


def _wav(code: int, channels: int, rate: int, bits: int, data: bytes) -> bytes:
    """A WAV file with a header that says anything."""
    fmt = struct.pack("<HHIIHH", code, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + len(data))
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + fmt
        + b"data"
        + (struct.pack("<I", len(data)) + data)
    )


SECOND = wav_header(16000, 2 * 16000) + _TONE * 7
CLIPS = (
    _file("wav", 8000), _file("mp3", 16000), _file("opus", 48000), _wav(7, 1, 8000, 8, bytes(800)),
    _wav(6, 2, 8000, 8, bytes(800)), _wav(3, 1, 44100, 32, bytes(800)), _wav(0x11, 1, 8000, 4, bytes(512)),
    _wav(2, 1, 8000, 4, bytes(512)), _wav(1, 8, 192000, 24, bytes(2400)),
)  # fmt: skip
WORDS = (
    b"RIFF",
    b"WAVE",
    b"fmt ",
    b"data",
    b"LIST",
    b"OggS",
    b"OpusHead",
    b"ID3\x04",
    b"\xff\xfb",
    b"fact",
    b"\xfe\xff",
)


def run_clip(data: bytes) -> None:
    """A file becomes mono sound of a bounded length, or a ``ClipError``."""
    with contextlib.suppress(ClipError):
        pcm, rate = decode(data)
        assert pcm.dtype == np.int16 and pcm.ndim == 1 and 0 < len(pcm) <= CLIP_S * rate


def run_reference(data: bytes) -> None:
    """A recording becomes mono sound of a bounded length, or an ``InvalidRequest``."""
    with contextlib.suppress(InvalidRequest):
        pcm, rate = load_wav(data)
        for target in (16_000, 24_000):  # the resampler's kernel has so many rows and columns
            common = math.gcd(rate, target)
            assert (rate // common) * (target // common) < 1_000_000
        assert pcm.ndim == 1 and len(pcm) <= MAX_REFERENCE_S * rate and float(np.abs(pcm).max()) <= 1.0


TARGETS = [
    Target(
        name="clip", run=run_clip, without_text="sound",
        covers=("gateway/clips/clips.py",), seeds=CLIPS, words=WORDS, max_bytes=8192,
        wanted=10_000, quick=60,
    ),
    Target(
        name="voice-upload", run=run_reference, without_text="sound",
        covers=("tts_engine/cosyvoice/frontend/features.py",), words=WORDS,
        seeds=(SECOND, *CLIPS[3:]), max_bytes=40_000, wanted=10_000, quick=60,
    ),
]  # fmt: skip
