"""L16: uncompressed samples. They are little-endian in the server and on WebSockets, and in network order in RTP."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import require


def encode_l16(pcm: NDArray[np.int16]) -> bytes:
    """Encode to s16le, two bytes per sample.

    Raises:
        ValueError: if ``pcm`` is not one-dimensional int16.
    """
    require(pcm, np.int16)
    return pcm.astype("<i2", copy=False).tobytes()


def decode_l16(payload: bytes) -> NDArray[np.int16]:
    """Decode s16le to int16, shape ``(len(payload) // 2,)``.

    Raises:
        ValueError: an odd number of bytes.
    """
    _require_whole_samples(payload)
    return np.frombuffer(payload, "<i2").astype(np.int16)


def swap_byte_order(payload: bytes) -> bytes:
    """Convert s16le to network byte order for RTP (RFC 3551 section 4.5.11), or back.

    Raises:
        ValueError: an odd number of bytes.
    """
    _require_whole_samples(payload)
    return np.frombuffer(payload, "<i2").byteswap().tobytes()


def _require_whole_samples(payload: bytes) -> None:
    if len(payload) % 2:
        raise ValueError(f"L16 payload is {len(payload)} bytes, expected an even number (2 a sample)")
