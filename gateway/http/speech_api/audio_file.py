"""Writes speech as a file, whole or as a stream: raw samples, WAV, or a format that FFmpeg encodes. Encoding and whole
files block, so use a thread."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import av
import numpy as np

from voicecodecs.registry import AudioFormat

_UNKNOWN_BYTES = 0xFFFFFFFF
"""Length in a WAV header while the real length is unknown. Players then read to the end of the stream."""

RATES_HZ = (8000, 16000, 22050, 24000, 32000, 44100, 48000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """An audio file format."""

    content_type: str
    rates_hz: tuple[int, ...] = RATES_HZ
    default_hz: int = 24000
    codec: str = ""
    """FFmpeg's encoder. Empty: the samples are not encoded."""
    container: str = ""
    """FFmpeg's muxer."""
    bitrate: int = 0
    """Bits per second. 0: the codec is lossless."""


FORMATS = {
    "wav": FileFormat(content_type="audio/wav"),
    "pcm": FileFormat(content_type="audio/pcm"),
    "ulaw": FileFormat(content_type="audio/basic", rates_hz=(8000,), default_hz=8000),
    "mp3": FileFormat(content_type="audio/mpeg", codec="libmp3lame", container="mp3", bitrate=64_000),
    "opus": FileFormat(
        content_type="audio/ogg", rates_hz=(8000, 16000, 24000, 48000),
        codec="libopus", container="ogg", bitrate=32_000,
    ),
    "aac": FileFormat(content_type="audio/aac", codec="aac", container="adts", bitrate=64_000),
    "flac": FileFormat(content_type="audio/flac", codec="flac", container="flac"),
}  # fmt: skip
"""Formats by name. ``pcm`` is s16le, ``ulaw`` is PCMU without a header. All are mono."""


def engine_format(name: str, rate: int) -> AudioFormat:
    """Return the audio format of the engine for a file of that format and rate."""
    return AudioFormat("PCMU" if name == "ulaw" else "L16", rate, 20)


class Writer(Protocol):
    """Converts frames of ``engine_format`` to bytes of the file, as soon as they are ready."""

    def write(self, frames: Sequence[bytes]) -> bytes: ...

    def close(self) -> bytes:
        """Return the remaining bytes of the encoder. The writer must not be used afterwards."""
        ...


def writer(name: str, rate: int, *, whole: bool = False) -> Writer:
    """Return a writer of one file.

    Args:
        name: one of ``FORMATS``.
        rate: Hz, one of the format's rates.
        whole: return everything at the end, so that the header has the length.
    """
    if FORMATS[name].codec:
        return _Encoded(FORMATS[name], rate)
    if name != "wav":
        return _Raw()
    return _WholeWav(rate) if whole else _StreamedWav(rate)


def wav_header(rate: int, data_bytes: int = _UNKNOWN_BYTES) -> bytes:
    """Return the 44 bytes in front of mono s16le samples (RIFF WAVE, format 1)."""
    riff_bytes = min(data_bytes + 36, _UNKNOWN_BYTES)
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", riff_bytes, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    return head + struct.pack("<4sI", b"data", data_bytes)


class _Raw:
    def write(self, frames: Sequence[bytes]) -> bytes:
        return b"".join(frames)

    def close(self) -> bytes:
        return b""


class _StreamedWav(_Raw):
    def __init__(self, rate: int) -> None:
        self._head = wav_header(rate)

    def write(self, frames: Sequence[bytes]) -> bytes:
        head, self._head = self._head, b""
        return head + super().write(frames)


class _WholeWav:
    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._data = bytearray()

    def write(self, frames: Sequence[bytes]) -> bytes:
        self._data += b"".join(frames)
        return b""

    def close(self) -> bytes:
        return wav_header(self._rate, len(self._data)) + self._data


class _Sink:
    """A write-only file, so that muxers do not seek back."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data


class _Encoded:
    """Writes a compressed file with FFmpeg."""

    def __init__(self, fmt: FileFormat, rate: int) -> None:
        self._sink = _Sink()
        # Each packet is written at once, and an Ogg page has 0.2 s, so that a listener can start early.
        options = {"flush_packets": "1"}
        options |= {"ogg": {"page_duration": "200000"}, "mp3": {"write_xing": "0"}}.get(fmt.container, {})
        self._container = av.open(self._sink, "w", format=fmt.container, options=options)
        stream = self._container.add_stream(fmt.codec, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        self._stream = stream
        if fmt.bitrate:
            self._stream.codec_context.bit_rate = fmt.bitrate
        self._rate = rate
        self._samples = 0

    def write(self, frames: Sequence[bytes]) -> bytes:
        pcm = np.frombuffer(b"".join(frames), "<i2")
        if len(pcm):
            frame = av.AudioFrame.from_ndarray(pcm[None, :], format="s16", layout="mono")
            frame.sample_rate = self._rate
            frame.pts = self._samples
            self._samples += len(pcm)
            self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def close(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()
