"""Maps RTP encoding names and clocks (RFC 3551 table 4, RFC 7587) to codecs; the audio format of a leg as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voicecodecs import g711, g722, l16, opus

RTP_CLOCK_HZ = {"PCMU": 8000, "PCMA": 8000, "G722": 8000, "OPUS": 48000}
"""Clock of RTP timestamps by encoding. G722's is 8000 although it samples at 16000 (RFC 3551 section 4.5.2)."""

_SAMPLE_RATES = {"PCMU": (8000,), "PCMA": (8000,), "G722": (g722.SAMPLE_RATE,), "OPUS": opus.SAMPLE_RATES}
"""Sample rates of an encoding; L16 takes any rate up to ``_MAX_RATE``."""

_MAX_RATE = 192_000

_PTIMES_MS = (*range(10, 61, 10), 80, 100, 200)
"""Frame lengths of encodings without packets of their own. RTP uses at most 60; some carriers' WebSockets want fewer
and larger messages."""

_OPUS_FEC_MS = 20
"""Longest Opus frames that carry a copy of the frame before (in-band FEC), milliseconds. Copies of longer ones cost so
many bits that a steady tone is shifted. Both sides of a call state useinbandfec=1 (RFC 7587 section 6.1)."""

_OPUS_LOSS_PERCENT = 20
_OPUS_BITRATE = 32_000
"""Bits per second with which the copies do not cost the upper band."""

_FRAME_BITS_PER_SAMPLE = {"PCMU": 8, "PCMA": 8, "G722": 4, "L16": 16}
"""Bits per sample of the encodings with a constant rate. OPUS is absent because its packets vary in size."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """The audio format of one direction of a leg: encoding, sample rate and frame length. Always mono.

    Raises:
        ValueError: the combination is not possible; the message lists possible values.
    """

    encoding: str = "PCMU"
    """RTP encoding name in upper case: PCMU, PCMA, G722, OPUS or L16 (s16le here; RTP swaps it on the wire)."""

    sample_rate: int = 8000
    """Hz of the audio that is encoded: 8000 for PCMU and PCMA, 16000 for G722, 48000 (or 8000, 12000, 16000, 24000)
    for OPUS, any for L16."""

    ptime_ms: int = 20
    """Audio per frame, milliseconds (RFC 8866 section 6.4): 10 to 60 in tens, or 80, 100, 200 for
    peers that want few large messages; OPUS has no 30, no 50 and none over 60."""

    def __post_init__(self) -> None:
        if self.encoding not in _FRAME_BITS_PER_SAMPLE and self.encoding != "OPUS":
            raise ValueError(f"encoding is {self.encoding!r}, expected one of PCMU, PCMA, G722, OPUS, L16")
        rates = _SAMPLE_RATES.get(self.encoding)
        if rates and self.sample_rate not in rates:
            expected = " or ".join(map(str, rates))
            raise ValueError(f"{self.encoding} sample_rate is {self.sample_rate} Hz, expected {expected}")
        if not 0 < self.sample_rate <= _MAX_RATE:
            raise ValueError(f"{self.encoding} sample_rate is {self.sample_rate} Hz, expected 1 to {_MAX_RATE}")
        durations = opus.FRAME_MS if self.encoding == "OPUS" else _PTIMES_MS
        if self.ptime_ms not in durations:
            expected = ", ".join(map(str, durations))
            raise ValueError(f"{self.encoding} ptime_ms is {self.ptime_ms}, expected one of {expected}")
        if self.sample_rate * self.ptime_ms % 1000:
            raise ValueError(f"ptime_ms {self.ptime_ms} is not a whole number of samples at {self.sample_rate} Hz")

    @property
    def frame_samples(self) -> int:
        """Samples per frame at ``sample_rate``."""
        return self.sample_rate * self.ptime_ms // 1000

    @property
    def frame_bytes(self) -> int | None:
        """Bytes per frame; None for OPUS, whose packets vary."""
        bits = _FRAME_BITS_PER_SAMPLE.get(self.encoding)
        return None if bits is None else self.frame_samples * bits // 8

    @property
    def rtp_clock_hz(self) -> int:
        """Clock of the RTP timestamp, Hz."""
        return RTP_CLOCK_HZ.get(self.encoding, self.sample_rate)

    def silence_frame(self) -> bytes:
        """Return one payload of silence, for a stream that starts with silence or has no encoder of its own.

        Decoders of G722 and OPUS adapt to every frame. Within speech, encode zeros with the stream's encoder instead.
        """
        return _silence_frame(self)


class Encoder(Protocol):
    """Converts samples to payloads. It has the codec's state, so each direction of a call needs its own, fed in order.

    Not thread-safe.
    """

    def encode(self, pcm: NDArray[np.int16]) -> bytes:
        """Encode one frame. If ``frame_bytes`` is a number, any whole number of frames may be encoded at once.

        Args:
            pcm: shape ``(frame_samples,)``, int16, at the format's ``sample_rate``.

        Raises:
            ValueError: the array has another type, shape or length.
        """
        ...


class Decoder(Protocol):
    """Converts payloads to samples. It has the codec's state, so each direction of a call needs its own, fed in order.

    Not thread-safe.
    """

    def decode(self, payload: bytes) -> NDArray[np.int16]:
        """Decode one payload of any duration, since senders may use another ptime than the agreed one.

        Returns:
            int16 at the format's ``sample_rate``.

        Raises:
            ValueError: the payload is empty, cut within a sample, or not of this encoding.
        """
        ...


_ENCODERS: dict[str, Callable[[AudioFormat], Callable[[NDArray[np.int16]], bytes]]] = {
    "PCMU": lambda fmt: g711.encode_ulaw,
    "PCMA": lambda fmt: g711.encode_alaw,
    "G722": lambda fmt: g722.Encoder().encode,
    "OPUS": lambda fmt: _opus_encoder(fmt).encode,
    "L16": lambda fmt: l16.encode_l16,
}

_DECODERS: dict[str, Callable[[AudioFormat], Callable[[bytes], NDArray[np.int16]]]] = {
    "PCMU": lambda fmt: g711.decode_ulaw,
    "PCMA": lambda fmt: g711.decode_alaw,
    "G722": lambda fmt: g722.Decoder().decode,
    "OPUS": lambda fmt: opus.Decoder(fmt.sample_rate).decode,
    "L16": lambda fmt: l16.decode_l16,
}


def _opus_encoder(fmt: AudioFormat) -> opus.Encoder:
    if fmt.ptime_ms > _OPUS_FEC_MS:
        return opus.Encoder(fmt.sample_rate)
    return opus.Encoder(fmt.sample_rate, bitrate=_OPUS_BITRATE, fec_loss_percent=_OPUS_LOSS_PERCENT)


class _FrameEncoder:
    """An encoding's function with the checks of :class:`Encoder`."""

    __slots__ = ("_encode", "_format")

    def __init__(self, fmt: AudioFormat) -> None:
        self._format = fmt
        self._encode = _ENCODERS[fmt.encoding](fmt)

    def encode(self, pcm: NDArray[np.int16]) -> bytes:
        fmt = self._format
        samples = len(pcm)
        whole = samples == fmt.frame_samples if fmt.frame_bytes is None else samples % fmt.frame_samples == 0
        if not whole or not samples:
            raise ValueError(
                f"{fmt.encoding} was given {samples} samples, expected frames of {fmt.frame_samples} "
                f"({fmt.ptime_ms} ms at {fmt.sample_rate} Hz)"
            )
        return self._encode(pcm)


class _PayloadDecoder:
    """An encoding's function with the checks of :class:`Decoder`."""

    __slots__ = ("_decode", "_encoding")

    def __init__(self, fmt: AudioFormat) -> None:
        self._encoding = fmt.encoding
        self._decode = _DECODERS[fmt.encoding](fmt)

    def decode(self, payload: bytes) -> NDArray[np.int16]:
        if not payload:
            raise ValueError(f"{self._encoding} payload is 0 bytes, expected at least one sample")
        return self._decode(payload)


def encoder(fmt: AudioFormat) -> Encoder:
    """Return a fresh encoder of that format."""
    return _FrameEncoder(fmt)


def decoder(fmt: AudioFormat) -> Decoder:
    """Return a fresh decoder of that format."""
    return _PayloadDecoder(fmt)


def by_rtp_name(name: str, *, ptime_ms: int = 20) -> AudioFormat:
    """Return the format of an ``a=rtpmap`` value such as ``PCMU/8000``, ``opus/48000/2`` or ``L16/16000``.

    Names are compared without case (RFC 8866 section 6.6). ``L16`` is s16le, as everywhere here; RTP must swap it.

    Raises:
        ValueError: the name has another shape, an unknown encoding, a wrong clock, or more than one channel.
    """
    parts = name.split("/")
    encoding = parts[0].upper()
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts[1:]):
        raise ValueError(f"RTP encoding is {name!r}, expected NAME/CLOCK or NAME/CLOCK/CHANNELS")
    clock, channels = int(parts[1]), int(parts[2]) if len(parts) == 3 else 1
    if clock != RTP_CLOCK_HZ.get(encoding, clock):
        raise ValueError(f"RTP encoding is {name!r}, expected a clock of {RTP_CLOCK_HZ[encoding]} Hz for {encoding}")
    # Opus is always declared with two channels, regardless of the audio (RFC 7587 section 7).
    if channels != (2 if encoding == "OPUS" else 1):
        raise ValueError(
            f"RTP encoding is {name!r}, expected {'opus/48000/2' if encoding == 'OPUS' else 'one channel'}"
        )
    return AudioFormat(encoding, g722.SAMPLE_RATE if encoding == "G722" else clock, ptime_ms)


@lru_cache(maxsize=64)
def _silence_frame(fmt: AudioFormat) -> bytes:
    return encoder(fmt).encode(np.zeros(fmt.frame_samples, np.int16))
